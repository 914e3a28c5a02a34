"""The risk level that is served, and the bound that holds for it.

The configuration is the one place of the level: `applications.NAME.alpha`, else `routing.alpha`. A
calibration keeps the scores of its rows, so that the threshold of any level is a look-up. What it
was calibrated for is what its evidence shows, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from app.routing.decision import ServedCertificate
from app.settings import DEFAULT, Settings
from app.store.calibration_record import CalibrationRecord
from racer_core.calibration.calibration import Calibration
from racer_core.types import RoutingDecision

PAGE = "docs/risk-level.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedLevel:
    """The level of an application's requests, or of requests of none.

    Attributes:
        application: Its name; None: requests of none.
        setting: Where it is configured.
        made_for: The level that the evidence of the calibration shows.
        certificate: That of a request that chooses nothing, on a first turn.
    """

    application: str | None
    setting: str
    made_for: float
    certificate: ServedCertificate

    @property
    def alpha(self) -> float:
        """The level."""
        return self.certificate.alpha

    @property
    def remark(self) -> str | None:
        """What to do to serve the level that the evidence shows; None where it is served."""
        if self.made_for == self.alpha:
            return None
        return (
            f"the evidence shows alpha {self.made_for:g}, and alpha {self.alpha:g} is served: to "
            f"serve the other set `{self.setting}: {self.made_for:g}` and reload"
        )

    def as_json(self) -> dict[str, Any]:
        """Level and bound, as certificates state them."""
        guarantee = self.certificate.as_json()["guarantee"]
        shown = {name: guarantee[name] for name in ("alpha", "bound", "alpha_basis", "advice")}
        return {"application": self.application, **shown} | {
            "setting": self.setting,
            "remark": self.remark,
        }

    def in_words(self) -> str:
        """Such as ``alpha 0.05 is served: at most 0.0816 with confidence 0.95``."""
        bound = self.certificate.bound
        if bound is None:
            reasons = ", ".join(self.certificate.void_reasons)
            return f"alpha {self.alpha:g} is served, and nothing holds ({reasons})"
        return f"alpha {self.alpha:g} is served: {bound.in_words}"


def served_level(
    settings: Settings,
    record: CalibrationRecord,
    application: str | None = None,
    *,
    rows: Calibration | None = None,
    place: int = 0,
    reasons: Iterable[str] = (),
) -> ServedLevel:
    """The level that a configuration serves by a calibration. Blocks where ``rows`` is None.

    Args:
        settings: The configuration.
        record: The calibration.
        application: The application; None: requests of none.
        rows: Its rows of first turns; None: they are taken from the record.
        place: The place of these rows in the record.
        reasons: Premises that failed since, such as alarms.
    """
    group = (application or DEFAULT) if record.is_by_application else None
    if rows is None:
        place = first_turns_of(record, group)
        rows = record.populations[place].calibration
        if group is not None and rows.groups is not None:
            rows = rows.group(group)
    alpha = settings.alpha_of(application)
    options, own = record.options(group, alpha, place), record.own_alpha(group)
    threshold = rows.lambda_hat(alpha, options.score)
    decision = RoutingDecision(
        selected=(),
        scores=(),
        null_selected=False,
        alpha=alpha,
        score=options.score,
        lambda_hat=threshold,
        truncated=False,
    )
    trivial = (rows.trivial_reason(alpha),) if decision.trivial else ()
    certificate = ServedCertificate.of(
        options,
        decision,
        pool=rows.pool,
        n=rows.n,
        risk_band=rows.picked_bound(alpha, options.score, options.levels),
        answer_limit=rows.answer_limit,
        vote=settings.aggregation.rule,
        group=group,
        calibration_id=record.id,
        reasons=(
            *record.void_reasons,
            *record.populations[place].void_reasons,
            *trivial,
            *reasons,
        ),
    )
    has_own = application in settings.applications and settings.applications[application].alpha
    setting = f"applications.{application}.alpha" if has_own else "routing.alpha"
    made_for = record.calibration.options.alpha
    if application is not None and own is not None:
        made_for = own.alpha  # of which `applications` in the evidence has the threshold
    return ServedLevel(
        application=application, setting=setting, made_for=made_for, certificate=certificate
    )


def served_levels(settings: Settings, record: CalibrationRecord) -> dict[str, ServedLevel]:
    """The levels of requests of no application, under "", and of every application. Blocks."""
    named = settings.applications if record.is_by_application else ()
    return {"": served_level(settings, record)} | {
        name: served_level(settings, record, name) for name in named
    }


def first_turns_of(record: CalibrationRecord, group: str | None) -> int:
    """The place of the first rows of first turns of a group; that of the most rows without any."""
    places = (
        place
        for place, each in enumerate(record.populations)
        if not each.later and group in each.calibration.group_names
    )
    return next(places, 0)
