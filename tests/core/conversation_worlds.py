"""Conversations of small worlds, and the kept order in plain Python: the oracle of its tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

from racer_core.calibration.calibration import Calibration
from racer_core.calibration.kept_order import COMPUTED, TokenPrices
from racer_core.calibration.options import CalibrationOptions
from racer_core.types import FloatArray, RiskTarget, Score
from tests.kit.strategies import fingerprints_of, pool_of


@dataclass
class TurnRow:
    """A turn: router scores, right candidates, qualities and lengths."""

    scores: list[float]
    right: list[bool]
    quality: list[float]
    sizes: tuple[int, int, int]


Talk = list[TurnRow]


def calibration_of(
    talks: list[Talk],
    score: Score = Score.PROB,
    *,
    prices: tuple[TokenPrices, ...] | None = None,
    **options: object,
) -> Calibration:
    """The calibration whose rows are all turns of these conversations."""
    rows = [row for talk in talks for row in talk]
    ids = [number for number, talk in enumerate(talks) for _ in talk]
    return Calibration(
        pool=pool_of(len(rows[0].scores)),
        fingerprints=fingerprints_of(len(rows)),
        scores=np.array([row.scores for row in rows]),
        labels=np.array([row.right for row in rows]),
        quality=np.array([row.quality for row in rows]),
        options=CalibrationOptions(score=score, **options),  # pyright: ignore[reportArgumentType]
        conversations=np.array(ids, dtype=np.int64),
        turn_sizes=np.array([row.sizes for row in rows], dtype=np.float64),
        token_prices=prices,
    )


def nonconformity(f: list[float], score: Score) -> list[float]:
    """S without a null model."""
    return [1.0 - each if score is Score.PROB else max(f) - each for each in f]


def kept_by_hand(
    talk: Talk, score: Score, alpha: float, prices: Sequence[TokenPrices] = ()
) -> list[list[float]]:
    """The scores s' of the turns, place by place as the module's docstring says."""
    before: list[int] | None = None
    found: list[list[float]] = []
    for row in talk:
        s, f = nonconformity(row.scores, score), row.scores
        p, q, a = row.sizes
        shares = [
            (of_cached * p + of_input * q + of_output * a) / cold if cold else 1.0
            for of_input, of_cached, of_output in (COMPUTED, *prices)
            for cold in [of_input * (p + q) + of_output * a]
        ]
        c = [(shares[0] + each) / 2 for each in shares[1:] or shares * len(f)]
        order: list[int] = []
        for place in range(len(f)):
            left = [m for m in range(len(f)) if m not in order]
            best = min(left, key=lambda m: (s[m], m))
            kept = None if before is None else before[place]
            stays = (
                kept in left and kept is not None and f[kept] + alpha * (1.0 - c[kept]) >= f[best]
            )
            order.append(kept if stays and kept is not None else best)
        kept_scores = [0.0] * len(f)
        for place, m in enumerate(order):
            kept_scores[m] = sorted(s)[place]
        found.append(kept_scores)
        before = order
    return found


def loss_by_hand(
    talk: Talk, kept: list[list[float]], lambda_hat: float, target: RiskTarget
) -> Fraction | None:
    """The mean loss of a conversation's turns that count; None: none counts."""
    losses: list[Fraction] = []
    for row, s in zip(talk, kept, strict=True):
        called = [m for m, each in enumerate(s) if each <= lambda_hat]
        if target is RiskTarget.QUALITY:
            of_called = max([row.quality[m] for m in called], default=0.0)
            losses.append(Fraction(max(row.quality)) - Fraction(of_called))
        elif any(row.right):
            losses.append(Fraction(not any(row.right[m] for m in called)))
    return sum(losses, Fraction(0)) / len(losses) if losses else None


@st.composite
def conversations(draw: st.DrawFn, least: int = 1, most: int = 6) -> list[Talk]:
    """Conversations of one to five turns, with many ties."""
    count = draw(st.integers(1, 4))
    eighths = st.integers(0, 8).map(lambda each: each / 8)
    row = st.builds(
        TurnRow,
        scores=st.lists(eighths, min_size=count, max_size=count),
        right=st.lists(st.booleans(), min_size=count, max_size=count),
        quality=st.lists(eighths, min_size=count, max_size=count),
        sizes=st.tuples(*[st.integers(0, 9)] * 3),
    )
    talks = draw(st.lists(st.lists(row, min_size=1, max_size=5), min_size=least, max_size=most))
    for talk in talks:
        talk[0].sizes = (0, talk[0].sizes[1], 0)
    return talks


def drawn_talk(rng: np.random.Generator, count: int = 4) -> Talk:
    """A conversation of a continuous world: of one topic, with candidates of unlike strength."""
    turns = int(rng.integers(1, 7))
    topic = rng.normal(0.0, 1.0, count)
    talk: Talk = []
    earlier = 0
    for _ in range(turns):
        chance: FloatArray = 1 / (1 + np.exp(-(topic + rng.normal(0.0, 0.7, count))))
        f = np.clip(chance + rng.normal(0.0, 0.15, count), 0.001, 0.999)
        query = int(rng.integers(10, 100))
        talk.append(
            TurnRow(
                scores=f.tolist(),
                right=(rng.random(count) < chance).tolist(),
                quality=[0.0] * count,
                sizes=(earlier, query, 100),
            )
        )
        earlier += query + 100
    return talk
