"""POST /calibrate, its jobs, and the history of calibrations. Admin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from app.api.openapi import BODY, EVENTS, KEYED, content, errors, inline, json_body
from app.calibrations.jobs import Job
from app.calibrations.upload import receive, spool_folder
from app.services import OpenServices
from app.wire import bodies, sse
from app.wire.schemas import ActivateRequest, CalibrateOptions, CalibrateQuery
from racer_core import strict_json

router = APIRouter(tags=["calibration"])

ACTIVATION_BYTES: Final = 64 * 2**10
_ROWS_SCHEMA: Final = {
    "type": "object",
    "required": ["rows"],
    "properties": {
        "rows": {"type": "array", "items": {"type": "object"}},
        "candidates": {"type": "array", "items": {"type": "string"}},
        **inline(CalibrateOptions)["properties"],
    },
}
_FILE_SCHEMA: Final = {
    "type": "object",
    "required": ["file"],
    "properties": {"file": {"type": "string", "format": "binary"}},
}
_BINARY_SCHEMA: Final = {"type": "string", "format": "binary"}


@router.post(
    "/calibrate",
    summary="Recalibrate from labelled rows",
    responses=errors(*KEYED, *BODY, 409, 507)
    | {202: {"description": "A job; `location` says where to ask for it."}},
    openapi_extra={
        "parameters": [
            {"name": "wait", "in": "query", "schema": {"type": "boolean"}},
        ],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": _ROWS_SCHEMA},
                "application/x-ndjson": {"schema": {"type": "string"}},
                "text/csv": {"schema": {"type": "string"}},
                "application/vnd.apache.parquet": {"schema": _BINARY_SCHEMA},
                "multipart/form-data": {"schema": _FILE_SCHEMA},
            },
        },
    },
)
@router.post("/v1/calibrate", include_in_schema=False)
async def calibrate(request: Request, services: OpenServices) -> Response:
    """Rows as JSON, NDJSON, CSV, parquet or a file; nothing changes unless every row is valid.

    Options are fields of the JSON body, form fields, or query parameters. Large uploads are
    answered with a job.
    """
    settings, calibrations = services.settings, services.calibrations
    given: dict[str, Any] = dict(request.query_params)
    asked = {"wait": given.pop("wait")} if "wait" in given else {}
    wait = bodies.checked(CalibrateQuery, asked).wait
    with calibrations.jobs.arriving():
        folder = spool_folder(services.store.url)
        upload = await receive(request, settings.limits.upload_bytes, folder)
    try:
        job = calibrations.start(upload, given | upload.fields, request.state.caller.name)
    except BaseException:
        upload.close()
        raise
    if wait:
        while not job.ended:
            await job.changed()
    elif wait is False or not await calibrations.jobs.answers_soon(job):
        headers = {"location": f"/calibrations/jobs/{job.id}"}
        return bodies.json_response({"job": job.as_json()}, status=202, headers=headers)
    return bodies.json_response(job.outcome())


@router.get(
    "/calibrations/jobs",
    summary="Calibrations under way and lately ended, newest first",
    responses=errors(*KEYED),
)
async def list_jobs(services: OpenServices) -> Response:
    """For whoever lost the answer that named a job."""
    jobs = [job.as_json() for job in services.calibrations.jobs.all()]
    return bodies.json_response({"object": "list", "data": jobs})


@router.get(
    "/calibrations/jobs/{job_id}",
    summary="How far a calibration is",
    responses=errors(*KEYED, 404),
)
async def get_job(job_id: str, services: OpenServices) -> Response:
    """Status, phase, and in the end the result or the error."""
    return bodies.json_response({"job": services.calibrations.jobs.get(job_id).as_json()})


@router.get(
    "/calibrations/jobs/{job_id}/events",
    summary="The progress of a calibration, live",
    response_class=Response,
    responses=errors(*KEYED, 404) | content(EVENTS),
)
async def job_events(job_id: str, services: OpenServices) -> Response:
    """Server-sent events, each the whole job; the stream ends with the job."""
    job = services.calibrations.jobs.get(job_id)
    events = _events(job, services.settings.limits.comment_every_s)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


@router.delete(
    "/calibrations/jobs/{job_id}",
    summary="Cancel a calibration",
    responses=errors(*KEYED, 404, 409),
)
async def cancel_job(job_id: str, services: OpenServices) -> Response:
    """Nothing is changed by it then; 409 once it is too late."""
    return bodies.json_response(
        {"job": (await services.calibrations.jobs.cancel(job_id)).as_json()}
    )


@router.get("/calibrations", summary="All calibrations, newest first", responses=errors(*KEYED))
async def list_calibrations(services: OpenServices) -> Response:
    """History with evidence."""
    summaries = await services.store.run(services.store.summaries)
    return bodies.json_response({"object": "list", "data": [asdict(each) for each in summaries]})


@router.get(
    "/calibrations/{calibration_id}", summary="One calibration", responses=errors(*KEYED, 404)
)
async def get_calibration(calibration_id: str, services: OpenServices) -> Response:
    """Options and evidence."""
    summary = await services.store.run(services.store.summary, calibration_id)
    return bodies.json_response(asdict(summary))


@router.post(
    "/calibrations/{calibration_id}/activate",
    summary="Make a calibration the active one",
    responses=errors(*KEYED, 404, 409, 413, 422, 507),
    openapi_extra=json_body(ActivateRequest, required=False),
)
async def activate(calibration_id: str, request: Request, services: OpenServices) -> Response:
    """Rollback, or roll forward; `expected_active_id` makes it compare-and-set."""
    most = min(ACTIVATION_BYTES, services.settings.limits.body_bytes)
    data = await bodies.read_body(request, most)
    options = bodies.checked(ActivateRequest, strict_json.load_object(data) if data else {})
    record = await services.calibrations.activate(calibration_id, options.expected_active_id)
    return bodies.json_response({"id": record.id, "active": True, "evidence": record.evidence})


async def _events(job: Job, again_s: float) -> AsyncGenerator[bytes]:
    while not job.ended:
        yield sse.event({"job": job.as_json()})
        with suppress(TimeoutError):  # said again, it keeps the connection alive
            async with asyncio.timeout(again_s):
                await job.changed()
    yield sse.event({"job": job.as_json()})
