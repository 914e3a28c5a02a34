"""Anthropic's error envelope, for every path of the Messages API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

PATH: Final = "/v1/messages"
REQUEST_ID_HEADER: Final = "request-id"  # where Anthropic's clients look for it
# HTTP status -> type; other statuses below 500 are `invalid_request_error`, above `api_error`.
ERROR_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def concerns(path: str) -> bool:
    """Whether errors of a path have Anthropic's envelope: the API's own paths, and all below."""
    return path == PATH or path.startswith(f"{PATH}/")


def envelope(status: int, error: Mapping[str, Any], request_id: str | None) -> dict[str, Any]:
    """OpenAI's envelope as Anthropic's; ``details`` keeps our code and the field at fault.

    Args:
        status: HTTP status.
        error: OpenAI's envelope.
        request_id: The request's; None before there is a request.
    """
    fields: Mapping[str, Any] = error["error"]
    usual = "api_error" if status >= 500 else "invalid_request_error"
    return {
        "type": "error",
        "error": {
            "type": ERROR_TYPES.get(status, usual),
            "message": fields["message"],
            "details": {"error_code": fields["code"], "param": fields["param"]},
        },
        "request_id": request_id,
    }
