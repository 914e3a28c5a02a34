"""Shared encoder process of a machine: server, client and frames, over a Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import logging
import math
import os
import socket
import struct
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import orjson
from numpy.typing import NDArray

from app.errors import NotReady, Overloaded, SettingsError, TooLarge
from app.routing.scorer import RouterBackend, ScoredQuery, put, room_for
from racer_core.errors import ArtifactError, RacerError
from racer_core.trained_router import RouterScores

log = logging.getLogger(__name__)

# Rows of a calibration in a call; a multiple of the rows that the worker sorts by length together,
# so that its slices are those of an encoder in this process.
_PIECE: Final = 256
_RETRY_S: Final = 0.1  # after a lost connection, then twice as long each time
_RETRY_MAX_S: Final = 2.0
_GREETING_S: Final = 5.0
# Of a connection; the last three are of frames that this version does not know.
_LOST: Final = (OSError, EOFError, TooLarge, ValueError, KeyError, TypeError)


class EncoderClient:
    """Calls ``racer encoder``; use it as a context. While that process is away, calls fail.

    Args:
        path: The socket.
        artifact: The digest of the artifact that this gateway decides by.
    """

    def __init__(self, path: Path, artifact: str) -> None:
        self._path = path
        self._artifact = artifact
        self._numbers = itertools.count()
        self._calls: dict[int, asyncio.Future[Arrays]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._why_away = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Connect now, or as soon as the process is there.

        Raises:
            ArtifactError: The process has another artifact.
        """
        self._loop = asyncio.get_running_loop()
        reader = None
        try:
            reader = await self._connect()
        except _LOST as exc:
            self._report(exc)
        self._task = asyncio.create_task(self._stay_connected(reader), name="encoder client")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._disconnect(NotReady("the gateway is closing"))

    async def score(self, query: str) -> ScoredQuery:
        """Score one query; cancellation gives up its place in the queue of the process.

        Raises:
            Overloaded: The queue is full, or so slow that the query would wait too long.
            NotReady: The process is away.
        """
        found = await self._call("score", [query])
        near, place = found.get("neighbours"), found.get("projections")
        similarity = found.get("similarity")
        return ScoredQuery(
            found["scores"][0].tolist(),
            bool(found["truncated"][0]),
            None if near is None else near[0],
            None if place is None else tuple(place[0].tolist()),
            None if similarity is None else float(similarity[0]),
        )

    def score_rows(
        self, texts: Sequence[str], progress: Callable[[int, int], None] | None = None
    ) -> RouterScores:
        """Score many rows, after live queries. Blocks the calling thread, not the event loop's."""
        count = len(texts)
        whole: RouterScores | None = None
        for first in range(0, count, _PIECE):
            if progress is not None:
                progress(first, count)
            rows = range(first, min(first + _PIECE, count))
            assert self._loop is not None
            call = self._call("score_rows", [texts[row] for row in rows])
            part = RouterScores(**asyncio.run_coroutine_threadsafe(call, self._loop).result())
            whole = whole or room_for(part, count)
            put(part, whole, rows)
        if whole is None:
            raise ValueError("there are no rows to score")
        return whole

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embeddings of texts, (B, D), each of length 1."""
        return (await self._call("embed", list(texts)))["embeddings"]

    async def _call(self, do: str, texts: Sequence[str]) -> Arrays:
        if self._writer is None:
            raise NotReady(self._why_away)
        number, answer = next(self._numbers), asyncio.get_running_loop().create_future()
        writer = self._writer
        writer.write(packed({"call": number, "do": do, "texts": texts}))
        self._calls[number] = answer
        try:
            return await answer
        except asyncio.CancelledError:
            writer.write(packed({"call": number, "do": "cancel"}))
            raise
        finally:
            del self._calls[number]

    async def _stay_connected(self, reader: asyncio.StreamReader | None) -> None:
        wait_s = _RETRY_S
        while True:
            try:
                reader = reader or await self._connect()
                wait_s = _RETRY_S
                while True:
                    self._take(await receive(reader))
            except (*_LOST, ArtifactError) as exc:
                self._report(exc)
            reader = None
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _RETRY_MAX_S)

    async def _connect(self) -> asyncio.StreamReader:
        async with asyncio.timeout(_GREETING_S):
            reader, writer = await asyncio.open_unix_connection(str(self._path))
            try:
                writer.write(packed({"artifact": self._artifact}))
                theirs = (await receive(reader)).head["artifact"]
                if theirs != self._artifact:
                    raise ArtifactError(
                        f"the encoder process at {self._path} has the artifact {theirs[:12]}, this "
                        f"gateway {self._artifact[:12]}: start `racer encoder` and the gateways "
                        "with the same `artifact`, and all of them again after a training"
                    )
            except BaseException:
                writer.close()
                raise
        if self._why_away:
            log.warning("the encoder process at %s answers", self._path)
        self._writer, self._why_away = writer, ""
        return reader

    def _take(self, answer: Frame) -> None:
        future = self._calls.get(answer.head["call"])
        if future is None or future.done():  # cancelled meanwhile
            return
        if "overloaded" in answer.head:
            future.set_exception(Overloaded(answer.head["overloaded"]))
        elif "failed" in answer.head:
            future.set_exception(RacerError(answer.head["failed"]))
        else:
            future.set_result(answer.arrays)

    def _report(self, exc: Exception) -> None:
        """End all calls, and log the reason unless it is known."""
        why = f"no encoder process answers at {self._path} ({exc}): start `racer encoder`"
        if why != self._why_away:
            log.error("%s", why)
        self._why_away = why
        self._disconnect(NotReady(why))

    def _disconnect(self, exc: Exception) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        for future in self._calls.values():
            if not future.done():
                future.set_exception(exc)


# Frames between gateways and a shared encoder process: a JSON head, then arrays as raw bytes.
#
# A frame is its length (4 bytes, big endian), the head, a line feed and the arrays one after the
# other. The head names dtype and shape of each array, so that all bits arrive.

Arrays = Mapping[str, NDArray[Any]]

LARGEST: Final = 64 * 2**20  # bytes of a frame
_LENGTH: Final = struct.Struct(">I")
_KINDS: Final = "biuf"  # of numbers; an array of objects would be unpickled


@dataclass(frozen=True, slots=True)
class Frame:
    """A message: a JSON object, and arrays by name."""

    head: dict[str, Any]
    arrays: Arrays


def packed(head: Mapping[str, Any], arrays: Arrays | None = None) -> bytes:
    """The bytes of a frame. Raises :class:`TooLarge`."""
    arrays = arrays or {}
    described = {name: [each.dtype.str, each.shape] for name, each in arrays.items()}
    body = b"\n".join(
        (
            orjson.dumps({**head, "arrays": described}),
            b"".join(a.tobytes() for a in arrays.values()),
        )
    )
    _check_size(len(body))
    return _LENGTH.pack(len(body)) + body


async def receive(reader: asyncio.StreamReader) -> Frame:
    """The next frame.

    Raises:
        asyncio.IncompleteReadError: The connection ended.
        TooLarge: The frame is longer than ``LARGEST``; it was not read.
        ValueError: It is not a frame.
    """
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    _check_size(length)
    head, _, raw = (await reader.readexactly(length)).partition(b"\n")
    fields = orjson.loads(head)
    arrays: dict[str, NDArray[Any]] = {}
    first = 0
    for name, (dtype, shape) in fields.pop("arrays").items():
        kind = np.dtype(dtype)
        if kind.kind not in _KINDS:
            raise ValueError(f"an array of {kind} is not sent")
        count = math.prod(shape)
        arrays[name] = np.frombuffer(raw, kind, count, first).reshape(shape)
        first += count * kind.itemsize
    return Frame(fields, arrays)


def _check_size(length: int) -> None:
    if length > LARGEST:
        raise TooLarge(f"a frame of {length} bytes is over the {LARGEST} of an encoder process")


# The encoder server: shares one router backend among the gateways of a machine, on a Unix socket.
#
# Queries of all gateways wait in the backend's one queue and share its batches.

_AT_ONCE: Final = 1024  # calls of one gateway; further ones are read later


class EncoderServer:
    """Answers the calls of :class:`app.routing.encoder_process.EncoderClient`.

    Args:
        scoring: Computes scores and embeddings.
        artifact: The digest of its artifact; a gateway with another one is refused, because its
            thresholds would not fit the scores.
    """

    def __init__(self, scoring: RouterBackend, artifact: str) -> None:
        self._scoring = scoring
        self._artifact = artifact
        self._gateways: set[asyncio.StreamWriter] = set()

    async def serve(self, listener: socket.socket) -> None:
        """Accept gateways until cancelled."""
        server = await asyncio.start_unix_server(self._connected, sock=listener)
        try:
            await asyncio.Event().wait()
        finally:
            server.close()
            for gateway in self._gateways:
                gateway.close()
            await server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._gateways.add(writer)
        try:
            if await self._greet(await receive(reader), writer):
                await self._answer_all(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the gateway has ended
        except (TooLarge, ValueError, KeyError, TypeError) as exc:
            log.warning("a connection of the encoder's socket is closed: %s", exc)
        finally:
            self._gateways.discard(writer)
            writer.close()

    async def _greet(self, hello: Frame, writer: asyncio.StreamWriter) -> bool:
        fits = hello.head["artifact"] == self._artifact
        writer.write(packed({"artifact": self._artifact}))
        await writer.drain()
        return fits

    async def _answer_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        calls: dict[int, asyncio.Task[None]] = {}
        places = asyncio.Semaphore(_AT_ONCE)

        def finished(number: int) -> None:
            del calls[number]
            places.release()

        try:
            while True:
                call = await receive(reader)
                number = int(call.head["call"])
                if call.head["do"] == "cancel":
                    if number in calls:
                        calls[number].cancel()
                    continue
                await places.acquire()
                calls[number] = asyncio.create_task(self._answer(call, number, writer))
                calls[number].add_done_callback(lambda _, number=number: finished(number))
        finally:
            for task in calls.values():
                task.cancel()

    async def _answer(self, call: Frame, number: int, writer: asyncio.StreamWriter) -> None:
        try:
            answer = packed({"call": number}, await self._computed(call))
        except Overloaded as exc:
            answer = packed({"call": number, "overloaded": str(exc)})
        except Exception as exc:
            log.exception("the router failed")
            answer = packed({"call": number, "failed": str(exc)})
        with contextlib.suppress(ConnectionError):
            writer.write(answer)
            await writer.drain()

    async def _computed(self, call: Frame) -> Arrays:
        texts: list[str] = call.head["texts"]
        match call.head["do"]:
            case "score":
                return arrays_of(as_row(await self._scoring.score(texts[0])))
            case "score_rows":
                return arrays_of(await asyncio.to_thread(self._scoring.score_rows, texts))
            case "embed":
                return {"embeddings": await self._scoring.embed(texts)}
            case unknown:
                raise ValueError(f"an encoder process cannot {unknown}")


def as_row(scored: ScoredQuery) -> RouterScores:
    """The scores of a query as a batch of one row."""
    near, place = scored.neighbours, scored.projection
    return RouterScores(
        np.array([scored.scores]),
        np.array([scored.truncated]),
        None if near is None else near[None],
        None if place is None else np.array([place]),
        None if scored.similarity is None else np.array([scored.similarity]),
    )


def arrays_of(scores: RouterScores) -> Arrays:
    """The arrays of a batch by the names of its fields, without those that it lacks."""
    named = {name: getattr(scores, name) for name in RouterScores.__slots__}
    return {name: each for name, each in named.items() if each is not None}


@contextmanager
def listening(path: Path) -> Generator[socket.socket]:
    """A Unix socket that only this user may open, in place of one that a dead process left.

    The lock of a file beside it says who owns the path, so that two starts at once leave one.

    Raises:
        SettingsError: Another process answers there, or the path cannot be a socket.
    """
    with ExitStack() as stack:
        try:
            lock = stack.enter_context(Path(f"{path}.lock").open("wb"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            if path.is_socket():
                path.unlink()
            listener.bind(str(path))
            stack.callback(path.unlink, missing_ok=True)
            os.chmod(path, 0o600)  # before `listen`, so that no other user can connect earlier
            listener.listen()
        except BlockingIOError:
            message = f"encoder.socket: another process already answers at {path}"
            raise SettingsError(message) from None
        except OSError as exc:
            raise SettingsError(f"encoder.socket: {path} cannot be opened: {exc}") from exc
        yield listener
