"""Base class of all sections, the type of a risk level, and checks of URLs and addresses."""

from __future__ import annotations

import ipaddress
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

Alpha = Annotated[float, Field(gt=0, lt=1)]


class Frozen(BaseModel):
    """An immutable section; an unknown setting is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def http_url(url: str) -> str:
    """The URL without a final slash. Raises ValueError unless it is a plain http(s) one."""
    expected = "must be an http(s) URL such as http://host:8000/v1"
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError as exc:  # an invalid port, an unclosed bracket
        raise ValueError(expected) from exc
    if not is_valid or parts.query or parts.fragment or any(char.isspace() for char in url):
        raise ValueError(expected)
    return url.rstrip("/")


def is_loopback(host: str) -> bool:
    """Whether an address is reachable only from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
