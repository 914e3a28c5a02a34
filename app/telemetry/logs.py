"""Logging: the process's log, one JSON object or one line of text for each event.

No value can forge a line. Prompts, answers, keys and header values are never written. An exception
is written as its type and our own stack frames: its text may hold a prompt, or a URL with
credentials. Messages of other libraries are cut at the first line end, because asyncio, for one,
puts an exception's text behind it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Self, TextIO

import orjson

from app.telemetry import repeats
from app.telemetry.repeats import Repeats
from app.utc import UtcTimes

# The ids of the request, in the order of its lines' fields.
_request: ContextVar[dict[str, str] | None] = ContextVar("request", default=None)

_ROOT: Final = Path(__file__).resolve().parents[2]
_OURS: Final = tuple(f"{_ROOT / package}/" for package in ("app", "racer_core"))
_encode_ascii: Final = json.JSONEncoder(default=str, separators=(",", ":")).encode  # made once
# Other loggers write warnings only: their information lines hold URLs.
_INFO_LOGGERS: Final = ("app.", "racer_core.", "uvicorn.")
_QUEUE_LINES: Final = 10_000
_WRITE_EVERY_S: Final = 0.05
_SHUTDOWN_S: Final = 2.0  # for the last lines; a blocked stderr does not keep the process alive
_MESSAGE_CHARS: Final = 2_000


@contextlib.contextmanager
def request_context(request_id: str) -> Generator[None]:
    """Add the request's id to every line that is logged inside."""
    token = _request.set({"request_id": request_id})
    try:
        yield
    finally:
        _request.reset(token)


def set_trace_id(trace_id: str) -> None:
    """Add the trace's id to every further line of the request, that of the access log included."""
    if (ids := _request.get()) is not None:
        ids["trace_id"] = trace_id


@contextlib.contextmanager
def logging_to(stream: TextIO, form: Literal["json", "text"]) -> Generator[None]:
    """Write the process's log to a stream; of other libraries, only their warnings."""
    handler = _QueuedStreamHandler(stream, _encode if form == "json" else _as_text)
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.INFO)
    root.addHandler(handler)
    try:
        with handler, _without_origin():
            yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)


@contextlib.contextmanager
def _without_origin() -> Generator[None]:
    """Skip the look-up of thread, process and calling frame, which no line contains."""
    names = ("logThreads", "logProcesses", "logMultiprocessing", "_srcfile")
    before = {name: getattr(logging, name) for name in names}
    try:
        for name in names:
            setattr(logging, name, None)
        yield
    finally:
        for name, value in before.items():
            setattr(logging, name, value)


def info(logger: logging.Logger, message: str, fields: dict[str, Any]) -> None:
    """The line of ``logger.info(message, extra={"fields": fields})``, for a third of its cost.

    It needs no `LogRecord` where the handler of :func:`logging_to` alone would get one. Other
    handlers and filters get theirs.
    """
    if not logger.isEnabledFor(logging.INFO):
        return
    handler = _only_handler(logger)
    if handler is None:
        logger.info(message, extra={"fields": fields})
    else:
        handler.info(logger.name, message, fields)


def _only_handler(logger: logging.Logger) -> _QueuedStreamHandler | None:
    """Our handler, where it gets the lines of this logger unchanged, and no other handler does."""
    if logger.filters:
        return None
    found: _QueuedStreamHandler | None = None
    ancestor: logging.Logger | None = logger
    while ancestor is not None:
        for handler in ancestor.handlers:
            if found or not isinstance(handler, _QueuedStreamHandler):
                return None
            found = handler
        ancestor = ancestor.parent if ancestor.propagate else None
    return found if found and found.level <= logging.INFO else None


def _encode(value: object) -> str:
    """JSON in ASCII: other characters can end a line of a terminal, or steer it."""
    try:
        data = orjson.dumps(value, default=str)
    except orjson.JSONEncodeError:  # integers above 64 bits, lone surrogates
        return _encode_ascii(value)
    return data.decode() if data.isascii() else _encode_ascii(value)


def _exception_fields(error: BaseException, trace: TracebackType | None) -> dict[str, Any]:
    """An exception's type and our own frames, innermost last; never its text."""
    frames = [
        f"{Path(frame.filename).relative_to(_ROOT)}:{frame.lineno} {frame.name}"
        for frame in traceback.extract_tb(trace)
        if frame.filename.startswith(_OURS)
    ]
    return {"exception": type(error).__name__, "frames": frames}


def _as_text(fields: dict[str, Any]) -> str:
    """For people: time, level and message, then ``name=value``."""
    head = " ".join((fields.pop("time"), fields.pop("level").upper(), fields.pop("logger")))
    message = _encode(fields.pop("message"))[1:-1]  # no line end, no escape sequence
    rest = [f"{name}={_encode(value)}" for name, value in fields.items()]
    return " ".join((head, message, *rest))


class _Warning(NamedTuple):
    """A warning, but for its time and its request."""

    level: str
    logger: str
    message: str
    error: type


class _QueuedStreamHandler(logging.Handler):
    """Renders lines in the caller's thread, and writes them in batches on a thread of its own.

    A warning that was written in the last minute is counted, and written again with the count as
    `repeated`.

    A blocked stream blocks no request: lines that find the queue full are dropped, and a line with
    their number is written later.

    The standard library's `QueueHandler` with `QueueListener` does not replace it. Measured in one
    run with an access log line of ten fields (Python 3.11, a pipe as the stream), CPU of one line:

    - 79 us here and 125 us there for single lines, 17 us and 30 us for bursts of 20 lines.
      `QueueListener` wakes its thread and flushes the stream for every line; this thread wakes
      every 50 ms.
    - With a blocked stream and a full queue, `QueueListener.stop` raises `queue.Full`, or joins its
      thread without a limit. This handler ends after two seconds.
    """

    def __init__(self, stream: TextIO, render: Callable[[dict[str, Any]], str]) -> None:
        super().__init__()
        self._stream = stream
        self._render = render  # fields as a line
        self._times = UtcTimes()
        self._queue: deque[str] = deque()
        self._repeats = Repeats[_Warning]()
        self._dropped = 0
        self._closing = threading.Event()
        self._writer = threading.Thread(target=self._write_until_closed, name="log", daemon=True)

    def __enter__(self) -> Self:
        self._writer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._writer.join(_SHUTDOWN_S)

    def filter(self, record: logging.LogRecord) -> bool:
        """Accept warnings of all loggers, and information of ours and the server's."""
        return record.levelno >= logging.WARNING or record.name.startswith(_INFO_LOGGERS)

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record's line without waiting, unless it was written lately."""
        if record.levelno >= logging.WARNING and not self._is_new(record):
            return
        self._add(record.name, partial(self._record_fields, record))

    def info(self, logger: str, message: str, fields: dict[str, Any]) -> None:
        """Queue a line of information without waiting."""
        self.acquire()  # as for a record
        try:
            self._add(logger, lambda: self._head("info", logger, message) | fields)
        finally:
            self.release()

    def _is_new(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        try:
            told = _Warning(record.levelname.lower(), record.name, record.getMessage(), type(error))
        except Exception:  # noqa: BLE001 - arguments are foreign objects
            return True  # its line will say so
        return self._repeats.is_new(told, time.monotonic())

    def _repeated(self, every_s: float) -> list[str]:
        """The lines of warnings that came again since they were written so long ago."""
        return [
            self._render(self._head(told.level, told.logger, told.message) | {"repeated": count})
            for told, count in self._repeats.due(time.monotonic(), every_s)
        ]

    def _add(self, logger: str, fields: Callable[[], dict[str, Any]]) -> None:
        if len(self._queue) < _QUEUE_LINES:
            self._queue.append(self._line(logger, fields))
        else:
            self._dropped += 1

    def _line(self, logger: str, fields: Callable[[], dict[str, Any]]) -> str:
        """A line. One that cannot be made becomes a warning, not an exception."""
        try:
            return self._render(fields())
        except Exception as exc:  # noqa: BLE001 - arguments are foreign objects
            return self._warning(f"a line of {logger} could not be made: {type(exc).__name__}")

    def _warning(self, message: str) -> str:
        return self._render(self._head("warning", __name__, message))

    def _record_fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """The fields of a record's line, in order."""
        message = record.getMessage()
        if not record.name.startswith(("app.", "racer_core.")):
            message = message.partition("\n")[0]
        fields = self._head(record.levelname.lower(), record.name, message)
        fields |= record.__dict__.get("fields", {})
        if record.exc_info is not None and record.exc_info[1] is not None:
            fields |= _exception_fields(record.exc_info[1], record.exc_info[2])
        return fields

    def _head(self, level: str, logger: str, message: str) -> dict[str, Any]:
        """The first fields of a line, in order."""
        fields = {
            "time": self._times.text(time.time_ns(), digits=3),
            "level": level,
            "logger": logger,
            "message": message[:_MESSAGE_CHARS],
        }
        return fields | (_request.get() or {})

    def _write_until_closed(self) -> None:
        while not self._closing.wait(_WRITE_EVERY_S):
            self._write_queue(repeats.EVERY_S)
        self._write_queue(0.0)

    def _write_queue(self, repeated_every_s: float) -> None:
        self.acquire()  # lines are added under the same lock
        try:
            lines, dropped = [*self._queue, *self._repeated(repeated_every_s)], self._dropped
            self._queue.clear()
            self._dropped = 0
        finally:
            self.release()
        if dropped:
            lines.append(self._warning(f"{dropped} lines were dropped"))
        if lines:
            with contextlib.suppress(OSError):  # the reader has closed the pipe
                self._stream.write("\n".join(lines) + "\n")
                self._stream.flush()
