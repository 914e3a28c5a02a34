"""What every part of the configuration has in common."""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """Never changed once read; a field that nobody knows is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def http_url(url: str) -> str:
    """The URL without a final slash. Raises ValueError unless it is a plain http(s) one."""
    wanted = "must be an http(s) URL such as http://host:8000/v1"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError as exc:  # a port that is none, an unclosed bracket
        raise ValueError(wanted) from exc
    if not usable or parts.query or parts.fragment or any(char.isspace() for char in url):
        raise ValueError(wanted)
    return url.rstrip("/")
