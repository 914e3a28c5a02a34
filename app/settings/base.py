"""Base class of all sections, the type of a risk level, and checks of URLs, names, addresses."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Alpha = Annotated[float, Field(gt=0, lt=1)]


class Frozen(BaseModel):
    """An immutable section; an unknown setting is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


# Parts of at most 20 capitals and digits between underscores: keys are longer, or have others.
_VARIABLE: Final = re.compile(r"(?![0-9])[A-Z0-9]{0,20}(_[A-Z0-9]{0,20})*")
_MOST_CHARS: Final = 64


def variable_name(name: str) -> str:
    """The name of an environment variable. Raises ValueError, without the name."""
    if not name or len(name) > _MOST_CHARS or not _VARIABLE.fullmatch(name):
        raise ValueError(
            "must be the name of an environment variable in capitals, such as OPENAI_API_KEY; the "
            "key itself is the variable's value"
        )
    return name


# A name that may be printed: a key that stands here by mistake has another form.
VariableName = Annotated[str, AfterValidator(variable_name)]


def http_url(url: str, *, cure: str = "a key goes into an environment variable") -> str:
    """The URL without a final slash.

    Args:
        url: The URL, which is printed where its server fails.
        cure: Where a password goes instead.

    Raises:
        ValueError: It is no plain http(s) URL, or it holds a user or a password.
    """
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise ValueError(f"must hold no user or password: {cure}")
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
