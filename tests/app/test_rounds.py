"""Calls in rounds under the promise `same_answer`: failures, deadlines, streams, smaller pools."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from app.answering import rounds as answering_rounds
from app.routing.rounds_plan import RoundsTerms, fitted
from app.same_answer.calibrations import AnswerCalibrations
from app.settings import key_format
from tests.kit.case import Shared
from tests.kit.connections import CHAT, opened
from tests.kit.gateway import ADMIN_KEY, Gateway, Serve, error_message, user
from tests.kit.same_answer import NAMES, activate, classes, configured
from tests.kit.upstream import FakePool, usage_of
from tests.kit.waiting import until, wait_until


@pytest.fixture
def certified(serve: Serve, talking: FakePool) -> Gateway:
    """A gateway whose promise is calibrated."""
    gateway = serve(**configured(talking))
    activate(gateway)
    return gateway


def rounds(response: dict[str, Any]) -> dict[str, Any]:
    """The calls of a certificate."""
    return response["racer"]["certificate"]["rounds"]


def say(pool: FakePool, **answers: str) -> None:
    """Let candidates say these words."""
    for name, text in answers.items():
        pool.say(name, text)


def test_agreement_ends_the_calls(certified: Gateway, talking: FakePool) -> None:
    """The others are not called, and the response says so."""
    say(talking, ada="7", bob="7", cyd="7", dan="8", eve="8")
    response = certified.chat("how many?")
    made = rounds(response)
    first = made["first_round"]
    assert talking.models_called() == sorted(first)
    assert (made["rounds"], made["calls"], made["stopped"]) == (1, len(first), "certified")
    assert response["racer"]["selected"] == first
    metrics = certified.get("/metrics", ADMIN_KEY).text
    assert f'racer_same_answer_calls_total{{kind="made"}} {len(first)}.0' in metrics
    assert f'racer_same_answer_calls_total{{kind="spared"}} {len(NAMES) - len(first)}.0' in metrics
    assert response["racer"]["certificate"]["remarks"] == []
    stored = certified.get(f"/decisions/{response['id']}").json()
    assert stored["calibration_id"] == response["racer"]["certificate"]["calibration_id"]
    assert stored["calibration_id"] is not None
    sequence = stored["sequence"]
    assert (sequence["order"][: len(first)], sequence["borders"][0]) == (first, len(first))
    (only,) = sequence["made"]["rounds"]
    assert (only["called"], 0.0 <= only["doubt"] < 0.5) == (first, True)
    assert sequence["made"] | {"rounds": []} == {
        "rounds": [], "stopped": "certified", "classes": dict.fromkeys(first, 0), "failed": [],
        "price_share": None, "verdicts": {},
    }  # fmt: skip
    skipped = {each["candidate"] for each in response["racer"]["calls"] if "skipped" in each}
    assert skipped == set(NAMES) - set(first)
    assert response["choices"][0]["message"]["content"] == "7"
    say(talking, ada="1", bob="2", cyd="3", dan="3", eve="3")
    doubted = rounds(certified.chat("how many?"))
    assert (doubted["rounds"], doubted["stopped"]) == (2, "all_called")
    counted = sets_counted(certified), sets_counted(certified, "sum")
    assert counted == (2, len(first) + len(NAMES)), "those that were called, not the first round"


def test_a_failure_calls_all_that_are_left(certified: Gateway, talking: FakePool) -> None:
    """Void, unless the others outvote the candidate that failed, whatever it would have said."""
    say(talking, ada="7", bob="7", cyd="7", dan="7", eve="7")
    first = rounds(certified.chat("how many?"))["first_round"]
    talking.fail(first[-1], "400")  # an unreadable answer, as in the rows: nothing is void
    certificate = certified.chat("how many?")["racer"]["certificate"]
    assert (certificate["holds"], certificate["reasons"]) == (True, [])
    talking.reset()
    say(talking, **dict.fromkeys(NAMES, "7"))
    talking.fail(first[0], "500")
    response = certified.chat("how many?")
    certificate = response["racer"]["certificate"]
    assert certificate["remarks"] == ["repeated_query"]  # it voids nothing
    assert set(talking.models_called()) == set(NAMES)
    assert certificate["reasons"] == [f"outvoted_candidate_failed:{first[0]}"]
    assert (certificate["holds"], rounds(response)["stopped"]) == (True, "failure")
    for name, text in zip(first[1:], "12", strict=False):
        talking.say(name, text)
    certificate = certified.chat("how many?")["racer"]["certificate"]
    assert (certificate["holds"], certificate["reasons"]) == (
        False, [f"candidate_failed:{first[0]}"],
    )  # fmt: skip


def test_after_half_of_the_time_the_rest_is_called(certified: Gateway, talking: FakePool) -> None:
    """A late answer that could change the vote is awaited, and has failed at the deadline."""
    say(talking, **dict.fromkeys(NAMES, "7"))
    first = rounds(certified.chat("how many?"))["first_round"]
    talking.say(first[0], "7", delay_s=30)
    response = certified.chat("how many?", {"timeout": 4})
    assert (rounds(response)["stopped"], rounds(response)["calls"]) == ("deadline", len(NAMES))
    certificate = response["racer"]["certificate"]
    assert (certificate["holds"], certificate["reasons"]) == (True, [])
    others = [name for name in NAMES if name != first[0]]
    for name, text in zip(others, "1234", strict=True):
        talking.say(name, text)
    response = certified.chat("how many?", {"timeout": 4})
    assert response["racer"]["certificate"]["reasons"] == [f"candidate_failed:{first[0]}"]


def test_a_slow_round_is_not_awaited(
    serve: Serve, talking: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A candidate stalls in the first round: the client waits far less than half of a minute."""
    monkeypatch.setattr(answering_rounds, "KEPT", 8)
    monkeypatch.setattr(answering_rounds, "LEAST_S", 2.0)  # a busy machine makes no round slow
    gateway = serve(**configured(talking))
    activate(gateway)
    say(talking, **dict.fromkeys(NAMES, "7"))

    def answer_quickly() -> None:
        for _ in range(8):  # each calls everyone: their latency is known
            gateway.chat("how many?", {"alpha": 0.001})

    answer_quickly()
    made = rounds(gateway.chat("how many?"))
    first = made["first_round"]
    assert made["stopped"] == "certified"
    talking.say(first[0], "7", delay_s=30)
    for asked in ({}, {"reference": "eve"}):
        response = gateway.chat("how many?", asked)
        assert (rounds(response)["stopped"], rounds(response)["calls"]) == ("slow", len(NAMES))
        assert response["racer"]["certificate"]["holds"]
        late = [each["candidate"] for each in response["racer"]["calls"] if "cancelled" in each]
        assert first[0] in late
    talking.say(first[0], "7")
    answer_quickly()
    others = [name for name in NAMES if name != first[0]]
    for name, text in zip(others, "1234", strict=True):
        talking.say(name, text)
    talking.say(first[0], "4", delay_s=3.0)
    response = gateway.chat("how many?")
    assert (rounds(response)["stopped"], len(response["racer"]["calls"])) == ("slow", len(NAMES))
    assert response["choices"][0]["message"]["content"] == "4"
    assert response["racer"]["certificate"]["reasons"] == []


def test_a_calibration_of_other_terms_assumes_that_they_were_chosen_freely(
    serve: Serve, talking: FakePool
) -> None:
    """The section was changed after the calibration: its certificates state the assumption."""
    gateway = serve(**configured(talking, same_answer={"alpha": 0.02, "max_rounds": 3}))
    activate(gateway)  # of two rounds
    certificate = gateway.route("how many?")["certificate"]
    assert certificate["reasons"] == ["terms_assumed_independent_of_query"]


def test_a_named_reference(certified: Gateway, talking: FakePool) -> None:
    """Its answer, or a certified guess at it; where it fails, the vote of the others, void."""
    say(talking, ada="1", bob="2", cyd="4", dan="5", eve="3")
    asked = {"reference": "eve"}
    response = certified.chat("how many?", asked)
    certificate = response["racer"]["certificate"]
    assert response["choices"][0]["message"]["content"] == "3"
    assert (certificate["holds"], certificate["reasons"]) == (
        True, ["terms_assumed_independent_of_query"],
    )  # fmt: skip
    assert certificate["guarantee"]["reference"] == "eve"
    talking.fail("eve", "500")
    certificate = certified.chat("how many?", asked)["racer"]["certificate"]
    assert not certificate["holds"]
    assert "reference_unavailable" in certificate["reasons"]
    assert talking.models_called().count("dan") >= 1
    unknown = certified.ask("how many?", {"reference": "unknown"})
    assert "no candidate 'unknown'" in error_message(unknown, 400)


def test_alpha_and_rounds_of_the_request(certified: Gateway, talking: FakePool) -> None:
    """Any alpha has its threshold; one that is too small calls the whole pool, and holds."""
    say(talking, **dict.fromkeys(NAMES, "7"))
    response = certified.chat("how many?", {"alpha": 0.001})
    certificate = response["racer"]["certificate"]
    assert certificate["holds"]
    assert "alpha_infeasible_whole_pool" in certificate["reasons"]
    assert rounds(response)["calls"] == len(NAMES)
    assert certificate["guarantee"]["risk_band"] == 0.0  # nothing can differ
    certificate = certified.chat("how many?", {"max_rounds": 3})["racer"]["certificate"]
    assert (certificate["guarantee"]["max_rounds"], certificate["holds"]) == (3, True)
    assert error_message(certified.ask("how many?", {"alpha": 2.0}), 400)
    assert certified.ask("how many?", {"max_rounds": 0}).status_code == 400


def test_an_alpha_configured_after_the_rows_were_seen_is_assumed(
    serve: Serve, talking: FakePool
) -> None:
    """The evidence shows what every alpha would call."""
    gateway = serve(**configured(talking, same_answer={"alpha": 0.1}))
    record = activate(gateway)
    assert record.alpha == 0.02
    certificate = gateway.chat("how many?")["racer"]["certificate"]
    assert certificate["reasons"] == ["alpha_assumed_independent_of_query"]
    guarantee = certificate["guarantee"]
    assert (guarantee["alpha_basis"], guarantee["risk_band_delta"]) == ("band", 0.05)
    realised = fitted(record, NAMES, RoundsTerms("vote", 2)).realised_risk(0.1)
    assert realised is not None
    assert guarantee["risk_band"] == realised.band()


def test_who_may_call_only_a_part_of_the_pool(serve: Serve, talking: FakePool) -> None:
    """The part has its own order, votes and threshold; no sampled request was like it, so void."""
    secret = key_format.new_key()
    written = key_format.format_hash(secret, key_format.new_salt())
    part = ["bob", "cyd", "dan"]
    keys = [{"name": "part", "hash": written, "candidates": part, "max_alpha": 0.01}]
    gateway = serve(**configured(talking, access={"keys": keys}))
    activate(gateway)
    body = {"model": "auto", "messages": user("question 1")}
    response = gateway.post("/v1/chat/completions", secret, json=body)
    certificate = response.json()["racer"]["certificate"]
    assert certificate["guarantee"]["pool"] == part
    assert certificate["reasons"] == ["not_drawn", "alpha_assumed_independent_of_query"]
    assert certificate["guarantee"]["alpha"] == 0.01
    assert set(talking.models_called()) <= set(part)
    asked = {**body, "racer": {"reference": "ada"}}
    response = gateway.post("/v1/chat/completions", secret, json=asked)
    assert "reference_unavailable" in response.json()["racer"]["certificate"]["reasons"]
    body["racer"] = {"candidates": ["dan"]}
    response = gateway.post("/v1/chat/completions", json=body)
    certificate = response.json()["racer"]["certificate"]
    assert certificate["reasons"] == ["pool_assumed_independent_of_query", "not_drawn"]


def test_route_says_order_first_round_and_expected_calls(certified: Gateway) -> None:
    """No candidate is called."""
    found = certified.route("question 1")
    plan = found["certificate"]["rounds"]
    assert found["selected"][: len(plan["first_round"])] == plan["first_round"]
    assert 1.0 <= plan["expected_calls"] < len(NAMES)
    assert (plan["rounds"], plan["stopped"]) == (None, None)
    counted = sets_counted(certified)
    levels = certified.post("/route/levels", ADMIN_KEY, json={"query": "question 1"}).json()
    assert (levels["certificate"]["rounds"], levels["levels"]) == (plan, [])
    assert sets_counted(certified) == counted > 0
    asked = {"query": "question 1", "alpha": 0.5}
    levels = certified.post("/route/levels", ADMIN_KEY, json=asked).json()
    found = certified.route("question 1", alpha=0.5)["certificate"]
    assert levels["certificate"] == found | {"remarks": []}
    assert certified.get("/route/levels", ADMIN_KEY).json()["levels"] == []


def sets_counted(gateway: Gateway, what: str = "count") -> float:
    """The decisions that its metrics count, or the ``sum`` of their sets."""
    lines = gateway.get("/metrics", ADMIN_KEY).text.splitlines()
    return float(next(each for each in lines if f"racer_set_size_{what} " in each).split()[1])


def test_a_promise_per_request(serve: Serve, pool: FakePool) -> None:
    """Where none is configured, a request may ask; where one is, a request may ask for the set."""
    for given, promise, named_holds in (
        ({}, "same_answer", False),
        ({"same_answer": {}}, "set", True),
    ):
        gateway = serve(**given)
        named = gateway.chat("What is 3 plus 4?", {"promise": promise})["racer"]["certificate"]
        usual = gateway.chat("What is 3 plus 4?")["racer"]["certificate"]
        assert (named["holds"], usual["holds"]) == (named_holds, not named_holds)
        void = usual if named_holds else named
        assert void["reasons"] == ["not_calibrated"]


def test_later_turns_and_another_setup(certified: Gateway, talking: FakePool) -> None:
    """Rows are first turns; a calibration of other candidates cannot be activated."""
    turns = [*user("question 1"), {"role": "assistant", "content": "0"}, *user("question 2")]
    body = {"model": "auto", "messages": turns}
    response = certified.post("/v1/chat/completions", json=body)
    certificate = response.json()["racer"]["certificate"]
    assert certificate["reasons"] == ["multi_turn_uncalibrated"]
    with pytest.raises(AssertionError, match="other candidates, parameters"):
        activate(certified, setup="another")


def test_history_rollback_and_restart(serve: Serve, talking: FakePool, tmp_path: Any) -> None:
    """The one that was activated last decides, also after a start; each application has its own."""
    given = configured(talking, applications={"bot": {}, "desk": {"same_answer": {}}})
    gateway = serve(folder=tmp_path / "one", **given)
    older = activate(gateway, application="bot")
    newer = activate(gateway, application="bot", count=200)

    def decides(gateway: Gateway, application: str) -> tuple[str | None, list[str]]:
        found = gateway.chat("question 1", {"application": application})["racer"]["certificate"]
        return found["calibration_id"], found["reasons"]

    assumed = ["group_assumed_independent_of_query"]
    assert decides(gateway, "bot") == (newer.id, assumed)
    assert decides(gateway, "desk") == (None, ["not_calibrated"])
    rolled_back = gateway.post(f"/same-answer/{older.id}/activate", ADMIN_KEY)
    assert rolled_back.json() == {"id": older.id, "active": True}
    chosen = ["chosen_by_figures", *assumed]
    assert decides(gateway, "bot") == (older.id, chosen)
    report = gateway.get("/same-answer", ADMIN_KEY).json()
    assert [(each["id"], each["active"]) for each in report["data"]] == [
        (newer.id, False), (older.id, True),
    ]  # fmt: skip
    restarted = serve(folder=tmp_path / "one", **given)
    assert decides(restarted, "bot") == (older.id, chosen)
    missing = gateway.post("/same-answer/answers-none/activate", ADMIN_KEY)
    assert "no calibration 'answers-none'" in error_message(missing, 404)


@pytest.mark.parametrize(("reference", "alpha"), [("vote", 0.02), ("eve", 0.3)])
def test_a_request_is_decided_as_a_row_is(
    certified: Gateway, talking: FakePool, reference: str, alpha: float
) -> None:
    """Its answers as a row of the calibration stop after the same calls, with the same winner."""
    record = activate(certified, salt=b"salt")
    calibrations = AnswerCalibrations(None, setup="")
    terms = RoundsTerms(reference, 3)
    plan = calibrations.plan(record, NAMES, terms, alpha)
    rounds_made: set[int] = set()
    for number in range(500, 530):
        question = f"question {number}"
        asked = {"reference": reference, "max_rounds": 3, "alpha": alpha}
        found = certified.chat(question, asked)["racer"]
        row = replace(classes(number, 1), fingerprints=(found["decision_id"].encode(),))
        stops = plan.calibration.stops(row, plan.threshold)
        assert found["certificate"]["rounds"]["calls"] == stops.calls[0], question
        assert found["certificate"]["rounds"]["rounds"] == stops.rounds[0]
        assert found["served_by"] == NAMES[stops.winner[0]]
        rounds_made.add(int(stops.rounds[0]))
    assert len(rounds_made) > 1


# Streams ------------------------------------------------------------------------------------------

EVE = {"reference": "eve"}
OTHERS = NAMES[:-1]
TEXT = "abcdef"


@pytest.fixture
def streaming(shared: Shared, pool: FakePool) -> Gateway:
    """A promise that is calibrated, many comments, and candidates of which no two agree."""
    case = shared(**configured(pool, limits={"comment_every_s": 0.05}))
    if case.route("question 1")["certificate"]["reasons"] == ["not_calibrated"]:
        activate(case.gateway)
    for number, name in enumerate(OTHERS):
        pool.say(name, str(number))
    return case.gateway


def decision(gateway: Gateway, decision_id: str) -> dict[str, Any]:
    """What is stored of a decision, once it is."""
    path = f"/decisions/{decision_id}"
    wait_until(lambda: gateway.get(path, ADMIN_KEY).status_code == 200)
    return gateway.get(path, ADMIN_KEY).json()


def data(lines: list[str]) -> list[dict[str, Any]]:
    """The events of a stream."""
    return [json.loads(each[6:]) for each in lines if each.startswith("data: {")]


def text_of(events: list[dict[str, Any]]) -> str:
    """The text of chunks."""
    choices = [choice for each in events for choice in each.get("choices", ())]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def test_the_reference_passes_letter_by_letter(streaming: Gateway, pool: FakePool) -> None:
    """Comments, then letters while it still answers; certificate, usage and record are whole."""
    pool.say("ada", "0", delay_s=0.4)
    pool.say("eve", TEXT, pause_s=0.1)
    body = {"model": "auto", "messages": user("how many?"), "stream": True, "racer": EVE}
    body["stream_options"] = {"include_usage": True}
    lines: list[str] = []
    with streaming.http() as client, client.stream("POST", CHAT, json=body) as response:
        assert response.headers["x-racer-guarantee"] == "pending"
        for line in response.iter_lines():
            lines.append(line)
            if len(events := data(lines)) == 2 and "racer" not in events[-1]:
                assert pool.running == ["eve"]
    first = next(place for place, line in enumerate(lines) if line.startswith("data: {"))
    assert sum(line.startswith(": 5 candidates") for line in lines[:first]) >= 2
    events = data(lines)
    assert text_of(events) == TEXT
    assert {each["model"] for each in events} == {"eve"}
    (racer,) = [each["racer"] for each in events if "racer" in each]
    certificate = racer["certificate"]
    made = certificate["rounds"]
    assert (certificate["holds"], made["stopped"], made["rounds"], made["calls"]) == (
        True, "all_called", 2, 5,
    )  # fmt: skip
    assert racer["served_by"] == "eve"
    assert {each["candidate"] for each in racer["calls"] if "ms" in each} == set(NAMES)
    assert len(racer["usage"]) == 5
    tokens = sum(usage_of(text)["total_tokens"] for text in (*"0123", TEXT))
    assert events[-1]["usage"]["total_tokens"] == tokens
    stored = decision(streaming, racer["decision_id"])
    assert (stored["outcome"], stored["served_by"], stored["holds"]) == ("answered", "eve", True)
    assert set(stored["answered"]) == set(stored["selected"]) == set(NAMES)
    assert stored["sequence"]["made"]["stopped"] == "all_called"
    verified = streaming.post(f"/decisions/{racer['decision_id']}/verify", ADMIN_KEY)
    assert verified.json()["matches"], verified.text
    responses = {"model": "auto", "input": "how many?", "stream": True, "racer": EVE}
    *_, last = data(streaming.post("/v1/responses", json=responses).text.splitlines())
    assert last["response"]["usage"]["input_tokens"] == 5 * 10
    assert last["response"]["racer"]["certificate"]["rounds"]["calls"] == 5


def test_a_certified_answer_needs_no_reference(streaming: Gateway, pool: FakePool) -> None:
    """The others agree: their answer is sent as a merged one, and the reference is not called."""
    for name in OTHERS:
        pool.say(name, "7")
    asked = {**EVE, "alpha": 0.5}
    events = data(streaming.ask("how many?", asked, stream=True).text.splitlines())
    assert text_of(events) == "7"
    assert events[-1]["racer"]["certificate"]["rounds"]["stopped"] == "certified"
    assert "eve" not in pool.models_called()
    skipped = [each["candidate"] for each in events[-1]["racer"]["calls"] if "skipped" in each]
    assert skipped == ["eve"]
    leader = streaming.ask("how many?", {"stream": "leader"}, stream=True)
    assert "leader_streamed" in leader.text


@pytest.mark.parametrize("fault", ["500", "stream_empty"])
def test_a_reference_that_fails_before_its_first_letter(
    streaming: Gateway, pool: FakePool, fault: str
) -> None:
    """The vote of the others, void, as where nothing streams."""
    pool.fail("eve", fault)
    whole = streaming.chat("how many?", EVE)
    events = data(streaming.ask("how many?", EVE, stream=True).text.splitlines())
    racer = events[-1]["racer"]
    assert racer["certificate"]["reasons"] == whole["racer"]["certificate"]["reasons"]
    assert "reference_unavailable" in racer["certificate"]["reasons"]
    assert racer["certificate"]["rounds"] == whole["racer"]["certificate"]["rounds"]
    assert text_of(events) == whole["choices"][0]["message"]["content"] in "0123"
    stored = decision(streaming, racer["decision_id"])
    assert (stored["outcome"], stored["holds"]) == ("answered", False)
    assert set(stored["answered"]) == set(OTHERS)


def test_a_reference_that_breaks_off_or_whose_client_leaves(
    streaming: Gateway, pool: FakePool
) -> None:
    """An error event; either way one record with the answers that arrived before."""
    pool.say("eve", TEXT, fault="cut")
    events = data(streaming.ask("how many?", EVE, stream=True).text.splitlines())
    assert text_of(events) == TEXT
    assert "error" in events[-1]
    stored = decision(streaming, events[0]["id"])
    assert (stored["outcome"], stored["holds"], set(stored["answered"])) == (
        "failed", False, set(OTHERS),
    )  # fmt: skip
    made = stored["sequence"]["made"]
    assert (made["stopped"], made["failed"]) == ("broken_off", ["eve"])
    verified = streaming.post(f"/decisions/{stored['decision_id']}/verify", ADMIN_KEY)
    assert verified.json()["matches"], verified.text
    pool.say("eve", "a long answer " * 20, pause_s=0.05)
    body = {"model": "auto", "messages": user("how many?"), "stream": True, "racer": EVE}
    connection = opened(streaming, CHAT, body)
    received = b""
    while b"data: {" not in received:
        received += connection.recv(4096)
    connection.close()
    assert until(lambda: pool.cancelled == ["eve"] and not pool.running)
    first = received.partition(b"data: ")[2].partition(b"\n")[0]
    stored = decision(streaming, json.loads(first)["id"])
    assert (stored["outcome"], set(stored["answered"])) == ("cancelled", set(OTHERS))
    assert set(stored["selected"]) == set(NAMES)


def test_a_client_that_leaves_while_rounds_run(streaming: Gateway, pool: FakePool) -> None:
    """Before the reference is called: one record, and no call goes on."""
    for name in OTHERS:
        pool.say(name, "7", delay_s=30)
    body = {"model": "auto", "messages": user("how many?"), "stream": True, "racer": EVE}
    connection = opened(streaming, CHAT, body)
    received = b""
    while b": 5 candidates" not in received:
        received += connection.recv(4096)
    decision_id = received.partition(b"x-racer-decision-id: ")[2].partition(b"\r\n")[0].decode()
    connection.close()
    assert until(lambda: sorted(pool.cancelled) == sorted(OTHERS) and not pool.running)
    stored = decision(streaming, decision_id)
    assert (stored["outcome"], stored["answered"]) == ("cancelled", [])


def test_a_reference_that_is_cheapest_alone_is_a_live_stream(serve: Serve, pool: FakePool) -> None:
    """It is the first round: an early failure leaves the vote of the others."""
    given = configured(pool)
    for each in given["candidates"]:
        each["price"] = 0.01 if each["name"] == "eve" else 1.0
    gateway = serve(**given)
    activate(gateway)
    for name in NAMES:
        pool.say(name, "7")
    response = gateway.ask("how many?", EVE, stream=True)
    assert response.headers["x-racer-served-by"] == "eve"
    made = data(response.text.splitlines())[-1]["racer"]["certificate"]["rounds"]
    assert (made["calls"], made["first_round"], pool.models_called()) == (1, ["eve"], ["eve"])
    pool.fail("eve", "500")
    events = data(gateway.ask("how many?", EVE, stream=True).text.splitlines())
    assert text_of(events) == "7"
    assert "reference_unavailable" in events[-1]["racer"]["certificate"]["reasons"]
