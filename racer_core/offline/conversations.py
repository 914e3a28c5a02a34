"""Evaluation on whole conversations: their risk, their calls, and what prompt caches spare.

Conversations are split at random into halves, many times: one half calibrates, and its threshold
is applied to the other. Beside the kept order of ``calibration/kept_order.py`` the same is measured
where every turn chooses its candidates alone, calibrated on the same conversations: at equal risk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import mean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from racer_core.calibration.calibration import Calibration
from racer_core.calibration.loss_curve import LossCurve, unit_steps
from racer_core.calibration.options import CalibrationOptions
from racer_core.errors import InputError
from racer_core.racer import Racer
from racer_core.records.conversation import RoutedText, turn_sizes
from racer_core.records.request import row_text, row_turns
from racer_core.records.units import renumbered, turns_in_order
from racer_core.records.whole_conversations import WholeConversations
from racer_core.trained_router import LabelledColumns
from racer_core.types import BoolArray, FloatArray, LabelledRows


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationMeasures:
    """Means over all splits at one risk level.

    Attributes:
        alpha: The risk level, which bounds ``risk`` in expectation.
        kept: Conversations kept their order; else every turn chose alone.
        risk: Mean over conversations of the mean loss of their turns.
        risk_se: Standard error of it over other conversations.
        splits_se: Standard error of it over other splits of these conversations: alpha bounds their
            expected risk exactly.
        calls: Candidates called a turn.
        cached: Share of the prompts' characters that were in the prompt cache of their candidate.
        infeasible: Share of the splits whose half is too small for alpha.
    """

    alpha: float
    kept: bool
    risk: float
    risk_se: float
    splits_se: float
    calls: float
    cached: float
    infeasible: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationEvaluation:
    """The measures of an artifact on whole conversations."""

    conversations: int
    turns: int
    splits: int
    score: str
    risk_target: str
    measures: tuple[ConversationMeasures, ...]

    def as_json(self) -> dict[str, Any]:
        """The wire form."""
        return asdict(self)


def conversation_rows(
    racer: Racer, rows: LabelledRows, options: CalibrationOptions, *, text: RoutedText
) -> Calibration:
    """All turns of the conversations of a file, scored.

    Args:
        racer: The router.
        rows: Rows with ``conversation``.
        options: The terms.
        text: What the router reads of a turn.

    Raises:
        InputError: A row is of no conversation, or a conversation is not whole.
    """
    names, whole = list[str](), WholeConversations()
    for row in rows:
        if row.conversation is None:
            raise InputError(
                f'row {len(names) + 1} has no "conversation": whole conversations are measured, '
                "all turns of each"
            )
        names.append(row.conversation)
        whole.add(row.conversation, row_turns(row))
    if whole.problem is not None:
        raise InputError(whole.problem)
    ids = renumbered(np.unique(np.array(names), return_inverse=True)[1].astype(np.intp))
    numbers = np.array([len(row.earlier) for row in rows], dtype=np.int64)
    order = turns_in_order(ids.astype(np.int64), numbers)
    rows, ids = rows[order], ids[order].astype(np.int64)
    texts = [row_text(row, text) for row in rows]
    sizes = [turn_sizes(row.earlier, row.query) for row in rows]
    columns = LabelledColumns(
        queries=texts,
        fingerprints=[racer.fingerprint(each) for each in texts],
        labels=rows.labels(racer.pool),
        scores=np.full((len(rows), len(racer.pool)), np.nan),
        quality=rows.quality(racer.pool),
        conversations=ids,
        turn_sizes=np.array([(each.earlier, each.query, each.answer) for each in sizes]),
    )
    return racer.calibrate_columns(columns, options, scorer=racer.score, prices=None)


def evaluate_conversations(
    rows: Calibration, *, alphas: Sequence[float], splits: int, seed: int
) -> ConversationEvaluation:
    """Measure both policies over random halves of the conversations.

    Args:
        rows: All turns, as :func:`conversation_rows` returns them.
        alphas: Risk levels.
        splits: Number of random splits.
        seed: Of the splits.
    """
    assert rows.conversations is not None
    count = len(np.unique(rows.conversations))
    rng = np.random.default_rng(seed)
    halves = [rng.permutation(count) < count // 2 for _ in range(splits)]
    return ConversationEvaluation(
        conversations=count,
        turns=len(rows.fingerprints),
        splits=splits,
        score=rows.options.score.value,
        risk_target=rows.options.risk_target.value,
        measures=tuple(
            _Policy(_at(rows, alpha, kept=kept), rows.conversations).measured(halves, kept=kept)
            for alpha in alphas
            for kept in (True, False)
        ),
    )


def _at(rows: Calibration, alpha: float, *, kept: bool) -> Calibration:
    """The rows as a calibration at alpha has them, which keeps orders by its own alpha.

    Where none is kept, every turn is a conversation of its own.
    """
    conversations = rows.conversations if kept else np.arange(len(rows.fingerprints))
    options = replace(rows.options, alpha=alpha)
    return replace(rows, options=options, conversations=conversations)


class _Policy:
    """The turns of conversations under one policy at one risk level, scored once.

    Args:
        rows: The turns, with the conversations whose order is kept.
        conversations: The conversation of each turn, from 0, whose loss is measured, shape (n,).
    """

    def __init__(self, rows: Calibration, conversations: NDArray[np.int64]) -> None:
        assert rows.turn_sizes is not None
        self._rows, self._ids = rows, conversations
        self._alpha, self._count = rows.options.alpha, len(np.unique(conversations))
        score = rows.options.score
        self._fit = rows.row_nonconformity(score)
        self._losses = rows.row_losses(score)
        self._counted = self._ids[rows.counted]  # the conversation of each turn that counts
        self._prompts = rows.turn_sizes[:, 0] + rows.turn_sizes[:, 1]

    def measured(self, halves: Sequence[BoolArray], *, kept: bool) -> ConversationMeasures:
        """The means over splits; ``halves`` says of each which conversations calibrate."""
        runs: list[tuple[float, float, float, bool]] = []
        totals, times = np.zeros(self._count), np.zeros(self._count)
        for half in halves:
            lambda_hat = self._threshold(half)
            of_each = self._loss_of_each(lambda_hat)
            tested = ~half & ~np.isnan(of_each)
            totals[tested] += of_each[tested]
            times[tested] += 1
            turns = np.flatnonzero(~half[self._ids])
            sets = self._rows.rules.sets(self._fit[turns], self._rows.scores[turns], lambda_hat)
            prompts, called = self._prompts[turns], sets.selected
            spent = float((called * prompts[:, None]).sum())
            spared = float(cached_characters(called, prompts, self._ids[turns]).sum())
            runs.append(
                (
                    float(of_each[tested].mean()),
                    float(called.sum(axis=1).mean()),
                    spared / spent if spent else 0.0,
                    math.isinf(lambda_hat),
                )
            )
        risk, calls, cached, infeasible = (
            mean(map(float, each)) for each in zip(*runs, strict=True)
        )
        means = totals[times > 0] / times[times > 0]
        return ConversationMeasures(
            alpha=self._alpha,
            kept=kept,
            risk=risk,
            risk_se=float(means.std() / math.sqrt(len(means))),
            splits_se=float(np.std([each[0] for each in runs]) / math.sqrt(len(runs))),
            calls=calls,
            cached=cached,
            infeasible=infeasible,
        )

    def _threshold(self, half: BoolArray) -> float:
        """The threshold of some of the conversations."""
        own = half[self._counted]
        units = self._counted[own]
        steps = unit_steps(self._losses.scores[own], self._losses.drops[own], units)
        return LossCurve.of(*steps, units=len(np.unique(units))).threshold(self._alpha)

    def _loss_of_each(self, lambda_hat: float) -> FloatArray:
        """The loss of each conversation, shape (C,); NaN for one without a turn that counts."""
        turns = np.bincount(self._counted, minlength=self._count)
        losses = np.bincount(self._counted, self._losses.at(lambda_hat), minlength=self._count)
        return np.divide(losses, turns, out=np.full(self._count, np.nan), where=turns > 0)


def cached_characters(
    called: BoolArray, prompts: FloatArray, conversations: NDArray[np.int64]
) -> FloatArray:
    """Characters of each call's prompt that its candidate has seen, shape (n, K).

    It has seen the prompt of the turn at which it was called last; nothing is ever evicted.

    Args:
        called: The sets, shape (n, K). Turns of a conversation are in their order.
        prompts: Length of each turn's prompt, shape (n,).
        conversations: The conversation of each turn, shape (n,).
    """
    places = np.where(called, np.arange(len(called))[:, None], -1)
    last = np.full(called.shape, -1)
    last[1:] = np.maximum.accumulate(places, axis=0)[:-1]  # the call before, of any conversation
    is_same = (last >= 0) & (conversations[last] == conversations[:, None])
    return np.where(called & is_same, prompts[last], 0.0)
