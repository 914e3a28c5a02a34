"""Endpoints of the promise `same_answer`: its calibrations from sampled traffic, its progress."""

from __future__ import annotations

from typing import Final

from fastapi import Request, Response
from pydantic import BaseModel, ConfigDict, Field

from app.api.openapi import BODY, KEYED, errors
from app.route_table import JsonBody, Routes
from app.services import Services
from app.wire import bodies
from app.wire.schemas import APPLICATION

routes = Routes("calibration")


class AnswerCalibrateRequest(BaseModel):
    """Body of ``POST /same-answer/calibrate``; may be absent."""

    model_config = ConfigDict(extra="forbid", strict=True)

    application: str | None = Field(default=None, max_length=256, description=APPLICATION)
    dry_run: bool = Field(default=False, description="Return the evidence and change nothing.")


CALIBRATE_BODY: Final = JsonBody(AnswerCalibrateRequest, max_bytes=64 * 2**10, is_required=False)


@routes.add(
    "POST",
    "/same-answer/calibrate",
    role="admin",
    body=CALIBRATE_BODY,
    summary="Calibrate the promise `same_answer` from sampled traffic",
    responses=errors(*KEYED, *BODY, 404, 507),
)
async def calibrate(request: Request, services: Services) -> Response:
    """Needs no labels. One that `refusal` keeps from certifying ends the one before it, too."""
    options, _ = await CALIBRATE_BODY.read(request, services.settings.limits)
    result = await services.answer_calibrator.calibrate(
        options.application, dry_run=options.dry_run
    )
    return bodies.json_response(result)


@routes.add(
    "GET",
    "/same-answer",
    role="admin",
    summary="Calibrations of the promise `same_answer`, and the rows for the next one",
    responses=errors(*KEYED),
)
async def report(_: Request, services: Services) -> Response:
    """The history, newest first, with evidence; for each application its sampled rows so far."""
    return bodies.json_response(await services.answer_calibrator.report())


@routes.add(
    "GET",
    "/same-answer/progress",
    role="data",
    summary="How far the next calibration of the promise `same_answer` is, and what decides",
    responses=errors(*KEYED),
)
async def progress(_: Request, services: Services) -> Response:
    """`applications` as in `GET /same-answer`, without the history; at most 5 s old."""
    return bodies.json_response({"applications": await services.answer_calibrator.progress()})


@routes.add(
    "POST",
    "/same-answer/{calibration_id}/activate",
    role="admin",
    summary="Make a calibration of the promise `same_answer` the active one",
    responses=errors(*KEYED, 404, 409, 507),
)
async def activate(request: Request, services: Services) -> Response:
    """Rolls back or forward. Its certificates are void (`chosen_by_figures`) until the next one."""
    calibration_id = request.path_params["calibration_id"]
    await services.answer_calibrator.activate(calibration_id)
    return bodies.json_response({"id": calibration_id, "active": True})
