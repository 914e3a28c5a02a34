"""Error envelopes: an exception as status, body and retry headers.

The envelope is OpenAI's, at the paths of the Messages API Anthropic's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fastapi.responses import Response

from app.errors import MAX_RETRY_AFTER_S, RETRY_AFTER_S, STATUS, UpstreamRejected
from app.wire.bodies import json_response
from app.wire.messages import errors as messages
from racer_core.errors import RacerError


def envelope(exc: RacerError) -> tuple[int, dict[str, Any]]:
    """The OpenAI error envelope and its status, found along the exception's MRO."""
    kind = next(each for each in type(exc).__mro__ if each in STATUS)
    status, error_type, code = STATUS[kind]
    if isinstance(exc, UpstreamRejected):  # the candidates blame the request
        status = exc.status or status
    return status, error_body(
        str(exc),
        error_type,
        code=getattr(exc, "code", code),
        param=getattr(exc, "param", None),
    )


def error_of(exc: Exception) -> tuple[int, dict[str, Any]]:
    """Status and envelope of any error; the text of an unknown one, maybe a prompt, is hidden."""
    if isinstance(exc, RacerError):
        return envelope(exc)
    return 500, error_body(
        "internal error; see the gateway's log", "api_error", code="internal_error"
    )


def error_body(
    message: str, error_type: str, *, code: str, param: str | None = None
) -> dict[str, Any]:
    """``{"error": {...}}`` as OpenAI clients read it."""
    return {"error": {"message": message, "type": error_type, "param": param, "code": code}}


def error_response(
    status: int,
    body: Mapping[str, Any],
    *,
    path: str,
    request_id: str | None,
    lasting: bool = False,
    retry_after_s: float | None = None,
) -> Response:
    """Render an error, with the headers that control the client's retries.

    Args:
        status: HTTP status.
        body: OpenAI's envelope.
        path: Of the request, which decides the envelope that is sent.
        request_id: The request's; None before there is a request.
        lasting: Whether the same request would fail again.
        retry_after_s: Seconds until a retry may succeed; None: as usual for the status.
    """
    headers = {"x-should-retry": "false"}
    if status in RETRY_AFTER_S and not lasting:
        wait_s = RETRY_AFTER_S[status] if retry_after_s is None else retry_after_s
        if wait_s <= MAX_RETRY_AFTER_S:  # clients that wait for less would come back too early
            headers = {}
        headers["retry-after"] = str(max(1, math.ceil(wait_s)))
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    if messages.concerns(path):
        body = messages.envelope(status, body, request_id)
        headers |= {} if request_id is None else {messages.REQUEST_ID_HEADER: request_id}
    return json_response(body, status=status, headers=headers)
