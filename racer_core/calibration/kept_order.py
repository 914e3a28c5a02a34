"""Kept order: the turns of a conversation go to the same candidates while that is worth it.

A candidate that answered the earlier turns has their tokens in its prompt cache. The order in which
candidates are called is therefore kept from turn to turn, place by place: the candidate m at a
place stays there in front of the candidate b that the nonconformity scores put there, while

    f(x, m) + alpha (1 - c(m)) >= f(x, b)

c(m) is the cost of m's call with a warm cache over that with a cold one. Half of it is its price,
and half its computation, prefill and answer, which is time where tokens cost nothing:

    price:        (cached p + input q + output a) / (input p + input q + output a)
    computation:  (q + a) / (p + q + a)

p are the earlier turns of the conversation, q is the new one, a the mean earlier answer, and
cached, input and output are m's prices of a token. Without these c(m) is its computation alone.
What a cache spares is worth at most alpha, the calibration's risk level, in the chance of a right
answer: a larger loss would have to be bought back by calls of others. For the score ``cover_cost``
both sides are divided by the price of a call.

The threshold decides how many candidates are called, and the kept order which: the candidate at the
j-th place gets the j-th smallest score s'. So at every threshold lambda the set {m : s'(m) <=
lambda} is as large as without a conversation. Orders follow from scores, lengths and prices of the
turns alone, and not from lambda or from the sets that were called. So the sets of all turns grow
with lambda, and the loss of a conversation falls: conformal risk control applies to conversations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from racer_core.errors import CalibrationError
from racer_core.types import FloatArray, TurnSizes

TokenPrices = tuple[float, float, float]  # of an input, a cached input and an output token
COMPUTED: Final[TokenPrices] = (1.0, 0.0, 1.0)  # every token that is computed counts the same
FIRST: Final = -1  # in place of a column: there is no turn before
Columns = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Continuation:
    """What a turn of a conversation takes over from the turn before.

    Attributes:
        order: The order of the candidates at the turn before; empty: it is the first turn.
        sizes: Lengths of the turn.
    """

    order: tuple[str, ...]
    sizes: TurnSizes

    def columns(self, pool: Sequence[str]) -> Columns:
        """The order as columns of a pool, shape (1, K); candidates that left it are left out."""
        places = [pool.index(name) for name in self.order if name in pool]
        return np.array([[*places, *[FIRST] * (len(pool) - len(places))]], dtype=np.intp)


def warm_costs(sizes: FloatArray, prices: Sequence[TokenPrices]) -> FloatArray:
    """The cost c of a call with a warm cache over that with a cold one, in [0, 1], shape (B, K).

    Args:
        sizes: p, q and a of each turn, shape (B, 3).
        prices: Of each candidate; where input and output cost nothing, its computation counts.
    """
    priced = [each if each[0] + each[2] > 0.0 else COMPUTED for each in prices]
    computed = [COMPUTED] * len(prices)
    return 0.5 * (_warm_share(sizes, priced) + _warm_share(sizes, computed))


def _warm_share(sizes: FloatArray, prices: Sequence[TokenPrices]) -> FloatArray:
    """What a warm call costs at these prices over what a cold one does, shape (B, K)."""
    earlier, query, answer = sizes.T[:, :, None]
    of_input, of_cached, of_output = np.array(prices).T[:, None, :]
    cold = of_input * (earlier + query) + of_output * answer
    warm = np.minimum(of_cached, of_input) * earlier + of_input * query + of_output * answer
    return np.divide(warm, cold, out=np.ones_like(cold), where=cold > 0.0)


def kept_orders(
    nonconformity: FloatArray, cold: FloatArray, warm: FloatArray, before: Columns
) -> Columns:
    """The orders of turns, as columns from the first place to the last, shape (B, K).

    Args:
        nonconformity: s of the candidates, shape (B, K).
        cold: The right-hand side of the rule for each candidate, shape (B, K).
        warm: Its left-hand side, shape (B, K).
        before: The orders of the turns before, shape (B, K); ``FIRST`` where there is none.
    """
    rows = np.arange(len(cold))
    free = np.ones(cold.shape, dtype=bool)
    orders = np.empty(cold.shape, dtype=np.intp)
    for place in range(cold.shape[1]):
        best = np.where(free, nonconformity, np.inf).argmin(axis=1)
        kept = before[:, place]
        stays = (kept != FIRST) & free[rows, kept] & (warm[rows, kept] >= cold[rows, best])
        orders[:, place] = np.where(stays, kept, best)
        free[rows, orders[:, place]] = False
    return orders


def placed(nonconformity: FloatArray, orders: Columns) -> FloatArray:
    """s': the j-th smallest s for the candidate at the j-th place.

    Args:
        nonconformity: s, shape (B, K), or (B, K + 1) with the null model, which keeps its score.
        orders: The orders of the candidates, shape (B, K).
    """
    count = orders.shape[1]
    kept = nonconformity.copy()
    ascending = np.sort(nonconformity[:, :count], axis=1)
    np.put_along_axis(kept, orders, ascending, axis=1)
    return kept


def conversation_scores(
    nonconformity: FloatArray,
    cold: FloatArray,
    warm: FloatArray,
    conversations: NDArray[np.int64],
) -> FloatArray:
    """The scores s' of the turns of whole conversations, in the shape of s.

    Args:
        nonconformity: s, shape (n, K), or (n, K + 1) with the null model.
        cold: As :func:`kept_orders`, shape (n, K).
        warm: As :func:`kept_orders`, shape (n, K).
        conversations: The conversation of each turn, shape (n,). Turns of one are in their order.
    """
    kept = np.empty_like(nonconformity)
    count = cold.shape[1]
    ids = np.unique(conversations, return_inverse=True)[1]
    before = np.full((ids.max(initial=-1) + 1, count), FIRST, dtype=np.intp)
    for turns in _by_number(conversations):
        fit, of_turns = nonconformity[turns], ids[turns]
        orders = kept_orders(fit[:, :count], cold[turns], warm[turns], before[of_turns])
        kept[turns] = placed(fit, orders)
        before[of_turns] = orders
    return kept


def check_conversations(conversations: NDArray[np.int64], sizes: FloatArray | None) -> None:
    """Refuse conversations whose turns are apart, or of unknown lengths.

    Args:
        conversations: The conversation of each turn, shape (n,).
        sizes: p, q and a of each turn, shape (n, 3).

    Raises:
        CalibrationError: As above.
    """
    if sizes is None or sizes.shape != (len(conversations), 3):
        raise CalibrationError("whole conversations need the lengths of every turn, shape (n, 3)")
    starts = np.flatnonzero(np.diff(conversations, prepend=conversations[:1] - 1))
    if len(starts) != len(np.unique(conversations)):
        raise CalibrationError("the rows of a conversation must stand together, in their order")
    if not (sizes >= 0.0).all():
        raise CalibrationError("the lengths of a turn must be numbers of at least 0")


def _by_number(conversations: NDArray[np.int64]) -> list[Columns]:
    """The rows of all first turns, of all second turns, and so on."""
    order = np.argsort(conversations, kind="stable")
    _, starts, counts = np.unique(conversations[order], return_index=True, return_counts=True)
    numbers = np.arange(len(order)) - np.repeat(starts, counts)
    return [order[numbers == number] for number in range(counts.max(initial=0))]
