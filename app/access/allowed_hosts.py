"""Which names a gateway answers to: the defence against a page that rebinds its own name.

A browser always sends the name of the page, so a name that is not ours is somebody else's page,
whatever address it resolved to.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from app.errors import InvalidHost
from app.settings.secrets import is_loopback

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_WILDCARDS: Final = frozenset({"0.0.0.0", "::"})
# A name or an IPv4 address, or an IPv6 address in brackets; then perhaps a port. Nothing in it
# can be read as a path, a query, a fragment or a user.
_HOST: Final = re.compile(rb"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?\Z")


class HostCheck:
    """The names under which clients may reach addresses that this process is bound to."""

    def __init__(self, bound: Sequence[str], names: Iterable[str]) -> None:
        allowed = {_written(name) for name in names}
        everywhere = bool(_WILDCARDS & set(bound))
        if everywhere and not allowed:
            self._allowed = None  # any name: nobody has said which are ours
            return
        if everywhere or any(is_loopback(host) for host in bound):
            allowed |= _LOOPBACK
        self._allowed = frozenset(allowed | {_written(host) for host in bound})

    def check(self, headers: Iterable[tuple[bytes, bytes]], *, any_name: bool = False) -> None:
        """Refuse a request without exactly one well-formed Host that is ours.

        Args:
            headers: The request's, names in lower case.
            any_name: Only the form matters: probes come under whatever address they were given.

        Raises:
            InvalidHost: Which of these it is; the value is not repeated.
        """
        hosts = [value for name, value in headers if name == b"host"]
        if len(hosts) != 1:
            raise InvalidHost("a request needs exactly one Host header")
        form = _HOST.match(hosts[0])
        if form is None:
            raise InvalidHost("the Host header is no host name with an optional port")
        if any_name or self._allowed is None or form[1].decode().lower() in self._allowed:
            return
        raise InvalidHost(
            "the gateway does not answer to this Host: name it in access.hosts of the configuration"
        )


def _written(host: str) -> str:
    """As it stands in a Host header."""
    bare = host.strip("[]").lower()
    return f"[{bare}]" if ":" in bare else bare
