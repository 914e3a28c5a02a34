"""Hugging Face encoder: device, dtype, pooling, truncation. The only encoder that needs torch.

Loads safetensors only and never runs code from a model's folder; :mod:`~racer_core.encoder.hub`
finds, downloads and converts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from racer_core.encoder.base import EncoderOutput, EncoderSpec, Forward, Pin, Pooling, unit_rows
from racer_core.encoder.batches import Shape, cheapest, shapes, similar
from racer_core.encoder.hub import DEFAULT_ENCODER, LocalModel, find_model
from racer_core.encoder.pooling import pool
from racer_core.encoder.tokens import TextTokenizer, TokenizedText, limited, padded
from racer_core.errors import ArtifactError

if TYPE_CHECKING:
    from racer_core.encoder.graphs import Recorder

# On a CPU: texts in a batch, and the length of its shortest as a share of its longest.
_BATCH, _SHORTEST = 32, 0.75
_TEXTS = 256  # in a batch on a GPU
# What a batch costs on a GPU beside its tokens, as that many tokens: 0.8 ms by a graph and 12 ms by
# transformers on an H200, where fitted lines give 968 and 21,436 tokens
# (benchmarks/results/encoder_gpu_loads.json). A smaller number pads few texts of mixed lengths
# less.
_LAUNCH: dict[str, int] = {"lean": 1_024, "transformers": 8_192}


class HuggingFaceEncoder:
    """A transformer encoder with mean or CLS pooling.

    Args:
        name: A local folder, or a model of the Hugging Face hub: ``owner/model``, or
            ``owner/model@revision``.
        pooling: ``mean`` over the tokens that are not padding, or the first token (``cls``).
        max_tokens: Longer texts are cut, and reported as truncated.
        backend: ``cuda`` or ``cpu``; None takes a GPU if there is one.
        dtype: ``bfloat16`` or ``float32``; None takes bfloat16 on a GPU and on a CPU with matrix
            units for it, else float32.
        forward: ``lean`` is our own forward pass, on a GPU by CUDA graphs; ``transformers`` is the
            library's. None takes ``lean`` if it supports the model.
        recorder: Records the graphs of the ``lean`` forward on any device; None records CUDA graphs
            on a GPU and none on a CPU.
        pin: Commit and digests of a model of the hub, as an artifact recorded them; None takes the
            default encoder's, and the latest commit of others.

    Raises:
        ArtifactError: The model cannot be found or loaded, the device is missing, or its memory is
            too small.
    """

    def __init__(
        self,
        name: str = DEFAULT_ENCODER,
        *,
        pooling: Pooling = "mean",
        max_tokens: int = 512,
        backend: str | None = None,
        dtype: str | None = None,
        forward: Forward | None = None,
        recorder: Recorder | None = None,
        pin: Pin | None = None,
    ) -> None:
        import torch

        from racer_core.encoder import deberta, graphs

        _check_options(pooling, backend, dtype, forward)
        backend = backend or ("cuda" if torch.cuda.is_available() else "cpu")
        if backend == "cuda" and not torch.cuda.is_available():
            raise ArtifactError("the encoder is set to cuda, but torch finds no CUDA device here")
        dtype = dtype or _native_dtype(backend)
        local = find_model(name, pin)
        model, tokenizer = load_model(local, dtype)
        digest = _digest(model, tokenizer)
        if forward is None:
            forward = "lean" if deberta.fits(model) else "transformers"
        elif forward == "lean" and not deberta.fits(model):
            raise ArtifactError(
                f"the lean forward does not support encoder {name!r}: use `transformers`"
            )
        self.spec = EncoderSpec(
            kind="huggingface",
            name=name,
            digest=digest,
            pooling=pooling,
            max_tokens=token_limit(model, tokenizer, max_tokens),
            backend=backend,
            dtype=dtype,
            forward=forward,
            pin=local.pin,
        )
        self._tokenizer = TextTokenizer(limited(tokenizer, self.spec.max_tokens), name)
        self._padding: int = tokenizer.pad_token_id or 0
        self._launch = _LAUNCH[forward]
        # Of batches on a GPU; None makes batches of similar length.
        self._shapes: list[Shape] | None = None
        if backend == "cuda" or recorder is not None:
            self._shapes = shapes(_TEXTS, self.spec.max_tokens)
        self._graphs: graphs.Graphs | None = None
        with _enough_memory(name):
            self._model: Any = model.to(backend).eval()
            if forward == "lean":
                self._model = deberta.LeanDeberta(model, self.spec.max_tokens)
            if forward == "lean" and self._shapes is not None:
                self._graphs = graphs.Graphs(
                    graphs.embedder(self._model, pooling),
                    shapes=self._shapes,
                    device=backend,
                    recorder=recorder,
                )
                self._shapes = self._graphs.shapes

    def tokenized(self, texts: Sequence[str]) -> list[TokenizedText]:
        """The texts with their tokens, for :meth:`encode`; threads may call it beside a forward."""
        return self._tokenizer(texts)

    def encode(self, texts: Sequence[str]) -> EncoderOutput:
        """Embed texts in batches, longest first, to keep padding small."""
        embeddings = np.zeros((len(texts), int(self._model.config.hidden_size)), np.float32)
        tokenized = self.tokenized(texts)
        for rows in self._batches([len(text.ids) for text in tokenized]):
            ids, mask = padded([tokenized[row] for row in rows], self._padding)
            with _enough_memory(self.spec.name):
                embeddings[rows] = self._forward(ids, mask)
        truncated = np.array([text.truncated for text in tokenized], dtype=bool)
        return EncoderOutput(unit_rows(embeddings), truncated)

    def _batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        if self._shapes is None:
            return similar(lengths, _BATCH, _SHORTEST)
        return cheapest(lengths, self._shapes, self._launch)

    def _forward(self, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> NDArray[np.float32]:
        import torch

        input_ids, attention_mask = torch.from_numpy(ids), torch.from_numpy(mask)
        if self._graphs is not None:
            return self._graphs(input_ids, attention_mask).numpy()
        input_ids, attention_mask = (
            each.to(self.spec.backend) for each in (input_ids, attention_mask)
        )
        with torch.inference_mode():
            hidden: Any = self._model(input_ids=input_ids, attention_mask=attention_mask)
            if self.spec.forward == "transformers":
                hidden = hidden.last_hidden_state
            return pool(hidden.float(), attention_mask, self.spec.pooling).cpu().numpy()


def load_model(local: LocalModel, dtype: str) -> tuple[Any, Any]:
    """A model and its fast tokenizer. Raises ArtifactError."""
    import torch
    from transformers import AutoConfig, AutoModel

    with _loading(local):
        tokenizer = load_tokenizer(local)
        model, report = cast(Any, AutoModel).from_pretrained(
            str(local.weights),
            config=cast(Any, AutoConfig).from_pretrained(
                str(local.folder), trust_remote_code=False
            ),
            dtype=getattr(torch, dtype),
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    # A pooler is never used. Other parameters would be random numbers.
    if missing := sorted(each for each in report["missing_keys"] if not each.startswith("pooler.")):
        raise ArtifactError(
            f"encoder {str(local.folder)!r}: its weights lack {missing[0]!r} ({len(missing)} in "
            "all): they are those of another kind of model"
        )
    return model, tokenizer


def load_tokenizer(local: LocalModel) -> Any:
    """A fast tokenizer, converted from a sentencepiece model if need be. Raises ArtifactError."""
    from transformers import AutoTokenizer

    with _loading(local):
        tokenizer: Any = cast(Any, AutoTokenizer).from_pretrained(str(local.folder))
    if not tokenizer.is_fast:
        raise ArtifactError(f"encoder {str(local.folder)!r} has no fast tokenizer (tokenizer.json)")
    return tokenizer


@contextmanager
def _loading(local: LocalModel) -> Generator[None]:
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # callers show their own
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # a pretrained model's heads are left out as a rule
    try:
        yield
    except (OSError, ValueError, SafetensorError) as exc:
        raise ArtifactError(
            f"encoder {str(local.folder)!r} is no folder of a transformer that can be loaded: "
            f"{str(exc).splitlines()[0]}"
        ) from exc
    finally:
        transformers_logging.set_verbosity(verbosity)


def token_limit(model: Any, tokenizer: Any, max_tokens: int) -> int:
    """Tokens that are read of a text: ``max_tokens``, or fewer if the model's limit is lower."""
    # Some models number positions from 2 on; the tokenizer's limit is then the smaller one.
    positions = getattr(model.config, "max_position_embeddings", max_tokens)
    return min(max_tokens, positions, tokenizer.model_max_length)


@contextmanager
def _enough_memory(name: str) -> Generator[None]:
    import torch

    try:
        yield
    except torch.OutOfMemoryError as exc:
        raise ArtifactError(
            f"encoder {name!r} needs more memory than the device has free: free some, or run "
            "`racer train` with a lower `--max-tokens`, with `--forward transformers`, which "
            "records no graphs, or with `--backend cpu`"
        ) from exc


def _check_options(
    pooling: str, backend: str | None, dtype: str | None, forward: str | None
) -> None:
    choices = (
        ("pooling", pooling, ("mean", "cls")),
        ("backend", backend, (None, "cpu", "cuda")),
        ("dtype", dtype, (None, "float32", "bfloat16")),
        ("forward", forward, (None, "transformers", "lean")),
    )
    for name, value, allowed in choices:
        if value not in allowed:
            names = [each for each in allowed if each]
            raise ArtifactError(f"encoder {name} is {value!r}; it must be one of {names}")


def _native_dtype(backend: str) -> str:
    """bfloat16 where the hardware has matrix units for it; elsewhere float32 is exact and faster.

    ``avx512_bf16`` alone is no such unit: there, bfloat16 ran at half of float32's rate.
    """
    import torch

    native = backend == "cuda" or torch.cpu.get_capabilities().get("amx_bf16", False)
    return "bfloat16" if native else "float32"


def _digest(model: Any, tokenizer: Any) -> str:
    """sha256 over loaded parameters, configuration and tokenizer, independent of their source."""
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
