"""``racer verify`` of decisions under `same_answer`: calls made again from what is stored."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from app.answering.fan_out import FanOutResult
from app.answering.rounds import Rounds
from app.errors import UpstreamError
from app.monitoring.decisions.record import DecisionRecord
from app.monitoring.verification import verify_sequence
from app.routing.decision import AnswerGuarantee
from app.routing.rounds_plan import RoundsPlan, RoundsTerms, fitted
from app.same_answer.calibrations import AnswerCalibrations
from app.upstream.reply import Reply
from app.wire.format import AnswerKind, Choice
from racer_core.aggregation.semantic import Meaning
from racer_core.sequential.serving import StopReason
from tests.kit.gateway import ADMIN_KEY, Command, Serve
from tests.kit.monitored import calibration_record, decision_record
from tests.kit.same_answer import NAMES, activate, calibration, classes, configured, talk
from tests.kit.upstream import FakePool

RECORD = calibration(classes(10_000, 100), classes(20_000, 200), salt=b"salt")
PRICES = dict(zip(NAMES, (9.0, 1.0, 2.0, 3.0, 4.0), strict=True))
PRICED = replace(RECORD, id="answers-1", prices=PRICES)
SLOWNESS = (StopReason.SLOW, StopReason.DEADLINE)
USUAL = decision_record(calibration_record(rows=20), [0.5, 0.5, 0.5])


def _are_near(one: Meaning, other: Meaning) -> bool:
    return one.equals(other, 0.9)


def served(
    plan: RoundsPlan, max_rounds: int, alpha: float, rng: np.random.Generator
) -> DecisionRecord:
    """A request whose candidates answer, fail, answer nothing or are late, as the draws say."""
    policy, decision_id = plan.calibration.policy, f"decision-{rng.integers(1 << 40)}"
    # By meaning answers are equal that are near each other, which is not transitive.
    by_meaning = rng.random() < 0.3
    rounds = Rounds(plan, decision_id, is_same=_are_near if by_meaning else None)
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
                rounds.meanings[name] = Meaning(name, np.array([place.real, place.imag]))
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
        record = PRICED if number % 2 else RECORD
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
    assert fitted(RECORD, NAMES, terms).policy.order[0] == "ada"
    assert fitted(PRICED, NAMES, terms).policy.order[0] != "ada"
