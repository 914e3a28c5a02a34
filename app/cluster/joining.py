"""Joins a cluster from the command line."""

from __future__ import annotations

import logging
import socket
from typing import Final

import ray
import ray.data

from app.errors import SettingsError

CONNECT_S: Final = 5.0


def join(address: str) -> None:
    """Connect this process to a cluster, until ``ray.shutdown``.

    Raises:
        SettingsError: Nobody is there.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()  # Ray tries for minutes
    except (OSError, ValueError) as exc:
        raise SettingsError(f"--ray {address}: no Ray cluster is there (HOST:PORT)") from exc
    ray.init(address, log_to_driver=False, logging_level=logging.WARNING)
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
