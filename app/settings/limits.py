"""Every limit in one place."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from app.settings.base import Frozen
from racer_core.records.row import MAX_QUERY_CHARS

_Count = Annotated[int, Field(gt=0)]
_Seconds = Annotated[float, Field(gt=0)]


class Limits(Frozen):
    """What one request, one client and the process may use; past a limit the answer says which."""

    # What comes in.
    body_bytes: _Count = 32 * 2**20  # images come in chat bodies
    body_buffer_bytes: _Count = 256 * 2**20  # bodies in memory, of all requests
    upload_bytes: _Count = 256 * 2**20
    header_bytes: _Count = 32 * 2**10
    messages: _Count = 2048
    tools: _Count = 128
    choices: _Count = 8  # `n`
    max_tokens: _Count = 32_768
    query_chars: _Count = MAX_QUERY_CHARS
    # What goes out and comes back.
    fan_out: _Count = 16  # candidates of one request
    answer_bytes: _Count = 8 * 2**20
    buffered_bytes: _Count = 256 * 2**20  # answers and what is sent for them, of all requests
    # How many at once.
    connections: _Count = 1024  # from clients
    connections_per_address: _Count | None = 64  # that have shown no right key
    in_flight: _Count = 256  # requests
    queue: _Count = 256  # queries that wait for the router
    batch: _Count = 32
    decisions_kept: Annotated[int, Field(ge=0)] = 4096  # so that a query seen again is not scored
    # How long.
    deadline_s: _Seconds = 120.0  # a request; `racer.timeout` may be shorter
    header_s: _Seconds = 10.0
    body_s: _Seconds = 60.0
    upload_s: _Seconds = 600.0
    keep_alive_s: _Seconds = 75.0
    stalled_s: _Seconds = 60.0  # a client that reads nothing
    queue_s: _Seconds = 1.0  # a query, for its turn at the router
    route_timeout_s: _Seconds = 10.0
    comment_every_s: _Seconds = 5.0  # keeps a waiting stream alive
    drain_delay_s: Annotated[float, Field(ge=0)] = 0.0  # not ready, but still accepting
    drain_s: _Seconds = 30.0
