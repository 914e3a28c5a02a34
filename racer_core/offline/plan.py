"""Plan of labels: what a number of questions gives, before any of them is labelled.

For example, at alpha 0.1 with 96 calibration rows that count: 8 may be missed, so the realised risk
is Beta(9, 88), 0.093 on average and up to 0.146 with probability 0.95. Nothing but the number of
rows decides it (``calibration.laws``). Only the calls depend on the candidates: as soon as some
rows are labelled, a fixed order of the candidates on these rows says how many to expect.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from racer_core.calibration.augmentation import augment_truth
from racer_core.calibration.laws import beta_quantile, binomial_cdf_at
from racer_core.calibration.patterns import PatternModel
from racer_core.calibration.scoring import NonconformityScorer
from racer_core.calibration.threshold import allowed_misses, fewest_rows
from racer_core.errors import InputError
from racer_core.records.split import TUNED_ROWS, TUNING_SHARES, UNTUNED_SHARES
from racer_core.types import BoolArray, FloatArray, RiskTarget, Score, any_column, checked_alpha

ANSWERABLE: Final = 0.75  # share of questions with a right candidate, until labelled rows say it
MEASURED_FROM: Final = 30  # labelled rows that say it, and how many calls to expect
CONFIDENCE: Final = 0.95  # that the realised risk is within a factor of alpha
FACTORS: Final = (1.5, 1.25)
FEW: Final = 100  # questions below which another promise, or a larger alpha, is the better start
_FOLDS: Final = 5
_GRID: Final = 5_001


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The law of the realised risk of a calibration, by the number of its rows alone.

    Attributes:
        n: Calibration rows that count.
        misses: Rows that may be missed; -1: alpha is infeasible, and all candidates are called.
    """

    n: int
    misses: int

    @classmethod
    def of(cls, n: int, alpha: float, delta: float | None = None) -> Self:
        """The law at a risk level, and with a confidence 1 - delta where one is wanted."""
        return cls(n=n, misses=allowed_misses(n, alpha, delta))

    @property
    def is_feasible(self) -> bool:
        """Whether a finite threshold exists."""
        return self.misses >= 0

    @property
    def mean(self) -> float:
        """The mean over calibrations: m/(n + 1); 0 where all candidates are called."""
        return (self.misses + 1) / (self.n + 1)

    def quantile(self, q: float) -> float:
        """Of Beta(m, n + 1 - m); ties make the risk smaller. 0 where all candidates are called."""
        return beta_quantile(q, self.misses + 1, self.n - self.misses) if self.is_feasible else 0.0

    def density(self) -> tuple[FloatArray, FloatArray]:
        """Risks on a grid, and their probabilities."""
        a, b = self.misses + 1, self.n - self.misses
        reach = 25.0 * math.sqrt(self.mean * (1.0 - self.mean) / (self.n + 2))
        low, high = max(0.0, self.mean - reach), min(1.0, self.mean + reach)
        risks = low + (high - low) * (np.arange(_GRID) + 0.5) / _GRID
        logs = (a - 1) * np.log(risks) + (b - 1) * np.log1p(-risks)
        mass = np.exp(logs - logs.max())
        return risks, mass / mass.sum()


def rows_within(
    limit: float, alpha: float, delta: float | None = None, confidence: float = CONFIDENCE
) -> int | None:
    """The fewest rows that count from which on the realised risk is at most ``limit``.

    Beta(c + 1, n - c) is at most ``limit`` with the probability that more than c of n rows are
    missed at risk ``limit``. For a number of misses c, more rows only help, until alpha gives c + 1
    to them. For example, at alpha 0.1 the 95 % point is at most 0.15 for 68 rows, where 5 may be
    missed, not for 69, where 6 may, and for every number from 110 on.

    Args:
        limit: Bound on the realised risk, above alpha.
        alpha: Risk level.
        delta: As of a calibration.
        confidence: Probability over calibrations.

    Returns:
        None if no number of rows is feasible.
    """
    start = fewest = fewest_rows(alpha, delta)
    if start is None or fewest is None or limit >= 1.0:
        return start

    def exceeds(n: int, misses: int) -> bool:
        return binomial_cdf_at(misses, n, limit) > 1.0 - confidence

    misses = 0
    while exceeds(fewest, misses):  # the worst number of rows with this many misses
        start, misses = fewest, misses + 1
        fewest = _fewest(misses, alpha, delta, start)
    before = range(start, fewest)
    return start + bisect_left(before, True, key=lambda n: not exceeds(n, misses - 1))


def _fewest(misses: int, alpha: float, delta: float | None, low: int) -> int:
    """The fewest rows, above ``low``, of which alpha allows this many to be missed."""

    def allows(n: int) -> bool:
        if delta is None:
            return (1 + misses) / (n + 1) <= alpha
        return binomial_cdf_at(misses, n, alpha) <= delta

    high = 2 * low + 1
    while not allows(high):
        high *= 2
    return low + bisect_left(range(low, high), True, key=allows)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledSample:
    """Rows that are labelled already.

    Attributes:
        labels: Which candidates are right, shape (n, K).
        risk_target: Under which the calls are counted, ``answerable`` or ``paper``.
    """

    labels: BoolArray
    risk_target: RiskTarget

    @property
    def counted(self) -> float:
        """The share of rows that count for the risk."""
        return float(any_column(self.labels).mean()) if self._is_conditional else 1.0

    @property
    def _is_conditional(self) -> bool:
        return self.risk_target is RiskTarget.ANSWERABLE

    def calls(self, outlook: Outlook) -> float:
        """Mean calls of a query by a fixed order of the candidates, over calibrations.

        The order of each fifth of the rows is that of the others (``static``). Ties are broken at
        random, so calls go between whole numbers as the share of missed rows does.
        """
        if not outlook.is_feasible:
            return float(self.labels.shape[1])
        missed, sizes = self._curve()
        risks, mass = outlook.density()
        return float(mass @ np.interp(risks, missed[::-1], sizes[::-1]))

    def _curve(self) -> tuple[FloatArray, FloatArray]:
        """The missed share of rows that count, descending, and the calls of sets that miss it."""
        count, columns = self.labels.shape
        truth = self.labels if self._is_conditional else augment_truth(self.labels)
        counts = any_column(truth)
        size, hit = np.zeros(truth.shape[1] + 1), np.zeros(truth.shape[1] + 1)
        for fold in range(_FOLDS):
            own: BoolArray = np.asarray(np.arange(count) % _FOLDS == fold, dtype=bool)
            order = _fixed_order(self.labels[~own], with_null=not self._is_conditional)
            size[1:] += own.sum() * np.cumsum(order < columns)
            hit[1:] += np.maximum.accumulate(truth[own & counts][:, order], axis=1).sum(axis=0)
        # Noise may leave out the first column of an order with the null model, and no other's.
        start = 1 if self._is_conditional else 0
        missed = 1.0 - hit[start:] / max(int(counts.sum()), 1)
        first = np.concatenate([[True], np.diff(missed) < 0.0])
        return missed[first], size[start:][first] / count


def _fixed_order(labels: BoolArray, *, with_null: bool) -> NDArray[np.intp]:
    """The columns in the order of ``static``, the null model last if it takes part."""
    pool = tuple(map(str, range(labels.shape[1])))
    scorer = NonconformityScorer(pool=pool, with_null=with_null, patterns=PatternModel.of(labels))
    scores = np.zeros((1, len(pool)))  # `static` reads none
    return scorer.nonconformity(Score.STATIC, scores, None, [b""])[0].argsort(kind="stable")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a number of questions gives.

    Attributes:
        questions: Questions that are labelled.
        alpha: Risk level.
        delta: P(risk <= alpha) >= 1 - delta; None bounds the mean.
        counted: The share of rows that count for the risk.
        shares: The parts' shares of the questions; None: those of a bootstrap.
        sample: Labelled rows; None: fewer than 30.
    """

    questions: int
    alpha: float
    delta: float | None = None
    counted: float = ANSWERABLE
    shares: Mapping[str, float] | None = None
    sample: LabelledSample | None = None

    def __post_init__(self) -> None:
        """Refuse levels outside of (0, 1), and a delta that no number of rows reaches."""
        checked_alpha(self.alpha)
        if self.delta is not None:
            checked_alpha(self.delta, "delta")
        if self.questions < 1:
            raise InputError("there must be at least one question", param="questions")
        if not 0.0 < self.counted <= 1.0:
            raise InputError(
                "no question is answered right by any candidate, so none counts: check references "
                "and the grade of `racer label`, or add a candidate that can answer them",
                param="answerable",
            )
        if fewest_rows(self.alpha, self.delta) is None:
            raise InputError(
                f"no number of rows is enough for alpha {self.alpha:g}"
                + ("" if self.delta is None else f" and delta {self.delta:g}")
                + ": take larger ones, such as alpha 0.1 without a delta"
            )

    @cached_property
    def parts(self) -> Mapping[str, int]:
        """The questions of each part; those of validation calibrate where tuning needs more."""
        if self.shares is not None:
            return part_sizes(self.questions, self.shares)
        tuned = part_sizes(self.questions, TUNING_SHARES)
        if self._counting(tuned["validation"]) >= TUNED_ROWS:
            return tuned
        return part_sizes(self.questions, UNTUNED_SHARES)

    @cached_property
    def outlook(self) -> Outlook:
        """The law of the calibration's realised risk."""
        n = self._counting(self.parts["calibration"])
        return Outlook(n=n, misses=-1) if n < 1 else Outlook.of(n, self.alpha, self.delta)

    @property
    def calls(self) -> float | None:
        """Calls of a query to expect from a fixed order; None: too few labelled rows say it."""
        return None if self.sample is None else self.sample.calls(self.outlook)

    @property
    def fewest(self) -> int:
        """The fewest rows that count for a finite threshold."""
        found = fewest_rows(self.alpha, self.delta)
        assert found is not None  # checked
        return found

    @property
    def questions_to_tune(self) -> int:
        """The fewest questions whose validation rows `racer tune` takes."""
        return self._questions("validation", TUNED_ROWS, TUNING_SHARES)

    def rows_within(self, factor: float) -> int:
        """Rows that count for a realised risk of ``factor`` times alpha, with probability 0.95."""
        found = rows_within(factor * self.alpha, self.alpha, self.delta)
        assert found is not None  # checked
        return found

    def questions_for(self, rows: int) -> int:
        """The fewest questions of which this many rows calibrate and count."""
        return self._questions("calibration", rows, self.shares or UNTUNED_SHARES)

    def questions_tuned(self, rows: int) -> int:
        """The fewest questions that leave enough of them to `racer tune`, too."""
        found = self._questions("calibration", rows, TUNING_SHARES)
        return max(found, self.questions_to_tune)

    def _questions(self, part: str, rows: int, shares: Mapping[str, float]) -> int:
        found = max(1, math.floor((rows - 1) / (shares[part] * self.counted)))
        while self._counting(part_sizes(found, shares)[part]) < rows:
            found += 1
        return found

    def _counting(self, rows: int) -> int:
        return math.floor(rows * self.counted + 1e-9)


def part_sizes(questions: int, shares: Mapping[str, float]) -> dict[str, int]:
    """The sizes of the parts of a split of questions of one group."""
    cuts = np.floor(np.cumsum([0.0, *shares.values()]) * questions + 0.5 + 1e-9).astype(int)
    return dict(zip(shares, np.diff(cuts).tolist(), strict=True))
