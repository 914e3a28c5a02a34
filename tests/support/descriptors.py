"""What this process holds open, counted by what it is: others come and go with the garbage."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def connections_to(port: int) -> int:
    """Sockets of this process that are, or wait to be, connected to a port."""
    return sum(_peer(int(each)) == port for each in os.listdir("/proc/self/fd"))


def _peer(descriptor: int) -> int | None:
    """The port at the other end; none for what is no socket, or is not connected."""
    try:
        if not str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith("socket:"):
            return None
        with socket.socket(fileno=os.dup(descriptor)) as one:
            name = one.getpeername()
    except OSError:  # it was closed meanwhile, or has no peer
        return None
    return name[1] if isinstance(name, tuple) else None
