"""Client addresses: which addresses share one limit."""

from __future__ import annotations

import ipaddress


def network(address: str) -> str:
    """The IPv4 address, also of an IPv4-mapped one, or the /64 network of an IPv6 address."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    if parsed.ipv4_mapped is not None:  # the form of IPv4 clients on a socket bound to `::`
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
