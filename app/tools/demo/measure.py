"""Measurement of the demo: realised risk against alpha, calls saved, accuracy, and controls.

Answers come through the official ``openai`` client. Sets are judged by the labels of the test rows;
answers are graded as they arrive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from openai import APIError, AsyncOpenAI, DefaultAsyncHttpxClient

from app.errors import UpstreamError
from app.tools.gateway_client import GatewayClient
from racer_core.aggregation.answers import Equality, normalise
from racer_core.calibration.metrics import SetMetrics, set_metrics
from racer_core.calibration.realised_risk import RealisedRisk
from racer_core.calibration.threshold import allowed_misses
from racer_core.types import (
    Aggregate,
    BoolArray,
    CandidateAnswer,
    LabelledRow,
    LabelledRows,
    RiskTarget,
    Score,
)

ALPHAS = (0.02, 0.05, 0.1)
CONCURRENCY = 8
Report = Callable[[str, int, int], None]
MergeAnswers = Callable[[Sequence[CandidateAnswer]], Aggregate]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GatewayAnswer:
    """The answer to a query, with the gateway's ``racer`` object."""

    content: str
    racer: dict[str, Any]


def measure(
    client: GatewayClient,
    url: str,
    calibration: Path,
    test: LabelledRows,
    *,
    queries: int,
    merge: MergeAnswers,
    progress: Report,
) -> dict[str, Any]:
    """Measure both risk targets on the first ``queries`` test rows; ``merge`` is the gateway's.

    The paper's target and the sets of a fixed order, the control that ignores the query, are
    measured on ``/route`` decisions, which cost no tokens. The default target is measured on
    answers, and is active afterwards.
    """
    rows = LabelledRows(pool=test.pool, rows=test.rows[:queries])
    paper = _realised_risks(client, calibration, RiskTarget.PAPER)
    client.calibrate(calibration, {"risk_target": RiskTarget.PAPER})
    decisions = {
        alpha: _decide(client, rows, alpha, progress, f"paper's target, alpha {alpha:g}")
        for alpha in ALPHAS
    }
    answerable = _realised_risks(client, calibration, RiskTarget.ANSWERABLE)
    evidence = client.calibrate(calibration, {"risk_target": RiskTarget.ANSWERABLE})["evidence"]
    fixed = {
        alpha: _decide(
            client, rows, alpha, progress, f"one fixed order, alpha {alpha:g}", Score.STATIC
        )
        for alpha in ALPHAS
    }
    answers, alone = asyncio.run(_collect_answers(url, rows, progress))
    return {
        "queries": len(rows),
        "pool_size": len(rows.pool),
        "n_calibration": evidence["rows"],
        "alphas": [
            {
                "alpha": alpha,
                "answerable": _answerable_risk(rows, answers[alpha], answerable[alpha]),
                "paper": _paper_risk(rows, decisions[alpha], paper[alpha]),
                **_cost_and_accuracy(rows, answers[alpha]),
                "fixed_order_size": float(_sets(rows, fixed[alpha]).sum(axis=1).mean()),
            }
            for alpha in ALPHAS
        ],
        "controls": _controls(rows, alone, answers[ALPHAS[0]], merge),
    }


def _decide(
    client: GatewayClient,
    rows: LabelledRows,
    alpha: float,
    progress: Report,
    stage: str,
    score: Score | None = None,
) -> list[dict[str, Any]]:
    decisions: list[dict[str, Any]] = []
    for query in rows.queries:
        decisions.append(client.route(query, alpha, execute=False, score=score))
        progress(f"deciding, {stage}", len(decisions), len(rows))
    return decisions


async def _collect_answers(
    url: str, rows: LabelledRows, progress: Report
) -> tuple[dict[float, list[GatewayAnswer]], dict[str, list[GatewayAnswer]]]:
    """Send every query at every alpha, and to every candidate alone for the controls."""
    http = DefaultAsyncHttpxClient(trust_env=False)  # the gateway is local, not behind a proxy
    async with AsyncOpenAI(
        base_url=f"{url}/v1", api_key="unused", timeout=120, http_client=http
    ) as client:

        async def ask(model: str, query: str, alpha: float | None = None) -> GatewayAnswer:
            try:
                completion = await client.chat.completions.create(
                    model=model,
                    messages=[{"role": "user", "content": query}],
                    extra_body={"racer": {"alpha": alpha}} if alpha else None,
                )
            except APIError as exc:
                raise UpstreamError(f"the demo's gateway failed: {exc.message}") from exc
            extra = completion.model_extra or {}
            return GatewayAnswer(
                completion.choices[0].message.content or "", extra.get("racer", {})
            )

        answers = {
            alpha: await _all(
                [ask("auto", query, alpha) for query in rows.queries],
                lambda done, a=alpha: progress(f"answering, alpha {a:g}", done, len(rows)),
            )
            for alpha in ALPHAS
        }
        alone = {
            name: await _all(
                [ask(name, query) for query in rows.queries],
                lambda done, n=name: progress(f"asking {n} alone", done, len(rows)),
            )
            for name in rows.pool
        }
    return answers, alone


async def _all(calls: Sequence[Awaitable[T]], report: Callable[[int], None]) -> list[T]:
    """Await all calls, a few at a time; results are in the order of the calls."""
    semaphore = asyncio.Semaphore(CONCURRENCY)
    done = 0

    async def one(call: Awaitable[T]) -> T:
        nonlocal done
        async with semaphore:
            result = await call
        done += 1
        report(done)
        return result

    return await asyncio.gather(*(one(call) for call in calls))


def _realised_risks(
    client: GatewayClient, calibration: Path, risk_target: RiskTarget
) -> dict[float, RealisedRisk]:
    """What the calibration rows tell about the risk at each alpha."""
    options = {"risk_target": risk_target, "dry_run": True}
    evidence = client.calibrate(calibration, options)["evidence"]
    n = evidence["n"]
    return {
        point["alpha"]: RealisedRisk(
            n=n,
            misses=allowed_misses(n, point["alpha"]),
            missed=point["missed"],
            tied=point["tied"],
        )
        for point in evidence["curve"]
        if point["alpha"] in ALPHAS and point["feasible"]
    }


def _answerable_risk(
    rows: LabelledRows, answers: Sequence[GatewayAnswer], realised: RealisedRisk
) -> dict[str, Any]:
    """P(miss | some candidate is right), with its range for this number of such queries."""
    metrics = _metrics(rows, [answer.racer for answer in answers])
    count = int(rows.labels(rows.pool).any(axis=1).sum())
    return _with_range(metrics.miss_given_answerable, realised, count)


def _paper_risk(
    rows: LabelledRows, decisions: Sequence[dict[str, Any]], realised: RealisedRisk
) -> dict[str, Any]:
    return _with_range(_metrics(rows, decisions).risk, realised, len(rows))


def _with_range(risk: float, realised: RealisedRisk, count: int) -> dict[str, Any]:
    """A realised risk beside the range that the exact law expects of it with 95 %.

    The law needs no outcome: rows that calibrated, misses allowed among them, queries that count.
    """
    low, high = realised.misses_among(count)
    expected = [low / count, high / count]
    return {"risk": risk, "expected_range": expected, "n": realised.n, "queries": count}


def _metrics(rows: LabelledRows, decisions: Sequence[dict[str, Any]]) -> SetMetrics:
    null = np.array([decision["null_in_set"] for decision in decisions], dtype=bool)
    return set_metrics(_sets(rows, decisions), null, rows.labels(rows.pool))


def _sets(rows: LabelledRows, decisions: Sequence[dict[str, Any]]) -> BoolArray:
    called = [[name in decision["selected"] for name in rows.pool] for decision in decisions]
    return np.array(called, dtype=bool)


def _cost_and_accuracy(rows: LabelledRows, answers: Sequence[GatewayAnswer]) -> dict[str, float]:
    sets = _sets(rows, [answer.racer for answer in answers])
    size = float(sets.sum(axis=1).mean())
    return {
        "mean_size": size,
        "calls_saved": 1.0 - size / len(rows.pool),
        "abstain": float((~sets.any(axis=1)).mean()),
        "accuracy": _accuracy(rows, [answer.content for answer in answers]),
    }


def _controls(
    rows: LabelledRows,
    alone: dict[str, list[GatewayAnswer]],
    routed: Sequence[GatewayAnswer],
    merge: MergeAnswers,
) -> dict[str, Any]:
    """Best single candidate, the router's first choice, and the vote of the whole pool."""
    singles = {
        name: _accuracy(rows, [answer.content for answer in answers])
        for name, answers in alone.items()
    }
    best = max(singles, key=lambda name: singles[name])
    first: list[str] = []
    voted: list[str] = []
    for i, answer in enumerate(routed):
        scores: dict[str, float] = answer.racer["pool_scores"]
        first.append(alone[next(iter(scores))][i].content)
        full_pool = [
            CandidateAnswer(
                candidate=name,
                text=alone[name][i].content,
                form=normalise(Equality.EXACT, alone[name][i].content),
                score=scores[name],
            )
            for name in rows.pool
        ]
        voted.append(merge(full_pool).text)
    return {
        "best_single": {"name": best, "accuracy": singles[best]},
        "singles": singles,
        "router_top1": _accuracy(rows, first),
        "full_vote": _accuracy(rows, voted),
    }


def _accuracy(rows: LabelledRows, texts: Sequence[str]) -> float:
    right = [_is_correct(text, row) for text, row in zip(texts, rows.rows, strict=True)]
    return sum(right) / len(right)


def _is_correct(text: str, row: LabelledRow) -> bool:
    """Grade as for the labels: equal up to case and space."""
    reference = normalise(Equality.EXACT, row.reference or "")
    return reference is not None and normalise(Equality.EXACT, text) == reference
