"""Encoder protocol, and the encoder's identity in an artifact."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from racer_core.types import BoolArray

Kind = Literal["huggingface", "onnx", "word-vectors", "char-ngrams"]
Pooling = Literal["mean", "cls"]
Forward = Literal["transformers", "lean"]
HAS_FORWARD: Final[frozenset[Kind]] = frozenset(("huggingface", "onnx"))

# Distributions that tokenize and compute, by the kind of encoder. numpy is left out: its versions
# differ in last bits, which scores lose when they are rounded to a grid.
LIBRARIES: Final[Mapping[Kind, Sequence[str]]] = {
    "huggingface": ("tokenizers", "torch", "transformers"),
    "onnx": ("onnxruntime", "tokenizers"),
    "word-vectors": ("tokenizers",),
    "char-ngrams": (),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A commit of a model on the hub, and the sha256 digests of the files that are read of it."""

    revision: str
    files: Mapping[str, str]  # digest by name


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSpec:
    """The identity of an encoder: everything that must be equal in calibration and serving.

    ``backend`` is the device type, ``dtype`` the number format and ``forward`` the code that
    computed the network on the training rows. A change of any of them moves scores and requires a
    new calibration.
    """

    kind: Kind
    name: str  # folder or hub name
    digest: str  # of weights, configuration and tokenizer
    pooling: Pooling
    max_tokens: int
    backend: str
    dtype: str
    # `transformers`; `lean`: our own, for the models that it knows; of an exported model ONNX
    # Runtime's version. None: no network, see `HAS_FORWARD`.
    forward: str | None
    lexical: bool = False  # hashed character n-grams stand beside the embedding
    pin: Pin | None = field(default=None, compare=False)  # of a model that came from the hub

    def identity(self) -> dict[str, Any]:
        """What must be equal, as JSON values: not where the files come from."""
        omitted = {"name", "pin"} if self.forward is not None else {"name", "pin", "forward"}
        return {name: value for name, value in asdict(self).items() if name not in omitted}


@dataclass(frozen=True, slots=True)
class EncoderOutput:
    """Embeddings (B, D), float32, each of length 1, and truncation flags (B,)."""

    embeddings: NDArray[np.float32]
    truncated: BoolArray


class Encoder(Protocol):
    """Protocol of all encoders."""

    @property
    def spec(self) -> EncoderSpec:
        """The encoder's identity."""
        ...

    def encode(self, texts: Sequence[str]) -> EncoderOutput:
        """Embed texts; row i of the result belongs to texts[i]."""
        ...


@runtime_checkable
class TokenizingEncoder(Encoder, Protocol):
    """An encoder whose texts can be tokenised on another thread, while it computes others."""

    def tokenized(self, texts: Sequence[str]) -> Sequence[str]:
        """The same texts with their tokens, which :meth:`encode` then does not compute again."""
        ...


def unit_rows(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale each row to length 1, so that a dot product is the cosine; a zero row stays zero."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.maximum(norms, 1e-12)).astype(np.float32)


def file_digest(path: Path) -> str:
    """sha256 of a file. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(*files: Path) -> str:
    """sha256 over the files' own, in this order. Raises OSError."""
    digest = hashlib.sha256()
    for each in files:
        digest.update(bytes.fromhex(file_digest(each)))
    return digest.hexdigest()
