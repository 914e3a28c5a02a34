"""Any Hugging Face encoder: device, dtype, pooling, truncation. The only encoder that needs torch.

Loads safetensors only and never runs code from a model's folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from racer_core.encoder.base import Encoded, EncoderSpec, Pooling, unit_rows
from racer_core.errors import ArtifactError

if TYPE_CHECKING:
    import torch

DEFAULT_ENCODER = "microsoft/mdeberta-v3-base"
_BATCH = 32


class HuggingFaceEncoder:
    """A transformer encoder with mean or CLS pooling.

    Args:
        name: A local folder, or a name on the Hugging Face hub.
        pooling: ``mean`` over the tokens that are not padding, or the first token (``cls``).
        max_tokens: Longer texts are cut, and reported as truncated.
        backend: ``cuda`` or ``cpu``; None takes the GPU when there is one.
        dtype: ``bfloat16`` or ``float32``; None takes bfloat16 on a GPU and on a CPU that
            multiplies it natively, else float32.

    Raises:
        ArtifactError: The model cannot be loaded, or the device is not there.
    """

    def __init__(
        self,
        name: str = DEFAULT_ENCODER,
        *,
        pooling: Pooling = "mean",
        max_tokens: int = 512,
        backend: str | None = None,
        dtype: str | None = None,
    ) -> None:
        import torch
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils import logging as transformers_logging

        _check_options(pooling, backend, dtype)
        transformers_logging.disable_progress_bar()  # ours is shown by whoever wants one
        backend = backend or ("cuda" if torch.cuda.is_available() else "cpu")
        if backend == "cuda" and not torch.cuda.is_available():
            raise ArtifactError("the encoder is set to cuda, but torch finds no CUDA device here")
        dtype = dtype or _native_dtype(backend)
        try:
            self._tokenizer: Any = cast(Any, AutoTokenizer).from_pretrained(name)
            model: Any = cast(Any, AutoModel).from_pretrained(
                name, dtype=getattr(torch, dtype), use_safetensors=True, trust_remote_code=False
            )
        except (OSError, ValueError, SafetensorError) as exc:
            raise ArtifactError(
                f"encoder {name!r} is neither a folder with safetensors weights nor a model that "
                f"the hub gives here: {str(exc).splitlines()[0]}"
            ) from exc
        if not self._tokenizer.is_fast:
            raise ArtifactError(f"encoder {name!r} has no fast tokenizer (tokenizer.json)")
        digest = _digest(model, self._tokenizer)
        self._model: Any = model.to(backend).eval()
        # Some models number positions from 2 on, so that the tokenizer's limit is the smaller one.
        limit = min(
            getattr(model.config, "max_position_embeddings", max_tokens),
            self._tokenizer.model_max_length,
        )
        self.spec = EncoderSpec(
            kind="huggingface",
            name=name,
            digest=digest,
            pooling=pooling,
            max_tokens=min(max_tokens, limit),
            backend=backend,
            dtype=dtype,
        )

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Embed texts, longest first so that a batch pads little."""
        lengths = [len(text) for text in texts]
        order = sorted(range(len(texts)), key=lengths.__getitem__, reverse=True)
        truncated = np.zeros(len(texts), dtype=bool)
        parts: list[NDArray[np.float32]] = []
        for start in range(0, len(order), _BATCH):
            rows = order[start : start + _BATCH]
            vectors, truncated[rows] = self._forward([texts[i] for i in rows])
            parts.append(vectors)
        if not parts:
            width = int(self._model.config.hidden_size)
            return Encoded(np.zeros((0, width), np.float32), truncated)
        embeddings = np.empty((len(texts), parts[0].shape[1]), dtype=np.float32)
        embeddings[order] = np.concatenate(parts)
        return Encoded(unit_rows(embeddings), truncated)

    def _forward(self, texts: list[str]) -> tuple[NDArray[np.float32], list[bool]]:
        import torch

        encoding: Any = self._tokenizer(
            texts,
            padding=True,
            truncation=True,
            max_length=self.spec.max_tokens,
            return_tensors="pt",
        )
        truncated = [bool(each.overflowing) for each in encoding.encodings]
        inputs = encoding.to(self.spec.backend)
        with torch.inference_mode():
            hidden: torch.Tensor = self._model(**inputs).last_hidden_state
            pooled = pool(hidden.float(), inputs["attention_mask"], self.spec.pooling)
        return pooled.cpu().numpy(), truncated


def pool(hidden: torch.Tensor, mask: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    """One vector a text, shape (B, D), from its tokens' (B, T, D) and the mask of real ones."""
    if pooling == "cls":
        return hidden[:, 0]
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1).clamp_min(1.0)


def _check_options(pooling: str, backend: str | None, dtype: str | None) -> None:
    choices = (
        ("pooling", pooling, ("mean", "cls")),
        ("backend", backend, (None, "cpu", "cuda")),
        ("dtype", dtype, (None, "float32", "bfloat16")),
    )
    for name, value, allowed in choices:
        if value not in allowed:
            told = [each for each in allowed if each]
            raise ArtifactError(f"encoder {name} is {value!r}; it must be one of {told}")


def _native_dtype(backend: str) -> str:
    """bfloat16 where the hardware multiplies it natively; elsewhere it is slower than float32."""
    import torch

    native = backend == "cuda" or torch.cpu.get_capabilities().get("avx512_bf16", False)
    return "bfloat16" if native else "float32"


def _digest(model: Any, tokenizer: Any) -> str:
    """sha256 over parameters as loaded, configuration and tokenizer, wherever they came from."""
    import torch

    digest = hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode())
    configuration = model.config.to_diff_dict()
    for name in ("_name_or_path", "dtype", "torch_dtype", "transformers_version"):
        configuration.pop(name, None)
    digest.update(json.dumps(configuration, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + b"\0")
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
