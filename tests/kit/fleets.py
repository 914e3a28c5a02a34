"""Fleets in front of the replicas of a test, and the calls that the tests make."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from app.settings import Secrets, Settings
from app.telemetry.metrics import Metrics
from app.upstream.fleet import Fleet
from app.wire.chat import Chat
from app.wire.event_template import parsed
from tests.kit.hostile.replicas import Replica

CHAT = Chat()


def configured(
    candidates: dict[str, list[Replica]],
    *,
    limits: dict[str, Any] | None = None,
    candidate: dict[str, Any] | None = None,
    **fleet: Any,
) -> Settings:
    """A configuration with these replicas; ``candidate`` holds fields of every one of them."""
    usual = {"timeout_s": 10} | (candidate or {})
    return Settings.model_validate(
        {
            "schema_version": 1,
            "artifact": "unused",
            "candidates": [
                {"name": name, "base_urls": [each.url for each in its], **usual}
                for name, its in candidates.items()
            ],
            "fleet": fleet,
            "limits": limits or {},
        }
    )


def opened(
    candidates: dict[str, list[Replica]], metrics: Metrics | None = None, **changes: Any
) -> Fleet:
    """A fleet in front of these replicas."""
    return Fleet(configured(candidates, **changes), Secrets(), metrics=metrics or Metrics())


def asking(text: str = "?", **fields: Any) -> dict[str, Any]:
    """A payload; another text is another payload."""
    return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}


def soon(seconds: float = 10.0) -> float:
    """A deadline."""
    return time.monotonic() + seconds


async def streamed(fleet: Fleet, payload: Mapping[str, Any], deadline: float) -> list[str]:
    """The texts of a stream's pieces, read to its end."""
    texts: list[str] = []
    await stream_into(texts, fleet, payload, deadline)
    return texts


async def stream_into(
    texts: list[str], fleet: Fleet, payload: Mapping[str, Any], deadline: float
) -> None:
    """As above; what arrived before an error is there, too."""
    async with fleet.stream("m", CHAT, payload, deadline=deadline) as stream:
        while pieces := await stream.read():
            choices = [choice for each in map(parsed, pieces) for choice in each["choices"]]
            texts += [choice["delta"].get("content", "") for choice in choices]
