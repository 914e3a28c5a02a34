"""Spending: reserves the largest possible cost of a request in its budgets before its calls.

A set, or all rounds of a request, is reserved at once, so that no request is refused in the middle.
A candidate that would replace one that failed is called only if its call can be reserved, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Self

from app.access.budgets import Budgets, Reservation
from app.access.quotas import QuotaTicket
from app.answering.cost_meter import CostMeter
from app.answering.request import InferenceRequest, RequestState
from app.json_output import dump_json
from app.routing.applications import Membership
from app.routing.reasons import Reason
from app.settings import Settings
from app.wire.candidate_payload import TOKEN_LIMITS_OF, candidate_payload
from app.wire.token_bounds import TEMPLATE_TOKENS, input_tokens, output_tokens
from racer_core.prices import Usage, microseconds


class Spending:
    """Reserves by the worst case of calls, under one configuration.

    Args:
        settings: The configuration; every candidate has a price.
        budgets: What is left of its budgets; they outlive it.
    """

    def __init__(self, settings: Settings, budgets: Budgets) -> None:
        self._settings = settings
        self._budgets = budgets
        self._worst_case = WorstCase(settings)

    @classmethod
    def of(cls, settings: Settings, budgets: Budgets | None) -> Self | None:
        """None if no budget is configured."""
        return cls(settings, budgets) if budgets is not None and settings.budgets else None

    def open(
        self,
        ticket: QuotaTicket,
        key: str,
        application: Membership | None = None,
        pool: str | None = None,
    ) -> Reservation | None:
        """A reservation for a request, which ends with its ticket; None: it has no budget.

        Args:
            ticket: The request's.
            key: Name of its API key.
            application: Its application; None: it has none.
            pool: The configured pool that it names; None: it names none.
        """
        ticket.reservation = self._budgets.reservation(
            key=key, application=application and application.name, pool=pool
        )
        return ticket.reservation

    def eased(self, request: InferenceRequest) -> InferenceRequest:
        """The request with the least alpha of its budgets above their soft limits."""
        reservation = request.reservation
        least = None if reservation is None else reservation.least_alpha
        return request if least is None else replace(request, least_alpha=least)

    def limited(self, state: RequestState) -> RequestState:
        """The request by the cheapest candidate, if a budget above its soft limit wants that."""
        if not self._is_limited(state) or not state.called:
            return state
        cheapest = self._by_cost(state, state.routed.certificate.pool)[0]
        return state.by(cheapest, Reason.ABOVE_BUDGET)

    def replacements(self, state: RequestState, called: Collection[str]) -> Sequence[str] | None:
        """The next cheapest candidate of a request that :meth:`limited` limits; None: it does not.

        Args:
            state: The request.
            called: Those that it has called.
        """
        if not self._is_limited(state):
            return None
        left = [name for name in state.routed.certificate.pool if name not in called]
        return self._by_cost(state, left)[:1]

    async def reserve(self, state: RequestState) -> None:
        """Reserve what the calls of a request may cost.

        Raises:
            BudgetExceeded: They may cost more than is left of a budget.
            StoreUnavailable: What is left of a budget is not known.
        """
        reservation = state.request.reservation
        if reservation is None:
            return
        assert state.meter is not None  # a budget needs prices
        amount = sum(self._amounts(state, state.selected).values()) + self._of_ratings(state, 0)
        await reservation.make(amount, state.meter.amount)

    async def reserve_call(
        self,
        name: str,
        fields: Mapping[str, Any],
        path: str,
        meter: CostMeter | None,
        reservation: Reservation | None,
    ) -> None:
        """Reserve what the call to a named candidate may cost. Raises as :meth:`reserve`."""
        if reservation is None:
            return
        assert meter is not None  # a budget needs prices
        usages = self._worst_case.usage_of_calls((name,), fields, path)
        await reservation.make(self._worst_case.amounts(usages)[name], meter.amount)

    async def affordable(
        self, state: RequestState, names: Sequence[str], answers: int
    ) -> Sequence[str]:
        """The first of these further candidates, as far as their calls could be reserved.

        Args:
            state: The request.
            names: The candidates.
            answers: How many there are already.
        """
        reservation = state.request.reservation
        if reservation is None:
            return names
        found = list[str]()
        rated = self._of_ratings(state, answers)
        for number, (name, amount) in enumerate(self._amounts(state, names).items(), answers + 1):
            before, rated = rated, self._of_ratings(state, number)
            if not await reservation.add(amount + rated - before):
                break
            found.append(name)
        return found

    def _is_limited(self, state: RequestState) -> bool:
        reservation, is_observing = state.request.reservation, self._settings.routing.observe
        return reservation is not None and reservation.calls_cheapest and not is_observing

    def _by_cost(self, state: RequestState, names: Collection[str]) -> Sequence[str]:
        amounts = self._amounts(state, names)
        return sorted(amounts, key=amounts.__getitem__)

    def _of_ratings(self, state: RequestState, answers: int) -> int:
        """The largest cost of the ratings; each member of the set may give an answer to rate."""
        if not state.vote.is_rated:
            return 0
        return self._worst_case.of_ratings(max(answers, len(state.selected)))

    def _amounts(self, state: RequestState, names: Collection[str]) -> dict[str, int]:
        """The worst cases of calls."""
        fields, path = state.request.fields, state.request.api_format.path
        return self._worst_case.amounts(self._worst_case.usage_of_calls(names, fields, path))


# Worst cases: upper bounds on what the calls of a request cost, known before the first one.
#
# Tokens: :mod:`app.wire.token_bounds`. A call takes no longer than its timeout, and may be made
# `fleet.attempts` times.

BYTES_PER_CHARACTER: Final = 4  # of UTF-8, at most
_LATE_S: Final = 1.0  # a call ends so long after its timeout, at most


class WorstCase:
    """The bounds under one configuration; every candidate has a price."""

    def __init__(self, settings: Settings) -> None:
        self._prices = settings.exact_prices
        self._candidates = {each.name: each for each in settings.candidates}
        self._parameter_bytes = {
            each.name: len(dump_json(each.parameters)) for each in settings.candidates
        }
        self._longest_s = settings.limits.deadline_s
        self._max_tokens = settings.limits.max_tokens
        self._attempts = settings.fleet.attempts
        self._rating = max(map(self._of_rating, _raters(settings)), default=0)

    def usage_of_calls(
        self, names: Collection[str], fields: Mapping[str, Any], path: str
    ) -> dict[str, Usage]:
        """What one call to each of these candidates uses at most.

        Args:
            names: The candidates.
            fields: What they are sent.
            path: The endpoint.
        """
        tokens = input_tokens(fields)
        return {name: self._of_call(name, tokens, fields, path) for name in names}

    def amounts(self, usages: Mapping[str, Usage]) -> dict[str, int]:
        """What calls that use so much cost, with their retries."""
        return {name: self._amount(name, usage) for name, usage in usages.items()}

    def of_ratings(self, answers: int) -> int:
        """The bound of the evaluator's calls, if a candidate is the evaluator."""
        return answers * self._rating if answers > 1 else 0

    def _of_call(self, name: str, tokens: int, fields: Mapping[str, Any], path: str) -> Usage:
        candidate = self._candidates[name]
        sent = candidate_payload(fields, candidate, path) if path in TOKEN_LIMITS_OF else fields
        return Usage(
            input_tokens=tokens + self._parameter_bytes[name],
            output_tokens=output_tokens(sent, path, candidate.renames, self._max_tokens),
            microseconds=microseconds(min(candidate.timeout_s, self._longest_s) + _LATE_S),
        )

    def _of_rating(self, rater: tuple[str, int, float]) -> int:
        name, chars, timeout_s = rater
        usage = Usage(
            input_tokens=chars * BYTES_PER_CHARACTER + TEMPLATE_TOKENS,
            output_tokens=1,
            microseconds=microseconds(timeout_s + _LATE_S),
        )
        return self._amount(name, usage)

    def _amount(self, name: str, usage: Usage) -> int:
        return self._attempts * self._prices[name].worst_case(
            usage.input_tokens, usage.output_tokens, seconds=usage.microseconds / 1e6
        )


def _raters(settings: Settings) -> list[tuple[str, int, float]]:
    """Evaluators that are candidates: name, longest prompt, time limit."""
    return [
        (each.candidate, each.prompt_chars, each.timeout_s)
        for each in settings.aggregation.raters.values()
        if each.candidate is not None
    ]
