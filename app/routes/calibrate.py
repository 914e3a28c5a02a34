"""POST /calibrate and the history of calibrations. Admin."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from app import wire
from app.errors import UnsupportedBody
from app.lifespan import OpenServices, Services
from app.openapi import inline, json_body
from app.schemas import ActivateRequest, CalibrateFields, CalibrateOptions
from racer_core import strict_json
from racer_core.errors import InputError
from racer_core.records.reader import check_rows, document_rows, parse_document, parse_rows
from racer_core.types import LabelledRows

router = APIRouter(tags=["calibration"])

_ROWS_SCHEMA = {
    "type": "object",
    "required": ["rows"],
    "properties": {
        "rows": {"type": "array", "items": {"type": "object"}},
        "candidates": {"type": "array", "items": {"type": "string"}},
        **inline(CalibrateOptions)["properties"],
    },
}
_FILE_SCHEMA = {
    "type": "object",
    "required": ["file"],
    "properties": {"file": {"type": "string", "format": "binary"}},
}


@router.post(
    "/calibrate",
    summary="Recalibrate from labelled rows",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": _ROWS_SCHEMA},
                "application/x-ndjson": {"schema": {"type": "string"}},
                "multipart/form-data": {"schema": _FILE_SCHEMA},
            },
        }
    },
)
@router.post("/v1/calibrate", include_in_schema=False)
async def calibrate(request: Request, services: OpenServices) -> Response:
    """Rows as JSON, NDJSON or a file; nothing changes unless every row is valid.

    Options are fields of the JSON body, form fields, or query parameters.
    """
    rows, options = await _read(request, services)
    return wire.json_response(await services.calibrations.calibrate(rows, options))


@router.get("/calibrations", summary="All calibrations, newest first")
async def list_calibrations(services: OpenServices) -> Response:
    """History with evidence."""
    summaries = await asyncio.to_thread(services.store.summaries)
    return wire.json_response({"object": "list", "data": [asdict(each) for each in summaries]})


@router.get("/calibrations/{calibration_id}", summary="One calibration")
async def get_calibration(calibration_id: str, services: OpenServices) -> Response:
    """Options and evidence."""
    return wire.json_response(
        asdict(await asyncio.to_thread(services.store.summary, calibration_id))
    )


@router.post(
    "/calibrations/{calibration_id}/activate",
    summary="Make a calibration the active one",
    openapi_extra=json_body(ActivateRequest, required=False),
)
async def activate(calibration_id: str, request: Request, services: OpenServices) -> Response:
    """Rollback, or roll forward; `expected_active_id` makes it compare-and-set."""
    data = await wire.read_body(request, services.settings.limits.body_bytes)
    options = wire.checked(ActivateRequest, strict_json.load_object(data) if data else {})
    record = await services.calibrations.activate(calibration_id, options.expected_active_id)
    return wire.json_response({"id": record.id, "active": True, "evidence": record.evidence})


async def _read(request: Request, services: Services) -> tuple[LabelledRows, CalibrateOptions]:
    limits = services.settings.limits
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    given: dict[str, Any] = dict(request.query_params)
    pool = services.settings.pool
    match kind:
        case "application/json":
            data = await wire.read_body(request, limits.upload_bytes)
            return await asyncio.to_thread(_from_document, data, given, pool, limits.query_chars)
        case "application/x-ndjson" | "application/jsonl" | "application/ndjson":
            data, source = await wire.read_body(request, limits.upload_bytes), "rows.jsonl"
        case "multipart/form-data":
            data, source, fields = await _form(request, limits.upload_bytes)
            given |= fields
        case _:
            raise UnsupportedBody(
                "send application/json, application/x-ndjson or multipart/form-data"
            )
    options = wire.checked(CalibrateOptions, given)
    rows = await asyncio.to_thread(
        parse_rows,
        data,
        source,
        pool,
        max_query_chars=limits.query_chars,
        max_bytes=limits.upload_bytes,
    )
    return rows, options


def _from_document(
    data: bytes, given: dict[str, Any], pool: tuple[str, ...], max_query_chars: int
) -> tuple[LabelledRows, CalibrateOptions]:
    document = parse_document(data)
    numbered = list(document_rows(document))
    said = {name: value for name, value in document.items() if name not in ("rows", "candidates")}
    wire.checked(CalibrateFields, said)
    options = wire.checked(CalibrateOptions, {**given, **said})
    rows = check_rows(numbered, "rows", pool, max_query_chars=max_query_chars, unit="row")
    return rows, options


async def _form(request: Request, limit: int) -> tuple[bytes, str, dict[str, Any]]:
    """The one file of a form, its name, and the other fields."""
    parser = MultiPartParser(
        request.headers, wire.body_stream(request, limit), max_files=1, max_fields=16
    )
    try:
        form = await parser.parse()
    except MultiPartException as exc:
        raise InputError(f"not a valid form: {exc.message}") from exc
    try:
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise InputError('the form needs a file in the field "file"', param="file")
        fields = {name: value for name, value in form.items() if name != "file"}
        return await file.read(), (file.filename or "rows.jsonl")[-80:], fields
    finally:
        await form.close()
