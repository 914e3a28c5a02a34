"""Request and response bodies: the size-limited reader, the schema check, the JSON response."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from app.concurrency.threads import SMALL_BYTES, off_loop
from app.errors import SchemaError, TooLarge, UnsupportedBody
from app.json_output import dump_json
from app.settings.validation import problems
from racer_core import strict_json

# The parser holds the GIL, so its work is bounded, not only the bytes. A key costs ten times as
# much as another value.
MAX_COMMAS = 250_000
MAX_KEYS = 50_000
MAX_FIELDS = 1_000  # of the body itself, which are checked one by one
_NOT_JSON: Final = "send JSON with content-type: application/json"
ModelT = TypeVar("ModelT", bound=BaseModel)


async def body_stream(request: Request, limit: int) -> AsyncGenerator[bytes]:
    """The bytes of the body, up to the limit.

    Raises:
        UnsupportedBody: The body is compressed.
        TooLarge: It is over ``limit`` bytes.
        ClientDisconnect: The client closed the connection before its end.
    """
    if request.headers.get("content-encoding", "identity") != "identity":
        raise UnsupportedBody("send the body uncompressed")
    size = int(request.headers.get("content-length", "0"))
    if size > limit:
        raise TooLarge(f"the body has {size:,} bytes, over the limit of {limit:,}")
    size, has_more = 0, True
    while has_more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise TooLarge(f"the body is over the limit of {limit:,} bytes")
        yield part
        has_more = message.get("more_body", False)


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body; a large one counts against the memory budget until the request ends.

    Bytes count as they arrive: a client that announces many and sends none takes no memory. What
    is announced and does not fit is refused before it takes what others need.

    Raises:
        Overloaded: All bodies together are too large.
        TooLarge: It is over the limit, or over the memory of all bodies.
        RacerError: As :func:`body_stream`.
    """
    bodies = request.state.quota_ticket.bodies
    limit = min(limit, bodies.limit + SMALL_BYTES)
    announced = int(request.headers.get("content-length", "0"))
    if SMALL_BYTES < announced <= limit:
        bodies.check(announced - SMALL_BYTES)
    parts: list[bytes] = []
    size = 0
    async for part in body_stream(request, limit):
        size += len(part)
        if size > SMALL_BYTES:  # small bodies are free, and never refused because of large ones
            request.state.quota_ticket.hold(min(len(part), size - SMALL_BYTES))
        parts.append(part)
    return b"".join(parts)


async def read(
    request: Request, model: type[ModelT], limit: int, *, is_required: bool = True
) -> tuple[ModelT, dict[str, Any]]:
    """Read a JSON body: the checked model, and the raw object, to be passed on unchanged.

    Args:
        request: The request.
        model: The body's schema.
        limit: Most bytes.
        is_required: False where the body may be empty: it is then an object without fields.

    Raises:
        UnsupportedBody: The content type is not JSON. A body without a type has none: a page of
            another site can send such a one unasked.
        InputError: Not strict JSON.
        SchemaError: Not the model's shape; the message names the field and repeats no value.
    """
    given = request.headers.get("content-type", "")
    is_json = given.partition(";")[0].strip().lower() == "application/json"
    if not is_json and (is_required or given):
        raise UnsupportedBody(_NOT_JSON)
    data = await read_body(request, limit)
    if not data and not is_required:
        return checked(model, {}), {}
    if not is_json:
        raise UnsupportedBody(_NOT_JSON)
    return await off_loop(partial(_parse, model), data)


def _parse(model: type[ModelT], data: bytes) -> tuple[ModelT, dict[str, Any]]:
    if data.count(b",") > MAX_KEYS:  # rare, so that other bodies do not pay for the check
        _check_size(_outside_of_strings(data))
    raw = strict_json.load_object(data)
    if len(raw) > MAX_FIELDS:
        raise TooLarge(f"the body has more than {MAX_FIELDS:,} fields")
    return checked(model, raw), raw


def _check_size(structure: bytes) -> None:
    commas = structure.count(b",")
    if commas > MAX_COMMAS:
        raise TooLarge(f"the body has more than {MAX_COMMAS:,} commas, hence too many values")
    # Every key has a colon, and a comma unless it is the only one or nested too deep to be read.
    if min(commas, structure.count(b":")) > MAX_KEYS:
        raise TooLarge(f"the body has more than {MAX_KEYS:,} keys")


def _outside_of_strings(data: bytes) -> bytes:
    """A JSON document without the contents of its strings: a prompt may hold any table."""
    bare = data.replace(b"\\\\", b"").replace(b'\\"', b"")  # escaped quotes end no string
    if bare.count(b'"') > 4 * MAX_COMMAS:
        raise TooLarge(f"the body has more than {2 * MAX_COMMAS:,} texts")
    return b"".join(bare.split(b'"')[::2])


def checked(model: type[ModelT], value: Mapping[str, Any]) -> ModelT:
    """Check a value against a wire model. Raises :class:`SchemaError`."""
    try:
        return model.model_validate(value)
    except ValidationError as exc:
        place, sentence = problems(exc, model)[0]
        raise SchemaError(sentence, param=place or None) from exc


def json_response(
    value: Mapping[str, Any], *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Render JSON; NaN is never sent."""
    return Response(
        dump_json(value), status_code=status, headers=headers, media_type="application/json"
    )
