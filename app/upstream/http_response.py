"""What aiohttp's own response leaves open."""

from __future__ import annotations

from typing import Any, Final

import aiohttp
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError

INTERIM: Final = 100  # answers such as 103 before the real one; aiohttp reads them without end


class Response(aiohttp.ClientResponse):
    """Few interim answers, and an end that waits for nobody.

    A connection that is merely closed first sends what is left of the request, which never ends
    where the server has stopped reading.
    """

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        """Read the head. Raises ClientResponseError after too many interim answers."""
        protocol = connection.protocol
        assert protocol is not None
        read, left = protocol.read, INTERIM

        async def counted() -> Any:
            nonlocal left
            if left < 0:
                raise HttpProcessingError(message="too many interim answers")
            left -= 1
            return await read()

        protocol.read = counted
        try:
            return await super().start(connection)
        finally:
            del protocol.read

    def close(self) -> None:
        """Let the connection go at once, unless the answer was read to its end."""
        if self.connection is not None and self.connection.transport is not None:
            self.connection.transport.abort()
        super().close()
