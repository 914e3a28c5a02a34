"""A chat request's path: our modules between the ASGI server and the HTTP client.

docs/architecture.md writes it down.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import uvloop

import app
from app.upstream.http_client import UpstreamClient
from tests.kit.gateway import ONE
from tests.kit.services import Instant, application, ask, chat, posted
from tests.kit.services import calibrated as calibrated

__all__ = ["calibrated"]  # a fixture

ROOT = Path(app.__file__).parent
DOCUMENT = ROOT.parent / "docs" / "architecture.md"


def modules_on_the_stack() -> list[str]:
    """The modules of ``app`` under way, from the server inwards."""
    files = [Path(each.filename) for each in reversed(inspect.stack(context=0))]
    ours = [str(each.relative_to(ROOT)) for each in files if each.is_relative_to(ROOT)]
    return list(dict.fromkeys(ours))


def test_a_chat_request_passes_through_at_most_ten_modules(
    calibrated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted where the HTTP client sends the request; its own module comes after them.

    Red, too, when the document tells another path.
    """
    passed: list[str] = []

    async def recorded(client: UpstreamClient, *args: Any, **fields: Any) -> Instant:
        passed[:] = modules_on_the_stack()
        return await posted(client, *args, **fields)

    async def request() -> None:
        async with application(calibrated) as asgi:
            await ask(asgi, *chat(ONE))

    monkeypatch.setattr(UpstreamClient, "post", recorded)
    uvloop.run(request())
    assert "answering/service.py" in passed
    assert len(passed) <= 10, passed
    section = DOCUMENT.read_text(encoding="utf-8").partition("## Call path of a chat request")[2]
    rows = re.findall(r"^\| \d+ \| `app/(\S+)`", section.partition("\n## ")[0], re.MULTILINE)
    assert rows == [*passed, "upstream/http_client.py"]
