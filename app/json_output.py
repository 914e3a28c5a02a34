"""JSON serialisation of responses and records.

orjson takes a fraction of the standard library's time. Values that orjson refuses (integers above
64 bits, lone surrogates) are written by the standard library, surrogates as escapes. NaN becomes
null.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import orjson


def dump_json(value: Mapping[str, Any] | Sequence[Any]) -> bytes:
    """Serialise one document, compact, in UTF-8."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
