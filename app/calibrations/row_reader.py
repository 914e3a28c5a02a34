"""Row reader: parses an upload, small ones on a thread, all others in a sandboxed process.

Parsing holds the interpreter, so queries would wait while a large upload is parsed here.
"""

from __future__ import annotations

import signal
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from io import BytesIO
from typing import BinaryIO, Final, cast

from app.calibrations.column_files import load
from app.calibrations.columns import RowColumns
from app.calibrations.parsing import MAX_LINE_BYTES, Fields, ParseSummary, ReadInstructions, parse
from app.calibrations.progress import Progress
from app.calibrations.upload import Upload
from app.concurrency.threads import SMALL_BYTES
from app.errors import StoreFull
from racer_core.errors import InputError, RowsError
from racer_core.sandbox import Message, SandboxedProcess
from racer_core.types import RowsKind

_MESSAGE_BYTES: Final = 4 * MAX_LINE_BYTES  # JSON escapes make text up to three times as long


def read_rows(
    upload: Upload, instructions: ReadInstructions, progress: Progress, fields: Fields
) -> RowColumns:
    """The rows of an upload. Blocks; call it on a thread.

    Args:
        upload: The upload.
        instructions: How to read it.
        progress: Takes the number of bytes read. Cancelling it kills the process.
        fields: Takes the fields beside the rows of a JSON document, and may refuse them.

    Raises:
        RowsError: A row is wrong; no row of the upload is used.
        InputError: A document that is not JSON.
    """
    with ExitStack() as stack:
        if upload.size <= SMALL_BYTES and not instructions.name.endswith(".parquet"):
            texts, arrays = BytesIO(), BytesIO()
            upload.file.seek(0)
            parsed = parse(
                instructions,
                upload.file,
                texts,
                arrays,
                fields=fields,
                progress=lambda done, total: progress("reading", done, total),
            )
        else:
            texts, arrays = (
                cast("BinaryIO", stack.enter_context(tempfile.TemporaryFile(dir=upload.folder)))
                for _ in range(2)
            )
            parsed = _parse_in_sandbox(upload, instructions, texts, arrays, progress, fields)
        return load(
            parsed.pool,
            texts,
            arrays,
            duplicates=parsed.duplicates,
            near_duplicates=parsed.near_duplicates,
            assumed=parsed.assumed,
            guessed_kind=parsed.guessed_kind,
        )


def _parse_in_sandbox(
    upload: Upload,
    instructions: ReadInstructions,
    texts: BinaryIO,
    arrays: BinaryIO,
    progress: Progress,
    fields: Fields,
) -> ParseSummary:
    upload.file.flush()
    descriptors = [file.fileno() for file in (upload.file, texts, arrays)]
    process = SandboxedProcess(
        "app.calibrations.row_reader_process",
        [str(each) for each in descriptors],
        message_bytes=_MESSAGE_BYTES,
        pass_fds=descriptors,
        # Arrow's other allocators reserve more address space than they use.
        environment={"ARROW_DEFAULT_MEMORY_POOL": "system"},
    )
    with process, progress.cancelling(process.kill):
        process.send(asdict(instructions))
        result = _last_message(process, progress, fields)
        exit_code = process.wait()
    progress.raise_if_cancelled()
    return _parsed(result, instructions.source, exit_code)


def _last_message(process: SandboxedProcess, progress: Progress, fields: Fields) -> Message | None:
    """Passes fields and progress on; returns the result, or None if the process ended without."""
    while (message := process.receive()) is not None:
        if "fields" in message:
            fields(message["fields"])
        elif "done" in message:
            progress("reading", int(message["done"]), int(message["total"]))
        else:
            return message
    return None


def _parsed(result: Message | None, source: str, exit_code: int) -> ParseSummary:
    """The result of a process.

    Raises:
        RowsError: Rows are wrong, or the process ended without a result.
        InputError: A document that is not JSON.
        StoreFull: The disk is full.
        RuntimeError: The reader itself failed.
    """
    match result:
        case {
            "pool": pool,
            "duplicates": duplicates,
            "near_duplicates": near,
            "assumed": assumed,
            "guessed_kind": kind,
        }:
            return ParseSummary(
                pool=tuple(pool),
                duplicates=int(duplicates),
                near_duplicates=int(near),
                assumed=int(assumed),
                guessed_kind=RowsKind(kind),
            )
        case {"problems": problems, "count": count}:
            # The process sends only the problems that are listed; the others are counted.
            raise RowsError(source, [*problems, *[""] * (int(count) - len(problems))])
        case {"refused": message, "param": param}:
            raise InputError(message, param=param)
        case {"full": True}:
            raise StoreFull("there is no room on the disk for the rows; nothing was changed")
        case {"failed": place}:
            raise RuntimeError(f"reading rows failed: {place}")
        case _:
            slow = "took over two minutes of processor time to read"
            died = f"ended its reader (exit code {exit_code})"
            cause = slow if exit_code == -signal.SIGXCPU else died
            raise RowsError(source, [f"the file {cause}; nothing of it was used"])
