"""An aiohttp response with a limit of interim answers and an immediate close."""

from __future__ import annotations

from typing import Any, Final

import aiohttp
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError

INTERIM: Final = 100  # answers such as 103 before the final one; aiohttp has no limit


class Response(aiohttp.ClientResponse):
    """Limits interim answers, and closes the connection without waiting.

    aiohttp's own close first sends the rest of the request, and never ends where the server has
    stopped reading.
    """

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        """Read the head. Raises ClientResponseError after too many interim answers."""
        protocol = connection.protocol
        assert protocol is not None
        read, allowed = protocol.read, INTERIM

        async def read_counted() -> Any:
            nonlocal allowed
            if allowed < 0:
                raise HttpProcessingError(message="too many interim answers")
            allowed -= 1
            return await read()

        protocol.read = read_counted
        try:
            return await super().start(connection)
        finally:
            del protocol.read

    def close(self) -> None:
        """Abort the connection, unless the answer was read to its end."""
        if self.connection is not None and self.connection.transport is not None:
            self.connection.transport.abort()
        super().close()
