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
from app.monitoring.samples.store import SampleStore
from app.settings import key_format
from app.store.encryption import Cipher
from app.upstream.fleet import Fleet
from tests.kit.case import GatewayCase
from tests.kit.connections import CHAT, opened
from tests.kit.gateway import (
    ADMIN_KEY,
    DATA_KEY,
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
from tests.kit.monitored import KEY, add_verdicts, sampled, shadow_rows
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
    case = GatewayCase(sampling, pool)
    answer = case.stream(ONE) if stream else case.ask(ONE)
    gate.set()
    assert answer.text == "seven"
    assert answer.racer["shadow_rate"] == 1.0
    assert "answers" not in answer.racer
    assert sampled(sampling, 1) == {"whole": 1}
    assert pool.models_called() == sorted(POOL)
    (row,) = shadow_rows(sampling)
    assert row["answers"] == {"adder": "seven", "speller": "42", "poet": "eight"}
    assert row["request"]["messages"] == user(ONE)
    assert (row["weight"], row["unlabelled"]) == (1.0, True)
    assert set(row["calls"]) == set(POOL)


def test_every_request_is_drawn_for(
    sampling: Gateway, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repeats, rows, abstentions, unusual requests and later turns; a decision alone is not."""
    callers, ask = set[str](), Fleet.ask

    async def spy(fleet: Fleet, *args: Any, **options: Any) -> Any:
        callers.add(options["caller"])
        return await ask(fleet, *args, **options)

    monkeypatch.setattr(Fleet, "ask", spy)
    calibrated = labelled(10_000, 1).rows[0].query
    sampling.route(ONE)
    sampling.chat(ONE)
    sampling.chat(ONE)
    sampling.chat(calibrated)
    sampling.chat(ONE, temperature=1.5)
    sampling.chat(ONE, tools=[{"type": "function", "function": {"name": "f"}}])
    sampling.chat(UNANSWERABLE)
    assert sampling.ask(UNANSWERABLE, {"on_abstain": "error"}).status_code == 422
    turns: list[Any] = user(ONE)
    for text in (TWO, ONE):
        turns += [{"role": "assistant", "content": "7"}, *user(text)]
        sampling.chat("", messages=turns)
    sampling.chat("", messages=[*user("Another beginning"), *turns[1:3]])
    assert sampled(sampling, 9) == {"whole": 9}, "of a conversation the first later turn alone"
    rows = shadow_rows(sampling)
    assert [row["request"]["messages"][-1]["content"] for row in rows] == [
        ONE, ONE, calibrated, ONE, ONE, UNANSWERABLE, UNANSWERABLE, TWO, TWO,
    ]  # fmt: skip
    assert all(set(row["answers"]) == set(POOL) for row in rows)
    assert {row.get("cluster") for row in rows[:7]} == {None}
    one, other = (row["cluster"] for row in rows[7:])
    assert one != other
    # A call that a decided vote cancelled may have begun: it is called again for the sample.
    calls = Counter(request["model"] for request in pool.requests)
    assert set(calls) == set(POOL)
    assert min(calls.values()) >= 9
    assert callers == {"data"}, "calls that fail in the background are this key's alone"


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


def test_an_answer_that_was_cut_off_is_fetched_again(sampling: Gateway, pool: FakePool) -> None:
    """By a client that leaves, or by its own time limit; a rejection of the request is final."""
    pool.say("adder", "seven", delay_s=30)
    connection = opened(sampling, CHAT, {"model": "auto", "messages": user(ONE)})
    assert until(lambda: pool.running == ["adder"], 30)
    pool.say("adder", "seven", delay_s=0.4)
    connection.close()
    assert sum(sampled(sampling, 1).values()) == 1
    assert sampling.ask(ONE, {"timeout": 0.1}).status_code == 504
    sampled(sampling, 2)
    rows = shadow_rows(sampling)
    assert [set(row["answers"]) for row in rows] == [set(POOL)] * 2
    assert rows[1]["answers"]["adder"] == "seven"
    pool.fail("adder", "422")
    calls = pool.models_called().count("adder")
    sampling.ask(TWO)
    sampled(sampling, 3)
    assert pool.models_called().count("adder") == calls + 1


@pytest.mark.parametrize("found", ["correct", "unlabelled"])
def test_failures_are_rows_too(sampling: Gateway, pool: FakePool, found: str) -> None:
    """Who refuses the request is wrong; what was not answered for another reason is unknown."""
    refused = ("400", "413", "415", "422", "451")
    faults = refused if found == "correct" else ("402", "404", "405", "409", "500")
    for fault in faults:
        for name in POOL:
            pool.fail(name, fault)
        assert sampling.ask(ONE).status_code >= 400
    sampled(sampling, len(faults))
    wanted = dict.fromkeys(POOL, False) if found == "correct" else True
    assert [row[found] for row in shadow_rows(sampling)] == [wanted] * len(faults)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ["adder", "poet"])
def test_an_answer_that_did_not_finish_is_not_sampled(
    sampling: Gateway, pool: FakePool, name: str, stream: bool
) -> None:
    """Whether the client's own call was aborted or one for the sample alone: it is unknown."""
    message = {"role": "assistant", "content": "half of"}
    whole = {"index": 0, "message": message, "finish_reason": "abort"}
    last = {"index": 0, "delta": {}, "finish_reason": "abort"}
    pool.say(name, "half of", fields={"choices": [whole]}, choices=[last])
    sampling.ask(ONE, stream=stream)
    assert sampled(sampling, 1) == {"incomplete": 1}
    (row,) = shadow_rows(sampling)
    assert row["unlabelled"] is True
    assert row["answers"][name] is None
    assert name not in row["calls"]


def test_an_admin_corrects_what_the_sampling_found(sampling: Gateway, pool: FakePool) -> None:
    """The gateway's own verdict gives way to an admin's, unless its loss is counted by then."""
    pool.fail("poet", "422")
    refused = sampling.chat(ONE)["id"]
    sampled(sampling, 1)
    add_verdicts(sampling, refused, {"poet": True}, key=DATA_KEY, status=409)
    add_verdicts(sampling, refused, {"poet": True})
    add_verdicts(sampling, refused, dict.fromkeys(POOL, True))
    add_verdicts(sampling, refused, {"poet": False}, status=409)
    pool.say("poet", " ")
    blank = sampling.chat(TWO)["id"]
    sampled(sampling, 2)
    add_verdicts(sampling, blank, {"adder": True, "speller": False})
    rows = shadow_rows(sampling)
    assert rows[0]["correct"] == dict.fromkeys(POOL, True)
    assert rows[1]["correct"] == {"adder": True, "speller": False, "poet": False}
    assert sampling.get("/drift", ADMIN_KEY).json()["shadow"]["judged"] == 2
    late = add_verdicts(sampling, blank, {"poet": True}, status=409)
    assert "already counted" in late["error"]["message"]
    assert shadow_rows(sampling) == rows


@pytest.mark.parametrize("stores", [False, True])
def test_no_text_can_be_read_in_the_file(serve: Serve, pool: FakePool, stores: bool) -> None:
    """Neither request nor answers; a row without them has scores and digests."""
    watching = WATCHING if stores else {"shadow_rate": 1.0}
    gateway = serve(watching=watching, environment=KEYED)
    pool.say("adder", "a secret answer")
    decision = gateway.chat("What is 4711 plus 4712?")["id"]
    assert sampled(gateway, 1) == {"whole": 1}
    (row,) = shadow_rows(gateway)
    if stores:
        assert row["answers"]["adder"] == "a secret answer"
    else:
        named = {"scores", "unlabelled", "conditions", "group", "weight", "decision_id"}
        assert set(row) == named
    stored = Path(gateway.settings.store.removeprefix("sqlite:///")).read_bytes()
    assert decision.encode() in stored
    assert b"4711" not in stored
    assert b"secret answer" not in stored


def test_a_sample_that_is_lost_is_a_row_without_a_label(
    serve: Serve,
    sampling: Gateway,
    pool: FakePool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With a full disk, which is one warning, or a full queue; later ones are stored again."""

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
    rows = shadow_rows(sampling)
    assert ["request" in row for row in rows] == [False, False, False, True]
    assert all(row["unlabelled"] for row in rows)
    monkeypatch.setattr("app.answering.shadow_calls.MAX_WAITING_BYTES", 0)
    full = serve(watching=WATCHING, environment=KEYED)
    pool.requests.clear()
    assert full.chat(ONE)["choices"][0]["message"]["content"] == "42"
    assert sampled(full, 1) == {"lost": 1}
    assert pool.models_called() == ["adder"]
    wait_until(lambda: [row["unlabelled"] for row in shadow_rows(full)] == [True])


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
        add_verdicts(gateway, answer["id"], dict.fromkeys(POOL, True))
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
    sampling: Gateway, racer: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A store that fails after the first part ends the connection, and no file is replaced."""
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
    (out := tmp_path / "out" / "rows.jsonl").parent.mkdir()
    out.write_text("before")
    for command in (("samples", out), ("calibrate", "--from-shadow")):
        calls.clear()
        code, _, err = racer(*command, "--url", sampling.url, "--key", ADMIN_KEY)
        assert (code, "ended its answer early" in err) == (3, True), err
    assert [each.read_text() for each in out.parent.iterdir()] == ["before"]


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


def test_rows_are_chosen_by_application_and_time(serve: Serve) -> None:
    """Also of the fallback's traffic; another name or another form of time is refused."""
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
    unknown = gateway.get("/shadow/rows?application=no", ADMIN_KEY)
    assert "agent" in error_message(unknown, 404)
    assert "ISO 8601" in error_message(gateway.get("/shadow/rows?since=now", ADMIN_KEY), 400)


def test_a_row_drawn_at_another_rate_than_its_weight_says_is_refused(
    sampling: Gateway, pool: FakePool
) -> None:
    """With its line, as a second row of a decision; unchanged the rows calibrate."""
    pool.say("poet", " ")
    for number in range(12):
        answer = sampling.chat(f"What is {number} plus 50?")
        add_verdicts(sampling, answer["id"], {"adder": True, "speller": False})
    sampled(sampling, 12)
    rows = shadow_rows(sampling)
    path, headers = "/calibrate?dry_run=true", {"content-type": "application/x-ndjson"}

    def uploaded(third: dict[str, Any]) -> Any:
        lines = (json.dumps(row) + "\n" for row in (*rows[:2], third, *rows[3:]))
        return sampling.post(path, ADMIN_KEY, content="".join(lines).encode(), headers=headers)

    taken = uploaded(rows[2])
    assert taken.status_code == 200, taken.text
    assert taken.json()["evidence"]["rows"] == 12
    first, third = (row["decision_id"] for row in rows[:3:2])
    for changed, message in (
        (rows[2] | {"weight": 1e12}, f"line 3: the decision {third} was not drawn at the rate"),
        (rows[2] | {"weight": 0.5}, "line 3"),
        (rows[0], f"line 3: the decision {first} is line 1 already"),
    ):
        assert message in error_message(uploaded(changed), 422)


def test_a_weight_other_than_that_of_the_stored_decision_is_refused(serve: Serve) -> None:
    """A larger rate than it was drawn at, too, which the key alone cannot refute."""
    gateway = serve(watching={**WATCHING, "shadow_rate": 0.5}, environment=KEYED)
    rows: list[dict[str, Any]] = []
    for number in range(40):
        gateway.chat(f"What is {number} plus 50?")
        if number > 10 and (rows := shadow_rows(gateway)):
            break
    (row,) = rows[:1]
    assert row.pop("weight") == 2.0
    taken = upload(gateway, [row | {"weight": 2.0}])  # read, and too few
    assert "decision" not in taken.text, taken.text
    for other in ({"weight": 1.0}, {"weight": 1.5}, {"weight": 4.0}, {}):
        refused = upload(gateway, [row | other])
        assert refused.status_code in (400, 422)
        message = error_message(refused, refused.status_code)
        assert "row 1: " in message
        assert "weight" in message


def upload(gateway: Gateway, rows: list[dict[str, Any]]) -> Any:
    """POST /calibrate as `racer calibrate --from-shadow` does."""
    body = {"rows": rows, "rows_kind": "traffic"}
    return gateway.post("/calibrate", ADMIN_KEY, json=body)


@pytest.mark.parametrize("premise", ["alike", "drawn"])
def test_rows_without_text_are_compared_with_what_is_stored(serve: Serve, premise: str) -> None:
    """Equal scores are the router's own; others void, or are refused where no others are known."""
    applications = {"bot": {"keys": ["data"], "premise": premise}}
    gateway = serve(calibrated=False, watching={"shadow_rate": 1.0}, applications=applications)
    usual = [row | {"application": "default"} for row in as_json(labelled(20_000, 60))]
    assert upload(gateway, usual).status_code == 200
    asked = labelled(30_000, 30)
    for row in asked.rows:
        answer = gateway.chat(row.query)
        add_verdicts(gateway, answer["id"], {name: name in row.correct for name in POOL})
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
