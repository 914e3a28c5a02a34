"""Dispatch: the handler of the matched route is called, and its errors become responses."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import Request, Response
from starlette.types import Scope

from app.main import HandlerDispatch
from app.route_table import Route

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
        case "unknown":
            raise LookupError
        case _:
            return Response(request.path_params["b"].encode())


def failed(exc: Exception, _scope: Scope) -> Response:
    """What a known error becomes."""
    return Response(type(exc).__name__.encode(), status_code=409)


def ask(query: str = "") -> list[Any]:
    """What is sent for a request whose route access control has matched."""
    app = HandlerDispatch(SERVICES, {Known: failed})
    route = Route(method="POST", path="/a/{b}", role="public", handler=answers)
    scope = {"type": "http", "method": "POST", "path": "/a/1", "query_string": query.encode()}
    scope |= {"headers": [], "server": ("host", 80), "route": route, "path_params": {"b": "1"}}
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("the body is not read")

    asyncio.run(app(scope, receive, send))
    return [sent[0]["status"], sent[1]["body"]]


def test_the_handler_of_the_matched_route_answers() -> None:
    """With the services, and with the parameters of its path."""
    assert ask() == [200, b"1"]


def test_an_error_is_answered_by_its_nearest_kind_and_others_go_out() -> None:
    """To the request log, which answers 500 and says nothing of them."""
    assert ask("known") == [409, b"Kind"]
    with pytest.raises(LookupError):
        ask("unknown")
