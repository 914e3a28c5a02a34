"""Monitoring endpoints: stored decisions, drift alarms and the judged shadow sample."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from app.api.feedback import MAX_BYTES, DecisionId
from app.api.openapi import BODY, KEYED, content, errors
from app.api.respond import caller_of
from app.errors import NotFound
from app.monitoring.decisions.feedback import verdicts_as_json
from app.route_table import JsonBody, Routes
from app.services import Services
from app.settings import DEFAULT, Settings
from app.wire import bodies
from app.wire.schemas import utc_time
from racer_core.errors import InputError

routes = Routes("watching")

MAX_WAITING: Final = 1_000  # samples in one answer
MAX_LABELS: Final = 1_000_000


class JudgementRequest(BaseModel):
    """A judge model's verdicts on the answers to one decision."""

    model_config = ConfigDict(extra="forbid", strict=True)

    decision_id: DecisionId = Field(description="From `GET /shadow/waiting`.")
    judge: str = Field(min_length=1, max_length=256, description="Name of the judge model.")
    correct: dict[str, bool] = Field(
        min_length=1, description="For each candidate, whether its answer was right."
    )


JUDGEMENT_BODY: Final = JsonBody(JudgementRequest, max_bytes=MAX_BYTES)


def _query(name: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
    """An optional query parameter in the OpenAPI document."""
    place = {"name": name, "in": "query", "required": False}
    return {**place, "schema": schema, "description": description}


_APPLICATION: Final = _query("application", {"type": "string"}, "Only its requests.")
_SINCE: Final = _query(
    "since", {"type": "string", "format": "date-time"}, "Only decisions from then on."
)


@routes.add(
    "GET",
    "/decisions/{decision_id}",
    role="data",
    summary="One stored decision",
    responses=errors(*KEYED, 404),
)
async def get_decision(request: Request, services: Services) -> Response:
    """A data key sees its own decisions; an admin key sees all."""
    stored = await services.monitor.feedback.decision(
        request.path_params["decision_id"], caller_of(request)
    )
    verdicts = {name: asdict(each) for name, each in stored.verdicts.items()}
    return bodies.json_response(
        stored.decision.as_json()
        | {
            "feedback": verdicts_as_json(stored) | {"verdicts": verdicts},
            "judged": stored.judged,
            "loss": stored.loss,
        }
    )


@routes.add(
    "POST",
    "/decisions/{decision_id}/verify",
    role="admin",
    summary="Verify a decision",
    responses=errors(*KEYED, 404),
)
async def verify(request: Request, services: Services) -> Response:
    """Recomputes threshold and set, or the rounds of `same_answer`, beside the stored result."""
    verification = await services.monitor.verify(request.path_params["decision_id"])
    return bodies.json_response(verification.as_json())


@routes.add(
    "GET",
    "/coverage",
    role="admin",
    summary="Which of the last requests were certified, and what would certify the others",
    responses=errors(*KEYED),
)
async def coverage(_: Request, services: Services) -> Response:
    """Of the last 1,000 answers of each application since the active calibration.

    They are in the memory of the process that answers, and `earlier` has shapes from before.

    `others` has one entry for each kind of void certificate: its reasons, how many requests have
    it, and the `command` that certifies such requests. A `shape` holds fields, digests and counts,
    and nothing that a client wrote. `command` of an application certifies all its shapes at once.
    """
    return bodies.json_response(services.chats.coverage.as_json())


@routes.add(
    "GET",
    "/history",
    role="data",
    summary="What requests got over the last hour, day and week",
    responses=errors(*KEYED, 404),
)
async def history(_: Request, services: Services) -> Response:
    """Certified and refused shares, calls, cost and agreement of all requests of all keys.

    Beside them `everyone`, what always calling all candidates takes, and `best_single`, what always
    calling the best one takes. Counts are exact, the other figures of at most 200 decisions of each
    part. `agreement` is known of sampled requests alone: how often an answer is that of most
    candidates. An answer is kept for 15 s.
    """
    report = await services.monitor.history.report()
    return bodies.json_response({"currency": services.settings.currency} | report)


@routes.add(
    "GET",
    "/drift",
    role="admin",
    summary="Drift alarms, and the risk estimated from feedback",
    responses=errors(*KEYED),
)
async def drift(_: Request, services: Services) -> Response:
    """Of the active calibration; with `applications` each has its own, under its name."""
    return bodies.json_response(await services.monitor.drift_report())


@routes.add(
    "POST",
    "/drift/reset",
    role="admin",
    summary="Restart the drift alarms",
    responses=errors(*KEYED, 404, 507),
    openapi_extra={
        "parameters": [{"name": "application", "in": "query", "schema": {"type": "string"}}],
    },
)
async def reset(request: Request, services: Services) -> Response:
    """Of one application, or of all. The false-alarm probability starts anew: report the reset."""
    await services.monitor.reset_drift(request.query_params.get("application"))
    return bodies.json_response(await services.monitor.drift_report())


@routes.add(
    "GET",
    "/shadow/rows",
    role="admin",
    summary="The shadow sample as labelled rows",
    response_class=Response,
    responses=errors(*KEYED, 404) | content("application/x-ndjson"),
    openapi_extra={
        "parameters": [
            _APPLICATION,
            _SINCE,
            _query(
                "judge",
                {"type": "string"},
                "The judge whose verdicts rows carry; empty: none, labels alone. Default: the one "
                "with verdicts on most rows.",
            ),
            _query(
                "labels",
                {"type": "integer", "minimum": 1},
                "The number of labels beside verdicts, fixed before they were given.",
            ),
            _query(
                "pool",
                {"type": "string", "enum": ["any"]},
                "`any`: all stored requests, each with the candidates of its time, to label anew.",
            ),
        ],
    },
)
async def shadow_rows(request: Request, services: Services) -> Response:
    """JSON lines for `POST /calibrate`, oldest first; one without verdicts is `unlabelled`.

    A row has the whole request where requests are stored, else router scores; `unreadable` marks
    one whose request cannot be decrypted. Later turns of one conversation have one `cluster`.
    Beside a judge's verdicts labels stand on a random part alone; `x-racer-labels-left-out` counts
    the others.
    """
    rows, labels_left_out = await services.monitor.sampler.rows(
        application=_application(request, services),
        since=_since(request.query_params.get("since")),
        judge=request.query_params.get("judge"),
        labels=_labels(request.query_params.get("labels")),
        any_pool=_is_any_pool(request.query_params.get("pool")),
    )
    headers = {"x-racer-labels-left-out": str(labels_left_out)}
    return StreamingResponse(rows, media_type="application/x-ndjson", headers=headers)


@routes.add(
    "GET",
    "/shadow/waiting",
    role="admin",
    summary="Sampled requests whose answers wait for a label",
    responses=errors(*KEYED, 404, 409),
    openapi_extra={
        "parameters": [
            _APPLICATION,
            _SINCE,
            _query("judge", {"type": "string"}, "Those that wait for this judge model's verdicts."),
            _query(
                "limit",
                {"type": "integer", "minimum": 1, "maximum": MAX_WAITING, "default": 100},
                "The largest number of them.",
            ),
        ]
    },
)
async def waiting(request: Request, services: Services) -> Response:
    """With requests and answers, where requests are stored; `waiting` counts all of them.

    `applications` counts samples that wait and that are labelled, and the rows that alpha needs.
    For verdicts that count (`POST /feedback`), in random order: those that are labelled first are a
    random part. For a judge, oldest first. `classes` has one number for equal answers; a candidate
    without an answer is wrong and needs no verdict.
    """
    query = request.query_params
    found = await services.monitor.sampler.labels.waiting(
        application=_application(request, services),
        judge=query.get("judge"),
        since=_since(query.get("since")),
        limit=_limit(query.get("limit", "100")),
    )
    progress = await services.monitor.sampler.labels.progress(_alphas(services.settings))
    return bodies.json_response(found | {"applications": progress})


@routes.add(
    "POST",
    "/shadow/judgements",
    role="admin",
    body=JUDGEMENT_BODY,
    summary="Store a judge model's verdicts on a sampled request",
    responses=errors(*KEYED, *BODY, 404, 507),
)
async def add_judgements(request: Request, services: Services) -> Response:
    """On all candidates of the decision. They count for no risk; the first of a judge stay."""
    body, _ = await JUDGEMENT_BODY.read(request, services.settings.limits)
    new = await services.monitor.sampler.labels.add_judgements(
        body.decision_id, body.judge, body.correct
    )
    return bodies.json_response({"decision_id": body.decision_id, "judge": body.judge, "new": new})


def _alphas(settings: Settings) -> dict[str | None, float]:
    """The alpha of each application; None where none is configured."""
    usual = settings.routing.alpha
    if not settings.applications:
        return {None: usual}
    own = {name: each.alpha for name, each in settings.applications.items()}
    return {name: alpha or usual for name, alpha in ({DEFAULT: None} | own).items()}


def _application(request: Request, services: Services) -> str | None:
    """The application that a request names. Raises NotFound."""
    name = request.query_params.get("application")
    names = [*services.settings.applications, DEFAULT] if services.settings.applications else []
    if name is not None and name not in names:
        raise NotFound(
            f"no application {name[:128]!r}; the applications are {names}",
            code="application_not_found",
            param="application",
        )
    return name


def _limit(value: str) -> int:
    """A number of samples. Raises InputError."""
    return _number(value, "limit", MAX_WAITING)


def _labels(value: str | None) -> int | None:
    """A number of labels. Raises InputError."""
    return None if value is None else _number(value, "labels", MAX_LABELS)


def _number(value: str, name: str, largest: int) -> int:
    is_number = value.isascii() and value.isdigit() and len(value) <= len(str(largest))
    if not is_number or not 1 <= int(value) <= largest:
        raise InputError(f"{name} must be a whole number from 1 to {largest}", param=name)
    return int(value)


def _is_any_pool(value: str | None) -> bool:
    """Whether rows of any pool are asked for. Raises InputError."""
    if value not in (None, "any"):
        raise InputError("pool must be `any` or left out", param="pool")
    return value is not None


def _since(value: str | None) -> str | None:
    """A time as decisions store it. Raises InputError."""
    if value is None:
        return None
    try:
        return utc_time(value)
    except ValueError as exc:
        raise InputError(f"since {exc}", param="since") from exc
