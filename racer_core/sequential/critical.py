"""Critical scores of sequential calls: nonconformity of rounds, and the running maximum of losses.

After round r of R a sequence has the stopping score q_r, the estimated chance that its answer is
wrong to return. It goes on while every q so far is at least -lambda. The nonconformity of round
r + 1 is therefore the largest of -q_1 .. -q_r, and that of the first round, which is always called,
is -inf. The rounds called at lambda are those with a nonconformity of at most lambda. They are
nested in lambda if neither order nor borders nor q depend on lambda.

The 0/1 loss l_r of the answer after round r may fall and rise again. m_r, the largest of
l_r .. l_R, only falls, and l_r <= m_r. So E[l] <= E[m] <= alpha by conformal risk control for m,
however many further rounds are called.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from racer_core.calibration.nonconformity import smoothing_noise
from racer_core.types import BoolArray, FloatArray


def round_nonconformity(doubt: FloatArray, noise: FloatArray | float = 0.0) -> FloatArray:
    """S of every round, shape (n, R), ascending along each row.

    Args:
        doubt: q after each round, shape (n, R); that of the last round has no effect.
        noise: One number for each row, shape (n,), that breaks ties between rows. Noise that
            differs between the rounds of a row would break the bound.
    """
    s = np.full(doubt.shape, -np.inf)
    highest: FloatArray = np.maximum.accumulate(-doubt[:, :-1], axis=1)
    s[:, 1:] = highest + np.broadcast_to(noise, (len(doubt),))[:, None]
    return s


def tie_noise(salt: bytes | None, fingerprints: tuple[bytes, ...]) -> FloatArray:
    """One number in [0, 1e-6) for each row, shape (n,); 0 without a salt."""
    if salt is None:
        return np.zeros(len(fingerprints))
    return smoothing_noise(salt, fingerprints, ("row",))[:, 0]


def critical_scores(nonconformity: FloatArray, lost: BoolArray) -> FloatArray:
    """The smallest lambda from which on a row never loses, shape (n,).

    It is s of the round after the row's last loss: -inf for a row that never loses, +inf for a row
    that loses after its last round.

    Args:
        nonconformity: s, shape (n, R).
        lost: Whether the answer after each round is a loss, shape (n, R).
    """
    numbers: NDArray[np.intp] = np.arange(1, lost.shape[1] + 1, dtype=np.intp)
    following: NDArray[np.intp] = np.where(lost, numbers, 0).max(axis=1)
    padded = np.column_stack([nonconformity, np.full(len(lost), np.inf)])
    return np.take_along_axis(padded, following[:, None], axis=1)[:, 0]


def rounds_called(nonconformity: FloatArray, threshold: float) -> NDArray[np.intp]:
    """How many rounds are called at a threshold, shape (n,): at least one."""
    return (nonconformity <= threshold).sum(axis=1)
