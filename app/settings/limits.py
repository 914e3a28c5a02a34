"""Settings of limits: sizes, concurrency, queues and timeouts (section `limits`)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from app.settings.base import Frozen
from racer_core.records.row import MAX_QUERY_CHARS

_Count = Annotated[int, Field(gt=0)]
ExtraField = Literal["chat_template_kwargs", "guided_*", "priority", "structured_outputs"]
_Seconds = Annotated[float, Field(gt=0)]


class Limits(Frozen):
    """Limits of one request, one client and the process; an error names the limit."""

    # Requests.
    body_bytes: _Count = 32 * 2**20
    """Largest request body in bytes (32 MiB, because of images)."""
    body_buffer_bytes: _Count = 256 * 2**20
    """Memory for all request bodies in bytes (256 MiB); the first 64 KiB of each are free."""
    upload_bytes: _Count = 256 * 2**20
    """Largest upload of rows in bytes (256 MiB)."""
    header_bytes: _Count = 32 * 2**10
    """Largest request head in bytes (32 KiB)."""
    messages: _Count = 2048
    """Messages of a request, or texts to embed."""
    tools: _Count = 128
    """Tools of a request."""
    choices: _Count = 128
    """Choices of a request: `n`, times the prompts of a completion."""
    max_tokens: _Count = 131_072
    """Largest `max_tokens` of a request, under each of its three names."""
    extra_fields: tuple[ExtraField, ...] = ("chat_template_kwargs", "structured_outputs")
    """vLLM's fields that requests may set. Each costs the candidate: see `docs/security.md`."""
    query_chars: _Count = MAX_QUERY_CHARS
    """Characters of a query that the router reads: of a longer one, its beginning."""
    # Calls to candidates.
    fan_out: _Count = 16
    """Most candidates that one request calls."""
    answer_bytes: _Count = 8 * 2**20
    """Largest answer of one candidate in bytes (8 MiB)."""
    buffered_bytes: _Count = 256 * 2**20
    """Memory for all answers and large payloads of calls in bytes (256 MiB)."""
    # Concurrency.
    connections: _Count = 1024
    """Concurrent client connections. A quarter more, without a slot, are served one request each if
    it comes at once; of these a newcomer closes the oldest that is silent."""
    connections_per_address: _Count | None = 64
    """Concurrent connections per address without a valid key; null: no limit."""
    in_flight: _Count = 256
    """Concurrent requests, waiting ones included; further ones are refused (load shedding)."""
    queue: _Count = 256
    """Queue length of the router in queries."""
    batch: _Count = 32
    """Batch size of the router in queries."""
    decisions_kept: Annotated[int, Field(ge=0)] = 4096
    """Size of the decision cache, in decisions; 0: no cache."""
    # Timeouts.
    deadline_s: _Seconds = 120.0
    """Deadline of a request in seconds; `racer.timeout` may be shorter."""
    header_s: _Seconds = 10.0
    """Timeout in seconds for receiving a request head."""
    body_s: _Seconds = 60.0
    """Timeout in seconds for receiving a request body."""
    upload_s: _Seconds = 600.0
    """Timeout in seconds for receiving an upload."""
    keep_alive_s: _Seconds = 75.0
    """Keep-alive timeout in seconds of an idle connection."""
    stalled_s: _Seconds = 60.0
    """Timeout in seconds of a client that stops reading its response."""
    queue_s: _Seconds = 1.0
    """Maximum queueing time in seconds at the router; enforced only while the queue is longer than
    `limits.batch`."""
    route_timeout_s: _Seconds = 10.0
    """Timeout of a routing decision in seconds."""
    comment_every_s: _Seconds = 5.0
    """Interval in seconds of the comments that keep a waiting stream alive."""
    drain_delay_s: Annotated[float, Field(ge=0)] = 0.0
    """Seconds after SIGTERM during which the gateway is not ready but still accepts requests."""
    drain_s: _Seconds = 30.0
    """Then seconds for the requests in flight."""
