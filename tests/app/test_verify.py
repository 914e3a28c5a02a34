"""``racer verify``: a decision made again from what is stored, over HTTP and from the store."""

from __future__ import annotations

import json
import math
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.answering.fan_out import FanOutResult
from app.answering.rounds import Rounds
from app.errors import UpstreamError
from app.monitoring.decisions.record import DecisionRecord
from app.monitoring.verification import verify, verify_sequence
from app.routing.decision import AnswerGuarantee, ChosenBy
from app.routing.rounds_plan import RoundsPlan, RoundsTerms, fitted
from app.same_answer.calibrations import AnswerCalibrations
from app.upstream.reply import Reply
from app.wire.format import AnswerKind, Choice
from racer_core.aggregation.rule import Compared, are_same
from racer_core.aggregation.semantic import Meaning
from racer_core.aggregation.wording import SHIPPED
from racer_core.errors import InputError
from racer_core.sequential.serving import StopReason
from racer_core.types import BINARY_TARGETS, RiskTarget, Score
from tests.kit.case import Shared
from tests.kit.gateway import (
    ADMIN_KEY,
    ONE,
    POOL,
    TWO,
    UNANSWERABLE,
    Command,
    Gateway,
    Serve,
    noisy,
    user,
)
from tests.kit.monitored import calibration_record, decision_record
from tests.kit.same_answer import NAMES, activate, calibration, classes, configured, talk
from tests.kit.upstream import FakePool

RECORD = calibration_record()


@pytest.fixture
def place(unsure: Gateway) -> Path:
    """The folder of the configuration and the store."""
    assert unsure.config is not None
    return unsure.config.parent


@pytest.fixture
def unsure(shared: Shared, noisy_artifact: Path) -> Gateway:
    """A gateway with neighbours, `cover` and groups: everything that a set can depend on."""
    routing = {"score": "cover"}
    gateway = shared(
        artifact=noisy_artifact, calibrated=False, group="verified", routing=routing
    ).gateway
    if gateway.ready()["calibration"] is None:
        rows = [
            {"query": row.query, "correct": {n: n in row.correct for n in POOL}, "group": group}
            for group, start in (("a", 20_000), ("b", 30_000), (None, 40_000))
            for row in noisy(start, 120).rows
        ]
        assert gateway.post("/calibrate", ADMIN_KEY, json={"rows": rows}).status_code == 200
    return gateway


OPTIONS: dict[str, dict[str, Any]] = {
    "as calibrated": {},
    "another alpha": {"alpha": 0.3},
    "infeasible alpha": {"alpha": 0.0001},
    "another score": {"score": "gap"},
    "smaller pool": {"candidates": ["speller", "adder"]},
    "group": {"group": "a"},
    "unknown group": {"group": "c"},
    "group and smaller pool": {"group": "b", "candidates": ["poet", "adder"], "alpha": 0.25},
}


def verified(racer: Command, decision_id: str, *source: object) -> tuple[int, dict[str, Any]]:
    """The exit code of ``racer verify`` and its report."""
    code, out, stderr = racer("verify", decision_id, *source, "--json")
    assert out, stderr
    return code, json.loads(out)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_kind_of_decision_is_found_again(
    unsure: Gateway, racer: Command, place: Path, options: dict[str, Any]
) -> None:
    """By the gateway and from its store alone: the same threshold, set and group."""
    sources = (
        ("--url", unsure.url, "--key", ADMIN_KEY),
        ("--from-store", "--config", place / "racer.yaml"),
    )
    for query in (ONE, TWO, UNANSWERABLE, "Something else altogether"):
        decision = unsure.route(query, **options)
        certificate = decision["certificate"]
        for source in sources:
            code, result = verified(racer, decision["decision_id"], *source)
            assert (code, result["matches"]) == (0, True)
            assert result["recomputed"]["lambda_hat"] == certificate["lambda_hat"]
            assert sorted(result["recomputed"]["selected"]) == sorted(decision["selected"])
            assert result["decision"]["decision_id"] == decision["decision_id"]
            assert result["recomputed"]["n"] == certificate["n"]
            assert result["recomputed"]["group"] == certificate["guarantee"]["group"]


def test_sets_that_no_promise_covers_are_found_again(
    gateway: Gateway, racer: Command, pool: FakePool
) -> None:
    """The strongest of an abstention, and the threshold's set of a request in other conditions."""
    answer = gateway.chat(UNANSWERABLE, racer={"on_abstain": "strongest"})
    assert "abstained_strongest" in answer["racer"]["certificate"]["reasons"]
    assert len(pool.models_called()) == 1
    warm = gateway.post("/route", json={"messages": user(ONE), "temperature": 2}).json()
    assert "conditions_differ:temperature" in warm["certificate"]["reasons"]
    for decision_id, words in ((answer["id"], "strongest"), (warm["decision_id"], "threshold")):
        code, out, _ = racer("verify", decision_id, "--url", gateway.url, "--key", ADMIN_KEY)
        assert (code, words in out) == (0, True)


@pytest.mark.parametrize(
    ("field", "value"),
    [("lambda_hat", 0.987), ("selected", ["poet"]), ("scores", [0.0, 0.0, 1.0]), ("group", "b")],
)
def test_a_tampered_decision_is_detected(
    unsure: Gateway, racer: Command, place: Path, field: str, value: object
) -> None:
    """Exit code 1, with both values; a threshold, set, score or group that was not so."""
    decision_id = unsure.route(ONE, group="a", alpha=0.2, score="gap")["decision_id"]
    unsure.get(f"/decisions/{decision_id}")  # so that it is written
    with sqlite3.connect(place / "racer.db", timeout=20) as connection:
        query = "select document from decisions where id = ?"
        (document,) = connection.execute(query, [decision_id]).fetchone()
        changed = json.dumps({**json.loads(document), field: value})
        update = "update decisions set document = ? where id = ?"
        connection.execute(update, [changed, decision_id])
    code, found = verified(racer, decision_id, "--from-store", "--config", place / "racer.yaml")
    assert (code, found["matches"]) == (1, False)
    code, out, _ = racer("verify", decision_id, "--url", unsure.url, "--key", ADMIN_KEY)
    assert code == 1
    assert "NO" in out


def test_decisions_of_an_earlier_calibration_are_found_again(
    unsure: Gateway, racer: Command
) -> None:
    """Each by its own record, whichever is active today."""
    decision_id = unsure.route(TWO, group="a")["decision_id"]
    before = unsure.ready()["calibration"]
    unsure.calibrate(rows=noisy(60_000, 100), alpha=0.3)
    try:
        result = racer("verify", decision_id, "--url", unsure.url, "--key", ADMIN_KEY, "--json")
        assert result[0] == 0
        assert json.loads(result[1])["decision"]["calibration_id"] == before
    finally:
        path = f"/calibrations/{before}/activate"
        assert unsure.post(path, ADMIN_KEY).status_code == 200


def test_a_decision_that_cannot_be_verified_is_a_one_line_error(
    unsure: Gateway, racer: Command, place: Path
) -> None:
    """An unknown decision, the wrong key, no server at the URL, both sources at once."""
    config = place / "racer.yaml"
    cases: list[tuple[list[object], int, str]] = [
        (["nothing", "--url", unsure.url, "--key", ADMIN_KEY], 1, "no decision 'nothing'"),
        (["nothing", "--from-store", "--config", config], 1, "no decision 'nothing'"),
        (["nothing", "--url", unsure.url, "--key", "wrong-key-of-the-tests"], 1, "admin key"),
        (["nothing", "--url", "http://127.0.0.1:1"], 3, "no gateway answers"),
        (["nothing", "--url", unsure.url, "--from-store"], 2, "not both"),
        (["nothing", "--from-store", "--config", place / "missing.yaml"], 2, "cannot be read"),
    ]
    for arguments, expected, words in cases:
        code, out, stderr = racer("verify", *arguments)
        assert (code, out) == (expected, ""), arguments
        assert words in stderr


# The recomputation itself ---------------------------------------------------------------------


@pytest.mark.parametrize("target", BINARY_TARGETS)
@pytest.mark.parametrize("salt", [None, b"salt"], ids=["plain", "smoothed"])
def test_a_recomputed_set_is_that_of_the_core(target: RiskTarget, salt: bytes | None) -> None:
    """With the null model in the set or not, with the noise of the query's own hash or without."""
    made = calibration_record(risk_target=target, smoothing_salt=salt, score=Score.PROB)
    for scores in ([0.9, 0.5, 0.1], [0.2, 0.2, 0.2], [0.0, 0.0, 0.0]):
        note = decision_record(made, scores)
        assert verify(note, made).matches
        assert not verify(replace(note, null_selected=not note.null_selected), made).matches


@pytest.mark.parametrize(
    ("changes", "matches"),
    [
        ({"chosen_by": ChosenBy.EVERYONE, "selected": POOL, "lambda_hat": math.inf}, True),
        ({"chosen_by": ChosenBy.EVERYONE, "selected": POOL, "lambda_hat": math.inf,
          "scores": None}, True),
        ({"chosen_by": ChosenBy.EVERYONE, "selected": POOL[:2], "lambda_hat": math.inf}, False),
        ({"chosen_by": ChosenBy.EVERYONE, "selected": POOL}, False),
        ({"chosen_by": ChosenBy.OVERRIDDEN, "selected": ("poet",)}, True),
        ({"chosen_by": ChosenBy.OVERRIDDEN, "lambda_hat": 0.5}, False),
        ({"selected": ("poet",)}, False),
    ],
)  # fmt: skip
def test_the_comparison_depends_on_the_rule_that_chose_the_set(
    changes: dict[str, Any], matches: bool
) -> None:
    """Called whole: the pool is compared; a replaced set: only the threshold is compared."""
    note: DecisionRecord = replace(decision_record(RECORD, [0.9, 0.5, 0.1]), **changes)
    assert verify(note, RECORD).matches is matches


def test_another_record_proves_nothing() -> None:
    """It is refused, not compared."""
    with pytest.raises(InputError):
        verify(decision_record(RECORD, [0.9, 0.5, 0.1]), calibration_record(seed=2))


# Decisions under `same_answer` --------------------------------------------------------------------

ANSWERS_RECORD = calibration(classes(10_000, 100), classes(20_000, 200), salt=b"salt")
PRICES = dict(zip(NAMES, (9.0, 1.0, 2.0, 3.0, 4.0), strict=True))
PRICED = replace(ANSWERS_RECORD, id="answers-1", prices=PRICES)
SLOWNESS = (StopReason.SLOW, StopReason.DEADLINE)
USUAL = decision_record(calibration_record(rows=20), [0.5, 0.5, 0.5])


def _are_near(one: Compared, other: Compared) -> bool:
    return are_same(one, other, SHIPPED, 0.9)


def served(
    plan: RoundsPlan, max_rounds: int, alpha: float, rng: np.random.Generator
) -> DecisionRecord:
    """A request whose candidates answer, fail, answer nothing or are late, as the draws say."""
    policy, decision_id = plan.calibration.policy, f"decision-{rng.integers(1 << 40)}"
    # By meaning answers are equal that are near each other, which is not transitive.
    by_meaning = rng.random() < 0.3
    meanings: dict[str, Compared] = {}
    is_same = _are_near if by_meaning else None
    rounds = Rounds(plan, decision_id, is_same=is_same, compared=meanings)
    results = FanOutResult()
    row = classes(int(rng.integers(10**6)), 1).classes[0]
    waiting, failing, cut = list(rounds.next), rng.choice([0.0, 0.3]), rng.random() < 0.1
    blank = rng.choice([0.0, 0.7])
    while waiting and not (cut and rng.random() < 0.3):
        if rng.random() < 0.1:
            waiting += rounds.call_rest(SLOWNESS[int(rng.integers(2))])
        if rounds.alone is not None and rng.random() < 0.2:
            failed = {str(rounds.alone): UpstreamError("down")}
            rounds.break_off(results.joined(FanOutResult(failures=failed)))
            break
        name = waiting.pop(int(rng.integers(len(waiting))))
        if rng.random() < failing:
            results.failures[name] = UpstreamError("down")
        else:
            is_blank = rng.random() < blank
            text = "" if is_blank else str(row[NAMES.index(name)])
            results.replies[name] = Reply(
                candidate=name,
                body={},
                choices=(Choice(text=text),),
                usage={},
                seconds=0.0,
                kind=AnswerKind.NOTHING if is_blank else AnswerKind.ANSWER,
            )
            results.forms[name] = text or None
            if by_meaning and text:
                place = np.exp(1j * rng.normal(scale=0.5))
                meanings[name] = Meaning(name, np.array([place.real, place.imag]))
                results.forms[name] = name
        rounds.report(results)
        if rounds.is_over:  # some answers may be outstanding that cannot change the vote
            break
        if not waiting:
            waiting = list(rounds.next)
    promised = AnswerGuarantee(
        reference=policy.reference or "vote",
        equality="exact",
        max_rounds=max_rounds,
        order=policy.order,
        borders=policy.borders,
        expected_calls=plan.expected_calls,
        trivial=bool(np.isposinf(plan.threshold)),
        made=rounds.made,
    )
    is_broken = rounds.made.stopped == StopReason.BROKEN_OFF
    is_answered = rounds.is_over and bool(results.replies) and not is_broken
    return replace(
        USUAL,
        decision_id=decision_id,
        alpha=alpha,
        lambda_hat=plan.threshold,
        pool=NAMES,
        served_by=rounds.winner(results.replies) if is_answered else None,
        answered=tuple(results.replies),
        sequence=promised,
    )


def test_calls_are_made_again_whatever_happened() -> None:
    """By the stored form; and what was changed in it afterwards is found."""
    rng = np.random.default_rng(5)
    stopped: set[str | None] = set()
    found: set[str] = set()
    calibrations = AnswerCalibrations(None, setup="")
    for number in range(100):
        record = PRICED if number % 2 else ANSWERS_RECORD
        terms = RoundsTerms(str(rng.choice(["vote", "eve"])), int(rng.integers(1, 4)))
        alpha = float(rng.choice([0.001, 0.02, 0.1, 0.4]))
        plan = calibrations.plan(record, NAMES, terms, alpha)
        made = served(plan, terms.max_rounds, alpha, rng)
        decision = DecisionRecord.from_document(made.document(), made.neighbours)
        verification = verify_sequence(decision, record)
        assert verification.matches, (verification.differing, verification.as_json())
        sequence = decision.sequence
        assert sequence is not None
        assert sequence.made is not None
        stopped.add(sequence.made.stopped)
        if number % 10 or decision.served_by is None:
            continue
        rounds = sequence.made.rounds
        doubted = [replace(each, doubt=(each.doubt or 0.0) + 0.01) for each in rounds]
        changed = (
            replace(decision, lambda_hat=decision.lambda_hat / 2.0 + 0.1),
            replace(decision, sequence=replace(sequence, order=sequence.order[::-1])),
            replace(decision, sequence=replace(sequence, borders=(*sequence.borders, 9))),
            replace(
                decision,
                sequence=replace(sequence, made=replace(sequence.made, rounds=tuple(doubted))),
            ),
            replace(decision, served_by="nobody"),
            replace(
                decision, sequence=replace(sequence, made=replace(sequence.made, stopped="other"))
            ),
        )
        for each in changed:
            found.update(verify_sequence(each, record).differing)
    assert stopped == {None, *StopReason} - {"unchecked"}
    assert found == {"lambda_hat", "order", "borders", "rounds", "winner", "stopped"}


def test_over_http_and_from_the_store(
    serve: Serve, pool: FakePool, racer: Command, tmp_path: Path
) -> None:
    """A request, a decision without calls, and a stored one that was changed."""
    folder = tmp_path / "gateway"
    talk(pool)
    gateway = serve(folder=folder, **configured(pool))
    activate(gateway, salt=b"salt")
    asked = {"reference": "eve", "alpha": 0.2, "max_rounds": 3}
    ids = [
        gateway.chat("question 1")["id"],
        gateway.chat("question 2", asked)["id"],
        gateway.chat("question 3", {"stream": "leader"})["id"],
        gateway.route("question 4")["decision_id"],
    ]
    for decision_id in ids:
        arguments = ("--url", gateway.url, "--key", ADMIN_KEY, "--json")
        code, out, _ = racer("verify", decision_id, *arguments)
        assert (code, json.loads(out)["matches"]) == (0, True), out
        code, out, _ = racer(
            "verify", decision_id, "--from-store", "--config", folder / "racer.yaml"
        )
        assert (code, "order now" in out) == (0, True), out
    pool.answer = lambda _: "42"
    with closing(sqlite3.connect(folder / "racer.db")) as connection, connection:
        connection.execute(
            "UPDATE decisions SET document = replace(document, '\"borders\":[', '\"borders\":[1,')"
        )
    code, out, _ = racer("verify", ids[0], "--from-store", "--config", folder / "racer.yaml")
    assert (code, "borders" in out.split("differing")[1]) == (1, True)
    missing = gateway.post("/decisions/chatcmpl-none/verify", ADMIN_KEY)
    assert missing.status_code == 404


def test_prices_are_of_the_record() -> None:
    """The policy follows from the stored calibration alone, not from the prices of today."""
    terms = RoundsTerms("vote", 2)
    assert fitted(ANSWERS_RECORD, NAMES, terms).policy.order[0] == "ada"
    assert fitted(PRICED, NAMES, terms).policy.order[0] != "ada"
