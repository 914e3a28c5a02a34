"""Announcement of a gateway that has begun to serve: addresses, pool, artifact, what is missing."""

from __future__ import annotations

from typing import Any

from app.services import Services
from app.settings.address import url_of

_PLACEHOLDER = "http://HOST:PORT"  # in the commands of a missing part


def facts(services: Services, host: str, port: int) -> dict[str, Any]:
    """What an operator needs to know, for a log line.

    Args:
        services: The opened services.
        host: Address that the gateway is bound to.
        port: Its port.
    """
    settings, admin = services.settings, services.settings.access.admin
    url = url_of(host, port)
    admin_url = url if admin is None else url_of(admin.host, admin.port)
    router, remote = services.artifact.router, settings.remote_artifact
    artifact = str(settings.artifact) if remote is None else remote.shown
    return {
        "url": url,
        "page": f"{admin_url}/ui",  # half of the page needs the admin endpoints
        "pool": list(settings.pool),
        "artifact": None if router is None else artifact,
        "calibration": services.calibration,
        "admin_endpoints": admin_url if services.keys.has("admin") else None,
        "missing": [
            {
                "part": each.part,
                "reason": each.reason,
                "next": each.next.replace(_PLACEHOLDER, admin_url),
            }
            for each in services.missing
        ],
    }


def lines(found: dict[str, Any], services: Services) -> dict[str, str]:
    """The same for a terminal: names and values.

    Args:
        found: The facts.
        services: The opened services.
    """
    missing = {each["part"]: each for each in found["missing"]}
    shown = {
        "listens at": found["url"],
        "page": found["page"],
        "pool": ", ".join(found["pool"]),
        "artifact": found["artifact"] or "none",
        "calibration": _calibration(services) or "none",
    }
    for part, each in missing.items():
        shown[part] = f"{each['reason']}. Next: {each['next']}"
    if missing:
        shown["until then"] = f"`auto` is answered by {services.settings.fallback}, not certified"
    if found["admin_endpoints"] is None:
        name = services.settings.access.admin_key_env
        shown["admin key"] = f"none, so nothing can be calibrated: set ${name} and restart"
    return shown


def _calibration(services: Services) -> str | None:
    """The active calibration with its terms."""
    found, stored = services.calibration, services.stored
    if found is None or stored is None or not stored.active.ready:
        return found
    record = stored.active.record()
    if record.id != found:  # of the promise `same_answer`
        return found
    options, rows = record.calibration.options, record.calibration.n
    return f"{found} (alpha {options.alpha:g}, {rows} rows)"
