"""Evidence that a realised risk is below a limit, for the promotion of a canary.

References:
    Waudby-Smith & Ramdas 2024 (betting on a bounded mean). Kelly 1956 (the bets). Ville 1939 (the
    inequality).
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from racer_core.errors import InputError
from racer_core.types import FloatArray, checked_alpha

LEVEL: Final = 0.05  # P(promoted, ever) of a canary whose risk is not below its limit
_BETS: Final = 16


def evidence_below(losses: FloatArray, limit: float) -> float:
    """E-value against "the mean loss is at least ``limit``", which 1 / ``LEVEL`` rejects.

    The mean of sixteen capitals, each the product of 1 + b (limit - loss) over all losses, b =
    (limit - p) / (limit (1 - limit)) for p = 0, limit / 16, ..., 15 limit / 16: for losses of 0 and
    1 the likelihood ratio of the mean p and the mean ``limit``. If each loss, given those that were
    known before it, has a mean of at least ``limit``, then the capital is a supermartingale, so
    P(it ever reaches 1 / LEVEL) <= LEVEL (Ville's inequality): the test may be repeated after every
    loss, and the limit may change. A product does not depend on the order of its factors, so no
    state is needed but the losses; all of them, since a list that loses its first ones is another
    capital each time.

    Args:
        losses: Shape (n,), in [0, 1].
        limit: In (0, 1).

    Raises:
        InputError: A loss or the limit is outside its range.
    """
    limit = checked_alpha(limit, "limit")
    if losses.ndim != 1 or not np.all((losses >= 0.0) & (losses <= 1.0)):  # also false for NaN
        raise InputError("losses must have shape (n,) and lie in [0, 1]")
    means = limit * np.arange(_BETS) / _BETS
    bets = (limit - means) / (limit * (1.0 - limit))
    factors = 1.0 + bets[:, None] * (limit - losses[None, :])
    with np.errstate(divide="ignore"):  # a loss of 1 takes all from the bet on a mean of 0
        logs = np.log(np.maximum(factors, 0.0)).sum(axis=1)
    return math.exp(min(float(np.logaddexp.reduce(logs)) - math.log(_BETS), 700.0))
