"""Calibration of the promise `same_answer` from rows: terms, evidence, and why it is refused.

The oldest quarter of the rows fits the policy, the others calibrate its threshold.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from app.access.typical_usage import TypicalUsage
from app.ids import IdGenerator
from app.routing.rounds_plan import terms_of
from app.same_answer.alarms import AnswerWatch
from app.same_answer.calibrations import AnswerCalibrations, age_of
from app.same_answer.change import (
    Change,
    Labels,
    change_of,
    consequences,
    least_level,
    not_worth_it,
)
from app.same_answer.rows import AnswerRows
from app.settings import ANSWERABLE, VOTE, SameAnswer, Settings
from app.store import now
from app.store.answer_calibrations import AnswerCalibrationRecord
from app.utc import is_within
from racer_core.errors import InputError
from racer_core.sequential.answer_classes import AnswerClasses
from racer_core.sequential.calibration import SequentialCalibration
from racer_core.sequential.policy import Loss
from racer_core.sequential.verdicts import VerdictRates


def comparable_terms(settings: Settings, application: str, setup: str) -> SameAnswer:
    """The terms of an application, configured or by default.

    Args:
        settings: The configuration.
        application: The application.
        setup: As :func:`app.same_answer.calibrations.answer_setup` gives it.

    Raises:
        InputError: Its answers cannot be compared, or its requests are no rows.
    """
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
    salt: bytes,
    labels: Labels,
) -> AnswerCalibrationRecord:
    """The calibration by rows; its evidence says why it is refused, if it is.

    Args:
        rows: The rows.
        settings: Candidates, terms, prices and equality.
        calibrations: Fits the policy.
        typical_usage: What calls use, by which they have an expected price.
        salt: Key of the noise that breaks ties.
        labels: Labels that are known of the rows that fit the policy.

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
        salt=salt,
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
    fitted = replace(found, answers=record.fitting, lost=0)
    change = change_of(settings.fallback, fitted, terms.alpha, prices, labels)
    shown = evidence_of(settings, terms, found, prices)
    evidence = shown | {
        "consequences": consequences(change, shown["expected_calls"]),
        "change": asdict(change),
        "rows": total,
        "fitting": fitting,
        "n": found.n,
        "lost": record.lost,
        "pending": rows.pending,
        "thinned": rows.thinned,
        "not_before": rows.since,
        "since": rows.rows[0].created_at,
        "until": rows.rows[-1].created_at,
        "refused": refusal_of(settings, terms, found, record.fitting, prices, change),
    }
    return replace(record, evidence=evidence)


# Evidence of a calibration of the promise `same_answer`, and whether it may become active.

# Levels of the frontier that the evidence shows, as far as rows are enough for them.
LEVELS: Final = tuple(
    float(f"{digit}e-{power}") for power in (4, 3, 2, 1) for digit in (1, 1.5, 2, 3, 5, 7)
)
LARGEST_LEVEL: Final = 0.5
MIN_AGREEMENT: Final = 0.1  # least share of rows with two equal answers

NO_ENCODER: Final = (
    "not certifiable cheaply: `aggregation.equality: semantic` compares answers by the encoder of "
    "a router, and none is loaded: set `artifact` to a router (`racer train`), or another equality"
)
UNPRICED: Final = (
    "not known to be worth it: up to five calls come before the reference; set `price` of every "
    "candidate"
)


def evidence_of(
    settings: Settings,
    terms: SameAnswer,
    found: SequentialCalibration,
    prices: Mapping[str, float] | None,
) -> dict[str, Any]:
    """What the rows of a calibration show at its alpha, and at other levels."""
    policy, realised = found.policy, found.realised_risk(terms.alpha)
    (own,) = found.frontier([terms.alpha], prices)
    return {
        "alpha": terms.alpha,
        "reference": terms.reference,
        "max_rounds": terms.max_rounds,
        "equality": str(settings.aggregation.equality),
        "order": list(policy.order),
        "first_round": list(policy.order[: policy.borders[0]]),
        "reliabilities": dict(zip(policy.pool, policy.reliabilities, strict=True)),
        "checker": _checker(terms, policy.checker),
        "candidates": len(policy.pool),
        "agreement": _agreement(found.answers),
        "expected_calls": own.calls,
        "price_share": own.price_share,
        "least_alpha": found.least_alpha,
        "risk_q95": 0.0 if realised is None else realised.upper(),
        "frontier": [
            {
                "alpha": point.alpha,
                "expected_calls": point.calls,
                "expected_rounds": point.rounds,
                "price_share": point.price_share,
            }
            for point in found.frontier(_levels(found, terms.alpha), prices)
        ],
    }


def _checker(terms: SameAnswer, rates: VerdictRates | None) -> dict[str, Any] | None:
    """The checker's kind, and its rates of the verdicts 0 to 5 and of none."""
    if rates is None or terms.evidence is None:
        return None
    return {"kind": terms.evidence.kind, "right": list(rates.right), "wrong": list(rates.wrong)}


def _levels(found: SequentialCalibration, alpha: float) -> list[float]:
    """From 1/(n + 1), below which any number of rows calls everything; with the alpha in force."""
    least = 1.0 / (found.n + 1)
    grid = {each for each in LEVELS if least <= each <= LARGEST_LEVEL}
    return sorted(grid | {least, min(found.least_alpha, LARGEST_LEVEL), alpha})


def refusal_of(
    settings: Settings,
    terms: SameAnswer,
    found: SequentialCalibration,
    fitting: AnswerClasses,
    prices: Mapping[str, float] | None,
    change: Change,
) -> str | None:
    """Why the calibration is not activated.

    Rows without answers aside, the rows that fitted the policy decide. If the calibration rows
    did, those calibrations would be left whose threshold is too low by chance: where calls hardly
    pay, a risk of up to twice alpha was measured.

    Args:
        settings: The equality.
        terms: The terms.
        found: The calibration.
        fitting: The rows that fitted its policy.
        prices: Expected price of a call of each candidate; None: they have none.
        change: What it changes against the fallback.
    """
    counts_misses = found.policy.loss is Loss.MISSES
    is_pool = counts_misses or terms.reference == VOTE
    if found.lambda_hat(terms.alpha) == math.inf:
        lacking = (
            "labels or answers, and count as misses; label them"
            if counts_misses
            else "answers, and count as different; repair the candidates"
        )
        return (
            f"no finite threshold keeps alpha {terms.alpha:g}: {found.lost} of {found.n} rows lack "
            f"{lacking}"
        )
    if not is_pool and prices is None:
        return UNPRICED
    agreement = _agreement(fitting)
    if agreement < MIN_AGREEMENT and not counts_misses:
        return (
            f"not certifiable cheaply: on {agreement:.0%} of the requests any two answers are "
            f"equal under `aggregation.equality: {settings.aggregation.equality}`, and a vote of "
            "different answers says nothing; set an equality that fits the answers"
        )
    fitted = replace(found, answers=fitting, lost=0)
    threshold = fitted.lambda_hat(least_level(terms.alpha, fitting))
    calls = fitted.stops(fitting, threshold).calls
    share = None if prices is None else fitted.price_share(calls, prices)
    if share is not None and share >= 1.0:
        what = "all candidates" if is_pool else f"{terms.reference!r} alone"
        return f"not worth it: a request would cost {share:.2f} of what {what} cost"
    if calls.mean() >= len(found.policy.order):
        return (
            "not certifiable cheaply: every request would call all candidates of the order; "
            "set a larger alpha or max_rounds, or an equality that fits the answers better"
        )
    return not_worth_it(change, is_vote=terms.reference == VOTE)


def _agreement(rows: AnswerClasses) -> float:
    """The share of rows in which two candidates gave the same answer."""
    shared = rows.same.sum(axis=2) > 1
    return float(shared.any(axis=1).mean())


# Progress of a calibration of the promise `same_answer`: rows so far, and how many it takes.

FITTING_SHARE: Final = 0.25
# Rows that fit the policy, at least. Of three candidates that are right on 90, 83 and 80 % the best
# stands first by 20 rows in 47 % of the samples, by 100 in 83 %
# (benchmarks/results/first_certificate.md).
MIN_FITTING: Final = 100
MIN_FOR_ESTIMATE: Final = 10  # rows; a rate by fewer is off by a third or more
QUIET: Final = 5  # mean gaps without a row, which happens once in 150 times while traffic goes on


def fitting_rows(total: int) -> int:
    """How many of the rows fit the policy; the others calibrate."""
    return max(MIN_FITTING, int(FITTING_SHARE * total))


def rows_needed(alpha: float) -> int:
    """The fewest rows with which a threshold for alpha can be finite."""
    calibrating = math.ceil(1.0 / alpha - 1e-9) - 1
    total = calibrating + MIN_FITTING
    while total - fitting_rows(total) < calibrating:
        total += 1
    return total


def expected_at(times: Sequence[datetime], needed: int, now: datetime) -> datetime | None:
    """When there will be enough rows if they come as they came so far.

    Args:
        times: When the rows were made, ascending.
        needed: How many are needed.
        now: The time.

    Returns:
        None where there are enough, too few for a rate, or none lately.
    """
    if not MIN_FOR_ESTIMATE <= len(times) < needed:
        return None
    gap: timedelta = (now - times[0]) / len(times)
    if now - times[-1] > QUIET * gap:
        return None
    return now + (needed - len(times)) * gap


# Reports on calibrations of `same_answer`: an application's progress, and what they cost.

log = logging.getLogger(__name__)

# Evidence of the active calibration that its progress shows, which needs no admin key.
DECIDES: Final = (
    "alpha",
    "reference",
    "candidates",
    "expected_calls",
    "price_share",
    "n",
    "risk_q95",
    "consequences",
)


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
        "decides": active
        and {name: active.evidence.get(name) for name in DECIDES}
        | {"created_at": active.created_at},
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


# Schedule of calibrations of `same_answer` from traffic: the next attempt is due a day after the
# last one, or as soon as the samples have doubled, whether it was refused or decides. If a refused
# one were tried again sooner, the lucky one would be kept for longer than others.

REFRESH: Final = timedelta(days=1)  # of a calibration, or of a refused attempt: then comes another


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The last attempt, which was refused.

    Attributes:
        made_at: UTC, ISO 8601.
        rows: How many rows it had.
        until: When the newest of the requests was made that it read.
        refusal: Why nothing was activated.
    """

    made_at: str
    rows: int
    until: str
    refusal: str


def attempt_of(record: AnswerCalibrationRecord) -> Attempt:
    """The attempt that made a record, which was refused."""
    found = record.evidence
    return Attempt(
        made_at=record.created_at,
        rows=found["rows"],
        until=found["until"],
        refusal=found["refused"],
    )


def is_due(last: str) -> bool:
    """Whether the time has come for another attempt, after one at a time as ISO 8601."""
    return not is_within(last, REFRESH)


def samples_wanted(attempt: Attempt | None, needed: int) -> int:
    """How many samples since the last attempt make another one due.

    By samples since then, not by their number in all: only the newest rows are read, so that this
    number stops growing.

    Args:
        attempt: The last one, which was refused; None: there was none.
        needed: The fewest rows that may do.
    """
    if attempt is None:
        return needed
    if attempt.rows < needed:
        return needed - attempt.rows
    return 1 if is_due(attempt.made_at) else attempt.rows
