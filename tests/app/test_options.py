"""Options of requests, keys and the configuration, and their statement in the certificate."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.settings import key_format
from tests.kit.case import Shared
from tests.kit.gateway import (
    ENVIRONMENT,
    ONE,
    POOL,
    TWO,
    UNANSWERABLE,
    Gateway,
    Serve,
    candidates,
    user,
)
from tests.kit.network import closed_port
from tests.kit.upstream import FakePool
from tests.kit.waiting import until

WHOLE_POOL = {"alpha": 0.001, "explain": True}  # the whole pool is called, and waited for
TOOLS = [{"type": "function", "function": {"name": "add"}}]


def certificate(answer: dict[str, Any]) -> tuple[bool, list[str]]:
    """Whether it holds, and its reasons."""
    certificate = answer["racer"]["certificate"]
    return certificate["holds"], certificate["reasons"]


def last_event(text: str) -> dict[str, Any]:
    """The last event of a stream before its end."""
    return json.loads(text.split("data: ")[-2])


# Time -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["auto", "adder"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_may_have_less_time(
    shared: Shared, pool: FakePool, model: str, stream: bool
) -> None:
    """The shorter of ``racer.timeout`` and the gateway's limit ends the calls of a request."""
    for name in POOL:
        pool.say(name, "7", delay_s=20)
    for case, timeout in ((shared(), 1.0), (shared(limits={"deadline_s": 0.4}), 60)):
        response = case.gateway.ask(ONE, {"timeout": timeout}, model=model, stream=stream)
        assert (response.status_code, response.json()["error"]["code"]) == (504, "upstream_timeout")
        assert until(lambda: "adder" in pool.cancelled)


def test_answers_before_the_deadline_count(gateway: Gateway, pool: FakePool) -> None:
    """The deadline fails only the calls that are late."""
    pool.say("adder", "7", delay_s=20)
    pool.say("speller", "8")
    answer = gateway.chat(TWO, {"timeout": 2.0})
    assert answer["model"] == "speller"
    assert certificate(answer) == (False, ["candidate_failed:adder"])
    assert {"candidate": "adder", "error": "upstream_timeout"} in answer["racer"]["calls"]


def test_a_time_that_is_none_is_refused(gateway: Gateway, pool: FakePool) -> None:
    """The error names the field."""
    for timeout in (0, -1, "1", True, [1]):
        response = gateway.ask(ONE, {"timeout": timeout})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "racer.timeout")
    assert pool.models_called() == []


# The set, overridden ----------------------------------------------------------------------------


def test_the_best_can_be_streamed_at_once(gateway: Gateway, pool: FakePool) -> None:
    """``stream: leader`` calls the best of a larger set alone and live, and promises nothing."""
    pool.say("adder", "seven")
    response = gateway.ask(TWO, {"stream": "leader"}, stream=True)
    racer = last_event(response.text)["racer"]
    assert pool.models_called() == ["adder"]
    assert (racer["selected"], racer["served_by"]) == (["adder"], "adder")
    assert certificate({"racer": racer}) == (False, ["leader_streamed"])
    assert response.headers["x-racer-guarantee"] == "void; leader_streamed"
    assert response.text.count('"content"') == len("seven")
    complete = gateway.ask(ONE, {"stream": "leader"}, stream=True)  # a set of one
    assert certificate(last_event(complete.text)) == (True, [])
    assert certificate(gateway.chat(TWO, {"stream": "leader", "explain": True})) == (True, [])


@pytest.mark.parametrize("stream", [False, True])
def test_observe_mode_calls_one_candidate_for_every_decision(
    shared: Shared, pool: FakePool, stream: bool
) -> None:
    """Nothing changes for clients, not even by an abstention or a failure; the set is recorded."""
    case = shared(routing={"observe": "poet"})
    pool.say("poet", "Roses")
    for query in (ONE, TWO, UNANSWERABLE):
        for policy in ("refuse", "error", "strongest"):
            ask = case.stream if stream else case.ask
            answer = ask(query, {"on_abstain": policy})
            assert answer.racer["served_by"] == "poet"
            assert (answer.certificate["holds"], answer.reasons) == (False, ["observe_only"])
    assert set(pool.models_called()) == {"poet"}
    assert case.route(TWO)["selected"] == ["adder", "speller"]
    stored = case.decision(ask(TWO))
    assert (sorted(stored["selected"]), stored["answered"]) == (["adder", "speller"], ["poet"])
    pool.fail("poet", "400")  # is not tried again
    assert case.gateway.ask(TWO, stream=stream).status_code == 400
    assert set(pool.models_called()) == {"poet"}


# Parts of the pool ------------------------------------------------------------------------------


def test_a_named_pool_is_a_model(serve: Serve, pool: FakePool) -> None:
    """``auto/<pool>`` routes among its members at the pool's alpha; the request chose both."""
    words = {"candidates": ["speller", "poet"], "alpha": 0.2}
    gateway = serve(pools={"words": words})
    assert "auto/words" in [model.id for model in gateway.openai().models.list()]
    answer = gateway.chat(TWO, model="auto/words")
    guarantee = answer["racer"]["certificate"]["guarantee"]
    assert (guarantee["pool"], guarantee["alpha"]) == (["speller", "poet"], 0.2)
    chosen = [f"{name}_assumed_independent_of_query" for name in ("pool", "alpha")]
    assert (answer["model"], certificate(answer)) == ("speller", (True, chosen))
    same = gateway.chat(TWO, {"alpha": 0.2, "candidates": words["candidates"]})
    assert certificate(same) == (True, chosen)
    own = gateway.chat(TWO, {"alpha": 0.3}, model="auto/words")
    assert own["racer"]["certificate"]["guarantee"]["alpha"] == 0.3
    assert certificate(own) == (True, chosen)
    usual = gateway.chat(TWO, {"alpha": 0.1}, model="auto/words")
    assert certificate(usual) == (True, chosen[:1])
    assert "adder" not in pool.models_called()


IMAGE = [
    {"type": "text", "text": ONE},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "sum", "schema": {}}}


@pytest.mark.parametrize(
    ("lacks", "fields"),
    [
        ({"tools": False}, {"tools": TOOLS}),
        ({"vision": False}, {"messages": [{"role": "user", "content": IMAGE}]}),
        ({"json_schema": False}, {"response_format": SCHEMA}),
        ({"context_chars": 100}, {"messages": user(ONE + " again" * 20)}),
        (
            {"context_chars": 100},
            {"messages": [{"role": "system", "content": "s" * 90}, *user(ONE)]},
        ),
    ],
    ids=str,
)
def test_candidates_without_the_capability_are_not_called(
    serve: Serve, pool: FakePool, lacks: dict[str, Any], fields: dict[str, Any]
) -> None:
    """The others are called, here all of them: no row was a request of that kind alone."""
    gateway = serve(
        candidates=candidates(pool.url, adder={"capabilities": lacks}),
        routing={"on_uncovered": "whole_pool"},
    )
    answer = gateway.chat(ONE, {"explain": True}, **fields)
    assert pool.models_called() == ["poet", "speller"]
    holds, reasons = certificate(answer)
    assert not holds
    assert "unlabelled_request_kind" in reasons
    assert answer["racer"]["certificate"]["guarantee"]["pool"] == ["speller", "poet"]
    pool.reset()
    assert certificate(gateway.chat(ONE)) == (True, [])
    assert pool.models_called() == ["adder"]


def test_a_request_that_no_candidate_supports_is_refused(serve: Serve, pool: FakePool) -> None:
    """400 instead of a call to a candidate without the capability."""
    gateway = serve(candidates=candidates(pool.url, capabilities={"tools": False}))
    response = gateway.ask(ONE, tools=TOOLS)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "candidates")
    assert pool.models_called() == []


def test_more_than_the_limit_are_not_called(serve: Serve, pool: FakePool) -> None:
    """``limits.fan_out`` keeps the best, and the certificate says that others were meant."""
    gateway = serve(limits={"fan_out": 2})
    answer = gateway.chat(ONE, WHOLE_POOL)
    assert len(pool.requests) == len(answer["racer"]["selected"]) == 2
    assert answer["racer"]["selected"][0] == "adder"
    holds, reasons = certificate(answer)
    assert not holds
    assert "fan_out_limited" in reasons


# Keys -------------------------------------------------------------------------------------------

TEAM_KEY = key_format.new_key()


def team(**fields: Any) -> dict[str, Any]:
    """`access` with a key that is bound by these."""
    written = key_format.format_hash(TEAM_KEY, key_format.new_salt())
    return {"keys": [{"name": "team", "hash": written, **fields}]}


def asked_by_team(gateway: Gateway, path: str = "chat/completions", **fields: Any) -> Any:
    """A request with the team's key."""
    body = {"model": "auto", **fields}
    if "input" not in body and "prompt" not in body:
        body = {"messages": user(ONE), **body}
    return gateway.post(f"/v1/{path}", TEAM_KEY, json=body)


def test_a_key_calls_none_but_its_candidates(serve: Serve, pool: FakePool) -> None:
    """Routed, named, observed or for embeddings: 403 or another set, never another candidate."""
    gateway = serve(access=team(candidates=["speller", "poet"]))
    racer = asked_by_team(gateway, messages=user(TWO)).json()["racer"]
    assert racer["selected"] == ["speller"]
    assert racer["certificate"]["guarantee"]["pool"] == ["speller", "poet"]
    assert (racer["certificate"]["holds"], racer["certificate"]["reasons"]) == (True, [])
    for stream in (False, True):
        assert asked_by_team(gateway, model="adder", stream=stream).status_code == 403
        assert asked_by_team(gateway, model="poet", stream=stream).status_code == 200
    assert asked_by_team(gateway, "embeddings", model="adder", input="a").status_code == 403
    assert asked_by_team(gateway, "embeddings", model="poet", input="a").status_code == 200
    only = {"candidates": ["adder"]}
    assert asked_by_team(gateway, racer=only).status_code == 400
    assert "adder" not in pool.models_called()
    assert gateway.ask(ONE, model="adder").status_code == 200  # other keys may


@pytest.mark.parametrize(("allowed", "status"), [(["speller"], 403), ([], 400)])
def test_an_experiment_or_an_empty_list_opens_no_door(
    serve: Serve, pool: FakePool, allowed: list[str], status: int
) -> None:
    """A key is not observed at a candidate that it may not call, and an empty list allows none."""
    routing = {"observe": "adder"} if allowed else {}
    gateway = serve(access=team(candidates=allowed), routing=routing)
    assert asked_by_team(gateway).status_code == status
    assert asked_by_team(gateway, model="adder").status_code == 403
    assert asked_by_team(gateway, "embeddings", model="adder", input="a").status_code == 403
    assert pool.models_called() == []
    assert gateway.ask(ONE).status_code == 200


def test_a_keys_largest_alpha_binds(serve: Serve) -> None:
    """A larger request is refused, the default is lowered to it, and a smaller one is allowed."""
    gateway = serve(access=team(max_alpha=0.05))
    refused = asked_by_team(gateway, racer={"alpha": 0.2})
    assert (refused.status_code, refused.json()["error"]["type"]) == (403, "permission_error")
    usual = asked_by_team(gateway).json()["racer"]["certificate"]
    assert (usual["guarantee"]["alpha"], usual["reasons"]) == (0.05, [])
    less = asked_by_team(gateway, racer={"alpha": 0.04}).json()["racer"]["certificate"]
    assert less["guarantee"]["alpha"] == 0.04
    assert gateway.chat(ONE)["racer"]["certificate"]["guarantee"]["alpha"] == 0.1


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("chat/completions", {}),
        ("chat/completions", {"stream": True}),
        ("chat/completions", {"messages": user(TWO), "stream": True}),
        ("chat/completions", {"model": "poet"}),
        ("chat/completions", {"model": "poet", "stream": True}),
        ("completions", {"model": "poet", "prompt": "a", "stream": True}),
        ("responses", {"model": "poet", "input": "a"}),
        ("responses", {"model": "poet", "input": "a", "stream": True}),
        ("embeddings", {"model": "poet", "input": ["a"] * 20}),
    ],
    ids=str,
)
def test_a_keys_tokens_are_counted_on_every_endpoint(
    serve: Serve, path: str, fields: dict[str, Any]
) -> None:
    """One answer uses more than this key has for the minute, so the next is refused."""
    gateway = serve(access=team(tokens_per_minute=5))
    assert asked_by_team(gateway, path, **fields).status_code == 200
    refused = asked_by_team(gateway, path, **fields)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limited")


# How a candidate is reached ---------------------------------------------------------------------


def test_a_parameter_goes_by_the_name_that_a_server_gives_it(serve: Serve, pool: FakePool) -> None:
    """The client's and the configured value alike; the rows were labelled with the same."""
    server = {
        "renames": {"max_completion_tokens": "max_tokens", "top_k": "k"},
        "parameters": {"max_completion_tokens": 32, "top_k": 5},
    }
    gateway = serve(candidates=candidates(pool.url, **server))
    answer = gateway.chat(ONE, max_completion_tokens=32)
    assert certificate(answer) == (True, [])
    sent = pool.requests[0]
    assert (sent["max_tokens"], sent["k"]) == (32, 5)
    assert {"max_completion_tokens", "top_k"}.isdisjoint(sent)


def test_headers_and_a_key_of_another_name_reach_the_candidate(
    serve: Serve, pool: FakePool
) -> None:
    """Some servers want their key bare and in a header of their own."""
    adder = {"headers": {"X-Team": "red"}, "api_key_env": "KEY", "key_header": "Api-Key"}
    gateway = serve(
        candidates=candidates(pool.url, adder=adder),
        environment=ENVIRONMENT | {"KEY": "the-adders-own-key"},
    )
    gateway.chat(ONE)
    assert pool.headers[0]["x-team"] == "red"
    assert pool.headers[0]["api-key"] == "the-adders-own-key"
    assert "authorization" not in pool.headers[0]


def test_around_a_candidate_that_is_down_the_rest_is_certified(
    serve: Serve, pool: FakePool
) -> None:
    """An outage is a cause outside the query: the surviving pool's threshold, and it holds."""
    gateway = serve(candidates=candidates(pool.url, adder={"base_url": closed_port()}))
    for _ in range(3):
        gateway.ask(TWO)
    answer = gateway.chat(TWO)
    assert answer["model"] == "speller"
    assert certificate(answer) == (True, ["candidate_down:adder"])
    assert answer["racer"]["certificate"]["guarantee"]["pool"] == ["speller", "poet"]
    assert [each["candidate"] for each in answer["racer"]["calls"]] == ["speller"]
    assert gateway.ask(ONE, model="adder").status_code == 503


# Limits -----------------------------------------------------------------------------------------

MANY = [{"role": "user", "content": "a"}] * 2049


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("chat/completions", {"n": 129}, "n"),
        ("chat/completions", {"n": 0}, "n"),
        ("chat/completions", {"n": -1}, "n"),
        ("chat/completions", {"n": True}, "n"),
        ("chat/completions", {"n": "2"}, "n"),
        ("chat/completions", {"n": 1.5}, "n"),
        ("chat/completions", {"max_tokens": 131_073}, "max_tokens"),
        ("chat/completions", {"max_completion_tokens": 10**9}, "max_completion_tokens"),
        ("chat/completions", {"max_tokens": 0}, "max_tokens"),
        ("chat/completions", {"tools": TOOLS * 129}, "tools"),
        ("chat/completions", {"functions": [{"name": "f"}] * 129}, "functions"),
        ("chat/completions", {"messages": MANY}, "messages"),
        ("completions", {"prompt": ONE, "best_of": 129}, "best_of"),
        ("completions", {"prompt": ONE, "n": 129}, "n"),
        ("completions", {"prompt": [ONE] * 129}, "prompt"),
        ("completions", {"prompt": [[1, 2]] * 129}, "prompt"),
        ("completions", {"prompt": [ONE] * 43, "n": 3}, "prompt"),
        ("completions", {"prompt": [ONE] * 43, "best_of": 3}, "prompt"),
        ("responses", {"input": MANY}, "input"),
        ("responses", {"input": ONE, "max_output_tokens": 131_073}, "max_output_tokens"),
        ("route", {"messages": MANY}, "messages"),
        ("route", {"n": 129}, "n"),
        ("embeddings", {"input": ["a"] * 2049}, "input"),
        ("embeddings", {"input": [[1, 2]] * 2049}, "input"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_requests_of_unbounded_cost_are_refused(
    gateway: Gateway, pool: FakePool, path: str, fields: dict[str, Any], param: str
) -> None:
    """The error names the field; no candidate is called, routed or named."""
    own = {} if "prompt" in fields or "input" in fields else {"messages": user(ONE)}
    for model in ("adder",) if path == "embeddings" else ("auto", "adder"):
        response = gateway.post(f"/v1/{path}", json={"model": model, **own, **fields})
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert pool.models_called() == []


def test_a_list_of_tokens_is_one_prompt(gateway: Gateway, pool: FakePool) -> None:
    """A list of numbers is a prompt, as several texts are several."""
    tokens = list(range(3_000))
    for path, field in (("completions", "prompt"), ("embeddings", "input")):
        for value in (tokens, ["a"] * 8):
            body = {"model": "adder", field: value}
            assert gateway.post(f"/v1/{path}", json=body).status_code != 400
            assert pool.requests.pop()[field] == value


def test_limits_are_the_operators(serve: Serve, pool: FakePool) -> None:
    """At the limit is within it."""
    gateway = serve(limits={"choices": 1, "max_tokens": 16, "tools": 1, "messages": 2})
    fits = {"n": 1, "max_tokens": 16, "tools": TOOLS, "messages": [*user(UNANSWERABLE), *user(ONE)]}
    assert gateway.ask(ONE, **fits).status_code == 200
    assert pool.requests
    over = [("n", 2), ("max_tokens", 17), ("tools", TOOLS * 2), ("messages", user(ONE) * 3)]
    for field, value in over:
        error = gateway.ask(ONE, **{field: value}).json()["error"]
        assert error["param"] == field
        assert f"`limits.{ {'n': 'choices'}.get(field, field) }`" in error["message"]


@pytest.mark.parametrize("model", ["auto", "adder"])
@pytest.mark.parametrize("fields", [{"max_completion_tokens": 128_000}, {"n": 32}], ids=str)
def test_vendors_limits_are_accepted(
    gateway: Gateway, pool: FakePool, model: str, fields: dict[str, Any]
) -> None:
    """Reasoning models write 128,000 tokens, and OpenAI gives up to 128 choices."""
    assert gateway.ask(ONE, model=model, **fields).status_code == 200
    assert pool.requests[0].items() >= fields.items()


def test_texts_to_embed_have_a_limit(shared: Shared, pool: FakePool) -> None:
    """As messages have; no candidate is called."""
    gateway = shared().gateway
    for value in (["a"] * 2049, [[1, 2]] * 2049):
        response = gateway.post("/v1/embeddings", json={"model": "adder", "input": value})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "input")
    assert pool.requests == []
