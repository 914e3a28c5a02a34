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
    body_bytes: _Count = 32 * 2**20
    """Bytes of a body, 32 MiB: images come in them."""
    body_buffer_bytes: _Count = 256 * 2**20
    """Bytes of all bodies in memory, each but its first 64 KiB, 256 MiB."""
    upload_bytes: _Count = 256 * 2**20
    """Bytes of an upload of rows, 256 MiB."""
    header_bytes: _Count = 32 * 2**10
    """Bytes of all headers of a request, 32 KiB."""
    messages: _Count = 2048
    """Messages of a request, texts to embed."""
    tools: _Count = 128
    """Tools of a request."""
    choices: _Count = 8
    """`n`, times the prompts of a completion."""
    max_tokens: _Count = 32_768
    """Tokens that a request may ask for."""
    query_chars: _Count = MAX_QUERY_CHARS
    """Characters that the router reads; of longer queries it reads none."""
    # What goes out and comes back.
    fan_out: _Count = 16
    """Candidates that one request calls."""
    answer_bytes: _Count = 8 * 2**20
    """Bytes of one candidate's answer, 8 MiB."""
    buffered_bytes: _Count = 256 * 2**20
    """Bytes of all answers in memory and of large payloads that are sent for them, 256 MiB."""
    # How many at once.
    connections: _Count = 1024
    """Connections from clients."""
    connections_per_address: _Count | None = 64
    """Connections from one address that have shown no right key; null: any number."""
    in_flight: _Count = 256
    """Requests at once, and so the longest line in an overload."""
    queue: _Count = 256
    """Queries that wait for the router."""
    batch: _Count = 32
    """Queries that the router scores together."""
    decisions_kept: Annotated[int, Field(ge=0)] = 4096
    """Decisions in memory, so that a query that comes again is not scored again; 0: none."""
    # How long.
    deadline_s: _Seconds = 120.0
    """Seconds for a request; `racer.timeout` may be shorter."""
    header_s: _Seconds = 10.0
    """Seconds until a request's head is there."""
    body_s: _Seconds = 60.0
    """Seconds until a request's body is there."""
    upload_s: _Seconds = 600.0
    """Seconds until an upload is there."""
    keep_alive_s: _Seconds = 75.0
    """Seconds that a connection without requests is kept."""
    stalled_s: _Seconds = 60.0
    """Seconds that a client may read nothing."""
    queue_s: _Seconds = 1.0
    """Seconds that a query waits for its turn at the router, while more wait than
    `limits.batch`."""
    route_timeout_s: _Seconds = 10.0
    """Seconds for a routing decision."""
    comment_every_s: _Seconds = 5.0
    """Seconds between the comments that keep a waiting stream alive."""
    drain_delay_s: Annotated[float, Field(ge=0)] = 0.0
    """Seconds after SIGTERM: not ready, but still accepting."""
    drain_s: _Seconds = 30.0
    """Seconds then for what is in flight."""
