"""int8 encoder on a CPU: a transformer exported once to ONNX, and run by ONNX Runtime.

Matrices are quantised dynamically: weights to int8 with a scale for each output channel,
activations to uint8 by the range of a whole tensor. That range depends on all texts of a batch, so
each text is a run of its own. Serving imports neither torch nor transformers.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from racer_core.encoder.base import EncoderOutput, EncoderSpec, Pooling, digest_of, unit_rows
from racer_core.encoder.hub import find_model
from racer_core.encoder.huggingface import load_model, token_limit
from racer_core.encoder.tokens import TextTokenizer, TokenizedText, limited, padded
from racer_core.errors import ArtifactError, install_hint

DTYPE: Final = "int8"
_MODEL, _TOKENIZER = "model.onnx", "tokenizer.json"
_FILES: Final = (_MODEL, f"{_MODEL}.data", _TOKENIZER)
_INPUT, _OUTPUT = "input_ids", "hidden"
_EXAMPLE: Final = 8  # tokens of the text that the exporter follows through the model


class OnnxEncoder:
    """An exported transformer with mean or CLS pooling.

    It has as many threads as torch would have: ``OMP_NUM_THREADS``, or one for each core.

    Args:
        folder: What :func:`export` wrote; it holds the token limit.
        pooling: ``mean`` over the tokens, or the first token (``cls``).

    Raises:
        ArtifactError: ONNX Runtime is not installed, or a file is missing or damaged.
    """

    def __init__(self, folder: str, *, pooling: Pooling = "mean") -> None:
        from tokenizers import Tokenizer

        runtime = _imported("onnxruntime")
        try:
            digest = digest_of(*(Path(folder, name) for name in _FILES))
            tokenizer: Any = Tokenizer.from_file(str(Path(folder, _TOKENIZER)))
            max_tokens = int(tokenizer.truncation["max_length"])
            self._tokenizer = TextTokenizer(tokenizer, folder)
            self._session: Any = runtime.InferenceSession(
                Path(folder, _MODEL), _options(runtime), providers=["CPUExecutionProvider"]
            )
            self._width = int(self._session.get_outputs()[0].shape[-1])
        except ArtifactError:
            raise
        except Exception as exc:  # every library has errors of its own
            raise ArtifactError(
                f"encoder {folder!r} must be a folder that `racer train --dtype int8` wrote: "
                f"{_first_line(exc)}"
            ) from exc
        self.spec = EncoderSpec(
            kind="onnx",
            name=folder,
            digest=digest,
            pooling=pooling,
            max_tokens=max_tokens,
            backend="cpu",
            dtype=DTYPE,
            forward=f"onnxruntime {runtime.__version__}",
        )

    def tokenized(self, texts: Sequence[str]) -> list[TokenizedText]:
        """The texts with their tokens, for :meth:`encode`; threads may call it beside a forward."""
        return self._tokenizer(texts)

    def encode(self, texts: Sequence[str]) -> EncoderOutput:
        """Embed texts one by one: the same bits in every batch."""
        embeddings = np.zeros((len(texts), self._width), np.float32)
        tokenized = self.tokenized(texts)
        for row, text in zip(embeddings, tokenized, strict=True):
            ids, _ = padded([text], 0)
            hidden = self._session.run([_OUTPUT], {_INPUT: ids})[0][0]
            row[:] = hidden[0] if self.spec.pooling == "cls" else hidden.mean(axis=0)
        truncated = np.array([text.truncated for text in tokenized], dtype=bool)
        return EncoderOutput(unit_rows(embeddings), truncated)


def export(name: str, folder: Path, *, max_tokens: int = 512) -> None:
    """Write a transformer as an int8 ONNX model, with its tokenizer and limit of tokens.

    Args:
        name: A local folder, or a name on the Hugging Face hub.
        folder: Gets three files; an earlier export is replaced when all of them are there.
        max_tokens: Longer texts are cut.

    Raises:
        ArtifactError: A package is missing, or the model cannot be loaded, exported or written.
    """
    for package in ("onnx", "onnxruntime", "onnxscript"):
        _imported(package)
    if Path(name).resolve() == folder.resolve():
        raise ArtifactError(f"{folder} is where the exported encoder goes: begin with another one")
    model, tokenizer = load_model(find_model(name), "float32")
    limit = token_limit(model, tokenizer, max_tokens)
    own = limited(tokenizer, limit)
    TextTokenizer(own, name)  # refuses what the export could not serve
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix="export-", dir=folder) as scratch, _silence():
            plain, done = Path(scratch, "float32.onnx"), Path(scratch, _MODEL)
            stacks = _write_graph(model.eval(), plain)
            _quantise(plain, done, stacks)
            own.save(str(Path(scratch, _TOKENIZER)))
            for file in _FILES:
                Path(scratch, file).chmod(0o644)  # the gateway may run as another user
                Path(scratch, file).replace(folder / file)
    except Exception as exc:  # every library has errors of its own
        raise ArtifactError(
            f"encoder {name!r} cannot be exported to {folder} as int8: {_first_line(exc)}"
        ) from exc


def _write_graph(model: Any, file: Path) -> list[str]:
    """The model in float32, as a function of one text's tokens: no padding, hence no mask.

    Returns:
        The products with stacks of matrices, as those of DeBERTa's relative positions.
    """
    import torch

    class HiddenStates(torch.nn.Module):
        """The last hidden states, shape (1, T, D)."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=input_ids).last_hidden_state

    program: Any = torch.onnx.export(
        HiddenStates().eval(),
        (torch.zeros((1, _EXAMPLE), dtype=torch.int64),),
        input_names=[_INPUT],
        output_names=[_OUTPUT],
        dynamic_shapes={_INPUT: {1: torch.export.Dim.DYNAMIC}},
        dynamo=True,
        verbose=False,
    )
    for node in program.model.graph:
        node.metadata_props.clear()  # lines of source code, with paths of this machine
    program.save(file, external_data=True)
    products = [node for node in program.model.graph if node.op_type == "MatMul"]
    return [node.name for node in products if len(node.inputs[1].shape or ()) != 2]


def _quantise(file: Path, quantised: Path, stacks: list[str]) -> None:
    """int8 but for stacks, of which ONNX Runtime takes no scale for each channel.

    Weights lie beside the graph: models above 2 GB fit, and processes share their pages.
    """
    quantization = _imported("onnxruntime.quantization")
    quantization.quantize_dynamic(
        file,
        quantised,
        per_channel=True,
        weight_type=quantization.QuantType.QInt8,
        op_types_to_quantize=["MatMul", "Gemm"],
        nodes_to_exclude=stacks,
        use_external_data_format=True,
    )


def _options(runtime: Any) -> Any:
    options = runtime.SessionOptions()
    threads = os.environ.get("OMP_NUM_THREADS", "")
    options.intra_op_num_threads = int(threads) if threads.isdigit() else os.cpu_count() or 1
    options.inter_op_num_threads = 1
    # Threads spin within a run, which is short, and not after it: the gateway needs the cores.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as exc:
        raise ArtifactError(
            f"an int8 encoder needs {exc.name or name}: {install_hint('onnx')}"
        ) from exc


def _first_line(exc: Exception) -> str:
    return (str(exc).splitlines() or [type(exc).__name__])[0]


@contextmanager
def _silence() -> Generator[None]:
    """Without the exporters' remarks on deprecated and optional steps."""
    root, nowhere, level = logging.getLogger(), logging.NullHandler(), logging.root.manager.disable
    root.addHandler(nowhere)  # or the first remark gives the root a handler that stays
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        root.removeHandler(nowhere)
