"""Checker worker: the child process that runs an application's installed checker function.

``python -m app.judging.checker_worker package.module:function`` replies to its first message
once the module is imported, and to each further one, a document, with what the function returns.
The function may print and start processes: the messages have a pipe that it does not know.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from racer_core.sandbox import Message, received_messages, send_message


def main() -> None:
    """Work until the parent closes the pipe."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    messages = received_messages()
    next(messages)
    function, problem = load(sys.argv[1])
    send_message({"ready": True} if problem is None else {"error": problem}, replies)
    for message in messages:
        send_message(call(function, message), replies)


def load(place: str) -> tuple[Callable[[Message], object], str | None]:
    """The function at ``package.module:function``, and why it cannot be used."""
    module, _, name = place.partition(":")
    try:
        function = getattr(import_module(module), name, None)
    except (Exception, SystemExit) as exc:  # noqa: BLE001 - whatever the module does at import
        return _unusable, f"cannot be imported: {type(exc).__name__}: {str(exc)[:200]}"
    if not callable(function):
        return _unusable, f"does not exist: {module} has no function `{name}`"
    if inspect.iscoroutinefunction(function):
        return _unusable, "must be a plain function, not an `async` one"
    return cast("Callable[[Message], object]", function), None


def call(function: Callable[[Message], object], document: Message) -> dict[str, Any]:
    """The reply: what the function returns, or how it failed. No text of the document is in it."""
    try:
        result = function(document)
    except (Exception, SystemExit) as exc:  # noqa: BLE001 - whatever the function does
        return {"error": f"raised {type(exc).__name__}{_place(exc)}"}
    try:
        json.dumps(result, allow_nan=False)
    except (TypeError, ValueError):
        return {"error": "returned a value that is no JSON: return plain true and false"}
    return {"result": result}


def _place(exc: BaseException) -> str:
    """The file and line where it was raised."""
    frames = traceback.extract_tb(exc.__traceback__)
    return f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


def _unusable(_: Message) -> object:
    raise RuntimeError("the function could not be loaded")


if __name__ == "__main__":
    main()
