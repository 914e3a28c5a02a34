"""Prometheus metrics of monitoring."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from racer_core.calibration.shadow import RiskEstimate


class MonitoringMetrics:
    """Registered beside the gateway's other metrics."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.dropped = Counter(
            "racer_decisions_dropped",
            "Decisions that were not remembered: too many waited for the store",
            registry=registry,
        )
        self.verdicts = Counter(
            "racer_feedback_verdicts",
            "Verdicts on candidates' answers",
            ("counts",),
            registry=registry,
        )
        self.alarm = Gauge(
            "racer_drift_alarm",
            "1 when this stream of the active calibration has raised a drift alarm",
            ("stream",),
            registry=registry,
        )
        self.evidence = Gauge(
            "racer_drift_evidence",
            "How far this stream's bet came towards its alarm, in logarithms: 1 is an alarm",
            ("stream",),
            registry=registry,
        )
        self.risk = Gauge(
            "racer_realised_risk",
            "Mean loss of the judged shadow sample, and its 95 % interval",
            ("bound",),
            registry=registry,
        )
        self.risk_bound = Gauge(
            "racer_risk_bound",
            "95 % of calibrations of this size have at most this risk; NaN where all are called",
            registry=registry,
        )

    def show_risk(self, estimate: RiskEstimate) -> None:
        """Set the gauge of the realised risk."""
        bounds = {"lower": estimate.lower, "mean": estimate.risk, "upper": estimate.upper}
        for name, value in bounds.items():
            self.risk.labels(name).set(value)
