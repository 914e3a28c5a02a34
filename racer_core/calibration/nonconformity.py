"""Nonconformity scores: how badly a candidate fits a query. Paper, App. B.

Every function maps r of shape (n, C) to s of shape (n, C) row by row, so s is a function of the
query alone and exchangeability survives. The columns may or may not include the null model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from racer_core.types import FloatArray

SMOOTHING_WIDTH = 1e-6


def score_gap(augmented_scores: FloatArray) -> FloatArray:
    """``gap``: s = max_m' r(x, m') - r(x, m). The best column has exactly 0. App. B."""
    return augmented_scores.max(axis=1, keepdims=True) - augmented_scores


def inverse_probability(augmented_scores: FloatArray) -> FloatArray:
    """``prob``: s = 1 - r(x, m). App. B."""
    return 1.0 - augmented_scores


def smoothing_noise(
    salt: bytes, fingerprints: Sequence[bytes], columns: Sequence[str]
) -> FloatArray:
    """U[0, 1e-6) per (query, column), shape (n, C), from a keyed hash. App. B, made repeatable.

    The fingerprint stands for the query. The noise depends on (salt, query, column) alone, so that
    retries, replicas and restarts draw the same. Copies of a query share its noise, which is one
    more function of the query: rows that are exchangeable stay so. Add it both when calibrating and
    when serving, or never: on one side only it breaks the guarantee (test side only, ``gap``, alpha
    0.2: risk 0.54).
    """
    key = hashlib.blake2b(salt, digest_size=32).digest()
    of_queries = _hashes(key, fingerprints)
    of_columns = _hashes(key, [column.encode() for column in columns])
    # The top 53 bits: exactly what a double in [0, 1) can carry.
    draws = _mixed(of_queries[:, None] ^ of_columns) >> np.uint64(11)
    return SMOOTHING_WIDTH * 2.0**-53 * draws.astype(np.float64)


def _hashes(key: bytes, texts: Sequence[bytes]) -> NDArray[np.uint64]:
    """A keyed hash of each text, shape (n,)."""
    digests = (hashlib.blake2b(text, key=key, digest_size=8).digest() for text in texts)
    return np.frombuffer(b"".join(digests), dtype="<u8")


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64: every bit of the input changes half of those of the output."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
