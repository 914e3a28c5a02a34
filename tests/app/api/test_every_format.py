"""Guarantees common to all API formats, whole and streamed."""

from __future__ import annotations

import json

import pytest

from tests.kit.gateway import ONE, POOL, TWO, UNANSWERABLE, Gateway
from tests.kit.upstream import UPSTREAM_WORDS, FakePool, usage_of

from .formats import CHUNKED_APIS, EVERY_API, MESSAGES, WHOLE_POOL, Api

KEPT = {"kept": True}


@EVERY_API
def test_one_selected_answers_under_its_own_name(
    gateway: Gateway, pool: FakePool, api: Api
) -> None:
    """The set's only member is called on the same path; its text, name, usage and fields return."""
    pool.say("adder", "seven")
    response = api.post(gateway, ONE)
    answer = response.json()
    assert (pool.paths, pool.models_called()) == ([api.called], ["adder"])
    assert (api.text(answer), answer["model"]) == ("seven", "adder")
    assert api.usage(answer) == (10, 5, 15)
    assert answer.get("a_field_of_tomorrow") == (KEPT if api.keeps_fields else None)
    assert answer["id"] == answer["racer"]["decision_id"]
    assert answer["id"] == response.headers["x-racer-decision-id"]
    assert answer["id"].startswith(api.prefix)
    assert answer["racer"]["selected"] == ["adder"]
    assert response.headers["x-racer-served-by"] == "adder"


@EVERY_API
def test_several_selected_vote_and_their_tokens_add_up(
    gateway: Gateway, pool: FakePool, api: Api
) -> None:
    """The majority's text comes back whole, with one sum of tokens and every call's own."""
    pool.say("adder", "seven")
    pool.say("speller", "8")
    pool.say("poet", "8")
    answer = api.answer(gateway, ONE, racer=WHOLE_POOL)
    assert api.text(answer) == "8"
    assert answer["model"] == answer["racer"]["served_by"]
    assert answer["model"] in ("speller", "poet")  # not the best router score, the adder
    assert answer["racer"]["votes"] == {"seven": 1, "8": 2}
    assert api.usage(answer) == (30, 7, 37)
    assert answer["racer"]["usage"] == [
        {"candidate": "adder", **usage_of("seven")},
        {"candidate": "speller", **usage_of("8")},
        {"candidate": "poet", **usage_of("8")},
    ]
    assert answer.get("a_field_of_tomorrow") == (KEPT if api.keeps_fields else None)
    assert sorted(pool.models_called()) == sorted(POOL)


@EVERY_API
def test_the_winners_own_usage_can_be_asked_for(gateway: Gateway, pool: FakePool, api: Api) -> None:
    """``usage: winner`` leaves it as the candidate sent it."""
    pool.say("adder", "seven")
    answer = api.answer(gateway, ONE, racer={**WHOLE_POOL, "usage": "winner"})
    assert answer["model"] != "adder"
    assert api.usage(answer) == (10, 2, 12)


@EVERY_API
def test_one_selected_streams_its_own_events(gateway: Gateway, pool: FakePool, api: Api) -> None:
    """One id, one name, every delta, fields of tomorrow; the racer object on the last event."""
    pool.say("adder", "The sum is 7 – naturally")
    headers, events = api.stream(gateway, ONE)
    assert [delta for event in events if (delta := api.delta(event))] == list(
        "The sum is 7 – naturally"
    )
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["x-racer-served-by"] == "adder"
    assert headers["x-racer-guarantee"] == api.guarantee.replace("holds", "pending")
    named = [api.inner(event) for event in events if api.inner(event)]
    assert {event["model"] for event in named} == {"adder"}
    assert {event["id"] for event in named} == {headers["x-racer-decision-id"]}
    if api.keeps_fields:
        assert all(event["a_field_of_tomorrow"] == KEPT for event in named)
    assert api.is_finished(events[-1])
    racer = api.racer(events)
    assert racer["selected"] == ["adder"]
    assert racer["served_by"] == "adder"
    assert racer["decision_id"] == named[-1]["id"]
    assert racer["certificate"]["holds"] is (api.guarantee == "holds")
    assert racer["usage"] == [{"candidate": "adder", **usage_of("The sum is 7 – naturally")}]
    assert [call["candidate"] for call in racer["calls"]] == ["adder"]
    assert pool.requests[0]["stream"] is True


@EVERY_API
def test_a_streamed_answer_arrives_while_it_is_written(
    gateway: Gateway, pool: FakePool, api: Api
) -> None:
    """The first event is there long before the candidate has finished."""
    pool.say("adder", "seven", pause_s=0.3)
    body = {"model": "auto", **api.asks(ONE), "stream": True}
    with (
        gateway.http() as client,
        client.stream("POST", f"/v1/{api.path}", json=body) as response,
    ):
        lines = response.iter_lines()  # kept: dropping it would close the connection
        first = next(lines)
        assert pool.running == ["adder"]
        data = [line.removeprefix("data: ") for line in [first, *lines] if '{"' in line]
    assert "".join(api.delta(json.loads(each)) for each in data) == "seven"


@EVERY_API
def test_several_selected_stream_the_winner(gateway: Gateway, pool: FakePool, api: Api) -> None:
    """The vote comes first; then the winner's text in one name, with the votes at the end."""
    pool.say("adder", "seven")
    pool.say("speller", "It is 8")
    pool.say("poet", "it is 8.")
    headers, events = api.stream(gateway, ONE, racer=WHOLE_POOL)
    racer = api.racer(events)
    winner = racer["served_by"]
    assert winner in ("speller", "poet")
    answers = {"speller": "It is 8", "poet": "it is 8."}
    assert "".join(map(api.delta, events)) == answers[winner]
    named = [api.inner(event) for event in events if api.inner(event)]
    assert {event["model"] for event in named} == {winner}
    assert {event["id"] for event in named} == {headers["x-racer-decision-id"]}
    assert racer["votes"] == {"seven": 1, "it is 8": 2}
    assert api.is_finished(events[-1])


@CHUNKED_APIS
@pytest.mark.parametrize(("text", "total"), [(ONE, 12), (TWO, 24)])
def test_a_stream_counts_its_tokens_where_asked(
    gateway: Gateway, api: Api, text: str, total: int
) -> None:
    """``include_usage`` adds one last chunk without a choice; without it no chunk has counts."""
    _, events = api.stream(
        gateway, text, stream_options={"include_usage": True}, racer={"explain": True}
    )
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["total_tokens"] == total
    assert len(events[-1]["racer"]["usage"]) == total // 12
    assert "".join(map(api.delta, events)) == "42"
    assert not any("usage" in event for event in events[:-1])
    assert not any("usage" in event for event in api.stream(gateway, text)[1])


@EVERY_API
def test_a_refusal_has_the_shape_of_its_interface(
    gateway: Gateway, pool: FakePool, api: Api
) -> None:
    """No candidate is called; the sentence is where clients look for a text, plain and streamed."""
    answer = api.answer(gateway, UNANSWERABLE)
    assert "No model of the pool" in api.text(answer)
    assert (answer["model"], api.usage(answer)) == ("auto", (0, 0, 0))
    assert answer["racer"]["abstained"] is True
    assert answer["id"].startswith(api.prefix)
    headers, events = api.stream(gateway, UNANSWERABLE)
    assert "".join(map(api.delta, events)) == api.text(answer)
    assert api.racer(events)["abstained"] is True
    assert headers["x-racer-abstained"] == "true"
    assert pool.models_called() == []


@EVERY_API
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["auto", "adder"])
def test_unknown_fields_reach_the_candidate(
    gateway: Gateway, pool: FakePool, api: Api, stream: bool, model: str
) -> None:
    """Every field arrives as it was sent, but for those that are the gateway's own."""
    unknown = {"a_field_of_tomorrow": {"deep": [1, 2.5, None, "é"]}, "user": "ann", "seed": 3}
    fields = {**api.asks(ONE), **unknown, "store": False}
    ours = {"model": model, "stream": stream, "racer": {"alpha": 0.1}}
    response = gateway.post(f"/v1/{api.path}", json=fields | ours)
    assert response.status_code == 200
    counts = stream and api.called != "/v1/responses"
    options = {"stream_options": {"include_usage": True}} if counts else {}
    assert pool.requests == [{**fields, **options, "model": "adder", "stream": stream}]


@EVERY_API
@pytest.mark.parametrize("fault", ["cut", "stream_no_end", "stream_error", "stream_not_json"])
@pytest.mark.parametrize("model", ["auto", "adder"])
def test_a_broken_stream_ends_in_the_envelope(
    gateway: Gateway, pool: FakePool, api: Api, fault: str, model: str
) -> None:
    """What had arrived is sent; the last event is an error that names the candidate."""
    pool.say("adder", "42", fault=fault)
    body = {"model": model, **api.asks(ONE), "stream": True}
    with (
        gateway.http() as client,
        client.stream("POST", f"/v1/{api.path}", json=body) as response,
    ):
        data = [line for line in response.iter_lines() if line.startswith("data: ")]
    assert response.status_code == 200
    assert "data: [DONE]" not in data
    *events, last = [json.loads(each.removeprefix("data: ")) for each in data]
    assert "".join(map(api.delta, events)) == "42"
    assert not any("error" in event for event in events)
    error = last["error"]
    is_anthropics = api is MESSAGES
    members = {"details"} if is_anthropics else {"param", "code"}
    assert set(error) == {"message", "type", *members}
    assert error["type"] == ("api_error" if is_anthropics else "upstream_error")
    assert (api.code(error) == "upstream_disconnected") is (fault in ("cut", "stream_no_end"))
    assert "adder" in error["message"]
    assert UPSTREAM_WORDS not in error["message"]


# A candidate by its name ------------------------------------------------------------------------


@EVERY_API
def test_a_named_candidate_is_called_without_routing(
    gateway: Gateway, pool: FakePool, api: Api
) -> None:
    """Its answer as it is, but for the name; nothing is certified."""
    pool.say("poet", "Roses")
    response = api.post(gateway, ONE, model="poet")
    answer = response.json()
    assert (api.text(answer), answer["model"], pool.models_called()) == ("Roses", "poet", ["poet"])
    assert answer["id"].endswith(("upstream-1", "upstream-2", "upstream"))
    assert "racer" not in answer
    assert answer.get("a_field_of_tomorrow") == (KEPT if api.keeps_fields else None)
    assert response.headers["x-racer-served-by"] == "poet"
    assert "x-racer-guarantee" not in response.headers


@EVERY_API
def test_a_named_candidate_streams_without_routing(
    gateway: Gateway, pool: FakePool, api: Api
) -> None:
    """Its events as they are, but for the name; a count that only we wanted stays here."""
    pool.say("poet", "Roses")
    headers, events = api.stream(gateway, ONE, model="poet")
    assert "".join(map(api.delta, events)) == "Roses"
    named = [api.inner(event) for event in events if api.inner(event)]
    assert {event["model"] for event in named} == {"poet"}
    assert not any("racer" in event for event in named)
    assert all(event["choices"] for event in events if api.ends)
    assert headers["x-racer-served-by"] == "poet"


@EVERY_API
def test_an_unknown_model_name_is_not_found(gateway: Gateway, pool: FakePool, api: Api) -> None:
    """The same holds for pools that are not configured."""
    for name in ("gpt-4o", "auto/", "auto/fast", "automatic"):
        response = api.post(gateway, ONE, model=name)
        error = response.json()["error"]
        assert (response.status_code, api.code(error)) == (404, "model_not_found")
        assert error.get("details", error)["param"] == "model"
    assert pool.models_called() == []
