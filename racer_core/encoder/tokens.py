"""Tokens of texts: made once, on any thread, by the tokenizer's own library; padded by numpy.

transformers' wrapper gives the same tokens, and pads through Python lists: a batch of 256 texts of
64 tokens took it 14 ms longer, which is more than a GPU needs to embed it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from racer_core.errors import ArtifactError


class TokenizedText(str):
    """A text with its tokens, which stands for the text everywhere else.

    Attributes:
        ids: Of its tokens, special ones included; shape (T,).
        truncated: Whether the text was cut.
    """

    __slots__ = ("ids", "truncated")

    ids: NDArray[np.int64]
    truncated: bool


class TextTokenizer:
    """Tokens of texts up to a limit. Threads may call it at the same time.

    Args:
        tokenizer: A ``tokenizers.Tokenizer``, as :func:`limited` returns it.
        encoder: Its encoder's name, for errors.

    Raises:
        ArtifactError: Its tokens have types, which no encoder here gives its model.
    """

    def __init__(self, tokenizer: Any, encoder: str) -> None:
        self._tokenizer = tokenizer
        if any(tokenizer.encode("a").type_ids):
            raise ArtifactError(
                f"encoder {encoder!r}: its tokenizer gives the tokens of one text different types, "
                "as those of XLNet and Funnel do: train with another encoder"
            )

    def __call__(self, texts: Sequence[str]) -> list[TokenizedText]:
        """The texts with their tokens; those that have them already stay as they are."""
        fresh = self._made([text for text in texts if not isinstance(text, TokenizedText)])
        return [text if isinstance(text, TokenizedText) else next(fresh) for text in texts]

    def _made(self, texts: list[str]) -> Iterator[TokenizedText]:
        for text, encoding in zip(texts, self._tokenizer.encode_batch_fast(texts), strict=True):
            tokenized = TokenizedText(text)
            tokenized.ids = np.array(encoding.ids, dtype=np.int64)
            tokenized.truncated = bool(encoding.overflowing)
            yield tokenized


def limited(tokenizer: Any, max_tokens: int) -> Any:
    """The library's tokenizer inside transformers' one: from now on it cuts texts and pads none."""
    own = tokenizer.backend_tokenizer
    own.no_padding()
    own.enable_truncation(max_tokens, direction=tokenizer.truncation_side)
    return own


def padded(
    texts: Sequence[TokenizedText], padding: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ids and mask of a batch, both (B, T), padded at the end to its longest text.

    A text without tokens, which some tokenizers give an empty text, has one of padding.

    Args:
        texts: At least one.
        padding: The id that fills ``ids``; ``mask`` is 0 there.
    """
    lengths = [max(1, len(text.ids)) for text in texts]
    ids = np.full((len(texts), max(lengths)), padding, dtype=np.int64)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text.ids)] = text.ids
    mask = np.arange(ids.shape[1]) < np.array(lengths)[:, None]
    return ids, mask.astype(np.int64)
