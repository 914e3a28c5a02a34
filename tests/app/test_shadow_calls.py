"""The shadow sample of live traffic: a draw that looks at nothing, and calls in the background."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from app.errors import StoreFull, StoreUnavailable
from app.monitoring.samples.record import SampledExchange
from app.monitoring.samples.store import SampleStore
from app.settings import key_format
from app.store.encryption import Cipher
from app.upstream.fleet import Fleet
from tests.kit.connections import CHAT, opened
from tests.kit.gateway import (
    ADMIN_KEY,
    ENVIRONMENT,
    ONE,
    POOL,
    TWO,
    UNANSWERABLE,
    Command,
    Gateway,
    Serve,
    as_json,
    configure,
    error_message,
    labelled,
    running,
    user,
)
from tests.kit.monitored import KEY, sampled, samples, shadow_rows
from tests.kit.upstream import FakePool
from tests.kit.waiting import until, wait_until

OTHER_KEY = KEY[::-1].replace("=", "") + "="
KEYED = {**ENVIRONMENT, "RACER_SAMPLES_KEY": KEY}
WATCHING = {"shadow_rate": 1.0, "store_requests": True, "feedback": "all"}


@pytest.fixture
def sampling(serve: Serve) -> Gateway:
    """A gateway that draws every decision and stores requests."""
    return serve(watching=WATCHING, environment=KEYED)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_waits_for_its_own_set_alone(
    sampling: Gateway, pool: FakePool, stream: bool
) -> None:
    """The others answer afterwards; what the set answered is not called again."""
    pool.say("adder", "seven")
    gate = threading.Event()
    pool.say("poet", "eight", gate=gate)
    answer = sampling.ask(ONE, stream=stream)
    gate.set()
    data = [line for line in answer.text.split("data: ") if line.startswith("{")]
    text = "".join(
        choice.get("message", choice.get("delta")).get("content") or ""
        for each in (data if stream else [answer.text])
        for choice in json.loads(each)["choices"]
    )
    assert text == "seven"
    assert '"shadow_rate":1.0' in answer.text.replace(" ", "")
    assert '"answers"' not in answer.text
    assert sampled(sampling, 1) == {"whole": 1}
    assert pool.models_called() == sorted(POOL)
    (row,) = shadow_rows(sampling)
    assert row["answers"] == {"adder": "seven", "speller": "42", "poet": "eight"}
    assert row["request"]["messages"] == user(ONE)
    assert (row["weight"], row["unlabelled"]) == (1.0, True)
    assert set(row["calls"]) == set(POOL)


def test_every_request_is_drawn_for(sampling: Gateway, pool: FakePool) -> None:
    """Repeats, rows, abstentions, unusual requests and later turns; a decision alone is not."""
    calibrated = labelled(10_000, 1).rows[0].query
    sampling.route(ONE)
    later = [*user(ONE), {"role": "assistant", "content": "7"}, *user(TWO)]
    sampling.chat(ONE)
    sampling.chat(ONE)
    sampling.chat(calibrated)
    sampling.chat(ONE, temperature=1.5)
    sampling.chat(ONE, tools=[{"type": "function", "function": {"name": "f"}}])
    sampling.chat(UNANSWERABLE)
    assert sampling.ask(UNANSWERABLE, {"on_abstain": "error"}).status_code == 422
    body = {"model": "auto", "messages": later}
    assert sampling.post("/v1/chat/completions", json=body).status_code == 200
    assert sampled(sampling, 8) == {"whole": 8}
    rows = shadow_rows(sampling)
    assert [row["request"]["messages"][-1]["content"] for row in rows] == [
        ONE, ONE, calibrated, ONE, ONE, UNANSWERABLE, UNANSWERABLE, TWO,
    ]  # fmt: skip
    assert all(set(row["answers"]) == set(POOL) for row in rows)
    # A call that a decided vote cancelled may have begun: it is called again for the sample.
    calls = Counter(request["model"] for request in pool.requests)
    assert set(calls) == set(POOL)
    assert min(calls.values()) >= 8


def test_a_row_is_no_larger_than_an_upload_takes(serve: Serve, pool: FakePool) -> None:
    """Long answers are left out of it; a request that no row can hold is covered by none."""
    secret = key_format.new_key()
    written = key_format.format_hash(secret, key_format.new_salt())
    gateway = serve(
        calibrated=False,
        access={"keys": [{"name": "bot", "hash": written}]},
        applications={"bot": {"keys": ["bot"], "premise": "drawn"}},
        watching=WATCHING,
        environment=KEYED,
    )
    pool.say("poet", "long " * 100_000)
    texts = ["é" * 350_000, "é" * 460_000, "x" * 700_000]  # the second has more than 896 KiB
    for text in texts:
        body = {"model": "auto", "messages": user(text)}
        assert gateway.post("/v1/chat/completions", secret, json=body).status_code == 200
    assert sampled(gateway, 3) == {"whole": 3}
    lines = gateway.get("/shadow/rows", ADMIN_KEY).content.splitlines()
    assert all(len(line) < 2**20 for line in lines)
    rows = [json.loads(line) for line in lines]
    found = [(row["request"]["messages"], "answers" in row) for row in rows]
    assert found == [(user(texts[0]), False), (user(texts[2]), False)]


def test_a_client_that_leaves_is_drawn_for(sampling: Gateway, pool: FakePool) -> None:
    """Its answer is fetched again, for it was cut off."""
    pool.say("adder", "seven", delay_s=30)
    connection = opened(sampling, CHAT, {"model": "auto", "messages": user(ONE)})
    assert until(lambda: pool.running == ["adder"], 30)
    pool.say("adder", "seven")
    connection.close()
    assert sum(sampled(sampling, 1).values()) == 1
    (row,) = shadow_rows(sampling)
    assert set(row["answers"]) == set(POOL)


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        *((fault, "correct") for fault in ("400", "413", "415", "422", "451")),
        *((fault, "unlabelled") for fault in ("402", "404", "405", "409", "500")),
    ],
)
def test_failures_are_rows_too(sampling: Gateway, pool: FakePool, fault: str, found: str) -> None:
    """Who refuses the request is wrong; what was not answered for another reason is unknown."""
    for name in POOL:
        pool.fail(name, fault)
    assert sampling.ask(ONE).status_code >= 400
    sampled(sampling, 1)
    (row,) = shadow_rows(sampling)
    assert row[found] == (dict.fromkeys(POOL, False) if found == "correct" else True)


def test_an_admin_corrects_what_the_sampling_found(sampling: Gateway, pool: FakePool) -> None:
    """The gateway's own verdict gives way to an admin's, which does not to another's."""
    pool.fail("poet", "422")
    answer = sampling.chat(ONE)
    sampled(sampling, 1)
    feedback = {"decision_id": answer["id"], "correct": {"poet": True}}
    assert sampling.post("/feedback", json=feedback).status_code == 409
    corrected = sampling.post("/feedback", ADMIN_KEY, json=feedback)
    assert corrected.status_code == 200, corrected.text
    verdicts = {**feedback, "correct": dict.fromkeys(POOL, True)}
    sampling.post("/feedback", ADMIN_KEY, json=verdicts).raise_for_status()
    (row,) = shadow_rows(sampling)
    assert row["correct"] == dict.fromkeys(POOL, True)
    verdicts["correct"] = {"poet": False}
    assert sampling.post("/feedback", ADMIN_KEY, json=verdicts).status_code == 409


def test_a_loss_that_is_counted_is_not_corrected(sampling: Gateway, pool: FakePool) -> None:
    """The risk and the alarms had the gateway's own verdict; the refusal says so."""
    pool.say("poet", " ")
    decision = sampling.chat(ONE)["id"]
    sampled(sampling, 1)
    others = {"decision_id": decision, "correct": {"adder": True, "speller": False}}
    sampling.post("/feedback", ADMIN_KEY, json=others).raise_for_status()
    rows = shadow_rows(sampling)
    late = {"decision_id": decision, "correct": {"poet": True}}
    message = error_message(sampling.post("/feedback", ADMIN_KEY, json=late), 409)
    assert "already counted" in message
    assert shadow_rows(sampling) == rows


def test_one_caller_alone_fails_in_the_background(sampling: Gateway, pool: FakePool) -> None:
    """Shadow calls that fail are the client's: another key's calls go on."""
    callers = set[str]()
    ask = Fleet.ask

    async def spy(fleet: Fleet, *args: Any, **options: Any) -> Any:
        callers.add(options["caller"])
        return await ask(fleet, *args, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Fleet, "ask", spy)
        sampling.chat(ONE)
        sampled(sampling, 1)
    assert callers == {"data"}
    assert pool.models_called() == sorted(POOL)


def test_a_failure_that_is_not_the_requests_is_called_again(
    sampling: Gateway, pool: FakePool
) -> None:
    """As a timeout under the client's own time limit; a rejection of the request is final."""
    pool.say("adder", "seven", delay_s=0.4)
    assert sampling.ask(ONE, {"timeout": 0.1}).status_code == 504
    assert sampled(sampling, 1) == {"whole": 1}
    (row,) = shadow_rows(sampling)
    assert row["answers"]["adder"] == "seven"
    pool.fail("adder", "422")
    calls = pool.models_called().count("adder")
    sampling.ask(TWO)
    sampled(sampling, 2)
    assert pool.models_called().count("adder") == calls + 1


def test_an_answer_without_a_text_is_wrong(sampling: Gateway, pool: FakePool) -> None:
    """And the others wait for verdicts, with which the row is labelled."""
    pool.say("poet", " ")
    answer = sampling.chat(ONE)
    sampled(sampling, 1)
    verdicts = {"decision_id": answer["id"], "correct": {"adder": True, "speller": False}}
    assert sampling.post("/feedback", ADMIN_KEY, json=verdicts).status_code == 200
    (row,) = shadow_rows(sampling)
    assert row["correct"] == {"adder": True, "speller": False, "poet": False}
    assert sampling.get("/drift", ADMIN_KEY).json()["shadow"]["judged"] == 1


def test_without_stored_requests_no_text_is_stored(serve: Serve, pool: FakePool) -> None:
    """Scores and digests take its place in a row."""
    gateway = serve(watching={"shadow_rate": 1.0})
    pool.say("adder", "a secret answer")
    gateway.chat("What is 4711 plus 4712?")
    assert sampled(gateway, 1) == {"whole": 1}
    (row,) = shadow_rows(gateway)
    assert set(row) == {"scores", "unlabelled", "conditions", "group", "weight", "decision_id"}
    stored = Path(gateway.settings.store.removeprefix("sqlite:///")).read_bytes()
    assert b"4711" not in stored
    assert b"secret answer" not in stored


def test_what_is_stored_cannot_be_read_in_the_file(sampling: Gateway, pool: FakePool) -> None:
    """Neither request nor answers."""
    pool.say("adder", "a secret answer")
    sampling.chat("What is 4711 plus 4712?")
    sampled(sampling, 1)
    stored = Path(sampling.settings.store.removeprefix("sqlite:///")).read_bytes()
    assert b"4711" not in stored
    assert b"secret answer" not in stored
    assert shadow_rows(sampling)[0]["answers"]["adder"] == "a secret answer"


def test_a_decision_that_cannot_be_completed_stays_a_row(
    serve: Serve, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a full queue: nothing is called for it, and it is a row without a label."""
    monkeypatch.setattr("app.answering.shadow_calls.MAX_WAITING_BYTES", 0)
    gateway = serve(watching=WATCHING, environment=KEYED)
    answer = gateway.chat(ONE)
    assert answer["choices"][0]["message"]["content"] == "42"
    assert sampled(gateway, 1) == {"lost": 1}
    assert pool.models_called() == ["adder"]
    gateway.get(f"/decisions/{answer['id']}")  # it is stored by then
    (row,) = shadow_rows(gateway)
    assert row["unlabelled"]


def test_a_full_disk_is_one_warning_and_serving_goes_on(
    sampling: Gateway, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The decisions are rows without a label, and later samples are stored again."""

    def refuse(*_: object) -> bool:
        raise StoreFull("the disk of the store is full; make room and try again")

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(SampleStore, "add", refuse)
        for _ in range(3):
            sampling.chat(ONE)
        assert sampled(sampling, 3) == {"lost": 3}
    warnings = [each for each in caplog.records if "samples are not stored" in each.message]
    assert len(warnings) == 1
    assert "make room" in warnings[0].getMessage()
    sampling.chat(ONE)
    assert sampled(sampling, 4) == {"lost": 3, "whole": 1}
    assert ["request" in row for row in shadow_rows(sampling)] == [False, False, False, True]


def test_a_lost_key_is_one_error_and_serving_goes_on(
    tmp_path: Path, artifact: Path, pool: FakePool
) -> None:
    """Once the new key has stored requests, those of the old one are rows without them."""
    path = configure(tmp_path, artifact, pool.url, watching=WATCHING)
    with running(path, KEYED) as gateway:
        gateway.calibrate(60)
        gateway.chat(ONE)
        sampled(gateway, 1)
    other = {**ENVIRONMENT, "RACER_SAMPLES_KEY": OTHER_KEY}
    with running(path, other) as gateway:
        message = error_message(gateway.get("/shadow/rows", ADMIN_KEY), 409)
        assert "RACER_SAMPLES_KEY" in message
        answer = gateway.chat(TWO)
        assert answer["choices"][0]["message"]["content"] == "42"
        sampled(gateway, 1)
        lost, row = shadow_rows(gateway)
        assert (lost["unreadable"], lost["unlabelled"], "request" in lost) == (True, True, False)
        assert row["request"]["messages"] == user(TWO)
        since = gateway.get(f"/decisions/{answer['id']}", ADMIN_KEY).json()["created_at"]
        assert shadow_rows(gateway, f"?since={since.replace('+', '%2B')}") == [row]
        unreadable, other = shadow_rows(gateway, "?pool=any")
        assert (unreadable["unlabelled"], set(unreadable["scores"].values())) == (True, {0.0})
        assert other == row
    path = configure(tmp_path, artifact, pool.url, watching={"shadow_rate": 1.0})
    with running(path, ENVIRONMENT) as gateway:
        assert ["scores" in row for row in shadow_rows(gateway)] == [True, True]


def damage(gateway: Gateway, decision: str) -> None:
    """Change a byte of a stored request."""
    with closing(sqlite3.connect(gateway.settings.store.removeprefix("sqlite:///"))) as database:
        of_it = "WHERE decision_id = ?"
        ((body,),) = database.execute(f"SELECT body FROM samples {of_it}", (decision,))
        changed = body[:-1] + bytes([body[-1] ^ 1])
        database.execute(f"UPDATE samples SET body = ? {of_it}", (changed, decision))
        database.commit()


@pytest.mark.parametrize("premise", ["alike", "drawn"])
def test_a_damaged_request_counts_as_a_miss(serve: Serve, premise: str) -> None:
    """Its row is not left out, unless another request is asked for; the others are as ever."""
    gateway = serve(
        calibrated=False,
        watching=WATCHING,
        environment=KEYED,
        applications={"bot": {"keys": ["data"], "premise": premise}},
    )
    answers = [gateway.chat(f"What is {number} plus 50?") for number in range(12)]
    for answer in answers:
        body = {"decision_id": answer["id"], "correct": dict.fromkeys(POOL, True)}
        gateway.post("/feedback", ADMIN_KEY, json=body).raise_for_status()
    sampled(gateway, 12)
    damage(gateway, answers[3]["id"])
    rows = shadow_rows(gateway)
    assert [row["decision_id"] for row in rows] == [answer["id"] for answer in answers]
    assert [row.get("unreadable", False) for row in rows] == [n == 3 for n in range(12)]
    assert ["correct" in row for row in rows] == [n != 3 for n in range(12)]
    made = upload(gateway, rows)
    assert made.status_code == 200, made.text
    evidence = made.json()["evidence"]
    assert (evidence["rows"], evidence["unlabelled"]) == (12, 1)


def test_rows_are_sent_in_parts_and_never_cut_silently(
    sampling: Gateway, racer: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that fails after the first part ends the connection: no file has half of the rows."""
    for text in (ONE, TWO):
        sampling.chat(text)
    sampled(sampling, 2)
    monkeypatch.setattr("app.monitoring.samples.sampler.PART_BYTES", 1)
    monkeypatch.setattr("app.monitoring.samples.store.PAGE", 1)
    assert len(shadow_rows(sampling)) == 2
    plain, calls = Cipher.decrypt, list[str]()

    def fail(cipher: Cipher, body: bytes, decision: str) -> Any:
        calls.append(decision)
        if len(calls) == 3:  # the first is that of the check, the second that of the first part
            raise StoreUnavailable("the database went away")
        return plain(cipher, body, decision)

    monkeypatch.setattr(Cipher, "decrypt", fail)
    code, _, err = racer("calibrate", "--from-shadow", "--url", sampling.url, "--key", ADMIN_KEY)
    assert (code, "ended its answer early" in err) == (3, True), err


def test_a_stop_finishes_the_calls_or_stores_what_there_is(
    tmp_path: Path, artifact: Path, pool: FakePool
) -> None:
    """Within the time for draining: one candidate is slow, another hangs."""
    for name, delay_s in (("poet", 0.5), ("speller", 30.0)):
        pool.reset()
        path = configure(
            tmp_path / name, artifact, pool.url, watching=WATCHING, limits={"drain_s": 3}
        )
        pool.say(name, "late", delay_s=delay_s)
        with running(path, KEYED) as gateway:
            gateway.calibrate(60)
            gateway.chat(ONE)
        with running(path, KEYED) as gateway:
            (row,) = shadow_rows(gateway)
        assert row["answers"]["adder"] == "42"
        assert row["answers"][name] == ("late" if delay_s < 1 else None)


def test_a_gateway_without_a_calibration_samples(serve: Serve) -> None:
    """Its fallback answers one candidate; the rows of a drawn application begin there."""
    gateway = serve(
        calibrated=False,
        watching=WATCHING,
        environment=KEYED,
        applications={"bot": {"keys": ["data"], "premise": "drawn"}, "agent": {"shadow_rate": 0.0}},
    )
    gateway.chat(ONE)
    assert sampled(gateway, 1) == {"whole": 1}
    (row,) = shadow_rows(gateway, "?application=bot")
    assert (row["application"], row["request"]["messages"]) == ("bot", user(ONE))
    assert shadow_rows(gateway, "?application=agent") == []
    message = error_message(gateway.get("/shadow/rows?application=no", ADMIN_KEY), 404)
    assert "agent" in message
    assert "ISO 8601" in error_message(gateway.get("/shadow/rows?since=now", ADMIN_KEY), 400)


def test_later_turns_of_a_conversation_are_rows_of_one_cluster(sampling: Gateway) -> None:
    """Every sampled turn is a row; the first turn has no cluster."""
    turns: list[Any] = []
    for text in (ONE, TWO, ONE, TWO):
        turns += user(text)
        sampling.post("/v1/chat/completions", json={"model": "auto", "messages": turns})
        turns.append({"role": "assistant", "content": "7"})
    other = [*user("Another beginning"), {"role": "assistant", "content": "7"}, *user(TWO)]
    sampling.post("/v1/chat/completions", json={"model": "auto", "messages": other})
    sampled(sampling, 5)
    rows = shadow_rows(sampling)
    assert len(rows) == 5
    clusters = {len(row["request"]["messages"]): row.get("cluster") for row in rows[:4]}
    assert clusters.pop(1) is None
    (cluster,) = set(clusters.values())
    assert rows[4]["cluster"] not in (None, cluster)


def test_whole_answers_are_passed_on(
    serve: Serve, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once they are stored: decision, application, request and answers."""
    passed: list[tuple[str, str | None, SampledExchange]] = []

    def submit(_: object, decision: str, application: str | None, found: SampledExchange) -> None:
        passed.append((decision, application, found))

    monkeypatch.setattr("app.monitoring.samples.checker.Checkers.submit", submit)
    gateway = serve(watching={"shadow_rate": 1.0})
    pool.fail("poet", "500")
    gateway.chat(TWO)
    sampled(gateway, 1)
    pool.say("poet", "43")
    answer = gateway.chat(ONE)
    sampled(gateway, 2)
    wait_until(lambda: bool(passed))
    ((decision, application, exchange),) = passed
    assert (decision, application) == (answer["id"], None)
    assert exchange.request["messages"] == user(ONE)
    assert exchange.answers == {"adder": "42", "speller": "42", "poet": "43"}
    assert samples(gateway) == {"incomplete": 1, "whole": 1}


def test_a_row_drawn_at_another_rate_than_its_weight_says_is_refused(
    sampling: Gateway, pool: FakePool
) -> None:
    """With its line, and nothing is stored; unchanged the rows calibrate."""
    pool.say("poet", " ")
    for number in range(12):
        answer = sampling.chat(f"What is {number} plus 50?")
        verdicts = {"decision_id": answer["id"], "correct": {"adder": True, "speller": False}}
        sampling.post("/feedback", ADMIN_KEY, json=verdicts).raise_for_status()
    sampled(sampling, 12)
    rows = shadow_rows(sampling)
    path, headers = "/calibrate?dry_run=true&confirm=true", {"content-type": "application/x-ndjson"}

    def upload() -> Any:
        data = "".join(json.dumps(row) + "\n" for row in rows)
        return sampling.post(path, ADMIN_KEY, content=data.encode(), headers=headers)

    taken = upload()
    assert taken.status_code == 200, taken.text
    assert taken.json()["evidence"]["rows"] == 12
    rows[2]["weight"] = 1e12
    message = error_message(upload(), 422)
    assert f"line 3: the decision {rows[2]['decision_id']} was not drawn at the rate" in message
    rows[2]["weight"] = 0.5
    assert "line 3" in error_message(upload(), 422)


@pytest.mark.parametrize("weight", [1.0, 1.5, 4.0, None])
def test_a_weight_other_than_that_of_the_stored_decision_is_refused(
    serve: Serve, weight: float | None
) -> None:
    """A larger rate than it was drawn at, too, which the key alone cannot refute."""
    gateway = serve(watching={**WATCHING, "shadow_rate": 0.5}, environment=KEYED)
    rows: list[dict[str, Any]] = []
    for number in range(40):
        gateway.chat(f"What is {number} plus 50?")
        if number > 10 and (rows := shadow_rows(gateway)):
            break
    (row,) = rows[:1]
    assert row["weight"] == 2.0
    taken = upload(gateway, [row])  # read, and too few
    assert "decision" not in taken.text, taken.text
    row["weight"] = weight
    if weight is None:
        del row["weight"]
    refused = upload(gateway, [row])
    assert refused.status_code in (400, 422)
    message = error_message(refused, refused.status_code)
    assert "row 1: " in message
    assert "weight" in message


def test_a_decision_is_one_row(sampling: Gateway) -> None:
    """A repeated one is refused with both places."""
    sampling.chat(ONE)
    sampling.chat(TWO)
    sampled(sampling, 2)
    rows = shadow_rows(sampling)
    message = error_message(upload(sampling, [*rows, rows[0]]), 422)
    assert f"row 3: the decision {rows[0]['decision_id']} is row 1 already" in message


def upload(gateway: Gateway, rows: list[dict[str, Any]]) -> Any:
    """POST /calibrate as `racer calibrate --from-shadow` does."""
    body = {"rows": rows, "confirm": True, "rows_kind": "traffic"}
    return gateway.post("/calibrate", ADMIN_KEY, json=body)


@pytest.mark.parametrize("premise", ["alike", "drawn"])
def test_rows_without_text_are_compared_with_what_is_stored(serve: Serve, premise: str) -> None:
    """Equal scores are the router's own; others void, or are refused where nothing else is known.

    Later turns of a drawn application are a population of their own.
    """
    applications = {"bot": {"keys": ["data"], "premise": premise}}
    gateway = serve(calibrated=False, watching={"shadow_rate": 1.0}, applications=applications)
    usual = [row | {"application": "default"} for row in as_json(labelled(20_000, 60))]
    assert upload(gateway, usual).status_code == 200
    asked = labelled(30_000, 30)
    for row in asked.rows:
        answer = gateway.chat(row.query)
        correct = {name: name in row.correct for name in POOL}
        verdicts = {"decision_id": answer["id"], "correct": correct}
        gateway.post("/feedback", ADMIN_KEY, json=verdicts).raise_for_status()
    turns = [*user(ONE), {"role": "assistant", "content": "7"}, *user(TWO)]
    gateway.post("/v1/chat/completions", json={"model": "auto", "messages": turns})
    sampled(gateway, 31)
    rows = shadow_rows(gateway, "?application=bot")
    assert len(rows) == 30 + (premise == "drawn")
    assert not any("request" in row or "query" in row for row in rows)
    made = upload(gateway, [*usual, *rows])
    assert made.status_code == 200, made.text
    reasons = gateway.route(ONE)["certificate"]["reasons"]
    assert "row_scores_unverified" not in reasons
    first = rows[0]["scores"]
    rows[0]["scores"] = {name: 1.0 - score for name, score in first.items()}
    other = upload(gateway, [*usual, *rows])
    if premise == "drawn":
        assert rows[0]["decision_id"] in error_message(other, 400)
    else:
        assert other.status_code == 200
        assert "row_scores_unverified" in gateway.route(ONE)["certificate"]["reasons"]
