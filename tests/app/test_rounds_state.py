"""The state of calls in rounds, without candidates."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.answering.answer_forms import AnswerReader
from app.answering.fan_out import FanOutResult, fan_out
from app.answering.rounds import KEPT, LEAST_S, Rounds, RoundsVote, UsualLatencies
from app.answering.vote import Vote
from app.errors import UpstreamError, UpstreamRejected
from app.monitoring.decisions.record import DecisionRecord
from app.routing.decision import AnswerGuarantee
from app.routing.rounds_plan import RoundsPlan
from app.settings import Aggregation
from app.upstream.reply import Reply
from app.wire.format import Choice
from racer_core.aggregation.answers import Equality
from racer_core.aggregation.wording import SHIPPED
from racer_core.sequential.calibration import SequentialCalibration
from racer_core.sequential.policy import Policy
from racer_core.sequential.serving import StopReason
from racer_core.sequential.verdicts import VERDICTS, VerdictRates
from tests.kit.monitored import calibration_record, decision_record
from tests.kit.same_answer import NAMES, classes

POLICY = Policy(pool=NAMES, reliabilities=(0.9,) * 5, order=NAMES, borders=(2, 5))


class NeverReads:
    """A reader that is never done."""

    def waits(self, *_: object) -> bool:
        """It always waits."""
        return True

    async def form(self, *_: object) -> str | None:
        """Longer than any deadline."""
        await asyncio.sleep(60)
        return "7"


def reply(name: str, text: str = "7") -> Reply:
    """An answer."""
    return Reply(candidate=name, body={}, choices=(Choice(text=text),), usage={}, seconds=0.0)


def rounds(threshold: float = 0.0, prices: Mapping[str, float] | None = None) -> Rounds:
    """Calls of a request that by default never stop before the last round."""
    found = SequentialCalibration(policy=POLICY, answers=classes(0, 50))
    return Rounds(RoundsPlan(found, 0.02, threshold, 5.0, prices), "decision")


def usual(seconds: float, application: str | None = None) -> UsualLatencies:
    """So long takes every answer to the requests of an application."""
    latencies = UsualLatencies()
    for name in NAMES * KEPT:
        latencies.record(application, name, seconds)
    return latencies


def vote_of(
    state: Rounds,
    *,
    deadline_s: float = 100.0,
    kind: Equality = Equality.EXACT,
    reader: Any = None,
    **options: Any,
) -> RoundsVote:
    """A vote in rounds, whose reader is by default never done."""
    plain = Vote(
        rule=Aggregation(),
        kind=kind,
        reader=reader or NeverReads(),
        stacked=None,
        scores={},
        members=NAMES,
        deadline=time.monotonic() + deadline_s,
    )
    return RoundsVote.of(plain, state, **options)


def test_an_answer_that_is_not_read_in_time_is_a_failure() -> None:
    """Rows hold answers that were read without a deadline: it is no unreadable answer."""
    state = rounds()
    vote = vote_of(state, deadline_s=0.02, kind=Equality.MATH, latencies=UsualLatencies())
    results = FanOutResult()
    assert vote.wave(results, NAMES) == ("ada", "bob")
    results.replies["ada"] = reply("ada")
    results.forms["ada"] = asyncio.run(vote.read(results.replies["ada"]))
    assert not vote.decided(results, ["bob"])
    results.replies["bob"], results.forms["bob"] = reply("bob"), "7"
    assert not vote.decided(results, ["cyd", "dan", "eve"])
    assert vote.wave(results, NAMES[2:]) == ("cyd", "dan", "eve")
    for name in NAMES[2:]:
        results.replies[name], results.forms[name] = reply(name), "7"
    assert vote.decided(results, [])
    assert state.reasons(results) == ("outvoted_candidate_failed:ada",)


def test_a_request_that_nobody_answered_has_no_other_reasons() -> None:
    """Such as one whose client left at once."""
    assert rounds().reasons(FanOutResult()) == ()


def test_checks_make_no_round_slow() -> None:
    """The usual latency is that of answers alone."""
    state = rounds()
    vote = vote_of(state, latencies=usual(1.0))
    state.arrived.add("ada")
    assert 1.0 < vote.hurry_s <= 2.0
    state.arrived.add("bob")
    assert 49.0 < vote.hurry_s <= 50.0


def hurries(latencies: UsualLatencies, seconds: float, application: str | None) -> bool:
    """Whether a request whose candidates answer after this time calls the rest before."""
    state = rounds()
    vote = vote_of(state, deadline_s=1e6, latencies=latencies, application=application)
    wait_s = vote.hurry_s
    if wait_s >= seconds:
        return False
    state.began_at -= wait_s
    assert vote.hurry() == NAMES[2:]
    return True


def test_a_round_is_slow_beside_the_answers_that_arrived() -> None:
    """Three late ones make an overload usual; a candidate that hangs stays unusual."""
    latencies = usual(1.0, "desk")
    for name in NAMES * KEPT:
        latencies.record("essays", name, 30.0)
    assert all(hurries(latencies, 10.0, "desk") for _ in range(50))  # all of them are cancelled
    assert not hurries(latencies, 59.0, "essays")
    assert hurries(latencies, 61.0, "essays")
    for name in NAMES * 3:
        latencies.record("desk", name, 10.0)
    assert not hurries(latencies, 19.0, "desk")
    for name in NAMES * KEPT:
        latencies.record("desk", name, 1.0)
    assert not hurries(latencies, 1.9, "desk")
    assert hurries(latencies, 10.0, "desk")


def test_a_slow_checker_saves_calls_all_the_same() -> None:
    """Answers take 20 ms, checks more than the least time of a slow round."""
    state = rounds(threshold=-math.inf)
    reader = AnswerReader(None, None, similarity=0.9, text=SHIPPED, embed_chars=100)  # type: ignore[arg-type]
    vote = vote_of(state, reader=reader, latencies=usual(0.02))

    async def call(name: str) -> Reply:
        await asyncio.sleep(0.02)
        state.arrived.add(name)
        await asyncio.sleep(LEAST_S + 0.2)
        state.check(name, 5)
        return reply(name)

    results = asyncio.run(fan_out(NAMES, call=call, vote=vote))
    assert sorted(results.replies) == ["ada", "bob"]
    assert (state.made.stopped, state.made.verdicts) == ("certified", {"ada": 5, "bob": 5})


def test_a_lost_verdict_calls_all_and_voids_what_may_depend_on_it() -> None:
    """It is not the verdict of a checker that says nothing."""
    for answers, reasons in ((("7", "7", "7"), ()), (("8", "8", "7"), ("evidence_unavailable",))):
        state = rounds(threshold=-math.inf)
        state.check("ada", None)
        state.check("bob", 5)
        given = {"ada": "7", "bob": "7"}
        report(state, **given)
        assert state.next == ("cyd", "dan", "eve")
        given |= dict(zip(state.next, answers, strict=True))
        report(state, **given)
        assert (state.is_over, state.made.stopped) == (True, "unchecked")
        assert state.made.verdicts == {"bob": 5}
        results = FanOutResult(replies={name: reply(name) for name in NAMES})
        assert state.reasons(results) == reasons


def report(state: Rounds, **answers: str | None) -> None:
    """Let candidates answer; None: their request fails, which is their answer."""
    replies = {name: reply(name, text) for name, text in answers.items() if text is not None}
    refused = {name: UpstreamRejected("no", status=400) for name in answers.keys() - replies.keys()}
    forms = {name: text or None for name, text in answers.items() if text is not None}
    state.report(FanOutResult(replies=replies, forms=forms, failures=refused))


def test_a_first_round_without_an_answer_calls_the_others_and_says_why() -> None:
    """No deadline is near; the doubt is that of complete rounds in turn alone."""
    state = rounds()
    report(state, ada=None, bob=None)
    assert state.next == ("cyd", "dan", "eve")
    report(state, cyd="7", dan="8", eve="7")
    assert (state.is_over, state.made.stopped) == (True, "no_answer")
    assert [each.doubt for each in state.made.rounds] == [None, None]
    assert state.made.classes == {"ada": None, "bob": None, "cyd": 0, "dan": 1, "eve": 0}


def test_what_was_called_is_read_back_as_it_was_stored() -> None:
    """With the least threshold, the price of the calls, and without any text."""
    prices = dict(zip(NAMES, (1.0, 2.0, 3.0, 4.0, 6.0), strict=True))
    state = rounds(threshold=-math.inf, prices=prices)
    report(state, ada="secret", bob="7")
    made = state.made
    assert (made.rounds[0].doubt, made.stopped) == (
        POLICY.doubt({"ada": "1", "bob": "2"}, "ada"),
        "certified",
    )
    assert (made.classes, made.price_share) == ({"ada": 0, "bob": 1}, 3.0 / 16.0)
    promised = AnswerGuarantee(
        reference="vote", equality="exact", max_rounds=2, order=NAMES, borders=(2, 5),
        expected_calls=2.0, trivial=False, made=made,
    )  # fmt: skip
    record = decision_record(calibration_record(rows=20), [0.5, 0.5, 0.5])
    for sequence in (promised, replace(promised, made=None)):
        stored = replace(record, lambda_hat=-math.inf, sequence=sequence)
        assert DecisionRecord.from_document(stored.document(), stored.neighbours) == stored
        assert "secret" not in stored.document()


def checked_rounds(rng: np.random.Generator) -> Rounds:
    """One round of everyone; candidates are equally reliable, so that votes tie."""
    pool = tuple("abcdefgh"[: rng.integers(3, 9)])
    rates = rng.choice([0.1, 0.3], (2, VERDICTS + 1))
    policy = Policy(
        pool=pool,
        reliabilities=(float(rng.choice([0.08, 0.6, 0.8])),) * len(pool),
        order=tuple(rng.permutation(pool).tolist()),
        borders=(len(pool),),
        checker=VerdictRates(*rates.tolist()) if rng.random() < 0.5 else None,
    )
    found = SequentialCalibration(policy=policy, answers=classes(0, 5))
    return Rounds(RoundsPlan(found, 0.02, 0.0, 5.0, None), "decision")


@pytest.mark.parametrize("fails", [False, True])
def test_what_an_answer_that_is_missing_would_say_changes_nothing(fails: bool) -> None:
    """Candidates that failed, or are not awaited: the full vote returns the same answer."""
    rng = np.random.default_rng(8)
    decided = 0
    for _ in range(500):
        state = checked_rounds(rng)
        policy = state.policy
        missing = policy.pool[: rng.integers(1, len(policy.pool))]
        state.call_rest(StopReason.DEADLINE)  # late answers that decide nothing are not awaited
        forms = {name: str(rng.choice(list("AAAB"))) for name in policy.pool}
        verdicts = {name: int(rng.integers(-1, VERDICTS)) for name in policy.pool}
        given = [name for name in policy.pool if name not in missing]
        state.verdicts |= {name: verdicts[name] for name in given}
        results = FanOutResult(
            replies={name: reply(name) for name in given},
            forms={name: forms[name] for name in given},
            failures={name: UpstreamError("down") for name in missing if fails},
        )
        state.report(results)
        if not (state.is_settled if fails else state.is_over):
            continue
        decided += 1
        returned = forms[state.winner(given)]
        for others in ("B", "C", "ABC"):
            for name in missing:
                forms[name] = str(rng.choice(list(others)))
                verdicts[name] = int(rng.integers(-1, VERDICTS))
            full = policy.vote({name: forms[name] for name in policy.order}, verdicts)
            assert forms[full] == returned
    assert decided > 50


def test_a_tie_is_no_lead_however_it_is_rounded() -> None:
    """Four votes against three, and one is missing that would win the tie by its name."""
    policy = Policy(
        pool=tuple("abcdefgh"), reliabilities=(0.8,) * 8, order=tuple("abcdefgh"), borders=(8,)
    )
    found = SequentialCalibration(policy=policy, answers=classes(0, 5))
    state = Rounds(RoundsPlan(found, 0.02, 0.0, 8.0, None), "decision")
    forms = dict(zip("bcdefgh", "7878877", strict=True))
    replies = {name: reply(name) for name in forms}
    failures = {"a": UpstreamError("down")}
    state.report(FanOutResult(replies=replies, forms={**forms}, failures={**failures}))
    assert policy.vote({"a": "8", **forms}) == "a"
    assert not state.is_settled
