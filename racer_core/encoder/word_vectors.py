"""Static word vectors: a text is the mean of its tokens' vectors, which no context changes.

The formats of model2vec and of sentence-transformers' ``StaticEmbedding``. numpy and tokenizers
only: a text of 70 tokens takes a fifteenth of a millisecond. The package ``wordllama`` brings some
that need no hub; its files are read, its code is not imported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file  # pyright: ignore[reportUnknownVariableType]

from racer_core.encoder.base import EncoderOutput, EncoderSpec, digest_of, unit_rows
from racer_core.errors import ArtifactError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

WORDLLAMA: Final = "wordllama"  # names the vectors of that package
_VECTORS: Final = ("embeddings", "embedding.weight")  # of model2vec, of sentence-transformers


def has_word_vectors(name: str | Path) -> bool:
    """Whether a name is the package's, or a folder whose ``model.safetensors`` has word vectors."""
    if name == WORDLLAMA:
        return True
    try:
        with cast(Any, safe_open)(Path(name, "model.safetensors"), framework="numpy") as file:
            return any(name in _VECTORS for name in file.keys())  # noqa: SIM118 - no mapping
    except (OSError, SafetensorError):
        return False


class WordVectorEncoder:
    """The mean of the vectors of a text's tokens, weighted if the folder has weights.

    Args:
        name: ``wordllama``, or a folder. It holds ``model.safetensors`` with ``embeddings`` (V, D),
            and optionally ``weights`` (T,) of the tokens and a ``mapping`` (T,) of tokens to rows;
            and ``tokenizer.json``.
        max_tokens: Longer texts are cut, and reported as truncated.

    Raises:
        ArtifactError: A file is missing or damaged, or the vectors do not fit the tokenizer.
    """

    def __init__(self, name: str, *, max_tokens: int = 512) -> None:
        from tokenizers import Tokenizer

        matrix, vocabulary = _files(name)
        try:
            digest = digest_of(matrix, vocabulary)
            tensors = load_file(matrix)
        except (OSError, SafetensorError, TypeError, KeyError) as exc:
            raise ArtifactError(
                f"encoder {name!r} must be a folder with word vectors, model.safetensors as "
                f"float32 or float16 and tokenizer.json: {exc}"
            ) from exc
        try:
            self._tokenizer = Tokenizer.from_file(str(vocabulary))
        except Exception as exc:
            raise ArtifactError(f"encoder {name!r}: tokenizer.json is damaged: {exc}") from exc
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._vectors = _vectors(tensors, self._tokenizer.get_vocab_size(), name)
        unknown = _unknown(self._tokenizer)
        if unknown is not None:  # its vector says nothing of the word
            self._vectors[unknown] = 0.0
        self.spec = EncoderSpec(
            kind="word-vectors",
            name=name,
            digest=digest,
            pooling="mean",
            max_tokens=max_tokens,
            backend="numpy",
            dtype="float32",
            forward=None,
        )

    def encode(self, texts: Sequence[str]) -> EncoderOutput:
        """Embed texts: embeddings (B, D) of length 1, a row of zeros for a text without tokens."""
        tokens = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        sums = np.zeros((len(texts), self._vectors.shape[1]), dtype=np.float32)
        for row, each in zip(sums, tokens, strict=True):
            ids = np.array(each.ids[: self.spec.max_tokens], dtype=np.intp)
            self._vectors.take(ids, axis=0).sum(axis=0, out=row)
        truncated = [len(each) > self.spec.max_tokens for each in tokens]
        return EncoderOutput(unit_rows(sums), np.array(truncated, dtype=bool))


def _unknown(tokenizer: Tokenizer) -> int | None:
    """The number of the token that replaces unknown words."""
    text: str | None = getattr(tokenizer.model, "unk_token", None)
    if text is not None:
        return tokenizer.token_to_id(text)
    return json.loads(tokenizer.to_str())["model"].get("unk_id")  # of Unigram


def _files(name: str) -> tuple[Path, Path]:
    """The vectors, and the tokenizer."""
    if name != WORDLLAMA:
        return Path(name, "model.safetensors"), Path(name, "tokenizer.json")
    package = find_spec(WORDLLAMA)
    if package is None or package.origin is None:
        raise ArtifactError("the encoder `wordllama` is a package: pip install wordllama")
    folder = Path(package.origin).parent
    return (
        folder / "weights" / "l2_supercat_256.safetensors",
        folder / "tokenizers" / "l2_supercat_tokenizer_config.json",
    )


def _vectors(tensors: Mapping[str, NDArray[Any]], tokens: int, name: str) -> NDArray[np.float32]:
    """The weighted vector of every token, shape (T, D). Raises ArtifactError."""
    found = [tensors[name] for name in _VECTORS if name in tensors]
    if not found:
        raise ArtifactError(f"encoder {name!r}: model.safetensors has none of {_VECTORS}")
    embeddings = found[0].astype(np.float32)
    mapping = tensors.get("mapping", np.arange(len(embeddings)))
    weights = tensors.get("weights", np.ones(len(mapping), np.float32)).astype(np.float32)
    fits = embeddings.ndim == 2 and mapping.ndim == 1 and weights.shape == mapping.shape
    if not fits or len(mapping) < tokens:
        raise ArtifactError(
            f"encoder {name!r}: vectors {embeddings.shape}, mapping {mapping.shape} and weights "
            f"{weights.shape} are not those of the {tokens} tokens of tokenizer.json: take all "
            "files from one model"
        )
    if not ((mapping >= 0) & (mapping < len(embeddings))).all():
        raise ArtifactError(f"encoder {name!r}: the mapping names rows that do not exist")
    vectors = embeddings[mapping] * weights[:, None]
    if not np.isfinite(vectors).all():
        raise ArtifactError(f"encoder {name!r}: the word vectors are not all finite")
    return vectors
