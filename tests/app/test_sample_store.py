"""Stored shadow samples: rows with and without text, encryption, judgements, retention."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select, update

from app.errors import NotFound, SettingsError, StoredRequestsUnreadable
from app.monitoring.decisions.record import DecisionRecord
from app.monitoring.decisions.store import DecisionStore
from app.monitoring.samples.record import Sample, SampledDecision, SampledExchange
from app.monitoring.samples.rows import choose_verdicts
from app.monitoring.samples.store import SampleStore
from app.settings.loading import parse
from app.store import Store
from app.store.encryption import Cipher
from app.store.tables import DecisionRow, JudgementRow, SampleRow
from app.tools.labelling import judge
from app.tools.labelling.judge import judge_candidate, judge_version
from app.utc import ago
from racer_core.calibration.judge_correction import Parts, corrected_thresholds
from racer_core.errors import InputError
from racer_core.types import BoolArray
from tests.core.laws import assert_at_most
from tests.kit.judges import Population, errors, losses, population, verdicts
from tests.kit.monitored import POOL, calibration_record, decision_record, exported
from tests.kit.stores import prune

RECORD = calibration_record()
KEY = bytes(range(32))
NEW_KEY = bytes(32)
EXCHANGE = SampledExchange(
    request={"model": "auto", "messages": [{"role": "user", "content": "a secret question"}]},
    path="chat/completions",
    answers={"adder": "42", "speller": "42", "poet": None},
    calls={"adder": {"finish_reason": "stop", "seconds": 0.25}},
)


def sampled(store: Store, **changes: Any) -> DecisionRecord:
    """A stored decision of the shadow sample."""
    decision = decision_record(RECORD, [0.9, 0.5, 0.1], shadow_rate=0.25, **changes)
    DecisionStore(store).add([decision], [True])
    return decision


def sample_of(decision: DecisionRecord, **changes: Any) -> Sample:
    """What is kept beside it."""
    usual = Sample(
        decision_id=decision.decision_id,
        application=None,
        later=False,
        conversation=None,
        classes={"adder": 0, "speller": 0, "poet": None},
        digests=dict.fromkeys(POOL, "0" * 32),
        whole=True,
        exchange=EXCHANGE,
    )
    return replace(usual, **changes)


def test_a_sample_is_read_as_it_was_stored(store: Store) -> None:
    """With its request, verdicts and judgements; what is stored already stays as it is."""
    samples = SampleStore(store, Cipher(KEY))
    sample = sample_of(sampled(store), application="bot", later=True, conversation="c" * 64)
    assert samples.add(sample)
    assert samples.add(replace(sample, later=False))
    assert (
        samples.add_judgements(sample.decision_id, {"adder": True, "poet": False}, judge="j") == 2
    )
    assert samples.add_judgements(sample.decision_id, {"adder": False}, judge="j") == 0
    DecisionStore(store).add_verdicts(
        sample.decision_id, lambda _: {"adder": True}, key="admin", counts=True
    )
    DecisionStore(store).add_verdicts(
        sample.decision_id, lambda _: {"poet": True}, key="data", counts=False
    )
    found = samples.get(sample.decision_id)
    assert found.sample == sample
    assert found.correct == {"adder": True}
    assert found.judgements == {"j": {"adder": True, "poet": False}}


def test_without_a_key_no_text_is_stored(store: Store) -> None:
    """Classes and digests are; and with a key nothing can be read in the table."""
    plain, other = sample_of(sampled(store)), sample_of(sampled(store))
    SampleStore(store).add(plain)
    SampleStore(store, Cipher(KEY)).add(other)
    with store.transaction() as session:
        bodies = {each.decision_id: each.body for each in session.scalars(select(SampleRow))}
    assert bodies[plain.decision_id] is None
    encrypted = bodies[other.decision_id]
    assert encrypted is not None
    assert b"secret" not in encrypted
    assert SampleStore(store).get(other.decision_id).sample == replace(other, exchange=None)


def test_another_key_is_one_clear_error(store: Store) -> None:
    """Where it decrypts nothing; decisions that need no text are read as ever."""
    for _ in range(2):
        SampleStore(store, Cipher(KEY)).add(sample_of(sampled(store)))
    other = SampleStore(store, Cipher(NEW_KEY))
    for read in (other.check_readable, other.waiting):
        with pytest.raises(StoredRequestsUnreadable, match="RACER_SAMPLES_KEY"):
            read()
    assert len(list(SampleStore(store).rows())) == 2


def test_a_request_that_cannot_be_decrypted_blocks_no_other(store: Store) -> None:
    """The decision id is authenticated; the sample is read without it, and is marked."""
    first, second = sample_of(sampled(store)), sample_of(sampled(store))
    samples = SampleStore(store, Cipher(KEY))
    for each in (first, second):
        samples.add(each)
    with store.transaction() as session:
        moved = session.get_one(SampleRow, first.decision_id).body
        of_second = SampleRow.decision_id == second.decision_id
        session.execute(update(SampleRow).where(of_second).values(body=moved))
    damaged = replace(second, exchange=None, is_unreadable=True)
    samples.check_readable()
    assert [each.sample for each in samples.rows()] == [first, damaged]
    assert samples.get(second.decision_id).sample == damaged
    found, count = samples.waiting(limit=1)
    assert ([each.sample for each in found], count) == ([first], 2)
    assert [each.sample for each in samples.waiting(judge="j")[0]] == [first]


def test_every_sampled_decision_is_a_row(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oldest first, also without a sample beside it, over several pages, one request at a time."""
    monkeypatch.setattr("app.monitoring.samples.store.PAGE", 2)
    plain, decrypted = Cipher.decrypt, list[str]()

    def decrypt(cipher: Cipher, value: bytes, row_id: str) -> bytes:
        decrypted.append(row_id)
        return plain(cipher, value, row_id)

    monkeypatch.setattr(Cipher, "decrypt", decrypt)
    times = [f"2026-01-01T00:00:0{second}.000000+00:00" for second in (3, 1, 2, 2, 4)]
    bot = {"group": "bot", "group_by": "application"}
    decisions = [sampled(store, created_at=each, **bot) for each in times]
    others = [
        sampled(store, calibration_id="cal-other", created_at=times[1], **bot),
        sampled(store, calibration_id=None, created_at=times[0][:-7] + "1+00:00", **bot),
    ]
    sampled(store, **bot | {"group": "agent"})
    DecisionStore(store).add([decision_record(RECORD, [0.9, 0.5, 0.1], **bot)], [True])
    samples = SampleStore(store, Cipher(KEY))
    kept = [each.decision_id for each in sorted(decisions, key=lambda each: each.created_at)]
    for name in (kept[0], kept[-1]):
        samples.add(replace(sample_of(decisions[0]), decision_id=name, application="bot"))
    found: list[tuple[str, str]] = []
    for each in samples.rows(application="bot"):
        found.append((each.decision.created_at, each.decision.decision_id))
        assert decrypted == [name for _, name in found if name in (kept[0], kept[-1])]
    assert [at for at, _ in found] == sorted(at for at, _ in found)
    assert {name for _, name in found} == {each.decision_id for each in (*decisions, *others)}
    assert len(list(samples.rows(application="bot", since=times[0]))) == 3


def test_what_waits_has_answers_and_no_label(store: Store) -> None:
    """For people in random order, for a judge oldest first; the count goes on beyond the limit."""
    samples, decisions = SampleStore(store, Cipher(KEY)), DecisionStore(store)
    waiting = [sample_of(sampled(store), application="bot") for _ in range(3)]
    for each in waiting:
        samples.add(each)
    samples.add(sample_of(sampled(store), application="bot", whole=False))
    samples.add(sample_of(sampled(store), application="agent"))
    SampleStore(store).add(sample_of(sampled(store), application="bot"))
    found, count = samples.waiting("bot", 2)
    shuffled = sorted(waiting, key=lambda each: each.decision_id[-20:])
    assert ([each.sample for each in found], count) == (shuffled[:2], 3)
    assert samples.waiting()[1] == 4
    assert samples.unlabelled("bot", "2999") == [each.decision_id for each in waiting]
    judged, labelled = waiting[0], waiting[1]
    second = samples.get(labelled.decision_id).decision
    assert samples.unlabelled("bot", second.created_at) == [judged.decision_id]
    with store.transaction() as session:  # of a clock that was ahead
        session.get_one(DecisionRow, labelled.decision_id).created_at = ago(timedelta(days=-400))
    assert samples.unlabelled("bot", second.created_at) == [
        judged.decision_id,
        labelled.decision_id,
    ]
    with store.transaction() as session:
        session.get_one(DecisionRow, labelled.decision_id).created_at = second.created_at
    samples.add_judgements(judged.decision_id, dict.fromkeys(POOL, True), judge="j")
    decisions.set_loss(second, None)
    assert [each.sample for each in samples.waiting("bot")[0]] == [
        each for each in shuffled if each != labelled
    ]
    assert [each.sample for each in samples.waiting("bot", judge="j")[0]] == waiting[1:]


def test_samples_go_with_their_decisions(store: Store) -> None:
    """One transaction deletes both; a decision that is gone takes neither."""
    sample = sample_of(sampled(store))
    samples = SampleStore(store)
    samples.add(sample)
    samples.add_judgements(sample.decision_id, {"adder": True}, judge="j")
    assert prune(DecisionStore(store), 1e-12, 1_000) == 1
    with store.transaction() as session:
        assert not session.scalars(select(SampleRow)).all()
        assert not session.scalars(select(JudgementRow)).all()
    assert not samples.add(sample)
    with pytest.raises(NotFound):
        samples.get(sample.decision_id)
    with pytest.raises(NotFound):
        samples.add_judgements(sample.decision_id, {"adder": True}, judge="j")


CONFIGURATION = """
schema_version: 1
candidates: [{name: a, base_url: "http://127.0.0.1:1/v1"}]
watching: {store_requests: %s}
"""


def test_a_start_without_a_key_says_how_to_make_one() -> None:
    """Before anything is stored."""
    second = f"{base64.b64encode(KEY).decode()},"
    for stores, key, message in (
        ("true", None, "openssl rand -base64 32"),
        ("true", "c2hvcnQ=", "32 bytes in base64"),
        ("true", second, "key 2 of .RACER_SAMPLES_KEY is no key"),
        ("false", "not base64 at all", "32 bytes in base64"),
    ):
        environment = {} if key is None else {"RACER_SAMPLES_KEY": key}
        with pytest.raises(SettingsError, match=message):
            parse(CONFIGURATION % stores, Path("racer.yaml"), environment)


def test_a_rotated_key_reads_what_the_old_one_encrypted(store: Store) -> None:
    """The first of several keys encrypts, all decrypt; dropping a key loses its requests."""
    texts = [base64.b64encode(each).decode() for each in (NEW_KEY, KEY)]
    given = {"RACER_SAMPLES_KEY": ", ".join(texts) + "\n"}  # as `openssl` prints one
    _, secrets = parse(CONFIGURATION % "true", Path("racer.yaml"), given)
    assert not any(each in repr(secrets) for each in texts)
    keys = [each.get_secret_value() for each in secrets.samples_keys]
    assert keys == [NEW_KEY, KEY]
    old, new = sample_of(sampled(store)), sample_of(sampled(store))
    SampleStore(store, Cipher(KEY)).add(old)
    SampleStore(store, Cipher(*keys)).add(new)
    assert [each.sample for each in SampleStore(store, Cipher(*keys)).rows()] == [old, new]
    found = [each.sample for each in SampleStore(store, Cipher(NEW_KEY)).rows()]
    assert found == [replace(old, exchange=None, is_unreadable=True), new]


# Rows with the verdicts of a judge ----------------------------------------------------------------

FALSE_ALARM = 1e-6
DRAWS, ROWS, LABELLED, REJECTED, ALPHA, DELTA = 30, 800, 60, 0.3, 0.2, 0.1
DECISION = decision_record(calibration_record(), [0.9, 0.5, 0.1], shadow_rate=1.0)
DIGESTS = {name: "0" * 32 for name in POOL}


def world() -> Population:
    """Queries to three candidates."""
    found = population(20_000)
    return Population(found.difficulty, found.nonconformity[:, :3], found.labels[:, :3])


def decision(
    number: int, *, correct: Sequence[bool] | None = None, **judgements: Sequence[bool]
) -> SampledDecision:
    """A sampled decision; its id begins with its place in time and ends at random."""
    name = f"chatcmpl-{number:012x}{secrets.token_hex(10)}"
    return SampledDecision(
        decision=replace(DECISION, decision_id=name, group_by="request"),
        sample=Sample(
            decision_id=name,
            application=None,
            later=False,
            conversation=None,
            classes=dict.fromkeys(POOL),
            digests=DIGESTS,
            whole=True,
        ),
        correct={} if correct is None else dict(zip(POOL, map(bool, correct), strict=True)),
        judgements={
            judge: dict(zip(POOL, map(bool, each), strict=True))
            for judge, each in judgements.items()
        },
    )


def offered(sampled: Sequence[SampledDecision]) -> list[int]:
    """The numbers of the decisions, in the order in which people see them."""
    return sorted(range(len(sampled)), key=lambda i: sampled[i].decision.decision_id[-20:])


def labels_of(rows: Sequence[dict[str, Any]]) -> BoolArray:
    """Which rows have a label."""
    return np.array(["correct" in row for row in rows])


def threshold(
    where: Population, places: Any, rows: Sequence[dict[str, Any]], rng: np.random.Generator
) -> float:
    """The corrected threshold of exported rows of these queries."""
    scores = where.nonconformity[places]
    no = dict.fromkeys(POOL, False)
    people = np.array([[*row.get("correct", no).values()] for row in rows])
    judge = np.array([[*row["judged"].values()] for row in rows])
    prints = [rng.bytes(16) for _ in rows]
    parts = Parts.of(prints, labels_of(rows), np.ones(len(rows), bool))
    found = corrected_thresholds(
        losses(scores, people),
        losses(scores, judge),
        parts,
        np.array([ALPHA]),
        DELTA,
        nonconformity=scores,
    )
    return float(found.thresholds[0])


def test_labels_that_the_gateway_gave_itself_do_not_break_the_bound() -> None:
    """Three tenths of the requests are refused by all candidates, and labelled so without a person.

    People label the first others in the order in which they are offered. Risks exceed alpha in at
    most delta of the draws; false-alarm probability 1e-6. With all labels 23 of 30 exceed it.
    """
    where, rng = world(), np.random.default_rng(5)
    wrong = errors("lenient 0.3", where)
    broken = 0
    for _ in range(DRAWS):
        places = rng.integers(0, len(where.labels), ROWS)
        rejected = rng.random(ROWS) < REJECTED
        labels = where.labels[places] & ~rejected[:, None]
        judged = verdicts(labels, (wrong[0][places], wrong[1][places]), rng)
        judged &= ~rejected[:, None]
        sampled = [decision(i, j=each) for i, each in enumerate(judged)]
        by_people = [i for i in offered(sampled) if not rejected[i]][:LABELLED]
        for i in {*by_people, *np.flatnonzero(rejected).tolist()}:
            correct = dict(zip(POOL, labels[i].tolist(), strict=True))
            sampled[i] = replace(sampled[i], correct=correct)
        broken += where.risk(threshold(where, places, exported(sampled), rng)) > ALPHA
    assert_at_most(broken, DRAWS, DELTA, FALSE_ALARM)


def test_labels_stay_on_the_first_rows() -> None:
    """In the order in which people see them: up to one without a label, or as many as fixed."""
    yes = (True, True, False)
    sampled = [decision(i, correct=yes, j=yes) for i in range(8)]
    order = offered(sampled)
    first_three = [True] * 3 + [False] * 5
    assert labels_of(exported(sampled, labels=3))[order].tolist() == first_three
    sampled[order[3]] = replace(sampled[order[3]], correct={})
    rows = exported(sampled)
    assert labels_of(rows)[order].tolist() == first_three
    assert all(row.get("unlabelled", False) == ("correct" not in row) for row in rows)
    assert {row["judge"] for row in rows} == {"j"}
    assert labels_of(exported(sampled, judge="")).sum() == 7
    assert labels_of(exported(sampled, labels=3)).sum() == 3
    with pytest.raises(InputError, match=r"of the first 4 judged rows .* row 4 has no label"):
        exported(sampled, labels=4)
    assert labels_of(exported(sampled, labels=4, judge="")).sum() == 7  # beside no verdicts


def test_rows_carry_the_verdicts_of_one_judge() -> None:
    """The one that is named, else the one with most; a row without them is an unlabelled miss."""
    yes, no = (True, True, True), (False, False, False)
    sampled = [decision(0, a=yes, b=no), decision(1, b=no), decision(2, correct=yes, a=yes)]
    sampled += [decision(3, b=no), decision(4, correct=yes)]
    rows = exported(sampled)
    assert [row.get("judge") for row in rows] == ["b", "b", None, "b", None]
    assert all(row["judged"] == dict.fromkeys(POOL, False) for row in rows if "judge" in row)
    assert [row.get("unlabelled") for row in rows] == [True] * 5
    named = exported(sampled, judge="a")
    assert [row.get("judge") for row in named] == ["a", None, "a", None, None]
    assert "judged" not in str(exported(sampled, judge="unknown"))
    alone = exported(sampled, judge="")
    assert labels_of(alone).tolist() == [False, False, True, False, True]


def test_a_judge_with_another_prompt_or_other_parameters_is_another_judge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its errors are others; the server's place changes nothing."""
    first = judge_candidate("http://judge/v1", "model")
    name = judge_version(first)
    assert name.startswith("model@")
    assert name == judge_version(judge_candidate("http://other/v1", "model"))
    warm = first.model_copy(update={"parameters": {"temperature": 1}})
    assert judge_version(warm) != name

    def strict(*_: object) -> str:
        return "Be strict."

    monkeypatch.setattr(judge, "judge_prompt", strict)
    assert judge_version(first) != name


def test_what_arrives_during_an_export_waits_for_the_next() -> None:
    """A row or a label that came after the choice would be no random part of the rows."""
    rows: list[dict[str, Any]] = [
        {"decision_id": f"chatcmpl-{number}", "judged": {"j": {}}, "correct": {}}
        for number in range(3)
    ]
    del rows[1]["correct"]
    chosen = choose_verdicts(rows, "j")
    assert chosen is not None
    rows[1]["correct"] = {}
    late = chosen.row(rows[1])
    assert late is not None
    assert late["unlabelled"]
    assert "correct" not in late
    assert chosen.row({"decision_id": "chatcmpl-9", "judged": {"j": {}}, "correct": {}}) is None
