"""Prometheus metrics of budgets. Label values are scopes of the configuration."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class BudgetMetrics:
    """Registered beside the gateway's other metrics; amounts are in the configured currency."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.spent = Gauge(
            "racer_budget_spent",
            "What requests of all gateways have cost in the present period of the budget",
            ("budget",),
            registry=registry,
        )
        self.reserved = Gauge(
            "racer_budget_reserved",
            "What requests under way at all gateways may cost at most",
            ("budget",),
            registry=registry,
        )
        self.limit = Gauge(
            "racer_budget_limit",
            "The configured limits of the budget",
            ("budget", "kind"),  # soft or hard
            registry=registry,
        )
        self.refusals = Counter(
            "racer_budget_refusals",
            "Requests that this gateway refused because they could exceed the budget",
            ("budget",),
            registry=registry,
        )
