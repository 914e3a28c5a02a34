"""What the promise `same_answer` says of one request, and the calls that the request made.

Certificates show it, and decision records keep it: with the stored calibration it is enough to
decide the request again. It contains no text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from racer_core.sequential.serving import CalledRound


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeCalls:
    """The calls of one request.

    Attributes:
        rounds: The candidates of each round, and the doubt q after it.
        stopped: Why no further round was called; None: the request ended before.
        classes: Candidate -> number of its answer, the same for equal answers; None: it cannot be
            read. Without candidates that failed.
        failed: The candidates that gave no answer, by a cause outside the request.
        price_share: Price of the calls, as a share of that of the reference; None without prices.
        verdicts: Candidate -> the checker's verdict on its answer; empty without a checker.
    """

    rounds: tuple[CalledRound, ...]
    stopped: str | None
    classes: Mapping[str, int | None]
    failed: tuple[str, ...]
    price_share: float | None
    verdicts: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def names(self) -> tuple[str, ...]:
        """The candidates that were called, in the order of calls."""
        return tuple(name for each in self.rounds for name in each.called)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerGuarantee:
    """What the promise says beside alpha, and how a request was answered under it.

    Attributes:
        reference: ``vote``, that of the whole pool, or a candidate.
        equality: The rule by which answers are the same.
        max_rounds: Most rounds of calls.
        order: The candidates in the order of calls.
        borders: How many candidates are called at the end of each round.
        expected_calls: Mean number of calls of the calibration rows at the threshold.
        trivial: No finite threshold is valid, and everything is called.
        evidence: The kind of the checker whose verdicts are evidence; None: there is none.
        made: The calls; None: none was made yet, or others than those of the sequence.
    """

    reference: str
    equality: str
    max_rounds: int
    order: tuple[str, ...]
    borders: tuple[int, ...]
    expected_calls: float
    trivial: bool
    evidence: str | None = None
    made: MadeCalls | None = None

    def guarantee_as_json(self) -> dict[str, Any]:
        """What belongs to the guarantee."""
        return {
            "reference": self.reference,
            "equality": self.equality,
            "max_rounds": self.max_rounds,
            **({} if self.evidence is None else {"evidence": self.evidence}),
        }

    def calls_as_json(self) -> dict[str, Any]:
        """The calls in numbers, as planned and as made."""
        made = self.made
        return {
            "first_round": list(self.order[: self.borders[0]]),
            "expected_calls": round(self.expected_calls, 3),
            "rounds": made and len(made.rounds),
            "calls": made and len(made.names),
            "stopped": made and made.stopped,
        }

    def as_json(self) -> dict[str, Any]:
        """Everything, as decision records keep it."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Read :meth:`as_json` back."""
        fields: dict[str, Any] = {**stored}
        if (made := stored["made"]) is not None:
            rounds = (CalledRound(tuple(each["called"]), each["doubt"]) for each in made["rounds"])
            parts = {"rounds": tuple(rounds), "failed": tuple(made["failed"])}
            fields["made"] = MadeCalls(**made | parts)
        fields |= {name: tuple(stored[name]) for name in ("order", "borders")}
        return cls(**fields)
