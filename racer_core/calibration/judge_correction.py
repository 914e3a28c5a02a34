"""Judge correction: thresholds from a judge model's verdicts, corrected by a few people's labels.

A judge gave verdicts on all rows, and people labelled m of them, drawn at random. With
g(lambda) = 1{the row counts} (1{it is missed at lambda} - alpha) by people's labels, h(lambda) the
same by the judge's verdicts,

    R(lambda) = E[g(lambda)] <= 0   is   P(missed | it counts) <= alpha,

and R does not grow with lambda. Each row with people's labels has a block of k further rows with
verdicts alone. Row i turns the capital W, 1 at the start, into

    W (1 - c (g_i - w h_i + b)) prod_j (1 - c/k (w h_ij - b))

with a bet c, a weight w in [0, 1] of the judge and an estimate b of w E[h] that depend on earlier
rows alone. lambda passes if its capital ever reaches 1 / delta. lambda_hat is the smallest level
that passes together with all larger levels.

**Theorem.** If rows are independent and drawn as queries are, m is fixed beforehand, the labelled
rows are drawn without a look at the rows, and people's labels are right, then P(R(lambda_hat) > 0)
<= delta, whatever the judge is.

Proof. Given the past, the factor of row i has the mean (1 - c u) (1 - c v / k)^k with
u = E[g] - w E[h] + b and v = w E[h] - b, at most exp(-c (u + v)) = exp(-c R(lambda)). So W is a
nonnegative supermartingale where R(lambda) >= 0, and such a lambda passes with probability at most
delta (Ville). If R(lambda_hat) > 0, the largest level with R > 0 passed; it is fixed, for levels
are those of rows that are not tested. (Of few rows all critical scores are levels. Tests change at
no other lambda, so that in effect every real number is tested, and the same follows in the limit.)

w minimises the variance of the earlier rows, so that a bad judge gets the weight 0 and a good one
nearly 1: the choice between people's labels alone and corrected ones is made for every row by those
before it. The bet imitates a test that is exact after all m rows: such a test passes with
probability delta W from here on, and loses the share f(x) / F(x) = ``_hedge`` of that with the next
event, if losses come from Poisson events with the variance and third moment of earlier rows. So
with w = 0 sets are nearly those of the exact binomial rule. Any other bet is valid, too.

Rows without verdict and label count as missed at every level under both. They are placed at random
among all rows: the part with people's labels is the first m rows of a random order of all, in which
rows without a verdict keep their places.

References: Einbinder, Ringel & Romano 2024 (semi-supervised risk control); Angelopoulos, Bates,
Fannjiang, Jordan & Zrnic 2023 (prediction-powered inference); Bates, Angelopoulos, Lei, Malik &
Jordan 2021 (monotone risks); Waudby-Smith & Ramdas 2024 (betting); Foellmer & Leukert 1999
(quantile hedging).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from racer_core.calibration.laws import log_factorials
from racer_core.types import BoolArray, FloatArray

Rows = NDArray[np.intp]

LEVELS: Final = 500  # from rows that are not tested
_MANY_ROWS: Final = 2_000  # with more rows that only the judge saw, some of them set the levels
_LEVEL_ROWS: Final = 200
_AT_ONCE: Final = 4_096  # tests, of a level and an alpha each
_PRIOR_ROWS: Final = 20  # what the first variances and covariances are worth
_PRIOR_WEIGHT: Final = 0.5  # of the judge, before the first row
_OVERSHOOT: Final = 1.05  # aim of the bets, in units of 1 / delta
_LEAST_JUMP: Final = 0.1
_STAKE: Final = 0.95  # largest share of the capital that one row can lose


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """What rows lose at every level.

    Attributes:
        critical: The smallest level at which a row is not missed, shape (n,); +inf: none.
        counted: Whether the row counts for the risk, shape (n,).
    """

    critical: FloatArray
    counted: BoolArray

    def take(self, rows: Rows) -> Losses:
        """The losses of some rows."""
        return Losses(critical=self.critical[rows], counted=self.counted[rows])

    def missed(self, levels: FloatArray) -> FloatArray:
        """1 for a row that counts and is missed, shape (n, levels)."""
        return ((self.critical[:, None] > levels) & self.counted[:, None]).astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Places of the rows, in random order.

    Attributes:
        labelled: Of the part with people's labels, shape (m,); some may be without label and
            verdict.
        judged: Of the part with verdicts alone.
    """

    labelled: Rows
    judged: Rows

    @classmethod
    def of(cls, fingerprints: Sequence[bytes], labelled: BoolArray, judged: BoolArray) -> Self:
        """Divide rows in an order that is random, and the same for any order of the file.

        Args:
            fingerprints: Keyed hashes of the rows, whose digest is the seed.
            labelled: Rows that people labelled, shape (n,).
            judged: Rows with a judge's verdicts, shape (n,): at least those that people labelled.
        """
        ordered = sorted(range(len(fingerprints)), key=fingerprints.__getitem__)
        digest = hashlib.sha256(b"".join(fingerprints[i] for i in ordered)).digest()
        rng = np.random.default_rng(int.from_bytes(digest))
        order = np.array(ordered, dtype=np.intp)[rng.permutation(len(ordered))]
        without = ~judged[order]
        others = order[~without]
        by_people = labelled[others]
        order[~without] = np.concatenate([others[by_people], others[~by_people]])
        m = int(by_people.sum())
        return cls(labelled=order[:m], judged=order[m:])


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectedThresholds:
    """The thresholds of several alphas.

    Attributes:
        alphas: Ascending, shape (alphas,).
        thresholds: lambda_hat, shape (alphas,); +inf where no level passes.
        weights: The judge's mean weight w there, shape (alphas,); 0: people's labels alone decide.
    """

    alphas: FloatArray
    thresholds: FloatArray
    weights: FloatArray

    def place(self, alpha: float) -> int:
        """The place of the largest alpha that is at most this one; -1: there is none."""
        return int(np.searchsorted(self.alphas, alpha, side="right")) - 1

    def threshold(self, alpha: float) -> float:
        """The threshold of any alpha, rounded down to one of ``alphas``: a look-up."""
        place = self.place(alpha)
        return float(self.thresholds[place]) if place >= 0 else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeErrors:
    """A judge's errors on answers that people labelled.

    Attributes:
        rows: Rows with both.
        by_candidate: Share of wrong verdicts on each candidate's answers, shape (K,).
        informedness: P(says right | right) - P(says right | wrong), over all answers: 0 at chance,
            1 without errors. None: people call all answers right, or all wrong.
    """

    rows: int
    by_candidate: FloatArray
    informedness: float | None

    @classmethod
    def of(cls, labels: BoolArray, verdicts: BoolArray) -> Self:
        """The errors of at least one row; arguments of shape (n, K)."""
        informedness = None
        if labels.any() and not labels.all():
            informedness = float(verdicts[labels].mean() - verdicts[~labels].mean())
        return cls(
            rows=len(labels),
            by_candidate=(labels != verdicts).mean(axis=0),
            informedness=informedness,
        )


def alpha_grid(alpha: float) -> FloatArray:
    """The alphas whose thresholds are computed: steps of 0.001 to 0.1, of 0.01 to 0.5, and one."""
    steps = [*(i / 1_000 for i in range(1, 100)), *(i / 100 for i in range(10, 51)), alpha]
    return np.unique(np.array(steps))


def corrected_thresholds(
    people: Losses,
    judge: Losses,
    parts: Parts,
    alphas: FloatArray,
    delta: float,
    *,
    nonconformity: FloatArray,
) -> CorrectedThresholds:
    """lambda_hat of each alpha. Each is valid on its own, not all of them together.

    A larger alpha never has the larger threshold: where it would, both get the larger one.

    Args:
        people: The losses of all rows by people's labels; read for the labelled part alone.
        judge: Those by the judge's verdicts.
        parts: The two parts of the rows.
        alphas: Risk levels, ascending, shape (alphas,).
        delta: Probability with which the risk of a threshold may exceed its alpha.
        nonconformity: The scores of all rows, shape (n, K): levels where rows are many.
    """
    if not len(parts.labelled):
        nothing = np.zeros(len(alphas))
        return CorrectedThresholds(alphas=alphas, thresholds=nothing + np.inf, weights=nothing)
    tested, levels = _tested_and_levels(people, judge, parts, nonconformity)
    tests = _Tests(
        people=people.take(parts.labelled),
        judge=judge.take(parts.labelled),
        others=judge.take(tested),
        delta=delta,
    )
    found, weights = np.full(len(alphas), np.inf), np.zeros(len(alphas))
    step = max(1, _AT_ONCE // 256)
    for first in range(0, len(alphas), step):
        chunk = slice(first, first + step)
        found[chunk], weights[chunk] = tests.smallest_passing(levels, alphas[chunk])
    found = np.maximum.accumulate(found[::-1])[::-1]
    return CorrectedThresholds(alphas=alphas, thresholds=found, weights=weights)


def _tested_and_levels(
    people: Losses, judge: Losses, parts: Parts, nonconformity: FloatArray
) -> tuple[Rows, FloatArray]:
    """The rows with verdicts alone that are tested, whole blocks, and the levels, descending.

    Levels of many rows are evenly spaced order statistics of the scores of some that are not
    tested: from one to the next the mean set grows by the same share of the pool. Critical scores
    would not do, for those of a lenient judge leave gaps where people's are.
    """
    count, m = len(parts.judged), len(parts.labelled)
    aside = _LEVEL_ROWS if count >= _MANY_ROWS else 0
    tested = parts.judged[: (count - aside) // m * m]
    if aside:
        scores = np.sort(nonconformity[parts.judged[-aside:]], axis=None)
        scores = scores[np.linspace(0, scores.size - 1, LEVELS).astype(np.intp)]
    else:
        scores = np.concatenate([people.critical[parts.labelled], judge.critical])
    return tested, np.unique(scores[np.isfinite(scores)])[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tests:
    """Tests of "R(lambda) > 0"; ``others`` are whole blocks, one for each row of ``people``."""

    people: Losses
    judge: Losses
    others: Losses
    delta: float

    def smallest_passing(
        self, levels: FloatArray, alphas: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """For each alpha the last of the descending levels before the first that fails."""
        found, weights = np.full(len(alphas), np.inf), np.zeros(len(alphas))
        going = np.ones(len(alphas), bool)
        width = max(1, _AT_ONCE // len(alphas))
        for first in range(0, len(levels), width):
            chunk = levels[first : first + width]
            passed, weight = self._test(chunk, alphas[going])
            run = np.where(passed.all(axis=1), len(chunk), passed.argmin(axis=1))
            some = np.flatnonzero(going)[run > 0]
            last = run[run > 0] - 1
            found[some], weights[some] = chunk[last], weight[run > 0, last]
            going[np.flatnonzero(going)[run < len(chunk)]] = False
            if not going.any():
                break
        return found, weights

    def _test(self, levels: FloatArray, alphas: FloatArray) -> tuple[BoolArray, FloatArray]:
        """Whether each level passes, and the judge's mean weight, both (alphas, levels)."""
        m, a = len(self.people.critical), alphas[:, None]
        k = len(self.others.critical) // m
        by_people, by_judge = self.people.missed(levels), self.judge.missed(levels)
        others = self.others.missed(levels).reshape(m, k, len(levels)).sum(axis=1)
        counted = self.others.counted.reshape(m, k).sum(axis=1)
        capital = np.ones((len(alphas), len(levels)))
        passed = np.zeros(capital.shape, bool)
        past = _Past(alphas, capital.shape, k)
        weight_sum = np.zeros(capital.shape)
        for i in range(m):
            w = past.weight()
            b = w * past.judge_mean()
            g = by_people[i] - a * self.people.counted[i]
            h = by_judge[i] - a * self.judge.counted[i]
            largest = (1.0 - a) + w * a + b
            if k:
                largest = np.maximum(largest, (w * (1.0 - a) - b) / k)
            variance, jump = past.shape()
            events = (m - i) * variance / (jump * jump)
            hedge = _hedge(capital * (self.delta / _OVERSHOOT), events) / jump
            bet = np.minimum(hedge, _STAKE / largest)
            bet[passed] = 0.0
            growth = np.log1p(-bet * (g - w * h + b))
            if k:
                part = bet / k
                growth += others[i] * np.log1p(-part * (w * (1.0 - a) - b))
                growth += (counted[i] - others[i]) * np.log1p(part * (w * a + b))
                growth += (k - counted[i]) * np.log1p(part * b)
            capital *= np.exp(growth)
            passed |= capital >= 1.0 / self.delta
            mean = (others[i] - a * counted[i]) / k if k else 0.0
            past.add(g, h, mean, g - w * h + w * mean)
            weight_sum += w
        return passed, weight_sum / m


class _Past:
    """Moments of the earlier rows, from which weights and bets follow."""

    def __init__(self, alphas: FloatArray, shape: tuple[int, ...], k: int) -> None:
        self._prior = _PRIOR_ROWS * (alphas * (1.0 - alphas))[:, None]
        self._k = k
        self._rows = 0
        # Sums of g, h, g h, h h, the means of the blocks, and powers of the corrected losses.
        sums: list[FloatArray] = [np.zeros(shape) for _ in range(7)]
        self._g, self._h, self._gh, self._hh, self._means, self._squares, self._cubes = sums

    def weight(self) -> FloatArray:
        """The w that minimises the variance of g - w h + w (mean of k of h)."""
        if not self._k:
            return np.zeros(self._g.shape)
        n = max(self._rows, 1)
        covariance = self._gh - self._g * self._h / n + _PRIOR_WEIGHT * self._prior
        variance = self._hh - self._h * self._h / n + self._prior
        return np.clip(covariance / (variance * (1.0 + 1.0 / self._k)), 0.0, 1.0)

    def judge_mean(self) -> FloatArray:
        """An estimate of E[h]."""
        return self._means / max(self._rows, 1)

    def shape(self) -> tuple[FloatArray, FloatArray]:
        """The variance of a row's corrected loss, where its mean is 0, and its typical jump.

        Poisson events that raise the loss by that jump have its variance and third moment.
        """
        squares = self._squares + self._prior / 2.0
        jump = (self._cubes + self._prior / 2.0) / squares
        return squares / (self._rows + _PRIOR_ROWS), np.maximum(jump, _LEAST_JUMP)

    def add(self, g: FloatArray, h: FloatArray, mean: FloatArray | float, loss: FloatArray) -> None:
        """Add a row."""
        self._rows += 1
        self._g += g
        self._h += h
        self._gh += g * h
        self._hh += h * h
        self._means += mean
        self._squares += loss * loss
        self._cubes += loss * loss * loss


# f(x) / F(x) of Poisson variables by their mean and by log F(x), for ``_hedge``.
_MEANS: Final = np.geomspace(0.05, 2_000.0, 64)
_LOG_CHANCES: Final = np.linspace(-12.0, 0.0, 241)


def _reversed_hazards(mean: float) -> FloatArray:
    """F / F at each of ``_LOG_CHANCES``; between whole numbers it is interpolated."""
    counts = np.arange(math.ceil(mean + 12.0 * math.sqrt(mean) + 40.0))
    log_pmf = counts * math.log(mean) - mean - log_factorials(len(counts) - 1)
    log_cdf = np.logaddexp.accumulate(log_pmf)
    hazards: FloatArray = np.interp(_LOG_CHANCES, log_cdf, np.exp(log_pmf - log_cdf))
    return hazards


_HAZARDS: Final = np.array([_reversed_hazards(mean) for mean in _MEANS])


def _hedge(chance: FloatArray, events: FloatArray) -> FloatArray:
    """f(x) / F(x) at F(x) = ``chance``, of a Poisson variable with the mean ``events``.

    A test that is exact at m loses this share of its chance to pass when an event occurs.
    """
    row = np.log(events / _MEANS[0]) / math.log(_MEANS[1] / _MEANS[0])
    column = (np.log(chance) - _LOG_CHANCES[0]) / (_LOG_CHANCES[1] - _LOG_CHANCES[0])
    row = np.clip(row, 0.0, len(_MEANS) - 1.001)
    column = np.clip(column, 0.0, len(_LOG_CHANCES) - 1.001)
    i, j = row.astype(np.intp), column.astype(np.intp)
    y, x = row - i, column - j
    above = (1.0 - x) * _HAZARDS[i, j] + x * _HAZARDS[i, j + 1]
    below = (1.0 - x) * _HAZARDS[i + 1, j] + x * _HAZARDS[i + 1, j + 1]
    return np.where(chance >= 1.0, 0.0, (1.0 - y) * above + y * below)
