"""The encoder worker: a bounded queue with dynamic batching, and the thread that owns the encoder.

Waiting queries are scored as one batch: batches grow under load, and no query waits for a batch to
fill. What waits is tokenised on a second thread while the first one computes.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from app.errors import NotReady, Overloaded
from app.routing.scorer import ScoredQuery, put, room_for
from app.telemetry.metrics import Metrics
from racer_core.encoder.base import TokenizingEncoder
from racer_core.racer import Racer
from racer_core.trained_router import RouterScores

# Rows of a calibration that a live query may have to wait for, on a CPU and by a GPU's forward: 32
# of similar length fill a batch of our own, and transformers needs as long for few as for many.
_ROWS: Final = 4
_ROWS_ON_GPU: Final[dict[str | None, int]] = {"lean": 32, "transformers": 256}
_SORTED: Final = 256  # rows that are sorted by length, to score similar ones together
# Between slices of rows a calibration pauses, so that most live queries find the thread free: for
# _REST times the duration of the slice, while a query came within the last _LIVE_S.
_REST: Final = 3.0
_LIVE_S: Final = 1.0
_NEWEST: Final = 0.25  # weight of the newest full batch in the moving average of seconds per row
_MARGIN: Final = 0.9  # of the queueing time, for estimates: few admitted queries then come too late
_TOO_FAR_BEHIND: Final = "the router is too far behind; try again soon"


@dataclass(slots=True, eq=False)
class _Waiting:
    query: str  # with its tokens, once it has them
    since: float  # monotonic
    future: asyncio.Future[ScoredQuery]


class EncoderWorker:
    """Scores queries on one thread, and tokenises the next ones on another.

    Args:
        racer: Loaded artifact and encoder.
        queue: Maximum number of waiting queries; one more is refused.
        queue_s: Maximum queueing time in seconds. Enforced only while the queue is longer than one
            batch: a new query is refused if its estimated wait is longer. A query whose estimate
            was too short is refused when a batch is formed: after a pause of the whole process, at
            most the queries beyond one batch.
        batch: Maximum number of queries in a batch.
        metrics: Takes queue depth and batch sizes.
    """

    def __init__(
        self, racer: Racer, *, queue: int, queue_s: float, batch: int, metrics: Metrics
    ) -> None:
        self._racer = racer
        encoder = racer.artifact.encoder
        self._rows = _ROWS_ON_GPU[encoder.forward] if encoder.backend == "cuda" else _ROWS
        self._limit = queue
        self._queue_s = queue_s
        self._batch = batch
        self._metrics = metrics
        self._waiting: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._last_query_at = -math.inf  # monotonic
        self._row_s = 0.0  # moving average over full batches: smaller ones say nothing of a crowd
        self._free_at = 0.0  # monotonic; when the running batch is expected to end
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="racer-encoder")
        self._tokenizer = ThreadPoolExecutor(1, thread_name_prefix="racer-tokenizer")
        self._tokenizes = isinstance(racer.encoder, TokenizingEncoder)
        self._scoring = False
        self._ahead: Future[None] | None = None  # tokenises the next batch
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._on_thread(["warm up"])
        self._task = asyncio.create_task(self._run(), name="routing worker")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        _fail(self._waiting, NotReady("the gateway is closing"))
        for thread in (self._tokenizer, self._thread):
            thread.shutdown(wait=True, cancel_futures=True)

    async def score(self, query: str) -> ScoredQuery:
        """Score one query; cancellation gives up its place in the queue.

        Raises:
            Overloaded: The queue is full, or so slow that the query would wait or waited too long.
        """
        if len(self._waiting) >= self._limit:
            raise Overloaded(f"{self._limit} queries already wait for the router; try again soon")
        if len(self._waiting) >= self._batch and self._estimated_wait_s() > _MARGIN * self._queue_s:
            raise Overloaded(_TOO_FAR_BEHIND)
        item = _Waiting(query, time.monotonic(), asyncio.get_running_loop().create_future())
        self._waiting.append(item)
        self._last_query_at = item.since
        self._metrics.queue_depth.set(len(self._waiting))
        self._arrived.set()
        self._tokenize_ahead()
        try:
            return await item.future
        finally:
            if item in self._waiting:  # cancelled while it waited
                self._waiting.remove(item)
                self._metrics.queue_depth.set(len(self._waiting))

    def score_rows(
        self, texts: Sequence[str], progress: Callable[[int, int], None] | None = None
    ) -> RouterScores:
        """Score many rows, in slices; live queries go first between two slices.

        Pauses between slices while there are live queries, so that few of them wait. Blocks the
        calling thread, which must not be the event loop's.

        Args:
            texts: The texts of the rows.
            progress: Called before each slice with the number of scored rows and of all rows; an
                exception that it raises ends the scoring.
        """
        count, done = len(texts), 0
        whole: RouterScores | None = None
        for rows, some in self._tokenized_slices(texts):
            if progress is not None:
                progress(done, count)
            part, took_s = self._thread.submit(self._timed, some).result()
            whole = whole or room_for(part, count)
            put(part, whole, rows)
            done += len(rows)
            if done < count and time.monotonic() - self._last_query_at < _LIVE_S:
                time.sleep(_REST * took_s)
        if whole is None:
            raise ValueError("there are no rows to score")
        return whole

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embeddings of texts, (B, D), each of length 1; on the encoder's thread."""
        self._last_query_at = time.monotonic()  # a request waits for these embeddings
        loop = asyncio.get_running_loop()
        encoded = await loop.run_in_executor(self._thread, self._racer.encoder.encode, texts)
        return encoded.embeddings

    def _tokenized_slices(self, texts: Sequence[str]) -> Iterator[tuple[list[int], Sequence[str]]]:
        """Slices of rows with their texts; the next one is tokenised while one is scored."""
        under_way: deque[tuple[list[int], Future[Sequence[str]]]] = deque()
        for rows in _slices(texts, self._rows):
            some = [texts[row] for row in rows]
            under_way.append((rows, self._tokenizer.submit(self._racer.tokenized, some)))
            if len(under_way) > 1:
                ready, tokenized = under_way.popleft()
                yield ready, tokenized.result()
        for rows, tokenized in under_way:
            yield rows, tokenized.result()

    def _tokenize_ahead(self) -> None:
        """Tokenise what waits for the next batch, while a batch is scored."""
        idle = self._ahead is None or self._ahead.done()
        if self._tokenizes and self._scoring and self._waiting and idle:
            waiting = list(itertools.islice(self._waiting, self._batch))
            self._ahead = self._tokenizer.submit(self._tokenize, waiting)

    def _tokenize(self, waiting: Sequence[_Waiting]) -> None:
        tokenized = self._racer.tokenized([item.query for item in waiting])
        for item, query in zip(waiting, tokenized, strict=True):
            item.query = query

    def _estimated_wait_s(self) -> float:
        """Seconds until a query that arrives now is scored."""
        running_s = max(0.0, self._free_at - time.monotonic())
        return running_s + len(self._waiting) * self._row_s

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            batch = self._next_batch()
            if batch:
                await self._score_batch(batch)

    def _next_batch(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        while self._waiting and len(batch) < self._batch:
            crowded = len(batch) + len(self._waiting) > self._batch
            item = self._waiting.popleft()
            if crowded and time.monotonic() - item.since > self._queue_s:
                _fail([item], Overloaded(_TOO_FAR_BEHIND))
            elif not item.future.done():  # not cancelled
                batch.append(item)
        if not self._waiting:
            self._arrived.clear()
        self._metrics.queue_depth.set(len(self._waiting))
        return batch

    async def _score_batch(self, batch: list[_Waiting]) -> None:
        self._metrics.batch_size.observe(len(batch))
        started = time.monotonic()
        self._free_at = started + len(batch) * self._row_s
        self._scoring = True
        self._tokenize_ahead()
        try:
            with self._metrics.router_seconds.time():
                scored = await self._on_thread([item.query for item in batch])
            if len(batch) == self._batch:
                row_s = (time.monotonic() - started) / len(batch)
                self._row_s += _NEWEST * (row_s - self._row_s) if self._row_s else row_s
            near = itertools.repeat(None) if scored.neighbours is None else scored.neighbours
            rows = list(zip(scored.scores.tolist(), scored.truncated.tolist(), near, strict=False))
            places = itertools.repeat(None)
            if scored.projections is not None:
                places = map(tuple, scored.projections.tolist())
            like = itertools.repeat(None)
            if scored.similarity is not None:
                like = scored.similarity.tolist()
            if len(rows) != len(batch):  # before a query gets the scores of another
                raise ValueError(f"the router scored {len(rows)} of {len(batch)} queries")
            for item, (row, cut, near), place, similarity in zip(
                batch, rows, places, like, strict=False
            ):
                if not item.future.done():
                    item.future.set_result(ScoredQuery(row, cut, near, place, similarity))
        except asyncio.CancelledError:
            _fail(batch, NotReady("the gateway is closing"))
            raise
        except Exception as exc:  # noqa: BLE001 - every waiting query must get the error
            _fail(batch, exc)
        finally:
            self._scoring = False

    def _timed(self, texts: Sequence[str]) -> tuple[RouterScores, float]:
        started = time.monotonic()
        return self._racer.score(texts), time.monotonic() - started

    async def _on_thread(self, texts: Sequence[str]) -> RouterScores:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._racer.score, texts)


def _slices(texts: Sequence[str], most: int) -> Iterator[list[int]]:
    """Every row once, in slices of similar length, which need little padding."""
    for start in range(0, len(texts), _SORTED):
        lengths = [len(text) for text in texts[start : start + _SORTED]]
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        for first in range(0, len(order), most):
            yield [start + row for row in order[first : first + most]]


def _fail(items: Iterable[_Waiting], exc: Exception) -> None:
    for item in items:
        if not item.future.done():
            item.future.set_exception(exc)
