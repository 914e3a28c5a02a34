"""Has an upload read: small ones on a thread, all others by a process that can be ended.

Parsing holds the interpreter, and queries would wait for it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, cast

from app.calibrations.columns import RowColumns, load
from app.calibrations.parsing import MAX_LINE_BYTES, Parsed, ReadInstructions, parse
from app.calibrations.progress import Progress
from app.calibrations.upload import Upload
from app.concurrency.threads import SMALL_BYTES
from app.errors import StoreFull
from racer_core.errors import InputError, RowsError

_ROOT: Final = Path(__file__).resolve().parents[2]
_KEPT: Final = ("PATH", "LD_LIBRARY_PATH", "TMPDIR")


def read_rows(
    upload: Upload,
    order: ReadInstructions,
    progress: Progress,
    fields: Callable[[dict[str, Any]], None],
) -> RowColumns:
    """The rows of an upload. Blocks; call it on a thread.

    Args:
        upload: What came in.
        order: How to read it.
        progress: Hears how far it is; cancelling it ends the process.
        fields: Hears what stands beside the rows of a document, and may refuse it.

    Raises:
        RowsError: A row is wrong; nothing of the upload is used.
        InputError: A document that is not JSON.
    """
    with ExitStack() as stack:
        if upload.size <= SMALL_BYTES and not order.name.endswith(".parquet"):
            texts, arrays = BytesIO(), BytesIO()
            upload.file.seek(0)
            parsed = parse(
                order,
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
            parsed = _in_a_process(upload, order, texts, arrays, progress, fields)
        return load(
            parsed.pool,
            texts,
            arrays,
            duplicates=parsed.duplicates,
            near_duplicates=parsed.near_duplicates,
        )


def _in_a_process(
    upload: Upload,
    order: ReadInstructions,
    texts: BinaryIO,
    arrays: BinaryIO,
    progress: Progress,
    fields: Callable[[dict[str, Any]], None],
) -> Parsed:
    upload.file.flush()
    descriptors = [file.fileno() for file in (upload.file, texts, arrays)]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "app.calibrations.row_reader_process", *map(str, descriptors)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=descriptors,
        env=_environment(),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process, progress.cancelling(process.kill):
        try:
            with suppress(BrokenPipeError):  # it ended before it was told: the exit code says why
                process.stdin.write(json.dumps(asdict(order)).encode())
                process.stdin.close()
            said = _last_word(process.stdout, progress, fields)
        except BaseException:
            process.kill()
            raise
    progress.check()
    return _understood(said, order.source, process.returncode)


def _environment() -> dict[str, str]:
    """No key of the gateway's is any business of a file's."""
    own = {"PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    # Arrow's other allocators reserve more address space than they use.
    own["ARROW_DEFAULT_MEMORY_POOL"] = "system"
    return own | {name: os.environ[name] for name in _KEPT if name in os.environ}


def _last_word(
    lines: IO[bytes], progress: Progress, fields: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """What the process said last; what it said on the way is passed on."""
    said: dict[str, Any] = {}
    while line := lines.readline(2 * MAX_LINE_BYTES):
        said = json.loads(line)
        if "fields" in said:
            fields(said["fields"])
        elif "done" in said:
            progress("reading", int(said["done"]), int(said["total"]))
        else:
            break
    return said


def _understood(said: dict[str, Any], source: str, code: int) -> Parsed:
    """The outcome.

    Raises:
        RowsError: Rows are wrong, or the process ended before it was done.
        InputError: A document that is not JSON.
        StoreFull: The disk is.
        RuntimeError: The reader itself is at fault.
    """
    match said:
        case {"pool": pool, "duplicates": duplicates, "near_duplicates": near}:
            return Parsed(tuple(pool), int(duplicates), int(near))
        case {"problems": problems, "count": count}:
            # Only those that are listed were sent; the others are counted.
            raise RowsError(source, [*problems, *[""] * (int(count) - len(problems))])
        case {"refused": message, "param": param}:
            raise InputError(message, param=param)
        case {"full": True}:
            raise StoreFull("there is no room on the disk for the rows; nothing was changed")
        case {"failed": place}:
            raise RuntimeError(f"reading rows failed: {place}")
        case _:
            slow = "took over two minutes of processor time to read"
            cause = slow if code == -signal.SIGXCPU else f"ended its reader (exit code {code})"
            raise RowsError(source, [f"the file {cause}; nothing of it was used"])
