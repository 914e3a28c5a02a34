"""Calibration endpoints: POST /calibrate, its jobs, and stored calibrations. Admin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final

from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from app.api.openapi import BODY, EVENTS, KEYED, content, errors, inline
from app.api.respond import caller_of
from app.calibrations.jobs import Job
from app.calibrations.served_level import ServedLevel
from app.calibrations.upload import receive, spool_folder
from app.route_table import JsonBody, Routes
from app.routing.active_calibration import Canary
from app.services import Services
from app.store import Summary
from app.wire import bodies, sse
from app.wire.schemas import ActivateRequest, CalibrateOptions, CalibrateQuery

routes = Routes("calibration")

ACTIVATE_BODY: Final = JsonBody(ActivateRequest, max_bytes=64 * 2**10, is_required=False)
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


@routes.add(
    "POST",
    "/calibrate",
    role="admin",
    alias="/v1/calibrate",
    is_upload=True,
    summary="Recalibrate from labelled rows",
    responses=errors(*KEYED, *BODY, 409, 507)
    | {202: {"description": "A job; `location` has its URL."}},
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
async def calibrate(request: Request, services: Services) -> Response:
    """Rows as JSON, NDJSON, CSV, Parquet or a file; nothing changes unless every row is valid.

    Options are fields of the JSON body, form fields, or query parameters. Large uploads are
    answered with a job.
    """
    settings, calibrations = services.settings, services.calibrations
    options: dict[str, Any] = dict(request.query_params)
    wait_option = {"wait": options.pop("wait")} if "wait" in options else {}
    wait = bodies.checked(CalibrateQuery, wait_option).wait
    with calibrations.jobs.receiving() as count:
        folder = spool_folder(services.store.url)
        upload = await receive(request, settings.limits.upload_bytes, folder, count)
    try:
        job = calibrations.start(upload, options | upload.fields, caller_of(request).name)
    except BaseException:
        upload.close()
        raise
    if wait:
        while not job.ended:
            await job.changed()
    elif wait is False or not await calibrations.jobs.finishes_soon(job):
        headers = {"location": f"/calibrations/jobs/{job.id}"}
        return bodies.json_response({"job": job.as_json()}, status=202, headers=headers)
    return bodies.json_response(job.outcome())


@routes.add(
    "GET",
    "/calibrations/jobs",
    role="admin",
    summary="Running and recent calibration jobs, newest first",
    responses=errors(*KEYED),
)
async def list_jobs(_: Request, services: Services) -> Response:
    """Finds a job whose URL was lost."""
    jobs = [job.as_json() for job in services.calibrations.jobs.all()]
    return bodies.json_response({"object": "list", "data": jobs})


@routes.add(
    "GET",
    "/calibrations/jobs/{job_id}",
    role="admin",
    summary="One calibration job",
    responses=errors(*KEYED, 404),
)
async def get_job(request: Request, services: Services) -> Response:
    """Status and phase; at the end, the result or the error."""
    return bodies.json_response(
        {"job": services.calibrations.jobs.get(request.path_params["job_id"]).as_json()}
    )


@routes.add(
    "GET",
    "/calibrations/jobs/{job_id}/events",
    role="admin",
    summary="Progress of a calibration job as server-sent events",
    response_class=Response,
    responses=errors(*KEYED, 404) | content(EVENTS),
)
async def job_events(request: Request, services: Services) -> Response:
    """Each event has the whole job; the stream ends with the job."""
    job = services.calibrations.jobs.get(request.path_params["job_id"])
    events = _events(job, services.settings.limits.comment_every_s)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


@routes.add(
    "DELETE",
    "/calibrations/jobs/{job_id}",
    role="admin",
    summary="Cancel a calibration job",
    responses=errors(*KEYED, 404, 409),
)
async def cancel_job(request: Request, services: Services) -> Response:
    """The active calibration stays. 409 if the job has ended or is too far to be cancelled."""
    return bodies.json_response(
        {"job": (await services.calibrations.jobs.cancel(request.path_params["job_id"])).as_json()}
    )


@routes.add(
    "GET",
    "/calibrations",
    role="admin",
    summary="All calibrations, newest first",
    responses=errors(*KEYED),
)
async def list_calibrations(_: Request, services: Services) -> Response:
    """The history, with evidence; `active` decides, and a canary has its `share`.

    `canary` is the calibration that decides a share of the requests, if there is one: its share,
    what it and the active one have realised since it began (mean set, abstentions, and the risk of
    judged samples with its 95 % interval), and the alarm that `ended` it. `served` are the risk
    levels that the configuration serves by the active calibration: of requests of no application
    first, then of each one, with the bound that holds, or null.
    """
    summaries = await services.store.run(services.store.summaries)
    data = [_as_json(each, services.canary) for each in summaries]
    canary = await services.monitor.canary_report()
    served = [each.as_json() for each in await _served(services)]
    listed = {"object": "list", "data": data, "served": served, "canary": canary}
    return bodies.json_response(listed)


@routes.add(
    "GET",
    "/calibrations/{calibration_id}",
    role="admin",
    summary="One calibration",
    responses=errors(*KEYED, 404),
)
async def get_calibration(request: Request, services: Services) -> Response:
    """Options and evidence; a canary has its `share`."""
    summary = await services.store.run(
        services.store.summary, request.path_params["calibration_id"]
    )
    return bodies.json_response(_as_json(summary, services.canary))


@routes.add(
    "POST",
    "/calibrations/{calibration_id}/activate",
    role="admin",
    summary="Make a calibration the active one",
    responses=errors(*KEYED, 404, 409, 413, 422, 507),
    body=ACTIVATE_BODY,
)
async def activate(request: Request, services: Services) -> Response:
    """Rolls back or forward; `expected_active_id` makes it a compare-and-set.

    Its figures could be seen before, so its certificates are void (`chosen_by_figures`), until rows
    are uploaded again; the answer has `chosen`.

    With `share` the calibration is a canary; promote it by an activation without `share`, and
    end it by one of the calibration that is active.
    """
    options, _ = await ACTIVATE_BODY.read(request, services.settings.limits)
    record = await services.calibrations.activate(
        request.path_params["calibration_id"],
        options.expected_active_id,
        share=options.share,
    )
    shared = {} if options.share is None else {"share": options.share}
    answer = {
        "id": record.id,
        "active": not shared,
        "chosen": record.is_chosen,
        "evidence": record.evidence,
    }
    return bodies.json_response(answer | shared)


async def _served(services: Services) -> list[ServedLevel]:
    """The levels that are served; none before a calibration of sets is active."""
    if not services.is_calibrated:
        return []
    names = (None, *services.settings.applications)
    return [await services.mean_levels.served(services.settings, name) for name in names]


def _as_json(summary: Summary, canary: Canary | None) -> dict[str, Any]:
    found = asdict(summary)
    if canary is None or canary.record.id != summary.id:
        return found
    return found | {"share": canary.share}


async def _events(job: Job, repeat_s: float) -> AsyncGenerator[bytes]:
    while not job.ended:
        yield sse.event({"job": job.as_json()})
        with suppress(TimeoutError):  # repeats the event, which keeps the connection alive
            async with asyncio.timeout(repeat_s):
                await job.changed()
    yield sse.event({"job": job.as_json()})
