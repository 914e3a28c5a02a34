"""Costs of requests under one configuration: its prices, and the counters of what was paid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from cachetools import LRUCache

from app.access.typical_usage import TypicalUsage
from app.answering.cost_meter import CostMeter
from app.answering.request_cost import RequestCost
from app.routing.decision import CertifiedDecision
from app.settings import Settings
from app.store.calibration_record import CalibrationRecord
from app.telemetry.metrics import Metrics
from racer_core.prices import as_number

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
