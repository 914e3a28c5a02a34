"""Cost meter: measures the calls of one request, and adds up what they cost.

A call's usage is what its candidate reports. What it does not report is estimated, and marked: the
input tokens by those that other candidates report of the same request, else by a token for four
characters; the output tokens by a token for four characters, or for each event of a stream. A call
that was cancelled or timed out costs its input and what had arrived of its answer; an attempt that
failed otherwise costs its time alone. A count that cannot be was replaced by its bound before, and
is marked (:mod:`app.wire.token_bounds`).

A candidate that was not called would have read the same input, and written as much as on average:
over its answers in this process, else over the labelled rows that decide. While neither is known,
as much as the candidates that were called.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from cachetools import LRUCache

from app.access.typical_usage import TypicalUsage
from app.answering.token_usage import TokenMeter, prompt_tokens, written_tokens
from app.errors import UpstreamError
from app.judging.evaluator import UNRATED, Ratings
from app.routing.decision import CertifiedDecision
from app.settings import Settings
from app.store.calibration_record import CalibrationRecord
from app.telemetry.metrics import Metrics
from app.upstream.reply import Reply
from app.upstream.retries import may_be_charged
from app.wire import parsing
from racer_core.prices import MeanUsage, Price, Usage, as_number, as_text, microseconds


@dataclass(slots=True)
class _Attempt:
    """One attempt of a call, with what was told of it."""

    candidate: str
    microseconds: int
    is_charged: bool  # beside its time
    input_tokens: int | None = None  # None: not reported
    cached_tokens: int = 0
    output_tokens: int = 0
    is_known: bool = False  # the output tokens are reported, of a whole answer
    is_whole: bool = False  # it gave a whole answer with a text

    def usage(self, input_tokens: int) -> Usage:
        """What it used, with the estimate of its input where that is not reported."""
        if not self.is_charged:
            return Usage(microseconds=self.microseconds, calls=0)
        is_reported = self.input_tokens is not None
        return Usage(
            input_tokens=input_tokens if self.input_tokens is None else self.input_tokens,
            cached_tokens=self.cached_tokens,
            output_tokens=self.output_tokens,
            microseconds=self.microseconds,
            is_estimated=not (is_reported and self.is_known),
        )


class CostMeter:
    """The calls of one request; see :class:`app.upstream.fleet.CallMeter`.

    A candidate is called again only after its last call has ended, so what is reported of a call
    is of the candidate's latest attempt.

    Args:
        prices: The price of every candidate.
        currency: That of the prices.
        typical: What calls usually take; learns from whole answers.
        fields: What candidates are sent.
        application: The application of the request; None: it has none.
        best_of: The best single candidate for requests with the same decision.
    """

    def __init__(
        self,
        *,
        prices: Mapping[str, Price],
        currency: str,
        typical: TypicalUsage,
        fields: Mapping[str, Any],
        application: str | None,
        best_of: Callable[[CertifiedDecision], str | None],
    ) -> None:
        self._prices = prices
        self._currency = currency
        self._typical = typical
        self._fields = fields
        self._application = application
        self._best_of = best_of
        self._attempts: list[_Attempt] = []
        self._left = UNRATED

    def attempted(self, candidate: str, seconds: float, exc: BaseException | None) -> None:
        """See :class:`app.upstream.fleet.CallMeter`."""
        is_charged = not isinstance(exc, UpstreamError) or may_be_charged(exc)
        self._attempts.append(_Attempt(candidate, microseconds(seconds), is_charged))

    def answered(self, reply: Reply) -> None:
        """Take what a whole answer reports."""
        output = reply.usage.get("completion_tokens")
        self._report(
            reply.candidate,
            reply.usage.get("prompt_tokens"),
            parsing.cached_tokens(reply.body),
            written_tokens(reply) if output is None else output,
            is_known=output is not None and not parsing.is_estimated(reply.body),
        )

    def streamed(self, candidate: str, tokens: TokenMeter, is_whole: bool) -> None:
        """Take what a stream reported, and what of it passed."""
        output = tokens.usage.get("completion_tokens")
        self._report(
            candidate,
            tokens.usage.get("prompt_tokens"),
            parsing.cached_tokens(tokens.reported),
            tokens.written if output is None else output,
            is_known=is_whole and output is not None and not parsing.is_estimated(tokens.reported),
            is_whole=is_whole,
        )

    def embedded(self, candidate: str, body: Mapping[str, Any]) -> None:
        """Take what an answer of embeddings reports, which tells nothing of answers with texts."""
        usage = parsing.counts(body.get("usage"), parsing.CHAT_USAGE)
        count = usage.get("prompt_tokens", usage.get("total_tokens"))
        is_known = not parsing.is_estimated(body)
        self._report(candidate, count, 0, 0, is_known=is_known, is_whole=False)

    def left(self, ratings: Ratings) -> None:
        """Take the evaluator's calls of a request whose client left meanwhile."""
        self._left = ratings

    def calls(self, ratings: Ratings = UNRATED) -> list[CallCost]:
        """The cost of every call so far, and of the evaluator's, if it is a candidate."""
        input_tokens, ratings = self._input_tokens(), ratings if ratings.calls else self._left
        used = [(each.candidate, each.usage(input_tokens)) for each in self._attempts]
        if ratings.calls and ratings.candidate is not None:
            used.append((ratings.candidate, _rating_usage(ratings)))
        costs = [
            CallCost(candidate=name, usage=usage, amount=self._prices[name].cost(usage))
            for name, usage in used
        ]
        return [each for each in costs if each.usage.calls or each.amount]

    def amount(self) -> int:
        """What all calls so far have cost, without ratings that have a result."""
        return sum([each.amount for each in self.calls()])

    def cost(
        self, routed: CertifiedDecision | None = None, ratings: Ratings = UNRATED
    ) -> RequestCost:
        """The cost of the request.

        Args:
            routed: Its decision; None: it names a candidate, and there is nothing to compare with.
            ratings: The evaluator's.
        """
        wanted: dict[str, Collection[str]] = {}
        if routed is not None:
            wanted["everyone"] = routed.certificate.pool
            if (best := self._best_of(routed)) is not None:
                wanted["best_single"] = (best,)
            rounds = routed.rounds
            if rounds is not None and (named := rounds.calibration.policy.reference) is not None:
                wanted["reference"] = (named,)
        of_rows = _usage_of_rows(routed)
        found = {name: self._alternative(names, of_rows) for name, names in wanted.items()}
        return RequestCost(
            currency=self._currency,
            calls=self.calls(ratings),
            alternatives={name: each for name, each in found.items() if each is not None},
        )

    def _alternative(
        self, names: Collection[str], of_rows: Mapping[str, MeanUsage]
    ) -> CallsCost | None:
        """What it would have cost to call these alone; None where that is not known."""
        input_tokens = self._input_tokens()
        calls: list[CallCost] = []
        for name in names:
            own = [each for each in self._attempts if each.candidate == name]
            usages = [each.usage(input_tokens) for each in own]
            if not any(each.is_whole for each in own):
                usual = self._typical.of(self._application, name) or of_rows.get(name)
                usual = usual or self._usual_here()
                if usual is None:
                    return None
                usages = [_expected(input_tokens, usual)]
            calls += [
                CallCost(candidate=name, usage=usage, amount=self._prices[name].cost(usage))
                for usage in usages
            ]
        return CallsCost.of(calls, next(iter(names)) if len(names) == 1 else None)

    def _usual_here(self) -> MeanUsage | None:
        """The means of the answers to this request; None without any."""
        whole = [each for each in self._attempts if each.is_whole]
        if not whole:
            return None
        return MeanUsage(
            output_tokens=sum([each.output_tokens for each in whole]) / len(whole),
            seconds=sum([each.microseconds for each in whole]) / len(whole) / 1e6,
        )

    def _input_tokens(self) -> int:
        """The estimate of the input tokens of a call that does not report them."""
        reported = [each.input_tokens for each in self._attempts if each.input_tokens is not None]
        return round(sum(reported) / len(reported)) if reported else prompt_tokens(self._fields)

    def _report(
        self,
        candidate: str,
        input_tokens: int | None,
        cached_tokens: int,
        output_tokens: int,
        *,
        is_known: bool,
        is_whole: bool = True,
    ) -> None:
        attempt = next(each for each in reversed(self._attempts) if each.candidate == candidate)
        attempt.input_tokens, attempt.cached_tokens = input_tokens, cached_tokens
        attempt.output_tokens = output_tokens
        attempt.is_known, attempt.is_whole = is_known, is_whole
        attempt.is_charged = True
        if is_whole:
            self._typical.record(self._application, candidate, attempt.usage(self._input_tokens()))


def _expected(input_tokens: int, usual: MeanUsage) -> Usage:
    """What a call that was not made would have used."""
    return Usage(
        input_tokens=input_tokens,
        output_tokens=round(usual.output_tokens or 0.0),
        microseconds=microseconds(usual.seconds or 0.0),
        is_estimated=True,
    )


def _usage_of_rows(routed: CertifiedDecision | None) -> Mapping[str, MeanUsage]:
    """What calls used on the rows that decide; empty where that is not recorded."""
    if routed is None or routed.record is None:
        return {}
    recorded = routed.record.evidence.get("prices", {}).get("usage", {})
    return {name: MeanUsage(**each) for name, each in recorded.items()}


def _rating_usage(ratings: Ratings) -> Usage:
    """What an evaluator used; the time is that of all its calls at once."""
    usage = ratings.usage
    return Usage(
        input_tokens=usage.get("prompt_tokens", 0),
        output_tokens=usage.get("completion_tokens", 0),
        microseconds=microseconds(ratings.seconds),
        calls=ratings.calls,
        is_estimated=ratings.is_estimated or not usage or bool(ratings.failures),
    )


# Costs of requests under one configuration: its prices, and the counters of what was paid.

_Accuracies = Mapping[str, float]


class Costs:
    """The prices in force, and what is paid by them.

    Args:
        settings: The configuration; every candidate has a price.
        typical: What calls usually take; it outlives a configuration.
        metrics: Where costs are counted.
    """

    def __init__(self, settings: Settings, typical: TypicalUsage, metrics: Metrics) -> None:
        self._prices = settings.exact_prices
        self._currency = settings.currency
        self._typical = typical
        self._metrics = metrics
        self._accuracies: LRUCache[tuple[str, int], _Accuracies] = LRUCache(64)

    @classmethod
    def of(cls, settings: Settings, typical: TypicalUsage, metrics: Metrics) -> Self | None:
        """None if candidates have no prices."""
        return cls(settings, typical, metrics) if settings.exact_prices else None

    def meter(self, fields: Mapping[str, Any], application: str | None = None) -> CostMeter:
        """A meter for one request.

        Args:
            fields: What candidates are sent.
            application: The application; None: it has none.
        """
        return CostMeter(
            prices=self._prices,
            currency=self._currency,
            typical=self._typical,
            fields=fields,
            application=application,
            best_of=self._best_of,
        )

    def book(self, cost: RequestCost, application: str | None, pool: str | None) -> None:
        """Count the cost of one request.

        Args:
            cost: The cost.
            application: Its application; None: it has none.
            pool: The configured pool that it names; None: it names none.
        """
        labels = application or "", pool or ""
        for call in cost.calls:
            self._metrics.cost_of(*labels, call.candidate).inc(as_number(call.amount))
        for name, each in cost.alternatives.items():
            self._metrics.alternative_cost_of(*labels, name).inc(as_number(each.amount))

    def book_shadow(self, meter: CostMeter, application: str | None) -> None:
        """Count the cost of the calls that complete a sampled request."""
        for call in meter.calls():
            counter = self._metrics.shadow_cost_of(application or "", call.candidate)
            counter.inc(as_number(call.amount))

    def _best_of(self, routed: CertifiedDecision) -> str | None:
        """The candidate that is right most often on the rows that decided; None: there are none.

        Under the promise `same_answer` the most reliable by agreement.
        """
        if routed.rounds is not None:
            policy = routed.rounds.calibration.policy
            accuracies = dict(zip(policy.pool, policy.reliabilities, strict=True))
        elif routed.record is not None:
            key = routed.record.id, routed.population
            if key not in self._accuracies:
                self._accuracies[key] = _accuracies_of(routed.record, routed.population)
            accuracies = self._accuracies[key]
        else:
            return None
        return max(routed.certificate.pool, key=lambda name: accuracies.get(name, 0.0))


def _accuracies_of(record: CalibrationRecord, population: int) -> _Accuracies:
    """How often each candidate is right on these rows, or how good its answers are."""
    rows = record.populations[population].calibration
    right = rows.labels if rows.quality is None else rows.quality
    means = np.average(right, axis=0, weights=rows.weights)
    return dict(zip(rows.pool, means.tolist(), strict=True))


# The cost of a request: its calls, and what other calls would have cost. Wire form and header.


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
