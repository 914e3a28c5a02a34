"""Host header validation: the defence against DNS rebinding.

A browser sends the host name of the page that it shows. A name that is not the gateway's belongs to
the page of another site, even if its DNS entry points to this gateway.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from app.errors import InvalidHost
from app.settings.base import is_loopback

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_WILDCARDS: Final = frozenset({"0.0.0.0", "::"})
# A name, an IPv4 address or an IPv6 address in brackets, and an optional port. No character of it
# can start a path, a query, a fragment or a user.
_HOST: Final = re.compile(rb"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?\Z")


class HostCheck:
    """The host names that requests may have.

    Args:
        bound: Addresses that this process listens on.
        names: Further names, from ``access.hosts``.
    """

    def __init__(self, bound: Sequence[str], names: Iterable[str]) -> None:
        allowed = {_header_form(name) for name in names}
        on_all_interfaces = bool(_WILDCARDS & set(bound))
        if on_all_interfaces and not allowed:
            self._allowed = None  # any name: the configuration states none
            return
        if on_all_interfaces or any(is_loopback(host) for host in bound):
            allowed |= _LOOPBACK
        self._allowed = frozenset(allowed | {_header_form(host) for host in bound})

    def check(self, headers: Iterable[tuple[bytes, bytes]], *, any_name: bool = False) -> None:
        """Refuse a request without exactly one well-formed, allowed Host header.

        Args:
            headers: The request's headers, names in lower case.
            any_name: Check the form only: probes address a gateway by IP address.

        Raises:
            InvalidHost: The message says why, without the value.
        """
        hosts = [value for name, value in headers if name == b"host"]
        if len(hosts) != 1:
            raise InvalidHost("a request needs exactly one Host header")
        form = _HOST.match(hosts[0])
        if form is None:
            raise InvalidHost("the Host header is not a host name with an optional port")
        if any_name or self._allowed is None or form[1].decode().lower() in self._allowed:
            return
        raise InvalidHost(
            "this Host is not the gateway's: add it to access.hosts in the configuration"
        )


def _header_form(host: str) -> str:
    """The form of a host in a Host header."""
    bare = host.strip("[]").lower()
    return f"[{bare}]" if ":" in bare else bare
