"""What counts as one client address."""

from __future__ import annotations

import ipaddress


def network(address: str) -> str:
    """An IPv4 address, however it is written, or the /64 that one customer has of IPv6."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    if parsed.ipv4_mapped is not None:  # a socket on `::` sees IPv4 clients so
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
