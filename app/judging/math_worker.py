"""Math worker: reads and grades mathematics in a sandboxed process, each task with a deadline.

``python -m app.judging.math_worker SECONDS`` replies to each message: ``{"answer": ...,
"reference": ...}`` asks for a grade, ``{"reference": ...}`` for a check of the reference and
``{"text": ...}`` for a normal form.

The process loads the library, then forks a child that does the tasks. A task that takes longer than
SECONDS ends the child. The process then replies ``{"failed": true}`` and forks the next child in
milliseconds; loading the library takes a second.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any, Final

from racer_core.aggregation.grading import Grade, check_reference, grade
from racer_core.aggregation.math_forms import math_form
from racer_core.errors import InputError
from racer_core.sandbox import deadline, enter_sandbox, received_messages, send_message

MEMORY_BYTES: Final = 4 * 2**30
# Loads the library and its parser of LaTeX, which takes as long as a deadline on a busy machine.
_WARM_UP: Final = r"\boxed{\frac{1}{2}+x}"


def main() -> None:
    """Work until the parent closes the pipe."""
    enter_sandbox(memory_bytes=MEMORY_BYTES)
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that it has no deadline
    math_form(_WARM_UP)
    while True:
        child = os.fork()
        if child == 0:
            _work(float(sys.argv[1]))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status == 0:  # the parent has closed the pipe
            return
        send_message({"failed": True})


def _work(deadline_s: float) -> None:
    for task in received_messages():
        with deadline(deadline_s):
            reply = do_task(task)
        send_message(reply)


def do_task(task: dict[str, Any]) -> dict[str, Any]:
    """The reply: a form, a grade, an error, or nothing for a reference that can be read."""
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
