"""Open connections per client address on which nobody has shown a right key yet.

Nobody is shut out for another's sake, for behind a proxy everybody has one address: past the limit
a new connection gets no place, but a moment to show a right key, and with one it is served.
"""

from __future__ import annotations

from typing import Protocol

from app.access.client_address import network


class OpenConnection(Protocol):
    """An open connection."""

    @property
    def is_known(self) -> bool:
        """Whether a request on it had a right key."""
        ...


class UnauthenticatedConnections:
    """So many places for each address.

    A visitor becomes known while its request is being decided, which nobody tells: who is known is
    looked up when an address seems full, so each time no more than ``most`` visitors are asked.

    Args:
        most: Places of one address; None for any number.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._inside: dict[str, set[OpenConnection]] = {}

    def enter(self, visitor: OpenConnection, address: str) -> bool:
        """Take a place; False when known visitors' places are given up and none is free."""
        if self._most is None:
            return True
        inside = self._inside.setdefault(network(address), set())
        if len(inside) >= self._most:
            inside.difference_update([each for each in inside if each.is_known])
        if len(inside) >= self._most:
            return False
        inside.add(visitor)
        return True

    def leave(self, visitor: OpenConnection, address: str) -> None:
        """Give the place back, if there was one."""
        where = network(address)
        inside = self._inside.get(where)
        if inside is not None:
            inside.discard(visitor)
            if not inside:
                del self._inside[where]
