"""Address of a gateway, as programs of its own machine reach it."""

from __future__ import annotations

from typing import Final

from app.errors import SettingsError
from app.settings.model import Settings

# Addresses of all interfaces, and one of each that this machine reaches.
_LOOPBACK_OF: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


def gateway_url(settings: Settings, *, admin: bool = False) -> str:
    """URL of the gateway that a configuration describes.

    Args:
        settings: The configuration.
        admin: The URL of the admin endpoints, which may have a socket of their own.

    Raises:
        SettingsError: The port is 0, so that every start has another one.
    """
    own = settings.access.admin if admin else None
    host, port = (settings.host, settings.port) if own is None else (own.host, own.port)
    if port == 0:
        raise SettingsError("port is 0, any free one: name the gateway by --url")
    return url_of(host, port)


def url_of(host: str, port: int) -> str:
    """URL of a server that is bound to an address."""
    reached = _LOOPBACK_OF.get(host, host)
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"
