"""POST /admin/reload: the changed configuration, while requests go on. Admin."""

from __future__ import annotations

from fastapi import Request, Response

from app.api.openapi import KEYED, errors
from app.route_table import Routes
from app.services import Services
from app.wire import bodies

routes = Routes("configuration")


@routes.add(
    "POST",
    "/admin/reload",
    role="admin",
    summary="Reload the configuration file and the API keys",
    responses=errors(*KEYED, 409),
)
async def reload(_: Request, services: Services) -> Response:
    """Requests in flight end under the configuration that they began under.

    `changed` names the settings that changed. A setting that needs a restart is named in a 409, and
    nothing changes.
    """
    return bodies.json_response({"changed": await services.reload()})
