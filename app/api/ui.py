"""GET /ui: the web interface and its static files. Public: the files are those of the release."""

from __future__ import annotations

from typing import Final

from fastapi import Request, Response

from app.errors import NotFound
from app.route_table import Routes
from app.services import Services
from app.ui.assets import PAGE, Assets

routes = Routes()

# Content security policy: own scripts and styles only; no inline code, frames or other origins.
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
    # Revalidated each time (304): gateways of two releases may serve at once.
    "cache-control": "no-cache",
}


@routes.add("GET", "/ui", role="public")
async def page(request: Request, services: Services) -> Response:
    """The HTML document, which loads the other files."""
    return await served(PAGE, request, services.ui_assets)


@routes.add("GET", "/ui/{name}", role="public")
async def file(request: Request, services: Services) -> Response:
    """A script, a style or an image. 404 `not_found` for any other name."""
    return await served(request.path_params["name"], request, services.ui_assets)


async def served(name: str, request: Request, assets: Assets) -> Response:
    """A file of the page. Raises NotFound."""
    asset = await assets.find(name)
    if asset is None:
        raise NotFound("Not Found")
    headers = {**_HEADERS, "etag": asset.etag}
    if asset.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        packed = headers | {"content-encoding": "gzip"}
        return Response(asset.packed, media_type=asset.kind, headers=packed)
    return Response(asset.plain, media_type=asset.kind, headers=headers)
