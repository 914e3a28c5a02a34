"""Router backend that asks the machine's shared encoder process, over its Unix socket."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from app.errors import NotReady, Overloaded, TooLarge
from app.routing.encoder_frames import Arrays, Frame, packed, receive
from app.routing.scorer import ScoredQuery, put, room_for
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
        return ScoredQuery(
            found["scores"][0].tolist(),
            bool(found["truncated"][0]),
            None if near is None else near[0],
            None if place is None else tuple(place[0].tolist()),
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
