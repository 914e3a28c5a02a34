"""Chat completions and /route: what is peculiar to them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.answering import streaming
from racer_core.calibration.certificate import base_reason
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.offline.train import train
from racer_core.types import LabelledRows
from tests.kit.case import Shared
from tests.kit.gateway import (
    ONE,
    POOL,
    TWO,
    UNANSWERABLE,
    Gateway,
    Serve,
    candidates,
    decided,
    labelled,
    user,
)
from tests.kit.lazy import LazyModule
from tests.kit.upstream import FakePool

from .formats import CHAT, WHOLE_POOL

openai = LazyModule("openai")
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


def test_candidates_are_called_at_the_same_time(gateway: Gateway, pool: FakePool) -> None:
    """The three calls overlap in time."""
    for name in POOL:
        pool.say(name, "7", delay_s=0.3)
    answer = gateway.chat(ONE, WHOLE_POOL)
    assert len(answer["racer"]["calls"]) == pool.peak == 3


def test_a_candidate_that_does_not_count_tokens_adds_none(gateway: Gateway, pool: FakePool) -> None:
    """Usage that is missing or odd is not a failure of the request."""
    pool.say("adder", "7", fields={"usage": None})
    pool.say("speller", "7", fields={"usage": {"total_tokens": -3, "prompt_tokens": "many"}})
    answer = gateway.chat(TWO, {"explain": True})
    assert answer["usage"]["total_tokens"] == 0
    assert answer["racer"]["usage_incomplete"] is True
    pool.reset()
    assert gateway.chat(TWO, {"explain": True})["racer"]["usage_incomplete"] is False


def test_the_certificate_has_every_documented_field(gateway: Gateway) -> None:
    """The certificate is the one of the design, field by field."""
    racer = gateway.chat("What is 71 plus 72?")["racer"]
    assert racer["certificate"] == {
        "guarantee": {
            "risk_target": "answerable",
            "alpha": 0.1,
            "delta": None,
            "r": 1,
            "unit": "request",
            "law": "beta",
            "group": None,
            "pool": list(POOL),
            "conditional": "marginal",
            "alpha_basis": "fixed",
            "risk_band": None,
            "risk_band_delta": None,
            "bound": {"value": 0.1, "confidence": None},
            "advice": None,
            "answer_risk_max": None,
            "answer_risk_delta": None,
            "premise": "alike",
            "turns": "separate",
            "weights": None,
            "labels": None,
            "trivial": False,
        },
        "lambda_hat": 0.0,
        "score": "gap",
        "n": 300,
        "calibration_id": gateway.ready()["calibration"],
        "holds": True,
        "reasons": [],
        "remarks": [],
    }


def test_the_racer_object_and_the_headers_state_the_decision(
    gateway: Gateway, pool: FakePool
) -> None:
    """Set, scores, votes, calls and time, for clients that drop unknown fields in headers, too."""
    pool.say("adder", "7")
    pool.say("speller", "7")
    response = gateway.ask(TWO, {"explain": True})
    answer, headers = response.json(), response.headers
    racer = answer["racer"]
    assert racer["decision_id"] == answer["id"] != gateway.chat(TWO)["id"]
    assert racer["scores"] == {"adder": 1.0, "speller": 1.0}
    assert racer["pool_scores"] == {"adder": 1.0, "speller": 1.0, "poet": 0.0}
    assert racer["votes"] == {"7": 2}
    assert [call["candidate"] for call in racer["calls"]] == ["adder", "speller"]
    assert all(call["ms"] > 0 for call in racer["calls"])
    assert racer["overhead_ms"] > 0
    assert (racer["abstained"], racer["truncated"]) == (False, False)
    assert {name: headers[f"x-racer-{name}"] for name in HEADERS} == HEADERS
    assert headers["x-racer-decision-id"] == answer["id"]
    assert 0 < float(headers["x-racer-overhead-ms"]) < response.elapsed.total_seconds() * 1e3


HEADERS = {
    "selected": "adder,speller",
    "served-by": "adder",
    "alpha": "0.1",
    "guarantee": "holds",
    "abstained": "false",
}


def test_fields_that_we_do_not_know_survive(gateway: Gateway, pool: FakePool) -> None:
    """What the winner's server says reaches the client, and what the client says the servers."""
    logprobs = {"content": [{"token": "7", "logprob": -0.1, "bytes": [55], "top_logprobs": []}]}
    message = {"role": "assistant", "content": "7", "reasoning": "3 and 4"}
    more = {"finish_reason": "stop", "stop_reason": 5, "logprobs": logprobs}
    choice = {"index": 0, "message": message, **more}
    for name in POOL:
        pool.say(name, "7", fields={"choices": [choice], "system_fingerprint": "fp"})
    body = {**PASSED, "model": "auto", "racer": {"alpha": 0.1}, "stream": False}
    answer = gateway.post("/v1/chat/completions", json=body).json()
    assert answer["system_fingerprint"] == "fp"
    assert answer["choices"] == [choice]
    assert pool.requests
    for request in pool.requests:
        assert request == {**PASSED, "model": request["model"], "stream": False}
    _, events = CHAT.stream(gateway, TWO, logprobs=True)
    assert events[0]["choices"][0]["logprobs"] == logprobs
    assert events[0]["choices"][0]["delta"] == message


PASSED = {
    "messages": [{"role": "user", "content": ONE, "name": "Ada", "x_of_a_turn": [1, None]}],
    "temperature": 0.25,
    "top_p": 0.5,
    "max_completion_tokens": 64,
    "n": 1,
    "seed": 7,
    "stop": ["\n", "é"],
    "logprobs": True,
    "top_logprobs": 2,
    "logit_bias": {"50256": -100},
    "presence_penalty": 0.1,
    "frequency_penalty": -0.1,
    "response_format": {"type": "json_object"},
    "metadata": {"team": "red"},
    "user": "user-7",
    "parallel_tool_calls": False,
    "reasoning_effort": "low",
    "service_tier": "auto",
    "top_k": 20,
    "min_tokens": 1,
    "a_field_of_tomorrow": {"deep": [1, 2.5, None, "text"]},
}


@pytest.mark.parametrize("routed_on", ["last_user", "conversation"])
@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_conversation_of_system_prompts_is_routed_on_the_last(
    shared: Shared, pool: FakePool, role: str, routed_on: str
) -> None:
    """Chat, responses and /route; no row is like it, so the certificate is void."""
    gateway = shared(routing={"text": routed_on}).gateway
    prompts = [{"role": "system", "content": "Be brief."}, {"role": role, "content": ONE}]
    answers = (
        gateway.chat(ONE, messages=prompts)["racer"],
        gateway.post("/v1/responses", json={"model": "auto", "input": prompts}).json()["racer"],
        gateway.post("/route", json={"messages": prompts}).json(),
    )
    for answer in answers:
        assert answer["selected"] == ["adder"]
        kinds = {base_reason(reason) for reason in answer["certificate"]["reasons"]}
        assert kinds == {"conditions_differ"}
    assert pool.requests[0]["messages"] == prompts


def test_a_clients_key_and_racer_headers_stay_here(gateway: Gateway, pool: FakePool) -> None:
    """Upstream sees neither the client's key nor headers that could steer it."""
    with gateway.http() as client:
        headers = {"x-racer-alpha": "0.9", "x-forwarded-host": "elsewhere", "cookie": "a=b"}
        body = {"model": "auto", "messages": user(ONE)}
        response = client.post("/v1/chat/completions", json=body, headers=headers)
    assert response.headers["x-racer-alpha"] == "0.1"
    assert {"authorization", "cookie", *headers}.isdisjoint(pool.headers[0])
    assert pool.headers[0]["accept-encoding"] == "identity"


def test_a_candidates_own_key_name_and_parameters_are_used(serve: Serve, pool: FakePool) -> None:
    """Each candidate gets its configured parameters; the client's fields override them."""
    own = {"temperature": 0, "max_tokens": 32}
    gateway = serve(
        candidates=candidates(
            pool.url, adder={"model": "org/adder-7b", "api_key_env": "KEY", "parameters": own}
        ),
        environment={"KEY": "the-adders-own-key"},
        calibrated=False,
    )
    with gateway.openai() as client:
        first = client.chat.completions.create(model="adder", messages=user(ONE))
        client.chat.completions.create(model="adder", messages=user(ONE), temperature=0.7)
        client.chat.completions.create(
            model="adder", messages=user(ONE), max_completion_tokens=5, stop=None
        )
    assert first.model == "adder"
    assert pool.headers[0]["authorization"] == "Bearer the-adders-own-key"
    sent = [{k: v for k, v in body.items() if k != "messages"} for body in pool.requests]
    usual = {"model": "org/adder-7b", "stream": False}
    assert sent[0] == {**usual, **own}
    assert sent[1] == {**usual, **own, "temperature": 0.7}
    assert sent[2] == {**usual, "temperature": 0, "max_tokens": 5}


def test_models_are_auto_and_the_candidates(gateway: Gateway) -> None:
    """The client lists them and finds each by its id; anything else is not found."""
    client = gateway.openai()
    assert [model.id for model in client.models.list()] == ["auto", *POOL]
    assert client.models.retrieve("poet").id == "poet"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-4o")
    assert caught.value.code == "model_not_found"


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
TEXT = {"type": "text", "text": ONE}
EARLIER = user(UNANSWERABLE)
BRIEF = "Be brief."


def turns(*earlier: Any, content: Any = ONE) -> dict[str, Any]:
    """A conversation that ends with a question to the adder."""
    return {"messages": [*earlier, {"role": "user", "content": content}]}


@pytest.mark.parametrize(
    ("fields", "reasons"),
    [
        (turns(content=[TEXT]), []),
        (turns({"role": "system", "content": BRIEF}), ["conditions_differ:messages.system"]),
        (turns({"role": "developer", "content": BRIEF}), ["conditions_differ:messages.developer"]),
        ({"temperature": 1.5}, ["conditions_differ:temperature"]),
        ({"top_p": 0.1}, ["conditions_differ:top_p"]),
        ({"max_tokens": 1}, ["conditions_differ:max_tokens"]),
        ({"stop": ["7"]}, ["conditions_differ:stop"]),
        ({"response_format": {"type": "json_object"}}, ["conditions_differ:response_format"]),
        ({"tools": TOOLS}, ["conditions_differ:tools", "unlabelled_request_kind"]),
        (
            {"functions": [{"name": "f"}]},
            ["conditions_differ:functions", "unlabelled_request_kind"],
        ),
        (
            turns(content=[TEXT, IMAGE]),
            ["conditions_differ:messages.user", "unlabelled_request_kind"],
        ),
        *(
            (
                turns(*EARLIER, {"role": role, "content": "Roses", "tool_call_id": "c"}),
                [f"conditions_differ:messages.{role}", "multi_turn_uncalibrated"],
            )
            for role in ("assistant", "tool")
        ),
    ],
    ids=str,
)
def test_the_premises_are_read_from_a_chat(
    gateway: Gateway, pool: FakePool, fields: dict[str, Any], reasons: list[str]
) -> None:
    """The set stays the router's; the certificate says why the labels may not apply."""
    racer = gateway.chat(ONE, **fields)["racer"]
    assert (racer["selected"], pool.models_called()) == (["adder"], ["adder"])
    assert racer["certificate"]["reasons"] == reasons
    assert racer["certificate"]["holds"] is not bool(reasons)


def test_a_query_over_the_limit_reaches_candidates_whole(gateway: Gateway, pool: FakePool) -> None:
    """The router reads its beginning, as of the rows, so the guarantee holds."""
    text = ONE + " " + "again " * 2_000
    racer = gateway.chat(text)["racer"]
    assert racer["truncated"]
    assert racer["certificate"]["holds"]
    assert pool.models_called() == racer["selected"]
    assert pool.requests[0]["messages"] == user(text)


def test_execute_returns_every_answer_and_the_aggregate(gateway: Gateway, pool: FakePool) -> None:
    """``POST /route`` with ``execute`` calls the set; without, it costs no call."""
    pool.say("adder", "7")
    pool.say("speller", "seven")
    assert "answers" not in gateway.route(TWO)
    assert pool.models_called() == []
    result = gateway.route(TWO, execute=True)
    assert result["answers"] == {"adder": "7", "speller": "seven"}
    assert (result["answer"], result["served_by"]) == ("7", "adder")
    assert result["votes"] == {"7": 1, "seven": 1}
    assert pool.requests[0]["messages"] == user(TWO)


def test_route_takes_a_full_chat_body(gateway: Gateway) -> None:
    """The same decision for a query, a chat body and the versioned path."""
    expected = gateway.decided(TWO)
    body = {"model": "auto", "messages": user(TWO), "racer": {"alpha": 0.1}, "user": "me"}
    assert decided(gateway.post("/route", json=body).json()) == expected
    assert decided(gateway.post("/v1/route", json={"query": TWO}).json()) == expected


def _renamed(rows: LabelledRows, *pool: str) -> LabelledRows:
    """The rows of a pool with other names."""
    names = dict(zip(rows.pool, pool, strict=False))
    renamed = [
        replace(row, correct=frozenset(names[name] for name in row.correct if name in names))
        for row in rows.rows
    ]
    return replace(rows, pool=pool, rows=tuple(renamed))


def test_a_name_with_a_slash_is_a_model_too(serve: Serve, pool: FakePool, tmp_path: Path) -> None:
    """Candidates are often called ``org/model``: listed, found by id, and pinned."""
    rows, validation = (_renamed(labelled(start, 40), "org/a", "b") for start in (0, 100))
    train(rows, validation, tmp_path / "slash", encoder=CharNgramEncoder(), kind="knn")
    gateway = serve(
        artifact=tmp_path / "slash",
        candidates=[{"name": name, "base_url": pool.url} for name in ("org/a", "b")],
        calibrated=False,
    )
    client = gateway.openai()
    assert "org/a" in [model.id for model in client.models.list()]
    pinned = client.chat.completions.create(model="org/a", messages=user(ONE))
    assert pinned.model == "org/a"
    assert client.models.retrieve("org/a").id == "org/a"


# What messages hold ------------------------------------------------------------------------------


def call(name: str, arguments: str, number: int = 1) -> dict[str, Any]:
    """A tool call as a candidate makes it."""
    function = {"name": name, "arguments": arguments}
    return {"id": f"call_{number}", "type": "function", "function": function}


def calling(*calls: dict[str, Any]) -> dict[str, Any]:
    """A message of tool calls alone."""
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def test_parallel_tool_calls_in_any_order_are_one_answer(gateway: Gateway, pool: FakePool) -> None:
    """Ids, order and the spelling of arguments do not count; the winner's own calls come back."""
    first = [call("add", '{"a": 1, "b": 2.0}'), call("spell", '{"n": 3}', 2)]
    second = [call("spell", '{"n":3}', 7), call("add", '{"b":2,"a":1}', 8)]
    pool.say("adder", "", message=calling(call("add", '{"a": 9}')))
    pool.say("speller", "", message=calling(*first))
    pool.say("poet", "", message=calling(*second))
    answer = gateway.chat(ONE, WHOLE_POOL, tools=TOOLS)
    assert sorted(answer["racer"]["votes"].values()) == [1, 2]
    assert answer["choices"][0]["message"]["tool_calls"] in (first, second)
    assert answer["racer"]["answers"]["speller"] == first
    assert [body["tools"] for body in pool.requests] == [TOOLS] * 3
    pool.fail("adder", "500")
    _, events = CHAT.stream(gateway, TWO, tools=TOOLS)
    calls = events[0]["choices"][0]["delta"]["tool_calls"]
    assert [(each["index"], each["function"]["name"]) for each in calls] == [
        (0, "add"),
        (1, "spell"),
    ]


def delta(finish: str | None = None, index: int = 0, **content: Any) -> dict[str, Any]:
    """A choice of a chunk."""
    return {"index": index, "delta": content, "finish_reason": finish}


def call_part(**function: str) -> dict[str, Any]:
    """A part of the only call."""
    return delta(tool_calls=[{"index": 0, "function": function}])


LIVE = {
    "a tool call": [
        call_part(name="add", arguments=""),
        call_part(arguments='{"a":'),
        call_part(arguments="1}"),
        delta("tool_calls"),
    ],
    "reasoning": [
        delta(reasoning_content="3 and 4", reasoning="make 7"),
        delta("stop", content="7"),
    ],
    "choices that finish one by one": [
        delta(content="7"),
        delta("stop"),
        delta(index=1, content="seven"),
        delta("length", index=1),
    ],
    "an empty chunk after the finish": [delta("stop", content="7"), delta(content="")],
}


@pytest.mark.parametrize("name", LIVE)
def test_a_live_stream_passes_choices_as_they_come(
    gateway: Gateway, pool: FakePool, name: str
) -> None:
    """Each in a chunk of its own; the racer object is on the last."""
    pool.say("adder", "", choices=LIVE[name])
    _, events = CHAT.stream(gateway, ONE, n=2, tools=TOOLS, racer={"candidates": ["adder"]})
    assert [choice for event in events for choice in event["choices"]] == LIVE[name]
    assert CHAT.racer(events)["served_by"] == "adder"


def choices_of(*texts: str) -> list[dict[str, Any]]:
    """Several choices of one candidate."""
    return [
        {"index": i, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        for i, text in enumerate(texts)
    ]


def test_with_several_choices_every_candidate_has_one_vote(
    gateway: Gateway, pool: FakePool
) -> None:
    """It votes for what most of its own choices say; the winner's are returned, all of them."""
    pool.say("adder", "", fields={"choices": choices_of("7", "7", "7")})
    pool.say("speller", "", fields={"choices": choices_of("9", "8", "8")})
    pool.say("poet", "", fields={"choices": choices_of("8", "8", "9")})
    answer = gateway.chat(ONE, WHOLE_POOL, n=3)
    assert answer["racer"]["votes"] == {"7": 1, "8": 2}
    assert answer["model"] in ("speller", "poet")
    expected = pool.scripts[answer["model"]].fields["choices"]
    assert answer["choices"] == expected


def test_surplus_and_repeated_choices_are_dropped(gateway: Gateway, pool: FakePool) -> None:
    """The server sends three choices for `n: 2`, or one choice twice."""
    pool.say("adder", "", fields={"choices": choices_of("7", "8", "9")})
    assert len(gateway.chat(ONE, n=2)["choices"]) == 2
    twice = [*choices_of("7"), *choices_of("8")]
    pool.say("adder", "", fields={"choices": twice})
    assert gateway.chat(ONE, n=2)["choices"] == twice[:1]
    pool.say("adder", "", choices=[delta(content="7"), delta(index=5, content="x"), delta("stop")])
    assert CHAT.ask(gateway, ONE, stream=True).text == "7"


def test_several_choices_stream_after_the_vote(gateway: Gateway, pool: FakePool) -> None:
    """Each under its index, each finished."""
    for name in POOL:
        pool.say(name, "", fields={"choices": choices_of("7", "eight")})
    _, events = CHAT.stream(gateway, TWO, n=2)
    deltas = {(each["index"], each["delta"].get("content")) for each in events[0]["choices"]}
    assert deltas == {(0, "7"), (1, "eight")}
    assert [each["finish_reason"] for each in events[-1]["choices"]] == ["stop", "stop"]


def test_images_reach_every_candidate_as_they_were_sent(gateway: Gateway, pool: FakePool) -> None:
    """The gateway changes no part of a turn."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "x": 1}}
    sound = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
    parts = [{"type": "text", "text": ONE}, image, sound]
    answer = gateway.chat(ONE, WHOLE_POOL, messages=[{"role": "user", "content": parts}])
    assert len(pool.requests) == 3
    assert all(body["messages"][0]["content"] == parts for body in pool.requests)
    assert "unlabelled_request_kind" in answer["racer"]["certificate"]["reasons"]


def test_reasoning_passes_through(gateway: Gateway, pool: FakePool) -> None:
    """Under either name that servers give it: whole, and merged in a stream."""
    thought = {"reasoning_content": "3 and 4", "reasoning": "make 7"}
    message = {"role": "assistant", "content": "7", **thought}
    for name in POOL:
        pool.say(name, "7", message=message)
    assert gateway.chat(TWO)["choices"][0]["message"] == message
    _, events = CHAT.stream(gateway, TWO)
    assert events[0]["choices"][0]["delta"] == message


# Streams -----------------------------------------------------------------------------------------


def test_comments_keep_a_waiting_stream_alive(shared: Shared, pool: FakePool) -> None:
    """While a slow set answers, lines arrive that clients ignore; headers say ``pending``."""
    case = shared(limits={"comment_every_s": 0.05})
    pool.say("adder", "7", delay_s=0.8)
    pool.say("speller", "7")
    response = case.gateway.ask(TWO, stream=True)
    assert response.text.partition("data: ")[0].count("\n: ") + 1 >= 3
    assert response.text.endswith("data: [DONE]\n\n")
    assert response.headers["x-racer-guarantee"] == "pending"
    assert response.headers["x-racer-selected"] == "adder,speller"
    assert "x-racer-served-by" not in response.headers
    answer = case.stream(TWO)
    assert (answer.text, answer.certificate["holds"]) == ("7", True)


@pytest.mark.parametrize(
    ("text", "fault", "status"),
    [
        (ONE, "500", 502),
        (TWO, "500", 502),
        (ONE, "429", 429),
        (ONE, "html", 502),
        (ONE, "not_openai", 502),
        (ONE, "stream_odd_choice", 502),
        (ONE, "stream_empty", 502),
        (TWO, "not_openai", 502),
        (TWO, "reset", 502),
    ],
)
def test_a_failure_before_the_first_byte_keeps_its_status(
    gateway: Gateway,
    pool: FakePool,
    text: str,
    fault: str,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stream that cannot begin is an ordinary error for the client, not a broken 200."""
    monkeypatch.setattr(streaming, "FIRST_EVENT_WAIT_S", 30.0)  # however late the candidates fail
    for name in POOL:
        pool.fail(name, fault)
    response = gateway.ask(text, stream=True)
    kind = "rate_limit_error" if status == 429 else "upstream_error"
    assert (response.status_code, response.json()["error"]["type"]) == (status, kind)


def test_a_late_failure_of_all_candidates_is_an_error_event(shared: Shared, pool: FakePool) -> None:
    """After the first comment the status has been sent, so the stream ends with an error event."""
    patient = candidates(pool.url, timeout_s=2)
    gateway = shared(candidates=patient, limits={"comment_every_s": 0.1}).gateway
    for name in POOL:
        pool.fail(name, "hang")
    response, [event] = CHAT.broken(gateway, TWO)
    assert response.status_code == 200
    assert event["error"]["code"] == "upstream_timeout"
    assert "adder" in event["error"]["message"]


def test_a_choice_without_an_index_can_be_streamed(gateway: Gateway, pool: FakePool) -> None:
    """Some servers leave ``index`` out of a whole answer; the merged stream numbers them itself."""
    choice = {"message": {"role": "assistant", "content": "7"}, "finish_reason": "stop"}
    for name in ("adder", "speller"):
        pool.say(name, "7", fields={"choices": [choice]})
    assert CHAT.ask(gateway, TWO, stream=True).text == "7"


@pytest.mark.parametrize(
    "choices",
    [
        ["42"],
        [{"index": 0, "message": {"content": "42", "tool_calls": "none"}}],
        [{"index": 0, "message": {"content": "42"}}, {"index": 1}],
        [{"index": 0, "message": {"content": "42"}}, "42"],
    ],
    ids=["text", "odd_tool_calls", "second_without_message", "second_is_text"],
)
def test_an_odd_answer_is_the_upstreams_fault_in_a_stream_too(
    gateway: Gateway, pool: FakePool, choices: Any
) -> None:
    """What is not OpenAI-shaped is an upstream error, never an internal one."""
    for name in ("adder", "speller"):
        pool.say(name, "42", fields={"choices": choices})
    for stream in (False, True):
        response = gateway.ask(TWO, stream=stream)
        assert response.status_code in (200, 502)
        assert '"error":{' not in response.text or '"upstream_error"' in response.text
