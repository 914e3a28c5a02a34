"""Prometheus metrics of monitoring."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product

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
        self.waiting = Gauge(
            "racer_store_queue_rows",
            "Decisions that wait to be written to the store; more than 10,000 are dropped",
            registry=registry,
        )
        self.write_failures = Counter(
            "racer_store_write_failures",
            "Writes of decisions that the store refused; they are tried again",
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
            ("application", "stream"),  # empty without applications
            registry=registry,
        )
        self.evidence = Gauge(
            "racer_drift_evidence",
            "How far this stream's bet came towards its alarm, in logarithms: 1 is an alarm",
            ("application", "stream"),
            registry=registry,
        )
        self.samples = Counter(
            "racer_shadow_samples",
            "Decisions of the shadow sample, by whether every candidate was called",
            ("outcome",),
            registry=registry,
        )
        self.sampling_share = Gauge(
            "racer_shadow_rate_share",
            "Share of the configured sampling rates that keeps the budget of calls",
            registry=registry,
        )
        self.sampling_share.set(1.0)
        self.checks = Counter(
            "racer_checks",
            "Sampled requests that an application's checker was to label, by what became of it",
            ("application", "outcome"),
            registry=registry,
        )
        self.risk = Gauge(
            "racer_realised_risk",
            "Mean loss of the judged shadow sample, and its 95 % interval",
            ("application", "bound"),
            registry=registry,
        )
        self.risk_bound = Gauge(
            "racer_risk_bound",
            "95 % of calibrations of this size have at most this risk; NaN where all are called",
            ("application",),
            registry=registry,
        )

        self.answer_alarm = Gauge(
            "racer_same_answer_alarm",
            "1 when sampled requests have raised the alarm of an application's same_answer",
            ("application",),
            registry=registry,
        )
        self.answer_age = Gauge(
            "racer_same_answer_age_seconds",
            "Age of the newest row of the active calibration of same_answer; NaN without one",
            ("application",),
            registry=registry,
        )
        self.answer_refused = Gauge(
            "racer_same_answer_refused",
            "1 when calibrating same_answer from traffic is refused, or has no row of 7 days",
            ("application",),
            registry=registry,
        )
        self.answers_differing = Gauge(
            "racer_same_answer_differing",
            "Share of requests sampled since the calibration of same_answer whose answer differs",
            ("application",),
            registry=registry,
        )

    def show_answers(
        self,
        application: str,
        *,
        differing: float,
        is_alarmed: bool,
        age_s: float,
        is_refused: bool,
    ) -> None:
        """Set the gauges of an application's promise `same_answer`."""
        self.answer_age.labels(application).set(age_s)
        self.answer_refused.labels(application).set(is_refused)
        self.answers_differing.labels(application).set(differing)
        self.answer_alarm.labels(application).set(is_alarmed)

    def begin_drift(self, applications: Iterable[str], streams: Sequence[str]) -> None:
        """Show no alarm and no evidence, for the applications of a calibration alone."""
        for gauge in (self.alarm, self.evidence):
            gauge.clear()
            for application, stream in product(applications, streams):
                gauge.labels(application, stream).set(0.0)

    def begin_risk(self, bounds: Mapping[str, float]) -> None:
        """Show the bounds of a calibration's applications; forget those of other applications."""
        self.risk.clear()
        self.risk_bound.clear()
        for application, bound in bounds.items():
            self.risk_bound.labels(application).set(bound)

    def show_risk(self, application: str, estimate: RiskEstimate) -> None:
        """Set the gauge of the realised risk."""
        bounds = {"lower": estimate.lower, "mean": estimate.risk, "upper": estimate.upper}
        for name, value in bounds.items():
            self.risk.labels(application, name).set(value)
