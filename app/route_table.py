"""Route table: one row per route with its role, handler, body and limits, and the URL matcher.

Endpoint modules declare their routes with :class:`Routes`. Access control, request tracing, body
deadlines, dispatch and the OpenAPI document all read the same rows. A request is served only by
the handler of a matched row, and a row cannot be declared without a role.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Final, Generic, Literal, TypedDict, TypeVar, Unpack, get_args

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.routing import compile_path

from app.services import Services
from app.settings import Limits
from app.wire import bodies

RouteRole = Literal["public", "data", "admin"]
Handler = Callable[[Request, Services], Awaitable[Response]]
ModelT = TypeVar("ModelT", bound=BaseModel)

_ROLES: Final = get_args(RouteRole)
_SHOWN: Final = 64  # characters of a path that are compared with the table's


@dataclass(frozen=True, slots=True)
class JsonBody(Generic[ModelT]):
    """The JSON body that a handler reads.

    Attributes:
        model: Its schema.
        max_bytes: Size limit where it is below ``limits.body_bytes``.
        is_required: False where the body may be empty.
    """

    model: type[ModelT]
    max_bytes: int | None = None
    is_required: bool = True

    def limit(self, limits: Limits) -> int:
        """Maximum size in bytes."""
        if self.max_bytes is None:
            return limits.body_bytes
        return min(self.max_bytes, limits.body_bytes)

    async def read(self, request: Request, limits: Limits) -> tuple[ModelT, dict[str, Any]]:
        """The body as a checked model, and as the client sent it.

        Raises:
            RacerError: As :func:`app.wire.bodies.read`.
        """
        return await bodies.read(
            request, self.model, self.limit(limits), is_required=self.is_required
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One row of the route table.

    Attributes:
        method: HTTP method.
        path: Path template, such as ``/calibrations/{calibration_id}``.
        role: Role of the key that a request needs.
        handler: Answers the request.
        body: JSON body that the handler reads; None: no body, or a body of another format.
        is_traced: Each request gets a span, because the handler may call candidates.
        is_upload: The body has ``limits.upload_s`` to arrive instead of ``limits.body_s``.
        is_probe: Any well-formed Host header is accepted: balancers probe by address.
        allows_head: The handler serves HEAD, too.
        summary: Title in the OpenAPI document; None leaves the route out of it.
        tags: Its groups in that document.
        responses: Its responses in that document, as FastAPI's decorators take them.
        response_class: The successful response in that document, as FastAPI's decorators take it.
        openapi_extra: Merged into its entry in that document.
    """

    method: str
    path: str
    role: RouteRole
    handler: Handler
    body: JsonBody[Any] | None = None
    is_traced: bool = False
    is_upload: bool = False
    is_probe: bool = False
    allows_head: bool = False
    summary: str | None = None
    tags: tuple[str, ...] = ()
    responses: Mapping[int | str, dict[str, Any]] = field(
        default_factory=dict[int | str, dict[str, Any]]
    )
    response_class: type[Response] = JSONResponse
    openapi_extra: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if self.role not in _ROLES:
            raise ValueError(f"{self.name}: role {self.role!r} is none of {list(_ROLES)}")

    @property
    def name(self) -> str:
        """Method and path template, such as ``GET /calibrations/{calibration_id}``."""
        return f"{self.method} {self.path_format}"

    @property
    def path_format(self) -> str:
        """Path template without the types of its parameters, as the OpenAPI document has it."""
        return compile_path(self.path)[1]

    @property
    def methods(self) -> frozenset[str]:
        """HTTP methods that the handler serves."""
        return frozenset({self.method, "HEAD"} if self.allows_head else {self.method})


class _Columns(TypedDict, total=False):
    """The attributes of :class:`Route` that have defaults, as :meth:`Routes.add` takes them."""

    body: JsonBody[Any] | None
    is_traced: bool
    is_upload: bool
    is_probe: bool
    allows_head: bool
    summary: str | None
    responses: Mapping[int | str, dict[str, Any]]
    response_class: type[Response]
    openapi_extra: Mapping[str, Any]


class Routes:
    """The routes of one endpoint module, in the order of their declaration."""

    def __init__(self, *tags: str) -> None:
        self._tags = tags
        self._rows: list[Route] = []

    def __iter__(self) -> Iterator[Route]:
        return iter(self._rows)

    def add(
        self,
        method: str,
        path: str,
        *,
        role: RouteRole,
        alias: str | None = None,
        **columns: Unpack[_Columns],
    ) -> Callable[[Handler], Handler]:
        """Decorator that declares the route of a handler.

        Args:
            method: HTTP method.
            path: Path template.
            role: Role of the key that a request needs.
            alias: Second path of the same route, which the OpenAPI document leaves out.
            **columns: The other attributes of :class:`Route`.
        """

        def declare(handler: Handler) -> Handler:
            route = Route(
                method=method, path=path, role=role, handler=handler, tags=self._tags, **columns
            )
            self._rows.append(route)
            if alias is not None:
                self._rows.append(replace(route, path=alias, summary=None))
            return handler

        return declare


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """What the path and the method of a request lead to.

    Attributes:
        route: The row that serves the request; None: 404, or 405 where the path has methods.
        template: Template of the path; None where no row has this path.
        methods: HTTP methods of the path.
        path_params: Values of the template's parameters.
    """

    route: Route | None = None
    template: str | None = None
    methods: frozenset[str] = frozenset()
    path_params: Mapping[str, Any] = field(default_factory=dict[str, Any])


class RouteTable:
    """All routes of the application; the first row that fits a request serves it.

    Patterns are Starlette's, matched on the path of the ASGI scope; no header has an influence.

    Attributes:
        upload_paths: Paths whose requests may carry an upload.
        probe_paths: Paths of liveness and readiness probes.

    Raises:
        ValueError: Two rows have the same method and path.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self._rows = tuple(routes)
        self._patterns = tuple(compile_path(row.path) for row in self._rows)
        names = [f"{method} {row.path}" for row in self._rows for method in row.methods]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"routes that are declared twice: {', '.join(repeated)}")
        self.upload_paths = frozenset(row.path for row in self._rows if row.is_upload)
        self.probe_paths = frozenset(row.path for row in self._rows if row.is_probe)
        # Most paths have no parameter: their matches are looked up.
        self._literal = {
            (method, row.path): self._search(method, row.path)
            for row in self._rows
            for method in row.methods
            if "{" not in row.path
        }

    def __iter__(self) -> Iterator[Route]:
        return iter(self._rows)

    def match(self, method: str, path: str) -> Match:
        """The row that serves this method and path, or what the table knows of the path."""
        return self._literal.get((method, path)) or self._search(method, path)

    def not_found(self, path: str) -> str:
        """What a client is told of a path that no row has: the nearest one, if there is one."""
        shown = path[:_SHOWN]
        paths = [row.path for row in self._rows if row.role != "admin"]
        near = get_close_matches(shown, paths, n=1) or get_close_matches(f"/v1{shown}", paths, n=1)
        hint = f": did you mean {near[0]}?" if near else ""
        return f"no such path{hint}"

    def _search(self, method: str, path: str) -> Match:
        template: str | None = None
        methods: frozenset[str] = frozenset()
        for row, (pattern, _, convertors) in zip(self._rows, self._patterns, strict=True):
            found = pattern.match(path)
            if found is None:
                continue
            if method in row.methods:
                params = {
                    name: convertors[name].convert(value)
                    for name, value in found.groupdict().items()
                }
                return Match(route=row, template=row.path, methods=row.methods, path_params=params)
            template = template or row.path
            methods |= row.methods
        return Match(template=template, methods=methods)
