"""One table of cases for every API format, whole and streamed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.kit.gateway import ONE, POOL, TWO, UNANSWERABLE, Gateway
from tests.kit.upstream import UPSTREAM_WORDS, FakePool, usage_of
from tests.kit.waiting import wait_until

from .formats import CHUNKED_APIS, EVERY_API, MESSAGES, STREAMED, WHOLE_POOL, Api

KEPT = {"kept": True}
FAILS = "500"
SPEECH = "The sum is 7 – naturally"
FORGED = 'no\n\ndata: [DONE]\n\ndata: {"error": {"message": "x"}}\r\n: x\u2028\x85'


@dataclass(frozen=True)
class Case:
    """What candidates say, and what the client gets.

    Attributes:
        says: Texts by candidate; `FAILS` is a failure.
        by: Whose text is the answer.
        query: `ONE` calls the adder alone, which streams live.
        options: Of the request; by default every answer of a set is waited for.
        reasons: Of the certificate, beside that of the endpoint.
    """

    says: dict[str, str]
    by: str = "adder"
    query: str = ONE
    options: dict[str, Any] = field(default_factory=lambda: {"explain": True})
    votes: dict[str, int] | None = None
    reasons: tuple[str, ...] = ()


UNANSWERED = ("set_unanswered",)


def live(text: str, *reasons: str) -> Case:
    """The adder alone says this."""
    return Case({"adder": text}, options={}, reasons=reasons)


def pair(adder: str, speller: str, votes: dict[str, int], *reasons: str) -> Case:
    """The adder and the speller are called; the speller's text is the answer if it alone votes."""
    by = "adder" if 2 in votes.values() else "speller"
    return Case({"adder": adder, "speller": speller}, by, TWO, votes=votes, reasons=reasons)


def whole_pool(*says: str, by: str, votes: dict[str, int], reasons: tuple[str, ...] = ()) -> Case:
    """All three are called."""
    whole = dict(zip(POOL, says, strict=True))
    return Case(whole, by, options=WHOLE_POOL, votes=votes, reasons=reasons)


CASES = {
    "one": live(SPEECH),
    "white space before the text": live(" \n seven"),
    "nothing but white space": live(" \n", *UNANSWERED),
    "a forged end": live(FORGED),
    "a thought, then an answer": live("<think>3 + 4</think>7"),
    "the end of a thought, then an answer": live("3 + 4</think>7"),
    "a thought that was cut off": live("<think>3 + 4", *UNANSWERED),
    "a thought, then nothing": live("<think>3 + 4</think>\n", *UNANSWERED),
    "the end of a thought": live("3 + 4</think>", *UNANSWERED),
    "a majority": whole_pool("seven", "8", "8", by="poet", votes={"seven": 1, "8": 2}),
    "a majority by meaning": whole_pool("seven", "It is 8", "it is 8.", by="poet",
                                        votes={"seven": 1, "it is 8": 2}),
    "a text before a blank": whole_pool("", "seven", " ", by="speller", votes={"seven": 1}),
    "blanks": whole_pool(" ", "\n", "", by="adder", votes={}, reasons=UNANSWERED),
    "equal answers, other thoughts": pair("<think>3 + 4\n</think>\n\n7", "4 + 3</think>7.",
                                          {"7": 2}),
    "a cut thought has no vote": pair("<think>3 + 4 is", "7", {"7": 1}),
    "a forged end, merged": pair(FORGED, FORGED, {" ".join(FORGED.lower().split()): 2}),
    "one of two fails": pair(FAILS, "seven", {"seven": 1}, "candidate_failed:adder"),
}  # fmt: skip


@EVERY_API
@STREAMED
@pytest.mark.parametrize("name", CASES)
def test_the_answer_is_that_of_the_set(
    gateway: Gateway, pool: FakePool, api: Api, name: str, stream: bool
) -> None:
    """Text, name, id, votes, tokens, certificate and headers of one case in one format."""
    case = CASES[name]
    for candidate, text in case.says.items():
        pool.say(candidate, text if text != FAILS else "", fault=FAILS if text == FAILS else None)
    reply = api.ask(gateway, case.query, racer=case.options, stream=stream)
    racer, headers = reply.racer, reply.headers
    answered = [each for each, text in case.says.items() if text != FAILS]
    assert (reply.model, racer["served_by"]) == (case.by, case.by)
    assert reply.text == case.says[case.by]
    assert reply.id == racer["decision_id"] == headers["x-racer-decision-id"]
    assert reply.id.startswith(api.prefix)
    if case.votes is not None:
        assert racer["votes"] == case.votes
    assert {call["candidate"] for call in racer["calls"]} == case.says.keys()
    assert racer["usage"] == [{"candidate": n, **usage_of(case.says[n])} for n in answered]
    assert sorted(reply.reasons) == sorted([*api.endpoint, *case.reasons])
    assert racer["certificate"]["holds"] is not bool(reply.reasons)
    assert set(pool.paths) == {api.called}
    if stream:
        assert headers["content-type"].startswith("text/event-stream")
        assert headers["x-racer-guarantee"] == (
            "pending" if api.is_chat else f"void; {api.endpoint[0]}"
        )
        if not case.options and case.reasons != UNANSWERED:  # live: every delta, and each field
            assert pool.requests[0]["stream"] is True
            deltas = [delta for event in reply.events if (delta := api.delta(event))]
            assert deltas == list(reply.text)
            named = [each for event in reply.events if (each := api.inner(event))]
            assert all(each.get("a_field_of_tomorrow", KEPT) == KEPT for each in named)
            assert ("a_field_of_tomorrow" in named[0]) is api.keeps_fields
        return
    assert headers["x-racer-served-by"] == reply.model
    assert headers["x-racer-guarantee"].startswith("void" if reply.reasons else "holds")
    total = [sum(usage_of(case.says[n])[kind] for n in answered) for kind in usage_of("")]
    assert api.usage(reply.whole) == tuple(total)
    assert reply.whole.get("a_field_of_tomorrow") == (KEPT if api.keeps_fields else None)


@EVERY_API
@STREAMED
def test_a_refusal_has_the_shape_of_its_interface(
    gateway: Gateway, pool: FakePool, api: Api, stream: bool
) -> None:
    """No candidate is called; the sentence is where clients look for a text."""
    reply = api.ask(gateway, UNANSWERABLE, stream=stream)
    assert "No model of the pool" in reply.text
    assert (reply.model, reply.racer["abstained"]) == ("auto", True)
    assert reply.id.startswith(api.prefix)
    assert reply.headers["x-racer-abstained"] == "true"
    assert reply.headers["x-racer-guarantee"].startswith("holds" if api.is_chat else "void")
    assert stream or api.usage(reply.whole) == (0, 0, 0)
    assert pool.models_called() == []


@EVERY_API
def test_the_winners_own_usage_can_be_asked_for(gateway: Gateway, pool: FakePool, api: Api) -> None:
    """``usage: winner`` leaves it as the candidate sent it."""
    pool.say("adder", "seven")
    answer = api.answer(gateway, ONE, racer={**WHOLE_POOL, "usage": "winner"})
    assert answer["model"] != "adder"
    assert api.usage(answer) == (10, 2, 12)


@EVERY_API
def test_a_streamed_answer_arrives_while_it_is_written(
    gateway: Gateway, pool: FakePool, api: Api
) -> None:
    """The first event is there long before the candidate has finished."""
    pool.say("adder", "seven", pause_s=0.3)
    body = {"model": "auto", **api.asks(ONE), "stream": True}
    with gateway.http() as client, client.stream("POST", f"/v1/{api.path}", json=body) as response:
        lines = response.iter_lines()  # kept: dropping it would close the connection
        first = next(lines)
        assert pool.running == ["adder"]
        data = [line.removeprefix("data: ") for line in [first, *lines] if '{"' in line]
    assert "".join(api.delta(json.loads(each)) for each in data) == "seven"


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


@CHUNKED_APIS
def test_a_merged_stream_has_every_field_of_the_answer(
    gateway: Gateway, pool: FakePool, api: Api
) -> None:
    """Unknown fields of the answer and of its choices; each once."""
    choice = {"index": 0, "finish_reason": "stop", "stop_reason": 2, "token_ids": [5, 7]}
    answer = {"text": "7", "message": {"role": "assistant", "content": "7", "mood": "calm"}}
    for name in ("adder", "speller"):
        pool.say(name, "7", fields={"choices": [choice | answer], "prompt_token_ids": [1, 2]})
    plain = api.answer(gateway, TWO)
    _, events = api.stream(gateway, TWO)
    for name in ("a_field_of_tomorrow", "prompt_token_ids"):
        assert [event[name] for event in events if name in event] == [plain[name]]
    choices = [choice for event in events for choice in event["choices"]]
    for name in ("stop_reason", "token_ids"):
        found = [choice[name] for choice in choices if choice.get(name) is not None]
        assert found == [plain["choices"][0][name]]
    assert choices[-1]["stop_reason"] == 2
    assert choices[0].get("delta", {}).get("mood") == ("calm" if "delta" in choices[0] else None)


@EVERY_API
@STREAMED
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
def test_a_broken_stream_ends_in_the_envelope_and_is_never_certified(
    gateway: Gateway, pool: FakePool, api: Api, fault: str, model: str
) -> None:
    """What had arrived is sent, then an error that names the candidate; the record agrees."""
    pool.say("adder", "42", fault=fault)
    response, (*events, last) = api.broken(gateway, ONE, model=model)
    assert response.status_code == 200
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
    if model == "adder":
        assert "x-racer-guarantee" not in response.headers
        return
    assert response.headers["x-racer-guarantee"].startswith("pending" if api.is_chat else "void")
    path = f"/decisions/{response.headers['x-racer-decision-id']}"
    wait_until(lambda: gateway.get(path).status_code == 200)
    stored = gateway.get(path).json()
    assert stored["holds"] is False
    assert "candidate_failed:adder" in stored["reasons"]


# A candidate by its name ------------------------------------------------------------------------


@EVERY_API
@STREAMED
@pytest.mark.parametrize("text", ["Roses", " \n seven"])
def test_a_named_candidate_is_called_without_routing(
    gateway: Gateway, pool: FakePool, api: Api, stream: bool, text: str
) -> None:
    """Its answer as it is, but for the name; nothing is certified; our count stays here."""
    pool.say("poet", text)
    reply = api.ask(gateway, ONE, model="poet", stream=stream)
    assert (reply.text, reply.model, pool.models_called()) == (text, "poet", ["poet"])
    assert reply.racer == {}
    assert reply.headers["x-racer-served-by"] == "poet"
    assert "x-racer-guarantee" not in reply.headers
    if stream:
        assert all(event["choices"] for event in reply.events if api.ends)
        return
    assert reply.id.endswith(("upstream-1", "upstream-2", "upstream"))
    assert reply.whole.get("a_field_of_tomorrow") == (KEPT if api.keeps_fields else None)


@EVERY_API
def test_an_unknown_model_name_is_not_found(gateway: Gateway, pool: FakePool, api: Api) -> None:
    """The same holds for pools that are not configured."""
    for name in ("gpt-4o", "auto/", "auto/fast", "automatic"):
        response = api.post(gateway, ONE, model=name)
        error = response.json()["error"]
        assert (response.status_code, api.code(error)) == (404, "model_not_found")
        assert error.get("details", error)["param"] == "model"
    assert pool.models_called() == []
