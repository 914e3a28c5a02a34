"""Row reader process: parses one upload in a sandbox, so that untrusted input can harm only it.

    python -m app.calibrations.row_reader_process FILE TEXTS ARRAYS

The arguments are open file descriptors. The first message from the parent holds the instructions.
The process replies with messages on its progress and, at the end, one with the result.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Final

from app.calibrations.parsing import NO_ROOM, ReadInstructions, parse
from app.wire.candidate_payload import BodySettings
from racer_core.aggregation.answers import Equality
from racer_core.errors import MAX_LISTED, InputError, RowsError
from racer_core.records.left_out import LeftOut
from racer_core.sandbox import (
    Message,
    address_space,
    enter_sandbox,
    received_messages,
    send_message,
)

MEMORY_BYTES: Final = 2 * 2**30  # above what the interpreter has taken when reading begins
CPU_S: Final = 120


def main() -> None:
    """Limit this process, parse the upload and send the result."""
    instructions = _instructions(next(received_messages()))
    if instructions.name.endswith(".parquet"):
        with suppress(ImportError):
            import_module("pyarrow.parquet")  # before the address space is measured
    enter_sandbox(memory_bytes=address_space() + MEMORY_BYTES, cpu_s=CPU_S)
    files = zip(sys.argv[1:4], ("rb", "wb", "wb"), strict=True)
    upload, texts, arrays = (os.fdopen(int(number), mode) for number, mode in files)
    try:
        parsed = parse(
            instructions,
            upload,
            texts,
            arrays,
            fields=lambda fields: send_message({"fields": fields}),
            progress=lambda done, total: send_message({"done": done, "total": total}),
        )
    except RowsError as exc:
        result: Message = {"problems": exc.problems[:MAX_LISTED], "count": len(exc.problems)}
    except InputError as exc:
        result = {"refused": str(exc), "param": exc.param}
    except MemoryError:
        problem = "needs too much memory to be read; send fewer rows at a time"
        result = {"problems": [problem], "count": 1}
    except Exception as exc:  # noqa: BLE001 - the gateway reports every failure
        full = isinstance(exc, OSError) and exc.errno in NO_ROOM
        result = {"full": True} if full else {"failed": _place(exc)}
    else:
        result = asdict(parsed)
    send_message(result)


def _instructions(message: Message) -> ReadInstructions:
    equality = message.pop("equality")
    return ReadInstructions(
        pool=tuple(message.pop("pool")),
        candidates=tuple(BodySettings(**each) for each in message.pop("candidates")),
        extra_fields=tuple(message.pop("extra_fields")),
        drawn=tuple(message.pop("drawn")),
        store_keys=tuple(message.pop("store_keys")),
        leave_out={
            name: tuple(LeftOut(**each) for each in passages)
            for name, passages in message.pop("leave_out").items()
        },
        equality=None if equality is None else Equality(equality),
        text_rule=tuple(message.pop("text_rule")),
        **message,
    )


def _place(exc: Exception) -> str:
    """Type and place of an error, without its message, which may repeat a row."""
    frame = traceback.extract_tb(exc.__traceback__)[-1]
    return f"{type(exc).__name__} at {Path(frame.filename).name}:{frame.lineno}"


if __name__ == "__main__":
    main()
