"""Assertions on an evaluation, such as ``risk<=alpha``; parsed by hand, never executed."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Final

from racer_core.calibration.metrics import SetMetrics
from racer_core.errors import AssertionRefuted, InputError
from racer_core.offline.evaluate import Evaluation, Setting
from racer_core.offline.report.view import RISK

# `risk` is what alpha bounds under the line's own target.
NAMES: Final = ("alpha", "calls_saved", *sorted(field.name for field in fields(SetMetrics)))
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

    def check(self, evaluation: Evaluation) -> None:
        """Compare the means over splits.

        Raises:
            AssertionRefuted: Some setting does not show it; what was not measured shows nothing.
        """
        failed = [
            f"{_operand_value(self.left, left)}{_operand_value(self.right, right)}{_named(setting)}"
            for setting in evaluation.cells
            for left, right in [[_value(evaluation, setting, x) for x in (self.left, self.right)]]
            if not _OPERATORS[self.compared](left, right)
        ]
        if failed:
            raise AssertionRefuted(
                f"not so: {self.text} is false in {len(failed)} of {len(evaluation.cells)} "
                f"settings, the first with {failed[0]}: more calibration rows, another score or "
                "another alpha may help"
            )


def check_all(assertions: Iterable[Assertion], evaluation: Evaluation) -> None:
    """Check in order. Raises :class:`AssertionRefuted` at the first that does not hold."""
    for each in assertions:
        each.check(evaluation)


def _value(evaluation: Evaluation, setting: Setting, side: str) -> float:
    if side == "alpha":
        return setting.alpha
    if side not in NAMES:
        return float(side)
    measure = RISK[setting.risk_target] if side == "risk" else side
    return evaluation.mean(setting, measure)


def _operand_value(side: str, value: float) -> str:
    return f"{side} {value:.4g}, " if side in NAMES else ""


def _named(setting: Setting) -> str:
    return f"score {setting.score}, target {setting.risk_target}, rows {setting.scope}"
