"""Which route needs which role. A route that does not stand here is shut.

The matched route is decided as Starlette decides it: the same patterns, in the order in which the
routes were added, on the path of the scope. Nothing that a header says can move it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from fastapi.routing import iter_route_contexts
from starlette.routing import BaseRoute, compile_path

Door = Literal["public", "data", "admin"]

DOORS: Final[dict[str, Door]] = {
    # Probes, the description of the interface, and the page, which has no secret.
    "GET /healthz": "public",
    "GET /readyz": "public",
    "GET /docs": "public",
    "GET /docs/oauth2-redirect": "public",
    "GET /openapi.json": "public",
    "GET /ui": "public",
    "GET /ui/{name}": "public",
    # Asking.
    "GET /v1/models": "data",
    "GET /v1/models/{model_id:path}": "data",
    "POST /v1/chat/completions": "data",
    "POST /v1/completions": "data",
    "POST /v1/responses": "data",
    "POST /v1/embeddings": "data",
    "POST /route": "data",
    "POST /v1/route": "data",
    "POST /route/levels": "data",
    "GET /metrics": "data",
    # Saying what came of it; a key sees and judges its own decisions only.
    "POST /feedback": "data",
    "GET /decisions/{decision_id}": "data",
    # Changing what a guarantee rests on.
    "POST /calibrate": "admin",
    "POST /v1/calibrate": "admin",
    "GET /calibrations": "admin",
    "GET /calibrations/jobs": "admin",
    "GET /calibrations/jobs/{job_id}": "admin",
    "GET /calibrations/jobs/{job_id}/events": "admin",
    "DELETE /calibrations/jobs/{job_id}": "admin",
    "GET /calibrations/{calibration_id}": "admin",
    "POST /calibrations/{calibration_id}/activate": "admin",
    "POST /feedback/accept": "admin",
    "POST /decisions/{decision_id}/verify": "admin",
    "GET /drift": "admin",
    "POST /drift/reset": "admin",
    "GET /shadow/rows": "admin",
}

PROBES: Final = frozenset({"/healthz", "/readyz"})
UPLOADS: Final = frozenset({"/calibrate", "/v1/calibrate"})  # large bodies, so more time


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """What a path leads to.

    Attributes:
        path: The route's template; None when no route has this path.
        door: Who may go through with this method; None when nobody may.
        methods: What the path can be asked with.
    """

    path: str | None = None
    door: Door | None = None
    methods: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Route:
    path: str
    pattern: re.Pattern[str]
    methods: frozenset[str]


class DoorPlan:
    """The routes of an application with their doors."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        # A mount or a socket has no methods: it never matches, so it is shut.
        self._routes = tuple(
            _Route(each.path, compile_path(each.path)[0], frozenset(each.methods))
            for each in iter_route_contexts(routes)
            if each.path is not None and each.methods
        )
        # Most paths are templates without a part to be filled in: found once, they are looked up.
        self._found = {
            (method, each.path): self._first(method, each.path)
            for each in self._routes
            for method in each.methods
        }

    def match(self, method: str, path: str) -> Match:
        """The first route with this path and method, else what is known of the path."""
        return self._found.get((method, path)) or self._first(method, path)

    def _first(self, method: str, path: str) -> Match:
        asked = "GET" if method == "HEAD" else method
        template: str | None = None
        methods: frozenset[str] = frozenset()
        for each in self._routes:
            if not each.pattern.match(path):
                continue
            if method in each.methods:
                door = DOORS.get(f"{asked} {each.path}")
                return Match(path=each.path, door=door, methods=each.methods)
            template = template or each.path
            methods |= each.methods
        return Match(path=template, methods=methods)
