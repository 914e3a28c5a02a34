"""The gateway's log: one line an event, JSON or text, in which no value can forge a line.

Prompts, answers, keys and header values are never written. Of an exception its type and our own
frames are: its text may hold a prompt, or a URL with credentials. What foreign libraries say is cut
at the first line end, where asyncio, for one, goes on with an exception's text.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import traceback
from collections import deque
from collections.abc import Generator
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TextIO

_request_id: ContextVar[str | None] = ContextVar("request_id", default=None)

_ROOT: Final = Path(__file__).resolve().parents[2]
_OURS: Final = tuple(f"{_ROOT / package}/" for package in ("app", "racer_core"))
_encode: Final = json.JSONEncoder(default=str).encode  # made once: it costs as much as a line
_HEARD: Final = ("app.", "racer_core.", "uvicorn.")  # of others only warnings: they tell URLs
_WAITING_LINES: Final = 10_000
_WRITE_EVERY_S: Final = 0.05
_GOODBYE_S: Final = 2.0  # for the last lines; a blocked terminal does not keep a process alive
_MOST_CHARS: Final = 2_000  # of a message


@contextlib.contextmanager
def request(identity: str) -> Generator[None]:
    """Lines written inside belong to this request."""
    token = _request_id.set(identity)
    try:
        yield
    finally:
        _request_id.reset(token)


@contextlib.contextmanager
def written(form: Literal["json", "text"], to: TextIO) -> Generator[None]:
    """Write the process's log lines; those of other libraries only if they are warnings."""
    handler = _Lines(to)
    handler.setFormatter(_Json() if form == "json" else _Text())
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
    """Do not look for what no line says: thread, process and the caller's place."""
    names = ("logThreads", "logProcesses", "logMultiprocessing", "_srcfile")
    before = {name: getattr(logging, name) for name in names}
    try:
        for name in names:
            setattr(logging, name, None)
        yield
    finally:
        for name, value in before.items():
            setattr(logging, name, value)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """What a line says, in order."""
    message = record.getMessage()
    if not record.name.startswith(("app.", "racer_core.")):
        message = message.partition("\n")[0]
    fields: dict[str, Any] = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": message[:_MOST_CHARS],
    }
    if (identity := _request_id.get()) is not None:
        fields["request_id"] = identity
    fields |= record.__dict__.get("fields", {})
    if record.exc_info is not None and record.exc_info[1] is not None:
        fields |= _failure(record.exc_info[1], record.exc_info[2])
    return fields


def _failure(error: BaseException, trace: TracebackType | None) -> dict[str, Any]:
    """Type and our frames, innermost last; never the text."""
    frames = [
        f"{Path(frame.filename).relative_to(_ROOT)}:{frame.lineno} {frame.name}"
        for frame in traceback.extract_tb(trace)
        if frame.filename.startswith(_OURS)
    ]
    return {"exception": type(error).__name__, "frames": frames}


class _Json(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        return _encode(_fields(record))


class _Text(logging.Formatter):
    """For people: time, level and message, then ``name=value``."""

    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record)
        head = " ".join((fields.pop("time"), fields.pop("level").upper(), fields.pop("logger")))
        message = _encode(fields.pop("message"))[1:-1]  # no line end, no escape sequence
        said = [f"{name}={_encode(value)}" for name, value in fields.items()]
        return " ".join((head, message, *said))


class _Lines(logging.Handler):
    """Makes lines where they arise and writes them on a thread, many at a time.

    A blocked terminal blocks no request: lines that find no room are dropped, and it is said how
    many. The thread is not woken for each line, which would cost more than to make it.
    """

    def __init__(self, to: TextIO) -> None:
        super().__init__()
        self._to = to
        self._waiting: deque[str] = deque()
        self._dropped = 0
        self._done = threading.Event()
        self._writer = threading.Thread(target=self._write_on, name="log", daemon=True)

    def __enter__(self) -> Self:
        self._writer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._writer.join(_GOODBYE_S)

    def filter(self, record: logging.LogRecord) -> bool:
        """Ours, the server's, and what others warn about."""
        return record.levelno >= logging.WARNING or record.name.startswith(_HEARD)

    def emit(self, record: logging.LogRecord) -> None:
        """Never wait."""
        if len(self._waiting) < _WAITING_LINES:
            self._waiting.append(self._line(record))
        else:
            self._dropped += 1

    def _line(self, record: logging.LogRecord) -> str:
        """A record that makes no line (arguments that do not fit its text) fails nobody."""
        try:
            return self.format(record)
        except Exception as exc:  # noqa: BLE001 - arguments are foreign objects
            told = f"a line of {record.name} could not be made: {type(exc).__name__}"
            return self.format(_told(told))

    def _write_on(self) -> None:
        while not self._done.wait(_WRITE_EVERY_S):
            self._write()
        self._write()

    def _write(self) -> None:
        self.acquire()  # what `emit` runs under
        lines, dropped = list(self._waiting), self._dropped
        self._waiting.clear()
        self._dropped = 0
        self.release()
        if dropped:
            lines.append(self.format(_told(f"{dropped} lines were dropped")))
        if lines:
            with contextlib.suppress(OSError):  # nobody reads any more
                self._to.write("\n".join(lines) + "\n")
                self._to.flush()


def _told(message: str) -> logging.LogRecord:
    return logging.LogRecord(__name__, logging.WARNING, __file__, 0, message, None, None)
