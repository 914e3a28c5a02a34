"""A checker function, which may misbehave: it runs in a child process of a gateway."""

from __future__ import annotations

import os
import time
from typing import Any


def check(document: dict[str, Any]) -> Any:
    """Right is "0"; some answers make it slow, crash, raise, or return another shape."""
    ((name, message),) = document["answers"].items()
    text = message["content"]
    if text == "slow":
        time.sleep(30)
    if text == "pause":
        time.sleep(0.2)
    if text == "crash":
        os._exit(1)
    if text == "raise":
        raise ValueError(text)
    if text == "shape":
        return [text]
    if text == "odd":
        return {"correct": {name: 7.5}}
    return {"correct": {name: text == "0"}}
