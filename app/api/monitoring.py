"""Monitoring endpoints: stored decisions, drift alarms and the judged shadow sample."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime

from fastapi import Request, Response

from app.api.caller import caller_of
from app.api.openapi import KEYED, content, errors
from app.errors import NotFound
from app.monitoring.feedback import verdicts_as_json
from app.route_table import Routes
from app.services import Services
from app.settings import DEFAULT
from app.wire import bodies
from racer_core.errors import InputError

routes = Routes("watching")


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
    """Recomputes threshold and set from the stored scores, beside the stored result."""
    verification = await services.monitor.verify(request.path_params["decision_id"])
    return bodies.json_response(verification.as_json())


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
            {
                "name": "application",
                "in": "query",
                "required": False,
                "schema": {"type": "string"},
                "description": "Only the requests of this application.",
            },
            {
                "name": "since",
                "in": "query",
                "required": False,
                "schema": {"type": "string", "format": "date-time"},
                "description": "Only decisions from then on.",
            },
        ]
    },
)
async def shadow_rows(request: Request, services: Services) -> Response:
    """JSON lines for `POST /calibrate`, oldest first; one without verdicts is `unlabelled`.

    A row has the whole request where requests are stored, else router scores. Of the turns of one
    conversation one is drawn; `x-racer-turns-left-out` counts the others.
    """
    application = request.query_params.get("application")
    names = [*services.settings.applications, DEFAULT] if services.settings.applications else []
    if application is not None and application not in names:
        raise NotFound(
            f"no application {application[:128]!r}; the applications are {names}",
            code="application_not_found",
            param="application",
        )
    rows, left_out = await services.monitor.shadow_rows(
        application=application, since=_since(request.query_params.get("since"))
    )
    headers = {"x-racer-turns-left-out": str(left_out)}
    return Response(rows, media_type="application/x-ndjson", headers=headers)


def _since(value: str | None) -> str | None:
    """A time as decisions store it. Raises InputError."""
    if value is None:
        return None
    try:
        time = datetime.fromisoformat(value)
    except ValueError as exc:
        raise InputError(
            "since must be a time in ISO 8601, such as 2026-01-31T12:00:00Z", param="since"
        ) from exc
    time = time if time.tzinfo else time.replace(tzinfo=UTC)
    return time.astimezone(UTC).isoformat(timespec="microseconds")
