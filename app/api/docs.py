"""GET /openapi.json, GET /docs: the OpenAPI document and Swagger UI. Public."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, Final

from fastapi import Request, Response
from fastapi.openapi.docs import get_swagger_ui_html, get_swagger_ui_oauth2_redirect_html
from fastapi.responses import JSONResponse

from app.api.openapi import TITLE, openapi_document
from app.route_table import Route, Routes
from app.services import Services

routes = Routes()

_OPENAPI: Final = "/openapi.json"
_OAUTH2_REDIRECT: Final = "/docs/oauth2-redirect"


@routes.add("GET", "/docs", role="public", allows_head=True)
async def swagger_ui(_: Request, __: Services) -> Response:
    """HTML that loads the OpenAPI document."""
    return get_swagger_ui_html(
        openapi_url=_OPENAPI, title=f"{TITLE} - Swagger UI", oauth2_redirect_url=_OAUTH2_REDIRECT
    )


@routes.add("GET", _OAUTH2_REDIRECT, role="public", allows_head=True)
async def swagger_ui_redirect(_: Request, __: Services) -> Response:
    """Swagger UI's page for OAuth 2 logins."""
    return get_swagger_ui_oauth2_redirect_html()


def document_routes(described: Iterable[Route]) -> Routes:
    """The route that serves the OpenAPI document of other routes; the first request builds it."""
    document_routes = Routes()

    @cache
    def document() -> dict[str, Any]:
        return openapi_document(described)

    async def openapi(_: Request, __: Services) -> Response:
        return JSONResponse(document())

    document_routes.add("GET", _OPENAPI, role="public", allows_head=True)(openapi)
    return document_routes
