"""Every row of the table of errors through every client library, as its own exception."""

from __future__ import annotations

import importlib
import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from app.access import lease_store
from app.errors import StoreUnavailable
from app.routing.service import RoutingService
from tests.kit import provoked_errors
from tests.kit.clients import CLIENTS, Ask, Failure, OpenAI, SdkClient
from tests.kit.connections import dialled
from tests.kit.gateway import (
    DATA_KEY,
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
from tests.kit.provoked_errors import CASES, ELSEWHERE, NOT_BY_CLIENTS, Case, provoke
from tests.kit.upstream import FakePool
from tests.kit.waiting import wait_until

anthropic, openai = LazyModule("anthropic"), LazyModule("openai")
error_classes = LazyModule("anthropic._error_classes")

EACH_CASE = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
STREAMED = {name: CASES[name] for name in ("alpha", "key", "quota", "503", "html", "late")}
EACH_CLIENT = pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS.keys())

Gateways = Callable[[Case], Gateway]


@pytest.fixture(scope="module")
def gateways(
    tmp_path_factory: pytest.TempPathFactory, artifact: Path, shared_pool: FakePool
) -> Iterator[Gateways]:
    """The gateway of a case, started when the first case needs it."""
    folder = tmp_path_factory.mktemp("gateways")
    started: dict[str, Gateway] = {}
    with ExitStack() as stack:

        def start(name: str) -> Gateway:
            url = shared_pool.url
            if name in ("small", "crowded"):
                port = stack.enter_context(socket.socket())
                port.bind(("127.0.0.1", 0))  # no server listens on it
                closed = f"http://127.0.0.1:{port.getsockname()[1]}/v1"
                path = provoked_errors.small_configuration(folder / name, artifact, url, closed)
                gateway = stack.enter_context(running(path, ENVIRONMENT))
                if name == "crowded":
                    half_sent_body(gateway, stack.enter_context(dialled(gateway)))
                return gateway
            if name == "full":
                path = provoked_errors.full_configuration(folder / name, artifact, url)
                gateway = stack.enter_context(running(path, ENVIRONMENT))
                host, port = gateway.url.removeprefix("http://").split(":")
                stack.enter_context(socket.create_connection((host, int(port))))
                return gateway
            path = provoked_errors.strict_configuration(folder / name, artifact, url)
            gateway = stack.enter_context(running(path, ENVIRONMENT))
            gateway.calibrate()
            return gateway

        def of(case: Case) -> Gateway:
            name = "strict" if case.gateway == "any" else case.gateway
            if case.once or name not in started:
                started[name] = start(name)
            return started[name]

        yield of


def half_sent_body(gateway: Gateway, connection: socket.socket) -> None:
    """One that leaves too little memory for another large one."""
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
        "content-type: application/json\r\ncontent-length: 160000\r\n"
        f"authorization: Bearer {DATA_KEY}\r\n\r\n"
    )
    connection.sendall(head.encode() + b" " * 150_000)
    large = json.dumps({"model": "poet", "messages": [], "padding": "x" * 140_000}).encode()
    headers = {"content-type": "application/json"}

    def is_crowded() -> bool:
        answer = gateway.post("/v1/chat/completions", content=large, headers=headers)
        return answer.status_code == 429

    wait_until(is_crowded)


def asked(gateway: Gateway, case: Case, **more: Any) -> Ask:
    """The request of a case."""
    return Ask(
        url=gateway.url + case.path,
        key=case.key,
        text=case.text,
        model=case.model,
        racer=case.racer,
        headers=case.headers,
        **more,
    )


def raised(client: SdkClient, ask: Callable[[], object]) -> Failure:
    """The library's own exception."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - they have no common root
        ask()
    return client.failure(caught.value)


@EACH_CLIENT
@EACH_CASE
def test_an_error_is_the_clients_own(
    gateways: Gateways, pool: FakePool, client: SdkClient, case: Case
) -> None:
    """Its class by status, our code where it is kept, and what to do next."""
    gateway = gateways(case)
    provoke(gateway, pool, case)
    checked(raised(client, lambda: client.ask(asked(gateway, case))), client, case)


@EACH_CLIENT
@pytest.mark.parametrize("case", STREAMED.values(), ids=STREAMED.keys())
def test_an_error_before_a_stream_is_the_same(
    gateways: Gateways, pool: FakePool, client: SdkClient, case: Case
) -> None:
    """Also when a candidate fails that would have been streamed live."""
    gateway = gateways(case)
    provoke(gateway, pool, case)
    checked(raised(client, lambda: client.stream(asked(gateway, case))), client, case)


def checked(failure: Failure, client: SdkClient, case: Case) -> None:
    """The exception is that of the case."""
    assert failure.status == case.status
    assert failure.kind == client.classes_by_code.get(case.code, client.classes[case.status])
    assert failure.code == (case.code if client.keeps_code else None)
    # Some are answered before there is a request.
    has_id = case.status not in (414, 431) and case.gateway != "full"
    assert ("x-request-id" in failure.headers) == has_id
    given = [failure.headers.get(name) for name in ("retry-after", "x-should-retry")]
    assert given[1] == (None if case.retry and not case.is_long else "false")
    assert (given[0] is not None) is case.retry
    assert given[0] is None or (1 <= int(given[0]) <= 60) is not case.is_long


@EACH_CLIENT
@pytest.mark.parametrize("name", ["503", "rejected"])
def test_a_client_asks_again_when_it_is_told(
    gateways: Gateways,
    pool: FakePool,
    monkeypatch: pytest.MonkeyPatch,
    client: SdkClient,
    name: str,
) -> None:
    """After the second that `retry-after` names, where its own first pause is shorter; or never."""
    case = CASES[name]
    gateway = gateways(case)
    provoke(gateway, pool, case)
    pauses: list[float] = []
    for module in ("openai._base_client", "anthropic._base_client"):
        monkeypatch.setattr(importlib.import_module(module), "time", Clock(pauses))
    raised(client, lambda: client.ask(asked(gateway, case, retries=2)))
    assert pauses == ([1.0, 1.0] if case.retry else [])
    assert len(pool.requests) == len(pauses) + 1


class Clock:
    """The module ``time``, whose ``sleep`` notes the pause and returns at once."""

    def __init__(self, pauses: list[float]) -> None:
        self.sleep = pauses.append

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("time"), name)


@EACH_CLIENT
@pytest.mark.parametrize("query", [ONE, TWO])
def test_a_broken_stream_raises(
    gateway: Gateway, pool: FakePool, client: SdkClient, query: str
) -> None:
    """An exception that names the candidate, and never a text that looks whole."""
    for name in POOL:
        pool.say(name, "42", fault="cut" if query is ONE else "400", delay_s=0.4)
    with pytest.raises(Exception, match="adder") as caught:
        client.stream(Ask(url=gateway.url, key=DATA_KEY, text=query))
    assert type(caught.value).__module__.startswith(("openai", "anthropic", "litellm"))


@EACH_CLIENT
@pytest.mark.parametrize("stream", [False, True])
def test_a_bug_is_an_internal_error(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, client: SdkClient, stream: bool
) -> None:
    """500, and not a word of what went wrong."""

    async def route(*_: object) -> None:
        raise RuntimeError("a prompt")

    monkeypatch.setattr(RoutingService, "route", route)
    ask = Ask(url=gateway.url, key=DATA_KEY, text=ONE)
    with pytest.raises(Exception, match=r"^(?!.*a prompt)") as caught:
        _ = client.stream(ask) if stream else client.ask(ask)
    failure = client.failure(caught.value)
    assert (failure.status, failure.kind) == (500, "InternalServerError")
    assert failure.code == ("internal_error" if client.keeps_code else None)


@EACH_CLIENT
def test_a_budget_whose_store_is_lost_is_unavailable(
    serve: Serve, pool: FakePool, monkeypatch: pytest.MonkeyPatch, client: SdkClient
) -> None:
    """503, and to be tried again: nothing is leased, so what is left is not known."""

    def away(*_: object) -> None:
        raise StoreUnavailable("not there")

    monkeypatch.setattr(lease_store, "sync", away)
    gateway = serve(candidates=candidates(pool.url, price=1.0), budget={"hard": 9.0})
    failure = raised(client, lambda: client.ask(Ask(url=gateway.url, key=DATA_KEY, text=ONE)))
    checked(failure, client, Case(status=503, code="store_unavailable", retry=True))


def test_a_gateway_that_stops_says_so_to_every_client(
    tmp_path: Path, artifact: Path, pool: FakePool
) -> None:
    """Requests that are not answered when the drain is over are 503."""
    for name in POOL:
        pool.say(name, "42", delay_s=60)
    patient = candidates(pool.url, timeout_s=60)
    limits = {"drain_s": 0.5}
    path = configure(tmp_path, artifact, pool.url, candidates=patient, limits=limits)
    with ThreadPoolExecutor(len(CLIENTS)) as threads:
        with running(path, ENVIRONMENT) as gateway:
            ask = Ask(url=gateway.url, key=DATA_KEY, text=ONE)
            failures = {
                name: threads.submit(raised, client, lambda client=client: client.ask(ask))
                for name, client in CLIENTS.items()
            }
            wait_until(lambda: len(pool.requests) == len(CLIENTS))
        for name, client in CLIENTS.items():
            failure = failures[name].result()
            assert (failure.status, failure.kind) == (503, client.classes[503]), name
            assert failure.code == ("shutting_down" if client.keeps_code else None)


def test_a_method_that_is_not_served(gateway: Gateway) -> None:
    """OpenAI's client lists stored completions by it."""
    failure = raised(OpenAI(), gateway.openai().chat.completions.list)
    assert (failure.status, failure.code) == (405, "method_not_allowed")


def test_a_lost_model_is_no_fault_of_the_request(serve: Serve, pool: FakePool) -> None:
    """Its server says 404, the client gets 503."""
    pool.fail("adder", "lost_model")
    ask = serve(calibrated=False).openai().with_options(max_retries=0).chat.completions.create
    said = [{"role": "user", "content": ONE}]
    failure = raised(OpenAI(), lambda: ask(model="adder", messages=said))  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert (failure.status, failure.code) == (503, "upstream_model_missing")


def test_tokens_are_counted_or_the_client_says_why(gateway: Gateway, pool: FakePool) -> None:
    """By the candidates' servers, where one can."""
    count = gateway.anthropic().messages.count_tokens
    pool.tokens |= dict.fromkeys(POOL, 12)
    assert count(model="auto", messages=[{"role": "user", "content": ONE}]).input_tokens == 12
    pool.tokens.clear()
    failure = raised(
        CLIENTS["anthropic"],
        lambda: count(model="auto", messages=[{"role": "user", "content": ONE}]),
    )
    assert (failure.status, failure.code) == (404, "no_tokenizer")


def test_every_row_of_the_table_is_provoked_or_named() -> None:
    """Red when a new error has no case, and when a case or a reason is of no row any more."""
    rows = {code for _, _, code in provoked_errors.error_rows()}
    tried = {case.code for case in CASES.values()}
    assert rows == tried | set(ELSEWHERE) | set(NOT_BY_CLIENTS)
    assert len(rows) == len(tried) + len(ELSEWHERE) + len(NOT_BY_CLIENTS)
    pairs = {(case.status, case.code) for case in CASES.values()}
    assert pairs >= {(s, c) for s, _, c in provoked_errors.error_rows() if c in tried}


def test_no_code_of_ours_means_something_else_to_anthropics_client() -> None:
    """It has classes of its own for some codes."""
    theirs = {code for _, code in error_classes.ERROR_CLASSES if code is not None}
    assert {code for _, _, code in provoked_errors.error_rows()} & theirs == set()
