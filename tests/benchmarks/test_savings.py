"""What is saved by ending votes early: by hand, beside the gateway's own loop, and on records."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.answering.answer_forms import AnswerReader
from app.answering.fan_out import FanOutResult, fan_out
from app.answering.vote import Vote
from app.settings.aggregation import Aggregation
from app.upstream.reply import Reply
from app.wire.chat import Chat
from benchmarks.arrivals import Call, Draws, Law, Mode, Outcome, replay
from racer_core.aggregation.answers import Equality
from racer_core.aggregation.stacked import StackedVote
from racer_core.aggregation.vote import Method
from racer_core.types import CandidateAnswer

SAVINGS = Path(__file__).parents[2] / "benchmarks" / "savings.py"
RECORDS = Path(os.environ.get("DATA", "")) / "mmlu_pro.jsonl.gz"  # as docs/results.md calls it
MAJORITY = {"method": Method.MAJORITY}
NAMES = "abcdefgh"


def call(
    name: str, form: str | None, score: float, first_s: float, tokens: int, per_token_s: float
) -> Call:
    """A candidate that answers ``form``."""
    answer = CandidateAnswer(candidate=name, text=form or "", form=form, score=score)
    return Call(answer=answer, tokens=tokens, first_s=first_s, per_token_s=per_token_s)


def spent(outcome: Outcome) -> tuple[int, int, int, float]:
    """What a vote cost."""
    return outcome.calls, outcome.cancelled, outcome.tokens, outcome.latency_s


# By hand ----------------------------------------------------------------------------------------

# They are there after 11, 5, 7, 21 and 31 s.
FIVE = (
    call("a", "x", 0.9, 1, 10, 1),
    call("b", "x", 0.8, 1, 4, 1),
    call("c", "x", 0.7, 1, 6, 1),
    call("d", "y", 0.6, 1, 20, 1),
    call("e", "z", 0.5, 1, 30, 1),
)


def test_three_of_five_agree() -> None:
    """Three of five decide, when a is there: d and e have written for ten seconds, or never."""
    assert spent(replay(FIVE, Mode.FULL, MAJORITY)) == (5, 0, 70, 31)
    assert spent(replay(FIVE, Mode.EARLY, MAJORITY)) == (5, 2, 10 + 4 + 6 + 10 + 10, 11)
    assert spent(replay(FIVE, Mode.FRUGAL, MAJORITY)) == (3, 0, 20, 11)


def test_a_second_wave_begins_when_the_first_is_there() -> None:
    """x, y and x leave it open, for d and e may say y; then d says x, 21 s after it was asked."""
    b, d = call("b", "y", 0.8, 1, 4, 1), call("d", "x", 0.6, 1, 20, 1)
    outcome = replay((FIVE[0], b, FIVE[2], d, FIVE[4]), Mode.FRUGAL, MAJORITY)
    assert spent(outcome) == (4, 0, 10 + 4 + 6 + 20, 11 + 21)
    assert outcome.form == "x"


def test_who_is_cancelled_has_written_since_it_was_asked_and_not_before() -> None:
    """In the second wave the vote that comes first is enough, and the other is cancelled."""
    stacked = StackedVote(("p", "a", "c", "b"), np.array([5.0, 3.0, 1.0, 6.0]), np.zeros(4))
    calls = (
        call("p", "x", 0.9, 1, 2, 1),  # there at 3
        call("a", "y", 0.8, 1, 4, 1),  # at 5: 5 against 3, and 7 are out
        call("c", "x", 0.7, 1, 20, 0.5),  # asked at 5, begins at 6, would be there at 16
        call("b", "x", 0.6, 2, 3, 1),  # asked at 5, there at 10: 11 against 3, and 1 is out
    )
    outcome = replay(calls, Mode.FRUGAL, {"method": Method.STACKED, "stacked": stacked})
    assert spent(outcome) == (4, 1, 2 + 4 + 3 + 8, 10)


def test_an_answer_that_is_there_at_the_same_moment_is_counted() -> None:
    """Two agree at 3 s, which decides; the third is there too and is not cancelled."""
    calls = [call(name, form, 0.5, 1, 2, 1) for name, form in zip("abc", "xxy", strict=True)]
    assert spent(replay(calls, Mode.EARLY, MAJORITY)) == (3, 0, 6, 3)


def test_where_nothing_can_be_read_everyone_is_asked() -> None:
    """No answer, so nothing is decided before the last."""
    calls = [call(name, None, 0.5, 1, 2, 1) for name in "abc"]
    for mode in Mode:
        outcome = replay(calls, mode, MAJORITY)
        assert (outcome.calls, outcome.tokens, outcome.form) == (3, 6, None)


def test_a_token_is_paid_for_when_it_is_begun() -> None:
    """Nothing before the first, no more than there are, and the one under way."""
    three = call("a", "x", 0.5, 1, 3, 2)
    written = {0.0: 0, 1.0: 0, 1.1: 1, 3.0: 1, 3.5: 2, 6.9: 3, 7.0: 3, 99.0: 3}
    assert {after: three.written(after) for after in written} == written
    assert three.takes_s == 7


# Any instance -----------------------------------------------------------------------------------


@st.composite
def instances(draw: st.DrawFn) -> tuple[list[Call], dict[str, Any]]:
    """One to eight candidates, best score first, some of them there at the same moment."""
    size = draw(st.integers(1, 8))
    scores = sorted(draw(st.lists(st.integers(0, 8), min_size=size, max_size=size)), reverse=True)
    calls = [
        call(
            name,
            draw(st.sampled_from(["A", "A", "B", "C", None])),
            score / 8,
            draw(st.integers(0, 3)),
            draw(st.integers(1, 6)),
            draw(st.sampled_from([0.5, 1.0])),
        )
        for name, score in zip(NAMES, scores, strict=False)
    ]
    skills = st.lists(st.integers(-2, 4), min_size=8, max_size=8)
    stacked = StackedVote(tuple(NAMES), np.array(draw(skills), float), np.zeros(8))
    rule = draw(
        st.sampled_from(
            [
                MAJORITY,
                {"method": Method.WEIGHTED, "temperature": 0.1},
                {"method": Method.LOG_ODDS},
                {"method": Method.STACKED, "stacked": stacked},
            ]
        )
    )
    return calls, rule


@settings(max_examples=300)
@given(instance=instances())
def test_all_ways_elect_the_same_class_and_none_costs_more(
    instance: tuple[list[Call], dict[str, Any]],
) -> None:
    """The full vote is the measure of both; only waves may take longer."""
    calls, rule = instance
    full, early, frugal = (replay(calls, mode, rule) for mode in Mode)
    assert early.form == full.form == frugal.form
    assert full.calls == early.calls == len(calls) >= frugal.calls
    assert full.tokens == sum(each.tokens for each in calls) >= max(early.tokens, frugal.tokens)
    assert full.latency_s == max(each.takes_s for each in calls) >= early.latency_s
    assert full.cancelled == 0


@settings(max_examples=200)
@given(instance=instances())
def test_the_simulation_asks_and_cancels_as_the_gateway_does(
    instance: tuple[list[Call], dict[str, Any]],
) -> None:
    """Its own loop and ballot, whose answers come when the instance says: same calls, same end."""
    calls, rule = instance
    for mode in Mode:
        got, ended_s = asyncio.run(served(calls, mode, rule))
        outcome = replay(calls, mode, rule)
        assert outcome.calls == len(got.replies) + len(got.cancelled)
        assert outcome.cancelled == len(got.cancelled)
        assert outcome.latency_s == ended_s


async def served(
    calls: Sequence[Call], mode: Mode, rule: Mapping[str, Any]
) -> tuple[FanOutResult, float]:
    """What the gateway collects, and when: a clock that moves when nobody has anything to do."""
    of = {each.answer.candidate: each for each in calls}
    made: dict[str, float] = {}
    out: dict[str, asyncio.Future[Reply]] = {}
    now = 0.0

    async def ask(name: str) -> Reply:
        made[name] = now
        out[name] = asyncio.get_running_loop().create_future()
        return await out[name]

    task = asyncio.create_task(fan_out(list(of), call=ask, vote=vote(calls, mode, rule)))
    while True:
        for _ in range(100):
            await asyncio.sleep(0)
        if task.done():
            return task.result(), now
        due = {name: made[name] + of[name].takes_s for name in out if not out[name].done()}
        now = min(due.values())
        for name in due:
            if due[name] == now:
                out[name].set_result(reply(of[name].answer))


def reply(answer: CandidateAnswer) -> Reply:
    """The answer as a candidate sends it."""
    message = {"role": "assistant", "content": answer.text}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    return Reply.of(answer.candidate, body, Chat())


def vote(calls: Sequence[Call], mode: Mode, rule: Mapping[str, Any]) -> Vote:
    """The gateway's, of these calls."""

    async def nobody(*_: Any) -> Any:
        raise AssertionError("letters need no library and no encoder")

    scores = {each.answer.candidate: each.answer.score for each in calls}
    return Vote(
        rule=Aggregation(
            method=rule["method"],
            temperature=rule.get("temperature", 1.0),
            waves="frugal" if mode is Mode.FRUGAL else "all",
        ),
        kind=Equality.CHOICE,
        reader=AnswerReader(nobody, nobody, similarity=0.9, embed_chars=1),
        stacked=rule.get("stacked"),
        scores=scores,
        members=tuple(scores),
        deadline=time.monotonic() + 3600,
        everyone=mode is Mode.FULL,
    )


# The law, and the records -----------------------------------------------------------------------


def test_the_law_is_what_it_says() -> None:
    """Medians and spreads of logarithms, of many candidates; the same seed, the same world."""
    law = Law(tokens=1e4)  # so that whole tokens do not show

    def drawn() -> Draws:
        return law.draw(400, 400, np.random.default_rng(1))

    draws = drawn()
    assert np.array_equal(draws.tokens, drawn().tokens)
    assert np.array_equal(draws.per_token_s, drawn().per_token_s)
    logs = np.log(draws.tokens)
    by_question, by_candidate = logs.mean(axis=1), logs.mean(axis=0)
    rest = logs - by_question[:, None] - by_candidate + logs.mean()
    # 400 draws: a mean is off by at most 5 x 0.3 / 20, a deviation by a fifth.
    assert logs.mean() == pytest.approx(np.log(1e4), abs=0.15)
    assert by_question.std() == pytest.approx(law.tokens_by_question, rel=0.2)
    assert by_candidate.std() == pytest.approx(law.tokens_by_candidate, rel=0.2)
    assert rest.std() == pytest.approx(law.tokens_by_call, rel=0.02)
    assert np.median(draws.first_s) == pytest.approx(law.first_s, rel=0.02)
    assert np.log(draws.first_s).std() == pytest.approx(law.first_by_call, rel=0.02)
    speeds = np.log(draws.per_token_s)
    assert speeds.mean() == pytest.approx(np.log(law.per_token_s), abs=0.13)
    assert speeds.mean(axis=0).std() == pytest.approx(law.per_token_by_candidate, rel=0.2)
    assert (speeds - speeds.mean(axis=0)).std() == pytest.approx(law.per_token_by_call, rel=0.02)


@pytest.mark.skipif(not RECORDS.is_file(), reason="needs $DATA/mmlu_pro.jsonl.gz")
def test_no_winner_differs_on_the_records(tmp_path: Path) -> None:
    """A few rows of one split: the command ends well, saves something and says what it did."""
    out = tmp_path / "savings.json"
    command = [sys.executable, str(SAVINGS), "--splits", "1", "--rows", "10", "--json", str(out)]
    subprocess.run(command, check=True, timeout=250)
    document = json.loads(out.read_text(encoding="utf-8"))
    assert document["winners_that_differ"] == 0 < document["votes_compared"]
    for cell in document["cells"]:
        assert (cell["tokens_saved"][0] > 0) == (cell["mode"] != Mode.FULL), cell
        assert (cell["calls_saved"][0] > 0) == (cell["mode"] == Mode.FRUGAL), cell
    assert "| whole pool | majority |" in document["markdown"]
