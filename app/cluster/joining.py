"""Joins a cluster from the command line."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from typing import Final

import ray
import ray.data

from app.errors import SettingsError

CONNECT_S: Final = 5.0


@contextmanager
def joined(address: str) -> Generator[None]:
    """Connect this process to a cluster.

    What Ray tells of its own accord is for stderr, or for nobody: stdout is the result, and what
    ends a run is raised.

    Raises:
        SettingsError: Nobody is there.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()  # Ray tries for minutes
    except (OSError, ValueError) as exc:
        raise SettingsError(f"--ray {address}: no Ray cluster is there (HOST:PORT)") from exc
    with redirect_stdout(sys.stderr):
        ray.init(address, log_to_driver=False, logging_level=logging.WARNING)
        try:
            ray.data.DataContext.get_current().enable_progress_bars = False
            logging.getLogger("ray.data").setLevel(logging.ERROR)
            yield
        finally:
            ray.shutdown()
