"""Typical usage of candidates by application: mean tokens and time of their answers.

Applications differ in the length of requests and answers. The means of a candidate are those of the
answers that it gave in this process, samples included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from racer_core.prices import MeanUsage, Usage

KEPT: Final = 1_000  # answers that a mean follows; older ones fade


@dataclass(slots=True)
class _Means:
    """Means over ``answers``."""

    answers: int = 0
    input_tokens: float = 0.0
    output_tokens: float = 0.0
    microseconds: float = 0.0

    def add(self, usage: Usage) -> None:
        self.answers = min(self.answers + 1, KEPT)
        self.input_tokens += (usage.input_tokens - self.input_tokens) / self.answers
        self.output_tokens += (usage.output_tokens - self.output_tokens) / self.answers
        self.microseconds += (usage.microseconds - self.microseconds) / self.answers


class TypicalUsage:
    """What calls of each candidate use."""

    def __init__(self) -> None:
        self._means: dict[tuple[str | None, str], _Means] = {}

    def record(self, application: str | None, candidate: str, usage: Usage) -> None:
        """Note a whole answer."""
        for key in {(application, candidate), (None, candidate)}:
            self._means.setdefault(key, _Means()).add(usage)

    def of(self, application: str | None, candidate: str) -> MeanUsage | None:
        """The means of a candidate's answers to an application, else of all its answers.

        None: it has not answered yet.
        """
        found = self._means.get((application, candidate)) or self._means.get((None, candidate))
        if found is None:
            return None
        return MeanUsage(
            input_tokens=found.input_tokens,
            output_tokens=found.output_tokens,
            seconds=found.microseconds / 1e6,
        )
