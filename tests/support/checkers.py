"""Checker functions for tests, named in configurations as an installed package's would be."""

from __future__ import annotations

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
