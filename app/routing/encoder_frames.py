"""Frames between gateways and a shared encoder process: a JSON head, then arrays as raw bytes.

A frame is its length (4 bytes, big endian), the head, a line feed and the arrays one after the
other. The head names dtype and shape of each array, so that all bits arrive.
"""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from app.errors import TooLarge

Arrays = Mapping[str, NDArray[Any]]

LARGEST: Final = 64 * 2**20  # bytes of a frame
_LENGTH: Final = struct.Struct(">I")
_KINDS: Final = "biuf"  # of numbers; an array of objects would be unpickled


@dataclass(frozen=True, slots=True)
class Frame:
    """A message: a JSON object, and arrays by name."""

    head: dict[str, Any]
    arrays: Arrays


def packed(head: Mapping[str, Any], arrays: Arrays | None = None) -> bytes:
    """The bytes of a frame. Raises :class:`TooLarge`."""
    arrays = arrays or {}
    described = {name: [each.dtype.str, each.shape] for name, each in arrays.items()}
    body = b"\n".join(
        (
            orjson.dumps({**head, "arrays": described}),
            b"".join(a.tobytes() for a in arrays.values()),
        )
    )
    _check_size(len(body))
    return _LENGTH.pack(len(body)) + body


async def receive(reader: asyncio.StreamReader) -> Frame:
    """The next frame.

    Raises:
        asyncio.IncompleteReadError: The connection ended.
        TooLarge: The frame is longer than ``LARGEST``; it was not read.
        ValueError: It is not a frame.
    """
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    _check_size(length)
    head, _, raw = (await reader.readexactly(length)).partition(b"\n")
    fields = orjson.loads(head)
    arrays: dict[str, NDArray[Any]] = {}
    first = 0
    for name, (dtype, shape) in fields.pop("arrays").items():
        kind = np.dtype(dtype)
        if kind.kind not in _KINDS:
            raise ValueError(f"an array of {kind} is not sent")
        count = math.prod(shape)
        arrays[name] = np.frombuffer(raw, kind, count, first).reshape(shape)
        first += count * kind.itemsize
    return Frame(fields, arrays)


def _check_size(length: int) -> None:
    if length > LARGEST:
        raise TooLarge(f"a frame of {length} bytes is over the {LARGEST} of an encoder process")
