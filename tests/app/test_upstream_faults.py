"""Faults of candidates: one is tolerated; if all fail, the error names the fault."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.gateway import (
    ENVIRONMENT,
    ONE,
    POOL,
    TWO,
    Gateway,
    Serve,
    candidates,
    configure,
    running,
)
from tests.kit.lazy import LazyModule
from tests.kit.monitored import sampled
from tests.kit.upstream import UPSTREAM_WORDS, FakePool

openai = LazyModule("openai")

# One of each kind, its status when all candidates have it, its code; tests/faults has every mode.
FAULTS = [
    ("500", 502, "upstream_error"),
    ("429", 429, "upstream_rate_limited"),
    ("401", 502, "upstream_auth_error"),
    ("400", 400, "upstream_rejected"),
    ("404", 404, "upstream_rejected"),
    ("hang", 504, "upstream_timeout"),
    ("reset", 502, "upstream_disconnected"),
    ("not_http", 502, "upstream_protocol_error"),
    ("html", 502, "upstream_invalid_response"),
    ("deep", 502, "upstream_invalid_response"),
    ("no_choices", 502, "upstream_empty"),
    ("redirect", 502, "upstream_redirect"),
    ("huge", 502, "upstream_response_too_large"),
    ("gzip", 502, "upstream_encoding"),
]


@pytest.fixture(scope="module")
def strict(
    tmp_path_factory: pytest.TempPathFactory, artifact: Path, shared_pool: FakePool
) -> Iterator[Gateway]:
    """A gateway with a short deadline for candidates and a small limit for answers.

    It asks each candidate once, and takes none out however often it fails.
    """
    path = configure(
        tmp_path_factory.mktemp("strict"),
        artifact,
        shared_pool.url,
        candidates=candidates(shared_pool.url, timeout_s=1.5),
        limits={"answer_bytes": 500_000},
        fleet={"attempts": 1, "failures": 1_000},
    )
    with running(path, ENVIRONMENT) as gateway:
        gateway.calibrate(120)
        yield gateway


@pytest.mark.parametrize(("fault", "kind"), [(fault, kind) for fault, _, kind in FAULTS])
def test_one_fault_does_not_fail_the_request(
    strict: Gateway, pool: FakePool, fault: str, kind: str
) -> None:
    """The other's answer alone votes and is charged; the certificate names who failed."""
    pool.fail("adder", fault)
    pool.say("speller", "seven")
    response = strict.ask(TWO)
    answer = response.json()
    assert (response.status_code, answer["model"]) == (200, "speller")
    assert answer["racer"]["votes"] == {"seven": 1}
    assert answer["racer"]["certificate"]["reasons"] == ["candidate_failed:adder"]
    assert response.headers["x-racer-guarantee"] == "void; reason=candidate_failed:adder"
    assert {"candidate": "adder", "error": kind} in answer["racer"]["calls"]
    assert answer["usage"]["total_tokens"] == 15  # the one who answered


@pytest.mark.parametrize("model", ["auto", "adder"])
@pytest.mark.parametrize(("fault", "status"), [(fault, status) for fault, status, _ in FAULTS])
def test_when_all_candidates_fail_the_status_names_the_fault(
    strict: Gateway, pool: FakePool, fault: str, status: int, model: str
) -> None:
    """Routed or pinned: one envelope, one status; words of a rejection go on, others do not."""
    pool.fail("adder", fault)
    response = strict.ask(ONE, model=model)
    assert response.status_code == status
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    usual = "upstream_error" if status >= 500 else "invalid_request_error"
    assert error["type"] == ("rate_limit_error" if status == 429 else usual)
    assert "adder" in error["message"]
    assert (UPSTREAM_WORDS in error["message"]) == (fault in ("400", "404"))
    for words in ("it works", "ESMTP", "127.0.0.1", ONE):
        assert words not in response.text
    if fault in ("500", "429", "hang", "reset"):
        assert int(response.headers["retry-after"]) >= 1
    if fault in ("400", "401", "404"):
        assert response.headers["x-should-retry"] == "false"
    # A reset connection may have been a stale one that delivered nothing, so it is tried again.
    assert pool.models_called() in (["adder"], ["adder"] * (2 if fault == "reset" else 1))
    assert pool.trapped == []  # no redirect was followed


def test_different_faults_are_one_bad_gateway(strict: Gateway, pool: FakePool) -> None:
    """A timeout and a 500 together are 502 and name both."""
    pool.fail("adder", "hang")
    pool.fail("speller", "500")
    pool.fail("poet", "500")  # the rest of the pool is called before the request fails
    response = strict.ask(TWO)
    assert response.status_code == 502
    message = response.json()["error"]["message"]
    assert "adder (upstream_timeout)" in message
    assert "speller (upstream_error)" in message


def test_one_passing_fault_is_enough_to_try_again(strict: Gateway, pool: FakePool) -> None:
    """One candidate rejects for good, the other may come back."""
    pool.fail("adder", "400")
    pool.fail("speller", "500")
    pool.fail("poet", "400")
    assert "retry-after" in strict.ask(TWO).headers
    pool.fail("speller", "401")
    assert strict.ask(TWO).headers["x-should-retry"] == "false"


def test_proxies_of_the_environment_are_not_used(
    serve: Serve, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Candidates are exactly where the configuration says."""
    for variable in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:1")
    gateway = serve(calibrated=False)
    assert gateway.ask(ONE, model="adder").status_code == 200
    assert pool.models_called() == ["adder"]


def test_each_candidate_has_its_own_deadline(serve: Serve, pool: FakePool) -> None:
    """The hasty one fails at its limit; the patient one's slow answer is still waited for."""
    gateway = serve(candidates=candidates(pool.url, adder={"timeout_s": 0.2}))
    pool.say("adder", "7", delay_s=5)
    pool.say("speller", "seven", delay_s=0.6)
    answer = gateway.chat(TWO)
    assert answer["model"] == "speller"
    assert {"candidate": "adder", "error": "upstream_timeout"} in answer["racer"]["calls"]


def test_a_stream_over_the_limit_is_cut(strict: Gateway, pool: FakePool) -> None:
    """Streams are counted too."""
    pool.say("adder", "4" * 4_000)  # about 200 bytes a chunk
    assert '"type":"upstream_error"' in strict.ask(ONE, stream=True).text


@pytest.mark.parametrize("shadow_rate", [0.0, 1.0])
@pytest.mark.parametrize("attempts", [1, 2])
def test_a_request_calls_each_candidate_as_often_as_the_attempts_allow(
    serve: Serve, pool: FakePool, attempts: int, shadow_rate: float
) -> None:
    """Selected, added after failures or streamed: nothing has a second round of calls.

    A sample alone calls what failed once more, after the answer.
    """
    rounds = 2 if shadow_rate else 1
    gateway = serve(
        fleet={"attempts": attempts, "retry_share": 1.0}, watching={"shadow_rate": shadow_rate}
    )
    for name in POOL:
        pool.fail(name, "500")
    asked = 0
    for stream in (False, True):
        for racer in ({}, {"alpha": 0.001}, {"explain": True}, {"stream": "leader"}):
            for text in (ONE, TWO):
                pool.requests.clear()
                gateway.ask(text, racer, stream=stream)
                asked += 1
                if shadow_rate:
                    sampled(gateway, asked)
                calls = pool.calls()
                assert calls
                assert set(calls.values()) <= {attempts, rounds * attempts}
