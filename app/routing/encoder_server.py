"""The encoder server: shares one router backend among the gateways of a machine, on a Unix socket.

Queries of all gateways wait in the backend's one queue and share its batches.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import socket
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import numpy as np

from app.errors import Overloaded, SettingsError, TooLarge
from app.routing.encoder_frames import Arrays, Frame, packed, receive
from app.routing.scorer import RouterBackend, ScoredQuery
from racer_core.trained_router import RouterScores

log = logging.getLogger(__name__)

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
