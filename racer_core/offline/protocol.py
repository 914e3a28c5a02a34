"""Evaluation protocol: training rows, random splits and settings. Paper, Sec. 5.1, App. B.

A share of each benchmark's rows trains the router, all benchmarks together; the rest is repeatedly
split at random into calibration, validation and test. Each *division* draws the training rows anew
and trains a router. With one division the spread over splits is that for these training rows. Only
the best single candidates, which the sets must beat, are chosen on test rows: they are the best in
hindsight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from racer_core.aggregation.answers import Equality
from racer_core.errors import CalibrationError, InputError
from racer_core.types import BINARY_TARGETS, RiskTarget, Score, checked_alpha, enum_member

PAPER_ALPHAS = (
    *(i / 100 for i in range(1, 11)),
    *(i / 100 for i in range(15, 51, 5)),
)
COMPARED_AT = 0.1  # the level at which settings are compared on validation rows


class Control(StrEnum):
    """Orders of the candidates that sets are compared with and that no gateway can serve.

    ``static_by_group``: a fixed order for each benchmark, and in it for each ``group`` of its rows
    (else each ``task``), fitted to the training rows of that group. It is given the kind of the
    query, which a score has to recognise.
    """

    STATIC_BY_GROUP = "static_by_group"


Order = Score | Control  # what a report has lines for


def order_member(value: str) -> Order:
    """Return the score or the control with this value; refuse any other with InputError."""
    if value in set(Control):
        return Control(value)
    try:
        return enum_member(Score, value, "score")
    except InputError as exc:
        raise InputError(f"{exc}, {', '.join(Control)}") from None


class CalibrationScope(StrEnum):
    """The rows on which thresholds are set."""

    EACH = "each"  # every benchmark on its own, as in the paper
    MERGED = "merged"  # all benchmarks together, as a gateway sees its traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """``train`` is a share of all rows; ``calibration`` and ``validation`` of those left."""

    train: float = 0.4
    calibration: float = 0.5
    validation: float = 0.1

    def __post_init__(self) -> None:
        """Refuse shares that leave no test rows."""
        shares = (self.train, self.calibration, self.validation)
        if not all(0.0 < each < 1.0 for each in shares) or self.calibration + self.validation >= 1:
            raise InputError("shares must be above 0 and leave rows to test on", param="shares")


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """The experiment."""

    splits: int = 100  # over all divisions
    divisions: int = 1  # into training rows and rest
    shares: Shares = Shares()
    shares_of: Mapping[str, Shares] = field(default_factory=dict[str, Shares])  # by benchmark
    calibrated: CalibrationScope = CalibrationScope.EACH
    alphas: tuple[float, ...] = PAPER_ALPHAS
    scores: tuple[Order, ...] = (
        *(Score.GAP, Score.PROB, Score.COVER, Score.STATIC),
        Control.STATIC_BY_GROUP,  # left out where the rows are of one group
    )
    risk_targets: tuple[RiskTarget, ...] = BINARY_TARGETS
    false_abstain_budget: float | None = 0.01  # None: never abstain because of p_null
    equality: Equality = Equality.AUTO
    prices: tuple[float, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse an invalid protocol; turn the names of enum members into members."""
        targets = tuple(enum_member(RiskTarget, each, "risk_targets") for each in self.risk_targets)
        scope = enum_member(CalibrationScope, self.calibrated, "calibrated")
        object.__setattr__(self, "scores", tuple(order_member(each) for each in self.scores))
        object.__setattr__(self, "risk_targets", targets)
        object.__setattr__(self, "calibrated", scope)
        object.__setattr__(self, "equality", enum_member(Equality, self.equality, "equality"))
        for alpha in self.alphas:
            checked_alpha(alpha)
        if self.splits < 1:
            raise InputError("at least one split is needed", param="splits")
        if not 1 <= self.divisions <= self.splits:
            raise InputError(
                f"{self.divisions} divisions of {self.splits} splits: at least one division is "
                "needed, and at least one split for each",
                param="divisions",
            )
        if not self.alphas or not self.scores or not self.risk_targets:
            raise InputError("at least one alpha, score and risk target is needed")
        if RiskTarget.QUALITY in targets and len(set(targets)) > 1:
            raise InputError(
                "risk target quality is measured alone: its figures are grades, those of "
                f"{', '.join(BINARY_TARGETS)} right answers; evaluate twice",
                param="risk_targets",
            )

    def of(self, benchmark: str) -> Shares:
        """The shares of one benchmark."""
        return self.shares_of.get(benchmark, self.shares)

    def splits_of(self, division: int) -> int:
        """The number of splits of one division; they differ by one split at most."""
        return self.splits // self.divisions + (division < self.splits % self.divisions)


Rows = NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Rows of one benchmark in one repetition."""

    calibration: Rows
    validation: Rows
    test: Rows


def training_units(benchmark: str, count: int, shares: Shares, seed: int) -> tuple[Rows, Rows]:
    """A benchmark's training units, and the rest; the same for every split of a division.

    A unit is a row, or all rows of one query or cluster in a list of questions.

    Raises:
        CalibrationError: Too few rows.
    """
    order = np.random.default_rng([seed, *benchmark.encode()]).permutation(count)
    cut = round(shares.train * count)
    training, rest = order[:cut], order[cut:]
    if min(len(training), *_sizes(len(rest), shares)) < 1:
        raise CalibrationError(
            f"{benchmark}: {count} rows are too few to train, calibrate, validate and test on "
            "(in a list of questions, all rows of one query or one cluster count as one)"
        )
    return training, rest


def all_units(benchmark: str, count: int, shares: Shares) -> tuple[Rows, Rows]:
    """No training units, and the rest, for a router that was trained before.

    Raises:
        CalibrationError: Too few rows.
    """
    if min(_sizes(count, shares)) < 1:
        raise CalibrationError(
            f"{benchmark}: {count} rows are too few to calibrate, validate and test on"
        )
    return np.arange(0), np.arange(count)


def split(rest: Rows, shares: Shares, rng: np.random.Generator) -> Split:
    """One random split of the units that did not train the router."""
    shuffled = rng.permutation(rest)
    calibration, validation, _ = _sizes(len(rest), shares)
    return Split(
        calibration=shuffled[:calibration],
        validation=shuffled[calibration : calibration + validation],
        test=shuffled[calibration + validation :],
    )


def split_benchmarks(
    benchmarks: Mapping[str, Rows], units: Rows, protocol: Protocol, rng: np.random.Generator
) -> dict[str, Split]:
    """One random split of every benchmark, with no unit in two parts of it.

    The uniform draw is one of units, so the shares are shares of units. A unit with rows in several
    benchmarks is drawn with those of the first; its other rows follow it.

    Args:
        benchmarks: Row numbers of each benchmark.
        units: The unit of every row, shape (n,), numbered by first appearance.
        protocol: Whose shares are drawn.
        rng: Draws.
    """
    rank, part = np.empty((2, int(units.max()) + 1), dtype=np.intp)
    for name, homes in home_units(benchmarks, units).items():
        drawn = split(homes, protocol.of(name), rng)
        for number, own in enumerate((drawn.calibration, drawn.validation, drawn.test)):
            part[own] = number
            rank[own] = np.arange(len(own))
    found: dict[str, Split] = {}
    for name, rows in benchmarks.items():
        parts = [rows[part[units[rows]] == number] for number in range(3)]
        calibration, validation, test = (
            each[np.argsort(rank[units[each]], kind="stable")] for each in parts
        )
        found[name] = Split(calibration=calibration, validation=validation, test=test)
    return found


def home_units(benchmarks: Mapping[str, Rows], units: Rows) -> dict[str, Rows]:
    """The units of each benchmark; of one with rows in several, the first has it."""
    homes: dict[str, Rows] = {}
    taken = np.zeros(int(units.max()) + 1, dtype=bool)
    for name, rows in benchmarks.items():
        own, first = np.unique(units[rows], return_index=True)
        own = own[np.argsort(first)]
        homes[name] = own[~taken[own]]
        taken[own] = True
    return homes


def halves(units: Rows) -> Iterator[tuple[Rows, Rows]]:
    """Both assignments of even and odd units to two halves, as rows.

    Both halves of a file sorted by task then contain all tasks.

    Args:
        units: The unit of every row, shape (n,), numbered by first appearance.
    """
    even, odd = np.flatnonzero(units % 2 == 0), np.flatnonzero(units % 2 == 1)
    yield even, odd
    yield odd, even


def _sizes(count: int, shares: Shares) -> tuple[int, int, int]:
    calibration = round(shares.calibration * count)
    validation = round(shares.validation * count)
    return calibration, validation, count - calibration - validation
