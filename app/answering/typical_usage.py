"""Typical usage of candidates by application: mean output tokens and time of their answers.

Applications differ in the length of answers. A candidate's mean is that of the answers that it gave
in this process: those to the requests whose set it was in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from racer_core.prices import Usage

KEPT: Final = 1_000  # answers that a mean follows; older ones fade


@dataclass(slots=True)
class _Mean:
    """Means over ``answers``."""

    answers: int = 0
    output_tokens: float = 0.0
    microseconds: float = 0.0

    def add(self, usage: Usage) -> None:
        self.answers = min(self.answers + 1, KEPT)
        self.output_tokens += (usage.output_tokens - self.output_tokens) / self.answers
        self.microseconds += (usage.microseconds - self.microseconds) / self.answers


class TypicalUsage:
    """What calls of each candidate take."""

    def __init__(self) -> None:
        self._means: dict[tuple[str | None, str], _Mean] = {}

    def record(self, application: str | None, candidate: str, usage: Usage) -> None:
        """Note a whole answer."""
        for key in {(application, candidate), (None, candidate)}:
            self._means.setdefault(key, _Mean()).add(usage)

    def of_call(self, application: str | None, candidate: str, input_tokens: int) -> Usage | None:
        """The expected usage of a call with this prompt; None: the candidate has not answered yet.

        Before it has answered an application, the mean is that over all applications.
        """
        mean = self._means.get((application, candidate)) or self._means.get((None, candidate))
        if mean is None:
            return None
        return Usage(
            input_tokens=input_tokens,
            output_tokens=round(mean.output_tokens),
            microseconds=round(mean.microseconds),
            is_estimated=True,
        )
