"""The gateway as an ASGI application, called without a server and without a network."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from app import settings
from app.lifespan import open_services
from app.main import create_gateway
from app.upstream.http_client import UpstreamClient
from tests.kit.gateway import DATA_KEY, ENVIRONMENT, Gateway, Serve, configure

SHORT, LONG = 10, 60  # letters of an answer
App = Callable[..., Awaitable[None]]


class Instant:
    """A candidate's answer that is there at once: whole, or a letter at a time."""

    def __init__(self, body: dict[str, Any]) -> None:
        letters = SHORT if "short" in body["messages"][0]["content"] else LONG
        self.is_stream = bool(body.get("stream"))
        self.is_complete = False
        self._letters = iter([*[LETTER] * letters, FINISH, b"data: [DONE]"])

    async def read_all(self) -> bytes:
        """A chat completion."""
        self.is_complete = True
        message = {"role": "assistant", "content": "7"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
        return json.dumps({"id": "a", "model": "m", "choices": [choice], "usage": usage}).encode()

    async def read_part(self) -> bytes:
        """The next letter."""
        await asyncio.sleep(0)
        return next(self._letters, b"") + b"\n\n"

    async def finish(self) -> None:
        """Nothing follows."""
        self.is_complete = True

    def close(self) -> None:
        """There is no connection."""


def chunk(letter: str | None) -> bytes:
    """An event; without a letter it finishes the answer."""
    delta = {} if letter is None else {"content": letter}
    choice = {"index": 0, "delta": delta, "finish_reason": None if letter else "stop"}
    return b"data: " + json.dumps({"id": "a", "model": "m", "choices": [choice]}).encode()


LETTER, FINISH = chunk("7"), chunk(None)


async def posted(_: UpstreamClient, *args: Any, **__: Any) -> Instant:
    """In the place of a call over the network."""
    data: bytes = args[3]
    return Instant(json.loads(data))


async def ask(app: App, path: str, body: dict[str, Any]) -> None:
    """One request, as a server hands it over, to the end of its answer."""
    data = json.dumps(body).encode()
    headers = {
        "host": "127.0.0.1",
        "content-type": "application/json",
        "content-length": str(len(data)),
        "authorization": f"Bearer {DATA_KEY}",
    }
    arriving: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    arriving.put_nowait({"type": "http.request", "body": data, "more_body": False})
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(
        {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8000),
        },
        arriving.get,
        send,
    )
    assert sent[0]["status"] == 200


@contextlib.asynccontextmanager
async def application(path: Path) -> AsyncGenerator[App]:
    """What a server would be given."""
    configured, secrets = settings.load(path, ENVIRONMENT)
    async with open_services(configured, secrets) as services:
        yield create_gateway(services)


def chat(text: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    """A question to the chat endpoint."""
    messages = [{"role": "user", "content": text}]
    return "/v1/chat/completions", {"model": "auto", "messages": messages, **fields}


@pytest.fixture
def calibrated(serve: Serve, tmp_path: Path, artifact: Path) -> Path:
    """The configuration of a gateway that was calibrated, and is gone."""
    gateway: Gateway = serve(folder=tmp_path / "cost")
    assert gateway.ready()["calibration"]
    return configure(tmp_path / "cost", artifact, "http://127.0.0.1:9/v1")
