"""Reads and grades mathematics in a process of its own, which a deadline can end.

``python -m app.answering.math_worker SECONDS`` reads JSON lines,
``{"answer": ..., "reference": ...}`` to be graded or ``{"text": ...}`` to be given a form, and
writes one line for each, or ends when one takes longer. The alarm's default action ends the process
whatever it is doing: no Python handler would run while a number of a billion digits is computed.
"""

from __future__ import annotations

import json
import logging
import resource
import signal
import sys
from typing import Any

from racer_core.aggregation.grading import Grade, check_reference, grade
from racer_core.aggregation.math_forms import math_form
from racer_core.errors import InputError

MEMORY_BYTES = 4 * 2**30


def main() -> None:
    """Work until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that it has no deadline
    math_form("1")  # loads the library, which takes longer than a deadline on a busy machine
    deadline_s = int(sys.argv[1])
    for line in sys.stdin.buffer:
        signal.alarm(deadline_s)
        result = done(json.loads(line))
        signal.alarm(0)
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()


def done(task: dict[str, Any]) -> dict[str, Any]:
    """``{"correct": ...}``, ``{"form": ...}`` or ``{"error": ...}``.

    Without an answer the reference is checked.
    """
    try:
        if "text" in task:
            return {"form": math_form(task["text"])}
        if "answer" in task:
            return {"correct": grade(task["answer"], task["reference"], Grade.MATH)}
        check_reference(task["reference"], Grade.MATH)
    except InputError as exc:
        return {"error": str(exc)}
    return {}


if __name__ == "__main__":
    main()
