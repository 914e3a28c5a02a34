"""Payloads as bytes, without holding the event loop up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, cast

from app.offload import SMALL_BYTES


async def encoded(payload: Mapping[str, Any]) -> bytes:
    """JSON; what is large is written on a thread, for images make megabytes of it."""
    if is_small(payload):
        return _encoded(payload)
    return await asyncio.to_thread(_encoded, payload)


def is_small(payload: Mapping[str, Any]) -> bool:
    """Whether a payload is soon written. Looks at no more of it than a small one has."""
    room = SMALL_BYTES
    level: list[Any] = [payload]
    while level and room > 0:
        node = level.pop()
        if isinstance(node, str):
            room -= len(node)
        elif isinstance(node, dict):
            level.extend(cast("dict[str, Any]", node).values())
        elif isinstance(node, list):
            level.extend(cast("list[Any]", node))
        room -= 8  # a number, a key, brackets
    return room > 0


def _encoded(payload: Mapping[str, Any]) -> bytes:
    return json.dumps(payload, ensure_ascii=False, allow_nan=False).encode()
