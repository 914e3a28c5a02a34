"""Errors that clients meet: how each is provoked, and what their libraries make of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.settings import key_format
from tests.support.gateway import (
    DATA_KEY,
    ONE,
    POOL,
    UNANSWERABLE,
    Gateway,
    candidates,
    configure,
    user,
)
from tests.support.waiting import until
from tests.upstreams.scripted import FakePool

TEAM_KEY, POOR_KEY = key_format.new_key(), key_format.new_key()


def strict_configuration(folder: Path, artifact: Path, upstream: str) -> Path:
    """Of a gateway that refuses what another would answer."""
    keys = [
        {"name": "team", "hash": _hash_of(TEAM_KEY), "max_alpha": 0.05},
        {"name": "poor", "hash": _hash_of(POOR_KEY), "tokens_per_minute": 1},
    ]
    return configure(
        folder,
        artifact,
        upstream,
        candidates=candidates(upstream, timeout_s=0.5),
        routing={"on_infeasible": "reject"},
        fleet={"attempts": 1, "failures": 1000},
        limits={"body_bytes": 20_000},
        access={"keys": keys},
    )


def _hash_of(key: str) -> str:
    return key_format.format_hash(key, key_format.new_salt())


@dataclass(frozen=True)
class Case:
    """How to provoke an error, and what each client makes of it."""

    status: int
    code: str
    openai: str
    litellm: str
    racer: dict[str, Any] = field(default_factory=dict)
    text: str = ONE
    model: str = "auto"
    key: str = DATA_KEY
    fault: str | None = None


CASES = {
    "input": Case(400, "invalid_request", "BadRequestError", "BadRequestError", {"alpha": 2}),
    "schema": Case(
        422, "invalid_schema", "UnprocessableEntityError", "BadRequestError",
        {"alpha": "x"},
    ),
    "infeasible": Case(
        409, "infeasible_alpha", "ConflictError", "APIError", {"alpha": 0.001}
    ),
    "key": Case(
        401, "invalid_api_key", "AuthenticationError", "AuthenticationError", key="a-wrong-key"
    ),
    "forbidden": Case(
        403, "forbidden", "PermissionDeniedError", "APIError", {"alpha": 0.2},
        key=TEAM_KEY,
    ),
    "model": Case(404, "model_not_found", "NotFoundError", "NotFoundError", model="gpt-4o"),
    "large": Case(413, "too_large", "APIStatusError", "APIError", text=ONE * 2_000),
    "abstained": Case(
        422, "router_abstained", "UnprocessableEntityError", "BadRequestError",
        {"on_abstain": "error"}, text=UNANSWERABLE,
    ),
    "limited": Case(429, "rate_limited", "RateLimitError", "RateLimitError", key=POOR_KEY),
    "upstream": Case(502, "upstream_error", "InternalServerError", "BadGatewayError", fault="500"),
    "unavailable": Case(
        503, "upstream_error", "InternalServerError", "ServiceUnavailableError", fault="503"
    ),
    "timeout": Case(504, "upstream_timeout", "InternalServerError", "Timeout", fault="hang"),
    "upstream_limited": Case(
        429, "upstream_rate_limited", "RateLimitError", "RateLimitError", fault="429"
    ),
    "rejected": Case(
        400, "upstream_rejected", "BadRequestError", "BadRequestError", fault="400"
    ),
    "invalid": Case(
        502, "upstream_invalid_response", "InternalServerError", "BadGatewayError", fault="html"
    ),
}  # fmt: skip


def provoke(gateway: Gateway, pool: FakePool, case: Case) -> None:
    """Bring the gateway and its candidates into the state that the case needs."""
    if case.fault is not None:
        for name in POOL:
            pool.fail(name, case.fault)
    if case.key == POOR_KEY:
        body = {"model": "auto", "messages": user(ONE)}
        # A call that a busy machine lets time out costs no tokens.
        assert until(
            lambda: gateway.post("/v1/chat/completions", POOR_KEY, json=body).status_code == 429
        )
