"""The short way leads to the same handlers, and what they raise becomes the same answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from app.http.fast_path import Straight

SERVICES: Any = object()


class Known(Exception):
    """What has an answer."""


class Kind(Known):
    """A kind of it."""


async def answers(request: Request, services: Any) -> Response:
    """A handler: fails as the query says."""
    assert services is SERVICES
    match request.url.query:
        case "known":
            raise Kind
        case "app":
            return Response(str(request.app is long_way).encode())
        case "unknown":
            raise LookupError
        case _:
            return Response(b"short")


async def failed(_: Request, exc: Exception) -> Response:
    """What a known error becomes."""
    return Response(type(exc).__name__.encode(), status_code=409)


async def long_way(_scope: Scope, _receive: Receive, send: Send) -> None:
    """FastAPI, say."""
    await Response(b"long")(_scope, _receive, send)


def ask(path: str | None, method: str = "POST", query: str = "", kind: str = "http") -> list[Any]:
    """What is sent for a request that the gate has matched."""
    app = Straight(
        long_way, endpoints={"/a/{b}": answers}, services=SERVICES, failed={Known: failed}
    )
    state = {"route": path}
    scope = {"type": kind, "method": method, "path": "/a/1", "query_string": query.encode()}
    scope |= {"headers": [], "state": state, "server": ("host", 80)}
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nobody reads the body here")

    asyncio.run(app(scope, receive, send))
    return [sent[0]["status"], sent[1]["body"]]


def test_a_post_to_a_known_template_takes_the_short_way() -> None:
    """By the template that the gate found, never by the path."""
    assert ask("/a/{b}") == [200, b"short"]


@pytest.mark.parametrize(
    ("path", "method"), [("/a/{b}", "GET"), ("/a/1", "POST"), (None, "POST"), ("/other", "POST")]
)
def test_everything_else_takes_the_long_way(path: str | None, method: str) -> None:
    """Other methods, too: FastAPI knows what to say to them."""
    assert ask(path, method) == [200, b"long"]


def test_an_error_is_answered_by_its_nearest_kind_and_others_go_out() -> None:
    """To the outermost layer, which says nothing of them."""
    assert ask("/a/{b}", query="known") == [409, b"Kind"]
    with pytest.raises(LookupError):
        ask("/a/{b}", query="unknown")


def test_a_handler_finds_the_application_in_its_request() -> None:
    """As on the long way."""
    assert ask("/a/{b}", query="app") == [200, b"True"]
