"""POST /v1/chat/completions through the official client."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from racer_core.calibration.certificate import base_reason
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.offline.train import train
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

openai = LazyModule("openai")

TINY_ALPHA = 0.001  # an alpha too small for 400 rows: the whole pool is called


def test_a_tie_goes_to_the_higher_router_score(gateway: Gateway, pool: FakePool) -> None:
    """Three different answers: the speller's is returned where the router trusts the speller."""
    for name in POOL:
        pool.say(name, f"{name}'s own")
    answer = gateway.chat("Spell the number 3 and then 4", {"alpha": TINY_ALPHA})
    scores = answer["racer"]["pool_scores"]
    assert list(scores.items()) == [("speller", 1.0), ("adder", 0.0), ("poet", 0.0)]
    assert (answer["model"], answer["racer"]["served_by"]) == ("speller", "speller")
    assert answer["choices"][0]["message"]["content"] == "speller's own"


def test_the_configuration_says_how_answers_are_merged(serve: Serve, pool: FakePool) -> None:
    """``equality: number`` reads the numbers, ``method: weighted`` counts router scores."""
    gateway = serve(aggregation={"method": "weighted", "equality": "number", "temperature": 0.5})
    pool.say("adder", "It is 1,007.0")
    pool.say("speller", "1007")
    pool.say("poet", "8")
    answer = gateway.chat(ONE, {"alpha": TINY_ALPHA, "explain": True})
    assert answer["choices"][0]["message"]["content"] == "It is 1,007.0"
    votes = answer["racer"]["votes"]
    assert set(votes) == {"1007", "8"}
    assert sum(votes.values()) == pytest.approx(1)
    assert votes["1007"] > votes["8"] > 0


def test_candidates_are_called_at_the_same_time(gateway: Gateway, pool: FakePool) -> None:
    """The three calls overlap in time."""
    for name in POOL:
        pool.say(name, "7", delay_s=0.3)
    answer = gateway.chat(ONE, {"alpha": TINY_ALPHA})
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


def test_the_racer_object_has_set_votes_and_calls(gateway: Gateway, pool: FakePool) -> None:
    """The set with its scores, who served, the votes, each call, and the gateway's own time."""
    pool.say("adder", "7")
    pool.say("speller", "7")
    answer = gateway.chat(TWO, {"explain": True})
    racer = answer["racer"]
    assert racer["decision_id"] == answer["id"]
    assert racer["selected"] == ["adder", "speller"]
    assert racer["scores"] == {"adder": 1.0, "speller": 1.0}
    assert racer["pool_scores"] == {"adder": 1.0, "speller": 1.0, "poet": 0.0}
    assert racer["votes"] == {"7": 2}
    assert [call["candidate"] for call in racer["calls"]] == ["adder", "speller"]
    assert all(call["ms"] > 0 for call in racer["calls"])
    assert racer["overhead_ms"] > 0
    assert (racer["abstained"], racer["truncated"]) == (False, False)


def test_two_requests_have_two_decision_ids(gateway: Gateway) -> None:
    """A decision id names one decision."""
    assert gateway.chat(ONE)["id"] != gateway.chat(ONE)["id"]


def test_headers_state_the_decision(gateway: Gateway) -> None:
    """Clients that drop unknown fields of the body still see who answered under what promise."""
    response = gateway.ask(TWO)
    headers = response.headers
    assert headers["x-racer-decision-id"] == response.json()["id"]
    assert headers["x-racer-selected"] == "adder,speller"
    assert headers["x-racer-served-by"] == "adder"
    assert headers["x-racer-alpha"] == "0.1"
    assert headers["x-racer-guarantee"] == "holds"
    assert headers["x-racer-abstained"] == "false"
    assert 0 < float(headers["x-racer-overhead-ms"]) < response.elapsed.total_seconds() * 1e3


def test_overhead_excludes_the_candidates_time(gateway: Gateway, pool: FakePool) -> None:
    """A candidate of three seconds does not count as the gateway's time."""
    pool.say("adder", "7", delay_s=3.0)
    assert gateway.chat(ONE)["racer"]["overhead_ms"] < 2_500


def test_a_void_certificate_is_a_header_too(gateway: Gateway) -> None:
    """The header names the reason."""
    response = gateway.ask(ONE, temperature=1.5)
    assert response.headers["x-racer-guarantee"] == "void; reason=conditions_differ:temperature"


def test_fields_that_we_do_not_know_survive(gateway: Gateway, pool: FakePool) -> None:
    """What the winner's server says beyond the protocol of today reaches the client."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "7", "reasoning": "3 and 4"},
        "finish_reason": "stop",
        "stop_reason": 5,
    }
    pool.say("adder", "7", fields={"choices": [choice], "system_fingerprint": "fp"})
    answer = gateway.chat(ONE)
    assert answer["a_field_of_tomorrow"] == {"kept": True}
    assert answer["system_fingerprint"] == "fp"
    assert answer["choices"] == [choice]


def test_every_choice_of_the_winner_is_returned(gateway: Gateway, pool: FakePool) -> None:
    """With ``n = 2`` the winner's two choices come back, and each candidate votes once."""
    choices = [
        {"index": i, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        for i, text in enumerate(("7", "eight"))
    ]
    pool.say("adder", "7", fields={"choices": choices})
    answer = gateway.chat(ONE, n=2)
    assert answer["choices"] == choices
    assert answer["racer"]["votes"] == {"7": 1}
    assert pool.requests[0]["n"] == 2


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


def test_every_other_field_reaches_the_candidate_untouched(
    gateway: Gateway, pool: FakePool
) -> None:
    """What arrives upstream is what the client sent, but for the model and the ``racer`` block."""
    body = {**PASSED, "model": "auto", "racer": {"alpha": 0.1}, "stream": False}
    assert gateway.post("/v1/chat/completions", json=body).status_code == 200
    assert pool.requests
    for request in pool.requests:
        assert request == {**PASSED, "model": request["model"], "stream": False}


def test_tools_reach_every_candidate_untouched(gateway: Gateway, pool: FakePool) -> None:
    """Tool definitions are passed on, and a tool call comes back whole."""
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    for name in POOL:
        pool.say(name, "", message={"role": "assistant", "content": None, "tool_calls": [call]})
    answer = gateway.chat(
        ONE, {"alpha": TINY_ALPHA, "explain": True}, tools=tools, tool_choice="auto"
    )
    assert answer["choices"][0]["message"]["tool_calls"] == [call]
    assert [body["tools"] for body in pool.requests] == [tools] * 3
    assert answer["model"] == "adder"  # all agree: the best router score


@pytest.mark.parametrize(
    "field",
    [
        "chat_template", "chat_template_kwargs", "prompt_embeds", "guided_regex", "guided_json",
        "structured_outputs", "api_base",
        "base_url", "api_key", "url", "callback_uri", "headers", "extra_headers",
        "kv_transfer_params", "ec_transfer_params", "bootstrap_host", "bootstrap_port",
        "bootstrap_room", "priority",
    ],
)  # fmt: skip
def test_fields_of_the_deny_list_are_refused(gateway: Gateway, pool: FakePool, field: str) -> None:
    """A field that controls a candidate's server is a 400 that names it; no candidate is called."""
    response = gateway.ask(ONE, **{field: "x"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field
    assert pool.models_called() == []


@pytest.mark.parametrize("routed_on", ["last_user", "conversation"])
@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_conversation_of_system_prompts_is_routed_on_the_last(
    serve: Serve, pool: FakePool, role: str, routed_on: str
) -> None:
    """Chat, responses and /route; no row is like it, so the certificate is void."""
    gateway = serve(routing={"text": routed_on})
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


def reasons(answer: dict[str, Any]) -> list[str]:
    """Why the guarantee does not hold."""
    certificate = answer["racer"]["certificate"]
    assert not certificate["holds"]
    return certificate["reasons"]


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"functions": [{"name": "f"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": ONE}, IMAGE]}]},
        {"messages": [{"role": "user", "content": [IMAGE]}]},
    ],
    ids=["tools", "functions", "text_and_image", "image"],
)
def test_another_kind_of_request_has_no_guarantee(
    gateway: Gateway, pool: FakePool, fields: dict[str, Any]
) -> None:
    """No labelled row is of that kind. The router's set answers, without a guarantee."""
    answer = gateway.chat(ONE, **fields)
    assert "unlabelled_request_kind" in reasons(answer)
    assert len(answer["racer"]["selected"]) == 1
    assert pool.models_called() == answer["racer"]["selected"]


def test_text_parts_are_an_ordinary_query(gateway: Gateway) -> None:
    """A turn in parts of text is routed like the same text in one piece."""
    parts = [{"type": "text", "text": ONE}]
    answer = gateway.chat(ONE, messages=[{"role": "user", "content": parts}])
    assert answer["racer"]["selected"] == ["adder"]
    assert answer["racer"]["certificate"]["holds"]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        (
            {"messages": [{"role": "system", "content": "Be brief."}, *user(ONE)]},
            "messages.system",
        ),
        (
            {"messages": [{"role": "developer", "content": "Be brief."}, *user(ONE)]},
            "messages.developer",
        ),
        ({"temperature": 1.5}, "temperature"),
        ({"top_p": 0.1}, "top_p"),
        ({"max_tokens": 1}, "max_tokens"),
        ({"stop": ["7"]}, "stop"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
    ids=str,
)
def test_other_conditions_than_labelled_void_the_guarantee(
    gateway: Gateway, fields: dict[str, Any], name: str
) -> None:
    """The set stays the router's; the certificate says that the labels may not apply."""
    answer = gateway.chat(ONE, **fields)
    assert answer["racer"]["selected"] == ["adder"]
    assert reasons(answer) == [f"conditions_differ:{name}"]


def test_the_labelled_conditions_keep_the_guarantee(serve: Serve, pool: FakePool) -> None:
    """Saying what the candidates were labelled with anyway changes nothing."""
    own = {"temperature": 0, "max_tokens": 32, "response_format": {"type": "text"}}
    gateway = serve(candidates=candidates(pool.url, parameters=own))
    for fields in (
        {},
        {"temperature": 0.0},
        {"max_completion_tokens": 32},
        {"response_format": {"type": "text"}},
        {"seed": 1},
        {"temperature": None},
    ):
        assert gateway.chat(ONE, **fields)["racer"]["certificate"]["holds"], fields
    assert gateway.chat(ONE, temperature=0.1)["racer"]["certificate"]["holds"] is False


@pytest.mark.parametrize("role", ["assistant", "tool"])
def test_later_turns_are_not_covered(gateway: Gateway, role: str) -> None:
    """A conversation routes on its last user turn, and the certificate says it is uncalibrated."""
    earlier: list[Any] = [
        *user(UNANSWERABLE),
        {"role": role, "content": "Roses", "tool_call_id": "c"},
    ]
    answer = gateway.chat(ONE, messages=[*earlier, *user(ONE)])
    assert answer["racer"]["selected"] == ["adder"]
    expected = [f"conditions_differ:messages.{role}", "multi_turn_uncalibrated"]
    assert reasons(answer) == expected


def test_a_query_over_the_limit_reaches_candidates_whole(gateway: Gateway, pool: FakePool) -> None:
    """The router reads its beginning, as of the rows, so the guarantee holds."""
    text = ONE + " " + "again " * 2_000
    answer = gateway.chat(text)
    assert answer["racer"]["certificate"]["holds"]
    assert pool.models_called() == answer["racer"]["selected"]
    assert pool.requests[0]["messages"] == user(text)


def test_a_decision_on_a_truncated_query_is_marked(gateway: Gateway) -> None:
    """Rows were cut by the same rule, so the guarantee holds and the decision says truncated."""
    racer = gateway.chat(ONE + " please" * 500)["racer"]
    assert racer["truncated"]
    assert racer["certificate"]["holds"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"alpha": 0.2}, "alpha_assumed_independent_of_query"),
        ({"score": "prob"}, "score_assumed_independent_of_query"),
        ({"candidates": ["adder", "poet"]}, "pool_assumed_independent_of_query"),
    ],
)
def test_a_remark_does_not_void_the_guarantee(
    gateway: Gateway, options: dict[str, Any], reason: str
) -> None:
    """A request's own alpha, score or pool holds if it was chosen without the query."""
    certificate = gateway.chat(ONE, options)["racer"]["certificate"]
    assert (certificate["holds"], certificate["reasons"]) == (True, [reason])
    assert certificate["guarantee"]["alpha"] == options.get("alpha", 0.1)
    same = {"alpha": 0.1, "score": "gap"}
    assert gateway.chat(ONE, same)["racer"]["certificate"]["reasons"] == []


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


def test_a_name_with_a_slash_is_a_model_too(serve: Serve, pool: FakePool, tmp_path: Path) -> None:
    """Candidates are often called ``org/model``: listed, found by id, and pinned."""
    rows, validation = (replace(labelled(start, 40), pool=("org/a", "b")) for start in (0, 100))
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
