"""POST /feedback, POST /feedback/accept: verdicts on the answers of candidates."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Request, Response
from pydantic import BaseModel, ConfigDict, Field

from app.api.openapi import BODY, KEYED, errors
from app.api.respond import caller_of
from app.monitoring.decisions.feedback import verdicts_as_json
from app.route_table import JsonBody, Routes
from app.services import Services
from app.wire import bodies

routes = Routes("feedback")

MAX_BYTES: Final = 64 * 2**10
DecisionId = Annotated[str, Field(min_length=1, max_length=64)]


class FeedbackRequest(BaseModel):
    """Verdicts on the answers to one decision."""

    model_config = ConfigDict(extra="forbid", strict=True)

    decision_id: DecisionId = Field(description="From `x-racer-decision-id`.")
    correct: dict[str, bool] = Field(
        min_length=1, description="For each judged candidate, whether its answer was right."
    )


class AcceptRequest(BaseModel):
    """Decisions whose pending verdicts are accepted."""

    model_config = ConfigDict(extra="forbid", strict=True)

    decision_ids: list[DecisionId] = Field(min_length=1, max_length=1000)


FEEDBACK_BODY: Final = JsonBody(FeedbackRequest, max_bytes=MAX_BYTES)
ACCEPT_BODY: Final = JsonBody(AcceptRequest, max_bytes=MAX_BYTES)


@routes.add(
    "POST",
    "/feedback",
    role="data",
    body=FEEDBACK_BODY,
    summary="Report which candidates answered right",
    responses=errors(*KEYED, *BODY, 404, 409, 507),
)
async def feedback(request: Request, services: Services) -> Response:
    """Idempotent. A verdict that contradicts an earlier one is refused and changes nothing."""
    body, _ = await FEEDBACK_BODY.read(request, services.settings.limits)
    result = await services.monitor.feedback.add(body.decision_id, body.correct, caller_of(request))
    return bodies.json_response(result.as_json())


@routes.add(
    "POST",
    "/feedback/accept",
    role="admin",
    body=ACCEPT_BODY,
    summary="Accept pending verdicts",
    responses=errors(*KEYED, *BODY, 404, 507),
)
async def accept(request: Request, services: Services) -> Response:
    """Of all listed decisions, or of none if one is unknown."""
    body, _ = await ACCEPT_BODY.read(request, services.settings.limits)
    accepted = await services.monitor.feedback.accept(body.decision_ids)
    data: list[dict[str, Any]] = [verdicts_as_json(each) for each in accepted]
    return bodies.json_response({"object": "list", "data": data})
