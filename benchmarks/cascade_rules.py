"""Rules for a cascade of two candidates: when a check's score lets the cheap answer be served.

Firstpass's two rules are written anew after its documentation and source (`firstpass-core`,
`conformal.rs` and `ltt.rs`); ours are those of ``racer_core``. A rule sees calibration rows alone.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from racer_core.calibration.laws import binomial_cdf_at
from racer_core.calibration.learn_then_test import GridPoint, learn_then_test
from racer_core.sequential.answer_classes import AnswerClasses
from racer_core.sequential.calibration import SequentialCalibration
from racer_core.sequential.coverage import fit_coverage_policy
from racer_core.sequential.verdicts import verdict_of

FEWEST = 50  # served rows below which Firstpass certifies nothing
POOL = ("cheap", "strong")
NEVER = math.inf  # a threshold: the strong candidate is always served
FITTED = 0.25  # of the half that calibrates, for what is fitted


@dataclass(frozen=True, kw_only=True)
class Cascade:
    """Tasks with both answers, judged: arrays of one length.

    Attributes:
        number: The place of each task in its file.
        score: The check's, of the cheap answer.
        scores: The check's, of both answers, shape (n, 2).
        cheap: Whether the cheap answer is right.
        strong: Whether the strong one is.
        cost: Dollars of each call, shape (n, 2).
    """

    number: Any
    score: Any
    scores: Any
    cheap: Any
    strong: Any
    cost: Any

    def __len__(self) -> int:
        return len(self.score)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Firstpass's records of two rungs. Raises ValueError for others."""
        with gzip.open(path, "rt", encoding="utf-8") as file:
            rows: list[dict[str, Any]] = [json.loads(line) for line in file]
        rungs = [row["rungs"] for row in rows]
        if {len(each) for each in rungs} != {2} or len({row["task_id"] for row in rows}) < len(
            rows
        ):
            raise ValueError(f"{path.name}: not one line of two rungs for each task")
        scores = np.array([[_score(rung) for rung in each] for each in rungs])
        right = np.array([[rung["oracle_correct"] for rung in each] for each in rungs])
        cost = np.array([[rung["cost_usd"] for rung in each] for each in rungs])
        return cls._of(scores, right, cost)

    @classmethod
    def simulated(cls, n: int, seed: int = 0) -> Self:
        """Tasks about as the records': a check that passes a few wrong answers and no right one."""
        rng = np.random.default_rng(seed)
        easy = rng.random(n)
        right = np.column_stack([easy < 0.78, easy < 0.95])
        passes = right | (rng.random((n, 2)) < 0.12)
        scores = np.where(passes, 1.0, 0.5 * (rng.random((n, 2)) < 0.15))
        cost = np.array([0.0014, 0.0075]) * rng.gamma(2.0, 0.5, (n, 1))
        return cls._of(scores, right, cost)

    @classmethod
    def _of(cls, scores: Any, right: Any, cost: Any) -> Self:
        return cls(
            number=np.arange(len(scores)),
            score=scores[:, 0],
            scores=scores,
            cheap=right[:, 0],
            strong=right[:, 1],
            cost=cost,
        )

    def at(self, rows: Any) -> Self:
        """Some of the tasks."""
        parts = {name: getattr(self, name)[rows] for name in self.__dataclass_fields__}
        return replace(self, **parts)

    def joined(self, other: Self) -> Self:
        """These and other tasks."""
        names = self.__dataclass_fields__
        parts = {
            name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in names
        }
        return replace(self, **parts)

    def served(self, threshold: float) -> ServedAnswers:
        """The cheap answer from this score on, else the strong one, which is called then."""
        is_cheap = self.score >= threshold
        return self.serving(is_cheap, self.cost[:, 0] + np.where(is_cheap, 0.0, self.cost[:, 1]))

    def strong_alone(self) -> ServedAnswers:
        """The strong candidate, without a call of the cheap one."""
        return self.serving(np.zeros(len(self), dtype=bool), self.cost[:, 1])

    def serving(self, is_cheap: Any, dollars: Any) -> ServedAnswers:
        """The cheap answer of some tasks and the strong one of the others, at these costs."""
        return ServedAnswers(is_cheap, np.where(is_cheap, self.cheap, self.strong), dollars)

    @property
    def levels(self) -> list[float]:
        """The scores that occur, the strictest first, and never."""
        return [NEVER, *sorted(set(self.score.tolist()), reverse=True)]


@dataclass(frozen=True)
class ServedAnswers:
    """What a policy serves of some tasks: whether the cheap answer, whether right, dollars."""

    is_cheap: Any
    right: Any
    dollars: Any

    def errors(self, *, of_cheap: bool) -> tuple[int, int]:
        """Wrong answers and all answers: of the cheap candidate alone, or of both."""
        among = self.is_cheap if of_cheap else np.ones(len(self.right), dtype=bool)
        return int((among & ~self.right).sum()), int(among.sum())

    def figures(self) -> dict[str, float]:
        """Shares and dollars of a task."""
        wrong, served = self.errors(of_cheap=True)
        return {
            "error": float((~self.right).mean()),
            "error_of_cheap": wrong / served if served else 0.0,
            "cheap": float(self.is_cheap.mean()),
            "dollars": float(self.dollars.mean()),
        }


def halves(tasks: Cascade, rng: np.random.Generator) -> tuple[Cascade, Cascade, Cascade]:
    """Tasks that fit, that calibrate, and that are served: a quarter and the rest of one half."""
    order = rng.permutation(len(tasks))
    half = len(tasks) // 2
    parts = np.split(order, [int(FITTED * half), half])
    return tasks.at(parts[0]), tasks.at(parts[1]), tasks.at(parts[2])


@dataclass(frozen=True)
class CertifiedTasks:
    """What Firstpass's default rule certifies: a threshold by a prefix of the sorted rows.

    Attributes:
        threshold: The score of the prefix's last row.
        wrong: Wrong answers of the prefix.
        served: Its rows. Rows that tie with its last one are served, too, and not among them.
    """

    threshold: float = NEVER
    wrong: int = 0
    served: int = 0

    def is_cut(self, rows: Cascade, alpha: float, delta: float = 0.05) -> bool:
        """Whether the bound is above the limit for all rows that its threshold serves."""
        wrong, served = rows.served(self.threshold).errors(of_cheap=True)
        return served > 0 and hoeffding_upper(wrong, served, delta) > alpha


def hoeffding_upper(wrong: Any, served: Any, delta: float) -> Any:
    """Hoeffding's upper bound of a rate, with probability 1 - delta."""
    return wrong / served + np.sqrt(math.log(1 / delta) / (2 * served))


def firstpass_conformal(rows: Cascade, alpha: float, delta: float = 0.05) -> CertifiedTasks:
    """Firstpass's default: the longest prefix, by falling score, that keeps Hoeffding's bound.

    Every prefix is looked at, also one that ends among equal scores, and nothing corrects for it.
    """
    order = np.argsort(-rows.score, kind="stable")
    served = np.arange(1, len(rows) + 1)
    wrong = np.cumsum(~rows.cheap[order])
    holds = hoeffding_upper(wrong, served, delta) <= alpha
    holds[: FEWEST - 1] = False
    if not holds.any():
        return CertifiedTasks()
    last = int(np.flatnonzero(holds)[-1])
    return CertifiedTasks(float(rows.score[order[last]]), int(wrong[last]), last + 1)


def firstpass_ltt(rows: Cascade, alpha: float, delta: float = 0.05) -> float:
    """Firstpass's other rule: exact binomial tests, strictest level first, to the first failure."""
    threshold = NEVER
    for level in rows.levels[1:]:
        wrong, served = rows.served(level).errors(of_cheap=True)
        if served < FEWEST:
            continue
        if binomial_cdf_at(wrong, served, alpha) > delta:
            break
        threshold = level
    return threshold


def most_served(
    rows: Cascade, levels: Sequence[float], alpha: float, delta: float = 0.05, *, of_cheap: bool
) -> float:
    """``learn_then_test`` over levels in this order; of those that pass the one that serves most.

    Args:
        rows: Rows that did not choose the order.
        levels: Thresholds.
        alpha: Limit on the rate of wrong answers.
        delta: Probability that one that passes exceeds it.
        of_cheap: Among the cheap answers that are served, or among all served ones.
    """
    grid: list[GridPoint] = []
    for level in levels:
        wrong, answered = rows.served(level).errors(of_cheap=of_cheap)
        grid.append(GridPoint(lambda_hat=level, errors=wrong, answered=answered, size=0.0))
    passed = learn_then_test(grid, alpha, delta).valid
    return min((each.lambda_hat for each in passed), default=NEVER)


def ranked(rows: Cascade, *, of_cheap: bool) -> list[float]:
    """The levels that serve a cheap answer, by their rate of errors, as `answer_risk_max` does."""

    def rate(level: float) -> tuple[float, float]:
        wrong, answered = rows.served(level).errors(of_cheap=of_cheap)
        return wrong / max(answered, 1), level

    return sorted(rows.levels[1:], key=rate)


def rounds(
    fit: Cascade,
    rows: Cascade,
    test: Cascade,
    alpha: float,
    delta: float | None,
    *,
    order: Sequence[str] | None,
) -> tuple[ServedAnswers, float]:
    """The promise of misses in rounds, with the check as its checker, and its realised risk.

    There are no texts of answers, so that no two are equal.

    Args:
        fit: Rows that fit reliabilities, the checker's rates, and the order.
        rows: Rows that set the threshold.
        test: Rows that are served.
        alpha: Largest share of answerable tasks for which no right candidate is called.
        delta: As for ``SequentialCalibration.lambda_hat``.
        order: The order of calls; None: the fitted one, which looks at no price.
    """
    answers, calibration = _classes(fit), _classes(rows).answerable()
    policy = fit_coverage_policy(answers, max_rounds=None)
    if order is not None:
        policy = replace(policy, order=tuple(order))
    calibrated = SequentialCalibration(policy=policy, answers=calibration, salt=b"cascade")
    tests = _classes(test)
    stops = calibrated.stops(tests, calibrated.lambda_hat(alpha, delta))
    columns = [POOL.index(name) for name in policy.order]
    spent = np.cumsum(test.cost[:, columns], axis=1)[np.arange(len(test)), stops.calls - 1]
    right = np.column_stack([test.cheap, test.strong])
    served = ServedAnswers(stops.winner == 0, right[np.arange(len(test)), stops.winner], spent)
    return served, float(stops.differs[right.any(axis=1)].mean())


def _classes(rows: Cascade) -> AnswerClasses:
    n = len(rows)
    verdicts = [[verdict_of(score) for score in each] for each in rows.scores.tolist()]
    return AnswerClasses(
        pool=POOL,
        classes=np.tile(np.arange(2, dtype=np.int16), (n, 1)),
        fingerprints=tuple(number.to_bytes(8) for number in rows.number.tolist()),
        verdicts=np.array(verdicts, dtype=np.int8),
        labels=np.column_stack([rows.cheap, rows.strong]),
    )


def _score(rung: Mapping[str, Any]) -> float:
    """Of a check that a judge joins: its mean with the judge's where all tests pass, else half."""
    gate, judge = float(rung["gate_score"]), rung["judge_score"]
    if judge is None:
        return gate
    return (1.0 + float(judge)) / 2.0 if rung["gate_full_pass"] else gate / 2.0
