"""Checker functions, named in configurations as an installed package's would be.

They run in child processes of a gateway: this module imports nothing that is slow to import.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any


def right(document: dict[str, Any]) -> dict[str, Any]:
    """Right is an answer with 42 in it. What a function prints is no message."""
    print('{"result": {"correct": {}}}')  # noqa: T201
    answers = document["answers"]
    return {"correct": {name: "42" in str(each) for name, each in answers.items()}}


def says(document: dict[str, Any]) -> object:
    """The scripted result: what the first user turn of the request names."""
    match document["request"]["messages"][0]["content"]:
        case "hang":
            time.sleep(600)
        case "raise":
            raise ValueError("a secret of the request")
        case "exit":
            sys.exit(3)
        case "set":
            return {"correct": {1, 2}}
        case "long":
            return {"correct": {}, "why": "x" * 2**21}
        case "list":
            return [True]
        case _:
            return right(document)


async def later(document: dict[str, Any]) -> dict[str, Any]:
    """Not a plain function."""
    return right(document)


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
