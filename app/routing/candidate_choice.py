"""Candidate choice: the candidates that a request may call, and the risk level that it may ask for.

Both depend on the request, its named pool, its key and the health of candidates, never on a
calibration.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from app.errors import Forbidden, NotFound
from app.routing.premises import CandidateChoice
from app.routing.request import RoutingRequest
from app.settings import Settings
from racer_core.errors import InputError
from racer_core.types import checked_alpha


class CandidateChooser:
    """Applies the bounds of requests, named pools and keys.

    Args:
        settings: The pool and its named parts.
        down: Returns the candidates that a key's requests should not call.
    """

    def __init__(self, settings: Settings, down: Callable[[str], Collection[str]]) -> None:
        self._settings = settings
        self._pool = settings.pool
        self._down = down

    def choice(self, request: RoutingRequest) -> CandidateChoice:
        """The candidates that may be called: by the request, its pool and key, able and up.

        Raises:
            InputError: No candidate is left.
            NotFound: The request lists a candidate that is not in the pool.
        """
        allowed = self._allowed(request)
        able = set(request.query.able(self._settings.candidates))
        names = allowed if able.issuperset(allowed) else _keep(allowed, able)
        all_down = self._down(request.caller.name)
        down = [name for name in names if name in all_down]
        if len(down) == len(names):  # calling them is better than an error
            down = []
        return CandidateChoice(
            names=tuple(name for name in names if name not in down) if down else names,
            is_requested=request.options.candidates is not None or request.pool is not None,
            has_unable=names is not allowed,
            down=tuple(down),
        )

    def requested_alpha(self, request: RoutingRequest) -> float | None:
        """The alpha of the request, of its pool or of its budget; None: none."""
        alpha, least = request.options.alpha, request.least_alpha
        if alpha is None and request.pool is not None:
            alpha = self._settings.pools[request.pool].alpha
        return least if alpha is None else alpha

    def alpha(self, request: RoutingRequest) -> float:
        """The alpha in force, within the key's bound.

        That of the request; else of its pool, else of its application, else of `routing`, or that
        of its budget where that is larger.

        Raises:
            InputError: It is outside (0, 1).
            Forbidden: The request itself asks for more than its key may.
        """
        stated, least, most = request.options.alpha, request.least_alpha, request.caller.max_alpha
        if stated is not None:
            stated = checked_alpha(stated)
            if most is not None and stated > most:
                raise Forbidden(f"this key may request an alpha of at most {most:g}")
            return stated
        pool = None if request.pool is None else self._settings.pools[request.pool].alpha
        application = request.application and request.application.name
        alpha = self._settings.alpha_of(application) if pool is None else pool
        if least is not None:
            alpha = max(alpha, least)
        return alpha if most is None else min(alpha, most)

    def alpha_within(self, request: RoutingRequest, usual: float) -> float:
        """The alpha of the promise `same_answer`: the request's own or the usual one.

        Raises:
            Forbidden: The request itself asks for more than its key may.
        """
        alpha, most = request.options.alpha, request.caller.max_alpha
        if alpha is not None:
            return self.alpha(request)  # or refuses it
        if request.least_alpha is not None:
            usual = max(usual, request.least_alpha)
        return usual if most is None else min(usual, most)

    def _allowed(self, request: RoutingRequest) -> tuple[str, ...]:
        """The candidates that the request, its pool and its key leave."""
        names = self._pool
        if request.pool is not None:
            names = _keep(names, self._settings.pools[request.pool].candidates)
        if request.caller.candidates is not None:
            names = _keep(names, request.caller.candidates)
        if request.options.candidates is not None:
            names = _keep(names, self._existing(request.options.candidates))
        return names

    def _existing(self, names: Sequence[str]) -> Sequence[str]:
        for name in names:
            if name not in self._pool:
                raise NotFound(
                    f"no candidate {name[:128]!r}; the pool is {list(self._pool)}",
                    code="model_not_found",
                    param="candidates",
                )
        return names


def _keep(names: Sequence[str], wanted: Collection[str]) -> tuple[str, ...]:
    left = tuple(name for name in names if name in wanted)
    if not left:
        raise InputError(
            "no candidate is left that this key, pool and kind of request may be sent to",
            param="candidates",
        )
    return left
