"""GET /ui: the page, and its files. Public: they hold nothing that is not in every release."""

from __future__ import annotations

from typing import Final

from fastapi import Request, Response

from app.errors import NotFound
from app.route_table import Routes
from app.services import Services
from app.ui.assets import PAGE, Assets

routes = Routes()

# Scripts and styles of our own files alone; nothing is embedded, framed, evaluated or sent away.
POLICY: Final = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
_HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "vary": "accept-encoding",
    # Asked for anew each time, and answered with 304: gateways of two releases may serve at once.
    "cache-control": "no-cache",
}


@routes.add("GET", "/ui", role="public")
async def page(request: Request, services: Services) -> Response:
    """The document; it asks for the rest."""
    return await _served(PAGE, request, services.ui_assets)


@routes.add("GET", "/ui/{name}", role="public")
async def file(request: Request, services: Services) -> Response:
    """A script, a style, a picture. 404 `not_found` for any other name."""
    return await _served(request.path_params["name"], request, services.ui_assets)


async def _served(name: str, request: Request, assets: Assets) -> Response:
    found = await assets.find(name)
    if found is None:
        raise NotFound("Not Found")
    headers = {**_HEADERS, "etag": found.etag}
    if found.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        packed = headers | {"content-encoding": "gzip"}
        return Response(found.packed, media_type=found.kind, headers=packed)
    return Response(found.plain, media_type=found.kind, headers=headers)
