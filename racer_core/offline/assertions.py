"""Assertions on an evaluation, such as ``risk<=alpha``; parsed by hand, never executed.

Names and values are those of the printed table: means over splits, and ``risk`` is what alpha
bounds under the line's risk target. The realised risk of valid sets has a mean of at most alpha and
scatters around it, so ``risk<=alpha`` fails only where the risk exceeds alpha by more than the
exact law of the splits allows. Graded losses have no exact law: Student's t over the splits, whose
rows are drawn independently, takes its place. All other assertions compare the means as they are.
Settings with a split whose calibration rows are too few for alpha are left out: the whole pool,
called there, would meet any bound.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Final

from racer_core.calibration.metrics import SetMetrics
from racer_core.errors import AssertionRefuted, InputError
from racer_core.offline.evaluation_result import RISK, Evaluation, Setting
from racer_core.offline.risk_law import risk_limit

FALSE_ALARM: Final = 0.01  # chance that `risk<=alpha` fails by luck, over all settings
# `risk` is the column of the table; `paper_risk` is the paper's under either target.
NAMES: Final = (
    *("alpha", "calls_saved", "paper_risk"),
    *sorted(field.name for field in fields(SetMetrics)),
)
_OPERATORS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
}
_SHAPE: Final = re.compile(r"\s*([\w.]+)\s*(<=|<|>=|>)\s*([\w.]+)\s*")
_NUMBER: Final = re.compile(r"\d+(\.\d*)?|\.\d+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assertion:
    """A comparison of two names or numbers, for every measured setting."""

    text: str
    left: str
    compared: str
    right: str

    @classmethod
    def parse(cls, text: str) -> Assertion:
        """Parse an assertion. Raises :class:`InputError` before anything is measured."""
        if (found := _SHAPE.fullmatch(text)) is None:
            raise InputError(f"{text!r}: expected a comparison such as risk<=alpha")
        left, compared, right = found.groups()
        for side in (left, right):
            if side not in NAMES and not _NUMBER.fullmatch(side):
                raise InputError(
                    f"{text!r}: {side!r} is neither a number nor one of {', '.join(NAMES)}"
                )
        return cls(text=text.strip(), left=left, compared=compared, right=right)

    @property
    def bounds_risk(self) -> bool:
        """Whether it says that the risk is at most alpha."""
        sides = (self.left, self.right) if self.compared[0] == "<" else (self.right, self.left)
        return sides == ("risk", "alpha")

    def check(self, evaluation: Evaluation) -> str:
        """Compare the values of the table. Returns a sentence that says what was compared.

        Raises:
            AssertionRefuted: A setting contradicts it; a value that was not measured does, too.
        """
        settings = [each for each in evaluation.cells if not evaluation.infeasible(each)]
        if not settings:
            raise AssertionRefuted(
                f"not so: {self.text} was not asserted of any setting, as calibration rows are too "
                "few for every alpha; label more rows, or choose a larger alpha"
            )
        failed = [each for each in settings if not self._holds(evaluation, each, len(settings))]
        if failed:
            raise AssertionRefuted(
                f"not so: {self.text} is false in {len(failed)} of {len(settings)} "
                f"settings, the first with {self._described(evaluation, failed[0])}{self._rule}: "
                "more calibration rows, another score or another alpha may help"
            )
        closest = max(settings, key=lambda each: self._excess(evaluation, each))
        return (
            f"asserted: {self.text} in {len(settings)} settings, the closest with "
            f"{self._described(evaluation, closest)}{self._rule}"
            + _left_out(len(evaluation.cells) - len(settings))
        )

    def _holds(self, evaluation: Evaluation, setting: Setting, settings: int) -> bool:
        left, right = self._values(evaluation, setting)
        if _OPERATORS[self.compared](left, right):
            return True
        if not self.bounds_risk:
            return False
        limit = risk_limit(evaluation, setting, FALSE_ALARM / settings)
        return limit is not None and _value(evaluation, setting, "risk") <= limit

    def _excess(self, evaluation: Evaluation, setting: Setting) -> float:
        """By how much the side that should be smaller exceeds the other; NaN counts as most."""
        left, right = self._values(evaluation, setting)
        excess = left - right if self.compared[0] == "<" else right - left
        return math.inf if math.isnan(excess) else excess

    def _values(self, evaluation: Evaluation, setting: Setting) -> tuple[float, float]:
        return _value(evaluation, setting, self.left), _value(evaluation, setting, self.right)

    def _described(self, evaluation: Evaluation, setting: Setting) -> str:
        left, right = self._values(evaluation, setting)
        return f"{_operand_value(self.left, left)}{_operand_value(self.right, right)}" + _named(
            setting
        )

    @property
    def _rule(self) -> str:
        if not self.bounds_risk:
            return ""
        return (
            f" (means over splits; a risk above alpha fails beyond the law of the splits, "
            f"by luck with a chance of {FALSE_ALARM:.0%} over all settings)"
        )


def check_all(assertions: Iterable[Assertion], evaluation: Evaluation) -> Iterator[str]:
    """Check in order; a sentence for each that holds.

    Raises:
        AssertionRefuted: At the first that does not hold.
    """
    for each in assertions:
        yield each.check(evaluation)


def _left_out(settings: int) -> str:
    """How many settings have a split whose rows are too few for alpha."""
    return f"; {settings} settings with infeasible splits were left out" if settings else ""


def _value(evaluation: Evaluation, setting: Setting, side: str) -> float:
    if side == "alpha":
        return setting.alpha
    if side not in NAMES:
        return float(side)
    measure = {"risk": RISK[setting.risk_target], "paper_risk": "risk"}.get(side, side)
    return evaluation.mean(setting, measure)


def _operand_value(side: str, value: float) -> str:
    return f"{side} {value:.4g}, " if side in NAMES else ""


def _named(setting: Setting) -> str:
    return f"score {setting.score}, target {setting.risk_target}, rows {setting.scope}"
