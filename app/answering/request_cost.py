"""The cost of a request: its calls, and what other calls would have cost. Wire form and header."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from racer_core.prices import Usage, as_number, as_text


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCost:
    """The cost of a call or of a failed attempt; of an evaluator's calls together."""

    candidate: str
    usage: Usage
    amount: int

    def as_json(self) -> dict[str, Any]:
        """The wire form: the cost is the candidate's price times the other numbers."""
        usage = self.usage
        return {
            "candidate": self.candidate,
            "cost": as_number(self.amount),
            "input_tokens": usage.input_tokens,
            "cached_tokens": usage.cached_tokens,
            "output_tokens": usage.output_tokens,
            "seconds": usage.microseconds / 1e6,
            "calls": usage.calls,
            "estimated": usage.is_estimated,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsCost:
    """The cost of several calls together.

    Attributes:
        amount: The cost.
        is_estimated: Some of the calls were not made, or their usage is not known.
        candidate: The only candidate; None: there may be more.
    """

    amount: int
    is_estimated: bool
    candidate: str | None = None

    @classmethod
    def of(cls, calls: Sequence[CallCost], candidate: str | None = None) -> Self:
        """The cost of these calls."""
        return cls(
            amount=sum([call.amount for call in calls]),
            is_estimated=any([call.usage.is_estimated for call in calls]),
            candidate=candidate,
        )

    def as_json(self) -> dict[str, Any]:
        """The wire form."""
        named = {} if self.candidate is None else {"candidate": self.candidate}
        return named | {"cost": as_number(self.amount), "estimated": self.is_estimated}


@dataclass(frozen=True, kw_only=True)
class RequestCost:
    """The cost of one request.

    Attributes:
        currency: That of all amounts.
        calls: The calls that were made.
        alternatives: What other calls would have cost, by name: ``everyone``, ``best_single``,
            ``reference``; without those that cannot be estimated.
    """

    currency: str
    calls: Sequence[CallCost]
    alternatives: Mapping[str, CallsCost]

    @cached_property
    def total(self) -> CallsCost:
        """All calls together."""
        return CallsCost.of(self.calls)

    @property
    def header(self) -> str:
        """The value of ``x-racer-cost``."""
        estimated = "; estimated" if self.total.is_estimated else ""
        return f"{as_text(self.total.amount)} {self.currency}{estimated}"

    def as_json(self) -> dict[str, Any]:
        """The wire form, which the decision record keeps too."""
        return {
            "currency": self.currency,
            **self.total.as_json(),
            "calls": [call.as_json() for call in self.calls],
            "alternatives": {name: each.as_json() for name, each in self.alternatives.items()},
        }
