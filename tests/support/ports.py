"""Ports for servers that a test starts in processes of their own."""

from __future__ import annotations

import itertools
import os
import socket

# Below the ports that Linux gives to connections and to sockets bound to port 0: no other process
# gets one of them by chance before its server listens. Each process begins at a place of its own.
_FIRST, _COUNT = 20_000, 12_000
_OFFSETS = itertools.count(os.getpid() * 101)


def free_port() -> int:
    """A port of the loopback interface without a listener; none is returned twice."""
    for offset in itertools.islice(_OFFSETS, _COUNT):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", _FIRST + offset % _COUNT))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError("no port between 20,000 and 32,000 is free: end the servers that hold them")
