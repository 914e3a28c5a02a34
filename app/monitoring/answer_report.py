"""Reports on calibrations of `same_answer`: an application's progress, and what they cost."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from app.monitoring.answer_evidence import UNPRICED
from app.monitoring.answer_progress import expected_at, rows_needed
from app.monitoring.answer_schedule import Attempt
from app.routing.rounds_plan import AnswerCalibrations, age_of
from app.same_answer.alarms import AnswerWatch
from app.same_answer.calibration import comparable_terms
from app.same_answer.rows import AnswerRows
from app.settings import ANSWERABLE, VOTE, SameAnswer, Settings
from racer_core.errors import InputError

log = logging.getLogger(__name__)


def progress_of(
    rows: AnswerRows,
    *,
    settings: Settings,
    calibrations: AnswerCalibrations,
    watch: AnswerWatch,
    refused: Attempt | None,
) -> dict[str, Any]:
    """What decides for an application, and how far the next calibration is.

    Args:
        rows: Those of the next one.
        settings: Terms.
        calibrations: The active ones.
        watch: What the requests since the active one show.
        refused: The last attempt, if it was refused.
    """
    application = rows.application
    section = settings.same_answer_of(application or None)
    terms, active = section or SameAnswer(), calibrations.find(application)
    refusal = refused and refused.refusal
    try:
        comparable_terms(settings, application, calibrations.setup)
    except InputError as exc:
        refusal = str(exc)
    needed = rows_needed(terms.alpha)
    times = [datetime.fromisoformat(row.created_at) for row in rows.rows]
    expected = expected_at(times, needed, datetime.now(UTC))
    return {
        "configured": section is not None,
        "calibrate": terms.calibrate,
        "alpha": terms.alpha,
        "reference": terms.reference,
        "active": active and active.id,
        "activated_at": active and active.activated_at,
        "age_s": active and round(age_of(active).total_seconds()),
        "stale": active and calibrations.stale(active),
        "rows": len(rows.rows),
        "needed": needed,
        "expected_at": expected and expected.isoformat(timespec="seconds"),
        "lost": rows.lost(0),
        "pending": rows.pending,
        "refusal": refusal,
        "refused_at": refused and refused.made_at,
        "watch": asdict(watch),
    }


def log_cost(settings: Settings, applications: Collection[str]) -> None:
    """Log what calibration from traffic costs, and which sections stay without a calibration."""
    sections = [settings.same_answer_of(name or None) for name in applications]
    if any(each is not None and each.calibrate for each in sections):
        watching, rates = settings.watching, settings.shadow_rates
        shares = {rates.get(name, watching.shadow_rate) for name in applications}
        limit = watching.shadow_calls_per_day
        log.warning(
            "same_answer is calibrated from traffic: all %d candidates answer a share of %s of "
            "the requests in the background, which adds %s calls a day "
            "(watching.shadow_rate, watching.shadow_calls_per_day)",
            len(settings.pool),
            " to ".join(f"{share:g}" for share in sorted({min(shares), max(shares)})),
            "any number of" if limit is None else f"at most {limit:,}",
        )
    for place, section in settings.same_answers.items():
        if section.reference not in (VOTE, ANSWERABLE) and not settings.exact_prices:
            log.warning("%s.reference: %s", place, UNPRICED)
