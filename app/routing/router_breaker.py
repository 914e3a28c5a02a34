"""Circuit breaker of the router: while its backend hangs, no request waits for it.

A backend that fails answers at once, and costs a request no time. One that hangs, such as an
encoder whose device does not respond, would cost every request the whole time limit of routing. So
the breaker opens when a query had all of that time and no query was scored in it: what waits is let
go, and further queries are not sent. A trial with a text of its own, which no request waits for and
no caller chose, closes it again. A slow query alone opens nothing: others are scored meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray
from prometheus_client import Gauge

from app.errors import Overloaded
from app.routing.scorer import RouterBackend, ScoredQuery

log = logging.getLogger(__name__)

RETRY_S: Final = 1.0  # between two trials
TRIAL: Final = "Is the router there?"
_OUT: Final = "the router does not respond, and is not asked until it does"


class RouterOut(TimeoutError):
    """The breaker is open: the router was not asked."""


class RouterBreaker:
    """A router backend that is not asked while it hangs. Use it as a context.

    Args:
        backend: Computes the scores.
        timeout_s: Time limit of a routing decision in seconds.
        up: Is 0 while the breaker is open.
        retry_s: Seconds between two trials.

    Attributes:
        is_out: Whether the breaker is open.
    """

    def __init__(
        self,
        backend: RouterBackend,
        *,
        timeout_s: Callable[[], float],
        up: Gauge,
        retry_s: float = RETRY_S,
    ) -> None:
        self._backend = backend
        self._timeout_s = timeout_s
        self._up = up
        self._retry_s = retry_s
        self._answers = 0  # of the backend, errors included
        self._waiting: set[asyncio.Timeout] = set()
        self._trial: asyncio.Task[None] | None = None
        self.is_out = False
        up.set(1)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._trial is not None:
            self._trial.cancel()
            await asyncio.gather(self._trial, return_exceptions=True)

    async def score(self, query: str, limit_s: float) -> ScoredQuery:
        """Score one query.

        Raises:
            RouterOut: The breaker is open, or opened meanwhile.
            TimeoutError: The query was not scored in time.
            Overloaded: As :meth:`RouterBackend.score`.
        """
        before = self._answers
        try:
            async with self._limited(limit_s):
                scored = await self._backend.score(query)
        except TimeoutError as exc:
            if self._answers == before and not self.is_out:
                self._suspect(is_proof=limit_s >= self._timeout_s())
            if self.is_out:
                raise RouterOut(_OUT) from exc
            raise
        except Overloaded:  # it was not sent
            raise
        except Exception:
            self._answers += 1
            raise
        self._answers += 1
        return scored

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embeddings of texts.

        Raises:
            TimeoutError: The breaker is open, or opened meanwhile.
        """
        async with self._limited(None):
            return await self._backend.embed(texts)

    @contextlib.asynccontextmanager
    async def _limited(self, limit_s: float | None) -> AsyncGenerator[None]:
        if self.is_out:
            raise RouterOut(_OUT)
        async with asyncio.timeout(limit_s) as scope:
            self._waiting.add(scope)
            try:
                yield
            finally:
                self._waiting.discard(scope)

    def _suspect(self, *, is_proof: bool) -> None:
        """A query was late, and none was scored while it waited: open, or find out by a trial."""
        if is_proof:
            self._open()
        if self._trial is None:
            self._trial = asyncio.create_task(self._try(), name="trial of the router")

    def _open(self) -> None:
        if self.is_out:
            return
        self.is_out = True
        self._up.set(0)
        log.error("the router scored nothing for %g s: the whole pool is called", self._timeout_s())
        now = asyncio.get_running_loop().time()
        for scope in self._waiting:
            if not scope.expired():
                scope.reschedule(now)

    async def _try(self) -> None:
        """Repeat the trial until the router answers it in time."""
        while True:
            if await self._answers_trial():
                break
            await asyncio.sleep(self._retry_s)
        self._trial = None
        if self.is_out:
            self.is_out = False
            self._up.set(1)
            log.warning("the router answers again")

    async def _answers_trial(self) -> bool:
        before = self._answers
        try:
            async with asyncio.timeout(self._timeout_s()):
                await self._backend.score(TRIAL)
        except TimeoutError:
            if self._answers == before:
                self._open()
            return False
        except Overloaded:  # nothing is known: others wait
            return False
        except Exception as exc:  # noqa: BLE001 - it answers, and requests are told of its error
            log.info("the router failed at its trial: %s", type(exc).__name__)
        return True
