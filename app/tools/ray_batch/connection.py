"""Connection of a command to a Ray cluster."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from typing import Any, Final, cast

import ray
import ray.data
from ray.data.block import BlockAccessor
from ray.exceptions import RayError

from app.errors import SettingsError

CONNECT_S: Final = 5.0


@contextmanager
def joined(address: str) -> Generator[None]:
    """Connect this process to a cluster.

    Ray's own output goes to stderr: stdout holds only the command's result. Errors that end a run
    are raised.

    Raises:
        SettingsError: No cluster answers, or it rejects this process.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()  # Ray tries for minutes
    except (OSError, ValueError) as exc:
        raise SettingsError(f"--ray {address}: no Ray cluster is there (HOST:PORT)") from exc
    with redirect_stdout(sys.stderr):
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.WARNING)
        except (ConnectionError, RuntimeError, RayError) as exc:  # another version, most often
            words = " ".join(str(exc).split())
            raise SettingsError(f"--ray {address}: cannot be joined: {words}") from exc
        try:
            ray.data.DataContext.get_current().enable_progress_bars = False
            logging.getLogger("ray.data").setLevel(logging.ERROR)
            yield
        finally:
            ray.shutdown()


def rows_of(found: ray.data.Dataset) -> Generator[dict[str, Any]]:
    """Yield the rows of a dataset as they arrive; closing the generator stops the reading.

    ``Dataset.iter_rows`` reads ahead in threads that cannot be joined. A thread that still reads
    when its process leaves the cluster ends that process at once, with its output unwritten.
    """
    for bundle in found.iter_internal_ref_bundles():
        for entry in bundle.blocks:
            block = BlockAccessor.for_block(cast("Any", ray).get(entry.ref))
            yield from cast("Any", block.iter_rows(public_row_format=True))
