"""GET /budgets: what requests have cost, and what is reserved, by budget."""

from __future__ import annotations

from fastapi import Request, Response

from app.api.openapi import KEYED, errors
from app.api.respond import caller_of
from app.errors import NotFound
from app.route_table import Routes
from app.services import Services
from app.wire import bodies

routes = Routes("watching")


@routes.add(
    "GET",
    "/budgets",
    role="data",
    summary="Budgets: limits, spent and reserved amounts",
    responses=errors(*KEYED, 404),
)
async def get_budgets(request: Request, services: Services) -> Response:
    """A data key sees its own budget; an admin key sees all.

    Amounts are in `currency`, of all gateways on the store: what others have spent arrives within
    a second of it, or within ten if this gateway has no such requests. `ends_at` is when `period`
    ends, and the budget begins anew.
    """
    budgets, caller = services.budgets, caller_of(request)
    if budgets is None:
        raise NotFound("no budget is configured: set `budget`, and prices of all candidates")
    scopes = None if caller.role == "admin" else [f"key:{caller.name}"]
    return bodies.json_response(budgets.as_json(scopes))
