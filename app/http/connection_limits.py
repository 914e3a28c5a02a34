"""Connection limits: slots, a few of each client address, and a small pool without a slot.

The limit of an address must not lock out clients with a key: behind a proxy all clients have one
address. So a connection without a slot is served one request, if it comes soon. That grace is
bounded by a pool of its own, in which a newcomer closes the oldest connection that is silent.
However many of them come at once, they take no slot, and a client that sends its request as it
connects is served.
"""

from __future__ import annotations

from typing import Final, Protocol

from app.access.failed_logins import network

POOL_SHARE: Final = 4  # of the slots, a quarter more may be open without one
RESERVE_SHARE: Final = 8  # of the pool, an eighth answers probes only


class OpenConnection(Protocol):
    """An open connection."""

    @property
    def is_authenticated(self) -> bool:
        """Whether a request on it had a valid key."""
        ...

    @property
    def is_answering(self) -> bool:
        """Whether a request on it is being answered: its head has arrived."""
        ...

    def turn_away(self) -> None:
        """Close it at once."""
        ...


class ConnectionLimits:
    """Which connections have a slot, and which are open without one.

    Connections do not report that they have authenticated, or what they do. This is looked up only
    when an address has no free slot, for at most ``per_address`` connections, and in the pool.

    Args:
        connections: Slots of all addresses together.
        per_address: Slots per address for connections without a valid key; None: any number.
    """

    def __init__(self, connections: int, per_address: int | None) -> None:
        self._slots = connections
        self._per_address = per_address
        self._with_slot: set[OpenConnection] = set()
        self._of_address: dict[str, set[OpenConnection]] = {}
        self._pool_size = connections // POOL_SHARE
        self._reserve = self._pool_size // RESERVE_SHARE
        self._pool: dict[OpenConnection, None] = {}  # the oldest first

    @property
    def addresses(self) -> int:
        """Number of client addresses that hold a slot of their own."""
        return len(self._of_address)

    def limit_to(self, per_address: int | None) -> None:
        """Follow another limit; open connections keep their slots."""
        self._per_address = per_address

    def take_slot(self, connection: OpenConnection, address: str) -> bool:
        """Take a slot; False if all, or all of the address, are taken."""
        if len(self._with_slot) >= self._slots:
            return False
        if self._per_address is not None:
            here = self._of_address.setdefault(network(address), set())
            if len(here) >= self._per_address:
                here.difference_update([each for each in here if each.is_authenticated])
            if len(here) >= self._per_address:
                return False
            here.add(connection)
        self._with_slot.add(connection)
        return True

    def take_place(self, connection: OpenConnection) -> bool:
        """Be open without a slot, in place of the oldest silent one; False if none is silent."""
        if len(self._pool) >= self._pool_size:
            oldest = next((each for each in self._pool if not each.is_answering), None)
            if oldest is None:
                return False
            del self._pool[oldest]
            oldest.turn_away()
        self._pool[connection] = None
        return True

    def has_room_to_answer(self) -> bool:
        """Whether one more connection without a slot may be answered that is no probe."""
        answering = sum(each.is_answering for each in self._pool)
        return answering < self._pool_size - self._reserve

    def leave(self, connection: OpenConnection, address: str) -> None:
        """Release what a connection holds."""
        self._pool.pop(connection, None)
        self._with_slot.discard(connection)
        key = network(address)
        here = self._of_address.get(key)
        if here is not None:
            here.discard(connection)
            if not here:
                del self._of_address[key]
