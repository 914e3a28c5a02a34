"""The process that reads one upload. What strangers wrote is parsed here, and ends here.

    python -m app.calibrations.row_reader_process FILE TEXTS ARRAYS < order.json

The arguments are open file descriptors. Lines of JSON on stdout say how far it is, and at the end
what came of it.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import traceback
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from app.calibrations.parsing import NO_ROOM, ReadInstructions, parse
from racer_core.aggregation.answers import Equality
from racer_core.errors import MAX_LISTED, InputError, RowsError

MEMORY_BYTES: Final = 2 * 2**30  # above what the interpreter has taken when reading begins
CPU_S: Final = 120


def main() -> None:
    """Limit this process, read, and say what came of it."""
    order = _order(json.loads(sys.stdin.buffer.read()))
    if order.name.endswith(".parquet"):
        with suppress(ImportError):
            import_module("pyarrow.parquet")  # before its size is measured
    _limit()
    files = zip(sys.argv[1:4], ("rb", "wb", "wb"), strict=True)
    upload, texts, arrays = (os.fdopen(int(number), mode) for number, mode in files)
    try:
        parsed = parse(
            order,
            upload,
            texts,
            arrays,
            fields=lambda fields: _say(fields=fields),
            progress=lambda done, total: _say(done=done, total=total),
        )
    except RowsError as exc:
        _say(problems=exc.problems[:MAX_LISTED], count=len(exc.problems))
    except InputError as exc:
        _say(refused=str(exc), param=exc.param)
    except MemoryError:
        _say(problems=["needs too much memory to be read; send fewer rows at a time"], count=1)
    except Exception as exc:  # noqa: BLE001 - whatever it was, the gateway must hear of it
        if isinstance(exc, OSError) and exc.errno in NO_ROOM:
            _say(full=True)
        else:
            _say(failed=_place(exc))
    else:
        _say(**asdict(parsed))


def _order(said: dict[str, Any]) -> ReadInstructions:
    equality = said.pop("equality")
    pool = tuple(said.pop("pool"))
    return ReadInstructions(
        **said, pool=pool, equality=None if equality is None else Equality(equality)
    )


def _place(exc: Exception) -> str:
    """Kind and place of an error; its message may repeat a row."""
    frame = traceback.extract_tb(exc.__traceback__)[-1]
    return f"{type(exc).__name__} at {Path(frame.filename).name}:{frame.lineno}"


def _limit() -> None:
    """Address space and processor time, so that no file can take the machine."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # elsewhere than on Linux nobody enforces it either
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        limit = pages * resource.getpagesize() + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _say(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
