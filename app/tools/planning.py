"""Plan of labels in words, for `racer plan` and the first lines of `racer bootstrap`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from app.calibrations.parsing import check_reachable
from racer_core.errors import InputError
from racer_core.offline.plan import (
    ANSWERABLE,
    CONFIDENCE,
    FACTORS,
    FEW,
    MEASURED_FROM,
    LabelledSample,
    Outlook,
    Plan,
)
from racer_core.records.split import TUNED_ROWS
from racer_core.types import LabelledRows, RiskTarget, checked_alpha

LARGER: Final = 0.2  # the alpha that few questions are advised to take


def plan_for(
    questions: int,
    *,
    alpha: float,
    delta: float | None = None,
    risk_target: RiskTarget = RiskTarget.ANSWERABLE,
    answerable: float | None = None,
    rows: LabelledRows | None = None,
    shares: Mapping[str, float] | None = None,
) -> Plan:
    """The plan of a number of questions.

    Args:
        questions: Questions that are labelled, or will be.
        alpha: Risk level.
        delta: P(risk <= alpha) >= 1 - delta; None bounds the mean.
        risk_target: The risk that alpha bounds.
        answerable: The share of questions with a right candidate; None: that of ``rows``, else
            three in four.
        rows: Rows that are labelled already; fewer than 30 say nothing.
        shares: Of the parts; None: those of a bootstrap.

    Raises:
        InputError: Levels outside of (0, 1), a delta that no number of rows reaches, rows of which
            none is answerable, or graded rows.
    """
    if risk_target is RiskTarget.QUALITY:
        raise InputError(
            "the law of a realised shortfall depends on the grades, so nothing is planned for "
            "risk_target quality: give --risk-target answerable to plan for right and wrong",
            param="risk_target",
        )
    sample = None
    if rows is not None and len(rows) >= MEASURED_FROM:
        sample = LabelledSample(labels=rows.labels(), risk_target=risk_target)
    counted = 1.0
    if risk_target is RiskTarget.ANSWERABLE:
        counted = answerable or (ANSWERABLE if sample is None else sample.counted)
    checked_alpha(alpha)
    if delta is not None:
        checked_alpha(delta, "delta")
    check_reachable(alpha, delta)
    return Plan(
        questions=questions,
        alpha=alpha,
        delta=delta,
        counted=counted,
        shares=shares,
        sample=sample,
    )


def fields(plan: Plan) -> dict[str, str]:
    """The plan, one line for each figure."""
    outlook = plan.outlook
    parts = ", ".join(f"{count} {name}" for name, count in plan.parts.items())
    shown = {
        "questions": f"{plan.questions}: {parts}{_untuned(plan)}",
        "rows that count": f"{outlook.n} of {plan.parts['calibration']}, {_counted(plan)}",
        "feasible": _feasible(plan),
        "realised risk": _risk(outlook),
        "calls": _calls(plan),
    }
    for factor in FACTORS:
        rows = plan.rows_within(factor)
        found = (
            f"{plan.questions_for(rows):,} questions ({rows:,} rows that count), with probability "
            f"{CONFIDENCE:g}"
        )
        if plan.shares is None:
            found += f"; {plan.questions_tuned(rows):,} with a part for `racer tune`"
        shown[f"risk at most {factor * plan.alpha:g}"] = found
    return shown | ({"advice": _advice(plan)} if plan.questions < FEW else {})


def as_json(plan: Plan) -> dict[str, Any]:
    """The plan as JSON values; ``within`` by the bound on the realised risk."""
    outlook = plan.outlook
    return {
        **{name: getattr(plan, name) for name in ("questions", "alpha", "delta", "counted")},
        "parts": dict(plan.parts),
        **asdict(outlook),
        "feasible": outlook.is_feasible,
        "fewest": plan.fewest,
        "risk_mean": outlook.mean,
        "risk_q05": outlook.quantile(0.05),
        "risk_q95": outlook.quantile(0.95),
        "calls": plan.calls,
        "questions_to_tune": plan.questions_to_tune,
        "within": {
            f"{factor * plan.alpha:g}": {
                "rows": (rows := plan.rows_within(factor)),
                "questions": plan.questions_for(rows),
                "questions_tuned": plan.questions_tuned(rows),
            }
            for factor in FACTORS
        },
    }


def _untuned(plan: Plan) -> str:
    """Why there is no part to tune on."""
    if "validation" in plan.parts or plan.shares is not None:
        return ""
    return (
        f"; none is left to `racer tune`, which takes {TUNED_ROWS} validation rows that count, "
        f"hence {plan.questions_to_tune:,} questions"
    )


def _counted(plan: Plan) -> str:
    """Where the share of rows that count comes from."""
    if plan.sample is not None:
        return f"as of {len(plan.sample.labels)} labelled rows {plan.counted:.0%} do"
    return f"if {plan.counted:.0%} of the questions have a right candidate"


def _feasible(plan: Plan) -> str:
    needed = f"alpha {plan.alpha:g}" + ("" if plan.delta is None else f", delta {plan.delta:g}")
    needed += (
        f" takes {plan.fewest:,} rows that count, {plan.questions_for(plan.fewest):,} questions"
    )
    if plan.outlook.is_feasible:
        return f"yes: {needed}"
    return f"no: {needed}; with fewer every request calls all candidates"


def _risk(outlook: Outlook) -> str:
    if not outlook.is_feasible:
        return "0, as all candidates are called"
    low, high = outlook.quantile(0.05), outlook.quantile(0.95)
    return f"{outlook.mean:.3f} on average, {low:.3f} to {high:.3f} with probability 90 %"


def _calls(plan: Plan) -> str:
    if plan.sample is None:
        return f"known from {MEASURED_FROM} labelled rows on"
    count = plan.sample.labels.shape[1]
    return f"{plan.calls:.2f} of {count} by a fixed order of the candidates on these rows"


def _advice(plan: Plan) -> str:
    text = (
        "with so few questions begin with the promise same_answer, which needs no labels "
        "(docs/same-answer.md)"
    )
    if plan.alpha >= LARGER:
        return f"{text}, or write more questions"
    larger = Outlook.of(max(plan.outlook.n, 1), LARGER, plan.delta)
    risk = f" (realised risk {_risk(larger)})" if larger.is_feasible else ""
    return f"{text}, or take alpha {LARGER:g}{risk}"
