"""Nonconformity scores: how badly a candidate fits a query. Paper, App. B.

Every function maps r of shape (n, C) to s of shape (n, C) row by row, so s is a function of the
query alone and exchangeability survives. The columns may or may not include the null model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

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
    # One state per column, copied per query: a keyed hash from scratch takes 2.5 times as long.
    names = [column.encode() for column in columns]
    states = [
        hashlib.blake2b(len(name).to_bytes(4) + name, key=key, digest_size=8) for name in names
    ]
    digests = b"".join(_extended(state, query) for query in fingerprints for state in states)
    # The top 53 bits: exactly what a double in [0, 1) can carry.
    draws = np.frombuffer(digests, dtype=">u8") >> 11
    unit = draws.astype(np.float64) * 2.0**-53
    return SMOOTHING_WIDTH * unit.reshape(len(fingerprints), len(columns))


def _extended(state: hashlib.blake2b, query: bytes) -> bytes:
    state = state.copy()
    state.update(query)
    return state.digest()
