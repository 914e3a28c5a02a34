"""Errors that clients meet: how each row of the table of errors is provoked by a request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from app.settings import key_format
from tests.kit.gateway import (
    DATA_KEY,
    ONE,
    POOL,
    TWO,
    UNANSWERABLE,
    Gateway,
    candidates,
    configure,
    user,
)
from tests.kit.upstream import FakePool
from tests.kit.waiting import until

TEAM_KEY, POOR_KEY, THRIFTY_KEY, SPENT_KEY = (key_format.new_key() for _ in range(4))
TABLE: Final = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"


def error_rows() -> Iterator[tuple[int, str, str]]:
    """Status, type and code of every row of the table."""
    for section in TABLE.read_text(encoding="utf-8").split("\n## `")[1:]:
        for status, code in re.findall(r"^- (\d{3}) `(\w+)`: ", section, re.MULTILINE):
            yield int(status), section.partition("`")[0], code


# Gateways ---------------------------------------------------------------------------------------


def strict_configuration(folder: Path, artifact: Path, upstream: str) -> Path:
    """Of a gateway that refuses what another would answer."""
    keys = [
        {"name": "team", "hash": _hash_of(TEAM_KEY), "max_alpha": 0.05},
        {"name": "poor", "hash": _hash_of(POOR_KEY), "tokens_per_minute": 1},
        {"name": "thrifty", "hash": _hash_of(THRIFTY_KEY), "budget": {"hard": 0.5}},
        {"name": "spent", "hash": _hash_of(SPENT_KEY), "budget": {"hard": 1.5}},
    ]
    return configure(
        folder,
        artifact,
        upstream,
        candidates=candidates(upstream, timeout_s=1.5, price=1.0),
        routing={"on_infeasible": "reject"},
        fleet={"attempts": 1, "failures": 1000},
        limits={"body_bytes": 20_000, "answer_bytes": 500_000},
        access={"keys": keys},
    )


def small_configuration(folder: Path, artifact: Path, upstream: str, closed: str) -> Path:
    """Of a gateway with little memory: the adder's port speaks no TLS, the speller's is closed."""
    own = {"adder": {"base_url": upstream.replace("http:", "https:")}}
    return configure(
        folder,
        artifact,
        upstream,
        candidates=candidates(upstream, **own, speller={"base_url": closed}),
        fleet={"attempts": 1, "failures": 1000},
        limits={"body_buffer_bytes": 100_000, "buffered_bytes": 100_000},
    )


def full_configuration(folder: Path, artifact: Path, upstream: str) -> Path:
    """Of a gateway that takes a single connection."""
    return configure(folder, artifact, upstream, limits={"connections": 1})


def _hash_of(key: str) -> str:
    return key_format.format_hash(key, key_format.new_salt())


# The table --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Case:
    """A request that is answered with an error.

    Attributes:
        gateway: Which of the gateways above.
        path: What the user puts behind the gateway's address by mistake.
        once: A gateway answers so at first, and then takes the candidate out.
        fault: Of every candidate, or of some by name.
        retry: The error has ``retry-after``; the others tell the client not to try again.
        is_long: Both: a retry cures it after a time for which no client waits by itself.
    """

    status: int
    code: str
    racer: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    text: str = ONE
    model: str = "auto"
    key: str = DATA_KEY
    path: str = ""
    fault: str | Mapping[str, str] | None = None
    gateway: str = "strict"
    once: bool = False
    retry: bool = False
    is_long: bool = False

    @property
    def is_of_request(self) -> bool:
        """Whether any gateway with any key answers so."""
        return self.gateway == "any"


def _request(status: int, code: str, **request: Any) -> Case:
    return Case(status=status, code=code, gateway="any", **request)


def _fault(status: int, code: str, fault: str | Mapping[str, str], **more: Any) -> Case:
    return Case(status=status, code=code, fault=fault, **more)


CASES: Final[Mapping[str, Case]] = {
    # The request alone.
    "alpha": _request(400, "invalid_request", racer={"alpha": 2}),
    "schema": _request(422, "invalid_schema", racer={"alpha": "x"}),
    "host": _request(400, "invalid_host", headers={"host": "elsewhere.example"}),
    "model": _request(404, "model_not_found", model="gpt-4o"),
    "application": _request(
        404, "application_not_found", headers={"x-racer-application": "unknown"}
    ),
    "path": _request(404, "not_found", path="/v2"),
    "long path": _request(414, "uri_too_long", path="/" + "a" * 9_000),
    "headers": _request(431, "headers_too_large", headers={"x-note": "a" * 40_000}),
    "encoding": _request(415, "unsupported_body", headers={"content-encoding": "gzip"}),
    "type": _request(415, "unsupported_body", headers={"content-type": "text/plain"}),
    "another site": _request(403, "cross_site", headers={"sec-fetch-site": "cross-site"}),
    "another port": _request(403, "cross_site", headers={"origin": "http://127.0.0.1:1"}),
    # The configuration, the key, and the query.
    "infeasible": Case(status=409, code="infeasible_alpha", racer={"alpha": 0.001}),
    "large": Case(status=413, code="too_large", text=ONE * 2_000),
    "abstained": Case(
        status=422, code="router_abstained", racer={"on_abstain": "error"}, text=UNANSWERABLE
    ),
    "key": Case(status=401, code="invalid_api_key", key="a-wrong-key"),
    "forbidden": Case(status=403, code="forbidden", racer={"alpha": 0.2}, key=TEAM_KEY),
    "quota": Case(status=429, code="rate_limited", key=POOR_KEY, retry=True, is_long=True),
    "small budget": Case(status=429, code="budget_exceeded", key=THRIFTY_KEY),
    "spent budget": Case(status=429, code="budget_exceeded", key=SPENT_KEY),
    # Candidates that fail.
    "rejected": _fault(400, "upstream_rejected", "400"),
    "rejected as unknown": _fault(404, "upstream_rejected", "404"),
    "too long": _fault(400, "context_length_exceeded", "too_long"),
    "limited upstream": _fault(429, "upstream_rate_limited", "429", retry=True),
    "unlike failures": _fault(
        502, "no_answer", {"adder": "500", "speller": "html", "poet": "reset"}, text=TWO,
        retry=True,
    ),
    "key upstream": _fault(502, "upstream_auth_error", "401"),
    "cut": _fault(502, "upstream_disconnected", "reset", retry=True),
    "empty": _fault(502, "upstream_empty", "no_choices", retry=True),
    "compressed": _fault(502, "upstream_encoding", "gzip"),
    "500": _fault(502, "upstream_error", "500", retry=True),
    "503": _fault(503, "upstream_error", "503", retry=True),
    "html": _fault(502, "upstream_invalid_response", "html", retry=True),
    "not HTTP": _fault(502, "upstream_protocol_error", "not_http", retry=True),
    "redirect": _fault(502, "upstream_redirect", "redirect"),
    "huge": _fault(502, "upstream_response_too_large", "huge"),
    "late": _fault(504, "upstream_timeout", "hang", retry=True),
    # Gateways that are small or full.
    "TLS": Case(
        status=502, code="upstream_tls_error", gateway="small", model="adder", once=True
    ),
    "down": Case(
        status=503, code="upstream_unavailable", gateway="small", model="speller", retry=True
    ),
    "memory": Case(
        status=429, code="overloaded", gateway="crowded", model="poet", text="x " * 70_000,
        once=True, retry=True,
    ),
    "more than the memory": Case(
        status=413, code="too_large", gateway="small", model="poet", text="x " * 100_000
    ),
    "memory for calls": Case(
        status=503, code="upstream_overloaded", gateway="small", model="poet", text="x " * 70_000,
        retry=True,
    ),
    "connections": Case(status=503, code="overloaded", gateway="full", retry=True),
}  # fmt: skip

# Rows that tests of their own provoke, in `tests/app/test_client_errors.py`.
ELSEWHERE: Final = {
    "internal_error": "a bug",
    "upstream_model_missing": "a model that its server has lost, whose candidate is then out",
    "store_unavailable": "a budget whose store does not respond",
    "shutting_down": "a gateway that stops",
    "method_not_allowed": "another method of OpenAI's client",
    "no_tokenizer": "another method of Anthropic's client",
}

# Rows that no client library meets.
_ADMIN: Final = "only endpoints of administrators answer so, for which libraries have no method"
_RAY: Final = "only Ray Serve's proxy in front of the gateway answers so"
NOT_BY_CLIENTS: Final = {
    "invalid_http": "libraries send correct HTTP/1.1",
    "request_timeout": "libraries send a request at once",
    "unknown_decision": "libraries have no method for feedback",
    **dict.fromkeys(
        (
            "calibration_not_found", "job_not_found", "conflict",
            "job_cancelled", "reload_refused", "cannot_calibrate", "invalid_rows",
            "training_overlap", "stored_requests_unreadable", "artifact", "no_router",
            "not_calibrated", "store_busy", "store_damaged", "store_read_only",
            "insufficient_storage",
        ),
        _ADMIN,
    ),
    **dict.fromkeys(("proxy_timeout", "no_replica", "replica_lost"), _RAY),
}  # fmt: skip


def provoke(gateway: Gateway, pool: FakePool, case: Case) -> None:
    """Bring the gateway and its candidates into the state that the case needs."""
    faults = dict.fromkeys(POOL, case.fault) if isinstance(case.fault, str) else case.fault
    for name, fault in (faults or {}).items():
        pool.fail(name, fault)
    if case.key in (POOR_KEY, SPENT_KEY):
        body = {"model": "auto", "messages": user(ONE)}
        # A call that a busy machine lets time out costs no tokens.
        assert until(
            lambda: gateway.post("/v1/chat/completions", case.key, json=body).status_code == 429,
            30,
        )
