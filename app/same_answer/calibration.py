"""Calibration of the promise `same_answer` from rows: terms, evidence, and why it is refused.

The oldest quarter of the rows fits the policy, the others calibrate its threshold.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Final

from app.access.typical_usage import TypicalUsage
from app.ids import IdGenerator
from app.monitoring.answer_evidence import NO_ENCODER, evidence_of, refusal_of
from app.monitoring.answer_progress import fitting_rows, rows_needed
from app.routing.rounds_plan import AnswerCalibrations, terms_of
from app.same_answer.rows import AnswerRows
from app.settings import COMPARABLE, SameAnswer, Settings
from app.store import now
from app.store.answer_calibrations import AnswerCalibrationRecord
from racer_core.errors import InputError

_SALT_BYTES: Final = 16


def comparable_terms(settings: Settings, application: str, setup: str) -> SameAnswer:
    """The terms of an application, configured or by default.

    Args:
        settings: The configuration.
        application: The application.
        setup: As :func:`app.routing.rounds_plan.answer_setup` gives it.

    Raises:
        InputError: Its answers cannot be compared, or its requests are no rows.
    """
    equality = settings.aggregation.equality
    if equality not in COMPARABLE:
        raise InputError(
            f"answers cannot be compared two by two under `aggregation.equality: {equality}`: "
            f"set one of {', '.join(COMPARABLE)}",
            param="aggregation.equality",
        )
    if not setup:
        raise InputError(NO_ENCODER, param="aggregation.equality")
    own = settings.applications.get(application)
    if own is not None and own.turns == "together":
        raise InputError(
            f"applications.{application}.turns: rows of `same_answer` are first turns; set "
            "`separate`",
            param="application",
        )
    return settings.same_answer_of(application or None) or SameAnswer()


def calibration_of(
    rows: AnswerRows,
    settings: Settings,
    calibrations: AnswerCalibrations,
    typical_usage: TypicalUsage,
) -> AnswerCalibrationRecord:
    """The calibration by rows; its evidence says why it is refused, if it is.

    Args:
        rows: The rows.
        settings: Candidates, terms, prices and equality.
        calibrations: Fits the policy.
        typical_usage: What calls use, by which they have an expected price.

    Raises:
        InputError: Too few rows, answers that cannot be compared, or an unknown price of a call.
    """
    application, pool = rows.application, settings.pool
    terms = comparable_terms(settings, application, calibrations.setup)
    counts_misses = terms_of(terms).counts_misses
    total = len(rows.rows)
    fitting, needed = fitting_rows(total), rows_needed(terms.alpha)
    if total < needed:
        has_section = settings.same_answer_of(application or None) is not None
        asked = "" if has_section else ", which ask for `promise: same_answer`"
        which = " with a right answer, or a label that is missing," if counts_misses else ""
        raise InputError(
            f"there are {total} sampled requests{which} at the usual terms{asked}, and alpha "
            f"{terms.alpha:g} takes {needed}, {fitting_rows(needed)} of which fit the order of "
            "calls: wait for more, or raise `watching.shadow_rate` or alpha",
            param="rows",
        )
    known = {name: typical_usage.of(application or None, name) for name in pool}
    usage = {name: each for name, each in known.items() if each is not None}
    prices = settings.call_prices(usage)
    if prices is None and settings.exact_prices:
        raise InputError(
            "what a call of each candidate costs is not known yet, for it depends on the tokens "
            "that they use: wait until all have answered since the start of this gateway, or let "
            "`price` be the number of a call",
            param="price",
        )
    record = AnswerCalibrationRecord(
        id=f"answers-{IdGenerator().new_id()}",
        created_at=now(),
        answer_setup=calibrations.setup,
        application=application,
        fitting=rows.classes(pool, 0, fitting),
        rows=rows.classes(pool, fitting, None),
        lost=rows.lost(fitting),
        salt=secrets.token_bytes(_SALT_BYTES),
        alpha=terms.alpha,
        prices=prices,
        evidence={},
    )
    if not len(record.fitting) or not len(record.rows):
        raise InputError(
            "hardly any sampled request was answered by all candidates"
            f"{' and labelled' if counts_misses else ''}: look for candidates that are down",
            param="rows",
        )
    found = calibrations.plan(record, pool, terms_of(terms), terms.alpha).calibration
    evidence = evidence_of(settings, terms, found, prices) | {
        "rows": total,
        "fitting": fitting,
        "n": found.n,
        "lost": record.lost,
        "pending": rows.pending,
        "thinned": rows.thinned,
        "not_before": rows.since,
        "since": rows.rows[0].created_at,
        "until": rows.rows[-1].created_at,
        "refused": refusal_of(settings, terms, found, record.fitting, prices),
    }
    return replace(record, evidence=evidence)
