"""Connection limit per client address, for connections that have not authenticated.

The limit must not lock out clients with a key: behind a proxy all clients have one address. So a
connection above the limit gets no slot, but has a short time to send a request with a valid key,
which is served.
"""

from __future__ import annotations

from typing import Protocol

from app.access.failed_logins import network


class OpenConnection(Protocol):
    """An open connection."""

    @property
    def is_authenticated(self) -> bool:
        """Whether a request on it had a valid key."""
        ...


class UnauthenticatedConnections:
    """Connection slots of each client address.

    Connections do not report that they have authenticated. This is looked up only when an address
    has no free slot, for at most ``limit`` connections.

    Args:
        limit: Slots per address; None for any number.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._connections: dict[str, set[OpenConnection]] = {}

    def __len__(self) -> int:
        """Number of client addresses that hold a slot."""
        return len(self._connections)

    def limit_to(self, limit: int | None) -> None:
        """Follow another limit; open connections keep their slots."""
        self._limit = limit

    def enter(self, connection: OpenConnection, address: str) -> bool:
        """Take a slot; False if all are taken by connections without authentication."""
        if self._limit is None:
            return True
        connections = self._connections.setdefault(network(address), set())
        if len(connections) >= self._limit:
            connections.difference_update([each for each in connections if each.is_authenticated])
        if len(connections) >= self._limit:
            return False
        connections.add(connection)
        return True

    def leave(self, connection: OpenConnection, address: str) -> None:
        """Release the slot of a connection, if it has one."""
        key = network(address)
        connections = self._connections.get(key)
        if connections is not None:
            connections.discard(connection)
            if not connections:
                del self._connections[key]
