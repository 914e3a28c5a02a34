"""Decisions as they are kept, the drift alarms, and the judged shadow sample."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Request, Response

from app.access.api_keys import caller_of
from app.api.openapi import KEYED, content, errors
from app.monitoring.feedback import verdicts_as_json
from app.services import OpenServices
from app.wire import bodies

router = APIRouter(tags=["watching"])


@router.get(
    "/decisions/{decision_id}",
    summary="One decision, as it is remembered",
    responses=errors(*KEYED, 404),
)
async def get_decision(decision_id: str, request: Request, services: OpenServices) -> Response:
    """Its own key's, or an admin's to see."""
    known = await services.monitor.feedback.known(decision_id, caller_of(request))
    verdicts = {name: asdict(each) for name, each in known.verdicts.items()}
    return bodies.json_response(
        known.note.as_json()
        | {
            "feedback": verdicts_as_json(known) | {"verdicts": verdicts},
            "judged": known.judged,
            "loss": known.loss,
        }
    )


@router.post(
    "/decisions/{decision_id}/verify",
    summary="Decide again what was decided",
    responses=errors(*KEYED, 404),
)
async def verify(decision_id: str, services: OpenServices) -> Response:
    """Threshold and set recomputed from the stored scores, beside what was said then."""
    verification = await services.monitor.verification(decision_id)
    return bodies.json_response(verification.as_json())


@router.get(
    "/drift",
    summary="Drift alarms, and the risk that feedback shows",
    responses=errors(*KEYED),
)
async def drift(services: OpenServices) -> Response:
    """Of the active calibration."""
    return bodies.json_response(await services.monitor.drift())


@router.post("/drift/reset", summary="Begin the drift alarms again", responses=errors(*KEYED, 507))
async def reset(services: OpenServices) -> Response:
    """With a new false-alarm probability: say so where you report the old one."""
    await services.monitor.reset()
    return bodies.json_response(await services.monitor.drift())


@router.get(
    "/shadow/rows",
    summary="The judged shadow sample as labelled rows",
    response_class=Response,
    responses=errors(*KEYED) | content("application/x-ndjson"),
)
async def shadow_rows(services: OpenServices) -> Response:
    """JSON lines with router scores instead of queries, for `POST /calibrate`."""
    rows = await services.monitor.shadow_rows()
    return Response(rows, media_type="application/x-ndjson")
