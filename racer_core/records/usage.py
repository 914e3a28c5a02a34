"""Mean usage of candidates, over rows that record the calls which gave their answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from racer_core.numbers import number_within
from racer_core.prices import MeanUsage
from racer_core.types import CallRecord, LabelledRow

MOST: Final = 1e12  # tokens or seconds of a call: a number beyond it says nothing
_FIELDS = ("prompt_tokens", "completion_tokens", "seconds")  # of a call


class UsageMeans:
    """Takes rows one by one; a row counts with its weight, and a call as far as it says."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], tuple[float, float]] = {}  # weight, weighted sum

    def add(self, row: LabelledRow) -> None:
        """Add a row."""
        for candidate, call in row.calls.items():
            for field in _FIELDS:
                if (number := _number(call, field)) is not None:
                    weight, total = self._sums.get((candidate, field), (0.0, 0.0))
                    total += row.weight * number
                    self._sums[candidate, field] = weight + row.weight, total

    @property
    def means(self) -> dict[str, MeanUsage]:
        """The means so far, of the candidates with recorded calls."""
        names = dict.fromkeys(candidate for candidate, _ in self._sums)
        return {
            name: MeanUsage(
                input_tokens=self._mean(name, "prompt_tokens"),
                output_tokens=self._mean(name, "completion_tokens"),
                seconds=self._mean(name, "seconds"),
            )
            for name in names
        }

    def _mean(self, candidate: str, field: str) -> float | None:
        weight, total = self._sums.get((candidate, field), (0.0, 0.0))
        return total / weight if weight else None


def mean_usage(rows: Iterable[LabelledRow]) -> dict[str, MeanUsage]:
    """The means over these rows."""
    found = UsageMeans()
    for row in rows:
        found.add(row)
    return found.means


def _number(call: CallRecord, field: str) -> float | None:
    value = number_within(call.get(field), 0, MOST)
    return None if value is None else float(value)
