"""Router backend on Ray Serve: scores come from the replicas of the router deployment."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import BackPressureError
from ray.serve.handle import DeploymentHandle, DeploymentResponse

from app.errors import Overloaded
from app.routing.scorer import ScoredQuery, put, room_for
from racer_core.errors import RacerError
from racer_core.trained_router import RouterScores

_PIECE: Final = 64  # rows of a calibration in a call: few, so that replicas share small ones too
_AHEAD: Final = 4  # pieces in flight, so that several replicas share them


@dataclass(frozen=True, slots=True)
class _Piece:
    rows: range
    texts: list[str]
    response: DeploymentResponse[RouterScores]


class RayRouterBackend:
    """Calls the router deployment; after the death of a replica, the call is repeated once.

    Args:
        router: The handle of :class:`app.ray_serve.deployments.Router`.
        artifact: The digest of the artifact that this gateway decides by. A replica with another
            one, in the middle of a rollout, refuses: its scores would fit no threshold here.
    """

    def __init__(self, router: DeploymentHandle[Any], artifact: str) -> None:
        self._router = router
        self._artifact = artifact

    async def score(self, query: str) -> ScoredQuery:
        """Score one query. Raises :class:`Overloaded` as a router in this process does."""
        try:
            scored = await self._answer("score", query)
        except BackPressureError as exc:
            raise Overloaded("too many queries wait for the router; try again soon") from exc
        if isinstance(scored, BaseException):
            raise scored
        return scored

    def score_rows(
        self, texts: Sequence[str], progress: Callable[[int, int], None] | None = None
    ) -> RouterScores:
        """Score many rows in pieces, some of which are under way at once. Blocks."""
        count = len(texts)
        under_way: deque[_Piece] = deque()
        whole: RouterScores | None = None
        try:
            for start in range(0, count, _PIECE):
                if progress is not None:
                    progress(max(0, start - len(under_way) * _PIECE), count)
                if len(under_way) == _AHEAD:
                    whole = _finish(whole, under_way.popleft(), self._again, count)
                rows = range(start, min(start + _PIECE, count))
                under_way.append(self._begin(rows, [texts[row] for row in rows]))
            while under_way:
                whole = _finish(whole, under_way.popleft(), self._again, count)
        finally:
            for piece in under_way:  # their results are no longer needed
                piece.response.cancel()
        if whole is None:
            raise ValueError("there are no rows to score")
        return whole

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embeddings of texts, (B, D), each of length 1."""
        return await self._answer("embed", list(texts))

    async def _answer(self, method: str, argument: object) -> Any:
        ask = getattr(self._router, method).remote
        with _own_errors():
            try:
                return await ask(argument, self._artifact)
            except RayActorError:
                return await ask(argument, self._artifact)

    def _begin(self, rows: range, texts: list[str]) -> _Piece:
        response = self._router.score_rows.remote(texts, self._artifact)
        return _Piece(rows, texts, cast("DeploymentResponse[RouterScores]", response))

    def _again(self, piece: _Piece) -> _Piece:
        return self._begin(piece.rows, piece.texts)


def _finish(
    whole: RouterScores | None, piece: _Piece, again: Callable[[_Piece], _Piece], count: int
) -> RouterScores:
    """Wait for a piece, and put it in its place."""
    with _own_errors():
        try:
            part = piece.response.result()
        except RayActorError:
            part = again(piece).response.result()
    whole = whole or room_for(part, count)
    put(part, whole, piece.rows)
    return whole


@contextmanager
def _own_errors() -> Generator[None]:
    """Raise an error of the router as the router raised it, without Ray's report around it."""
    try:
        yield
    except RayTaskError as exc:
        if isinstance(exc.cause, RacerError):
            raise exc.cause from None
        raise
