"""Sampled turns of one conversation: a keyed hash is their cluster, and clusters decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.monitoring.samples.draw import ConversationTurn, ShadowSample, conversation_turn
from app.monitoring.samples.record import Sample, SampledDecision, SampledExchange
from racer_core.calibration.shadow import drawn_turns
from racer_core.calibration.threshold import allowed_misses, threshold_from_sorted
from racer_core.records.units import cluster_units, one_per_unit
from racer_core.types import RowsKind
from tests.kit.applications import ACCESS, BOT_KEY, answered, drawn_rows, later, upload, whole
from tests.kit.gateway import DATA_KEY, TWO, Serve, user
from tests.kit.lazy import LazyModule
from tests.kit.monitored import POOL, calibration_record, decision_record, exported
from tests.kit.upstream import FakePool

stats = LazyModule("scipy.stats")

KEY = b"a key of the tests"
ALPHA = 0.1
ROWS = 39
LONG = 15  # later turns of a long conversation
DECISION = decision_record(calibration_record(rows=30), (0.5, 0.5, 0.5))
BOTH: dict[str, Any] = {
    "bot": {"keys": ["bot"], "premise": "drawn"},
    "agent": {"keys": ["data"], "premise": "drawn"},
}
FIRST: list[Any] = [{"role": "user", "content": "Hello"}]
SECOND = [*FIRST, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "And?"}]
THIRD = [*SECOND, {"role": "assistant", "content": "So"}, {"role": "user", "content": "Well?"}]
OTHER = [*FIRST, {"role": "assistant", "content": "What?"}, {"role": "user", "content": "And?"}]


def turn_of(turns: list[Any], key: bytes = KEY, **changes: Any) -> ConversationTurn | None:
    """The turn of a conversation that a request is; ``field`` names that of its API."""
    field = changes.pop("field", "messages")
    path = {"messages": "chat/completions", "input": "responses"}[field]
    of_caller = {"caller": "data", "application": None, "session": None, **changes}
    return conversation_turn(key, {field: turns}, path, **of_caller)


def of(turns: list[Any], **changes: Any) -> Any:
    """The conversation of a request."""
    turn = turn_of(turns, **changes)
    return turn and turn.conversation


def test_later_turns_share_their_beginning() -> None:
    """Up to the first answer; a first turn has no conversation, whatever its session."""
    assert of(FIRST) is None is of(FIRST, session="s")
    assert of(SECOND) == of(THIRD) != of(OTHER)
    assert of(SECOND, session="s") == of(THIRD, session="s") != of(SECOND, session="t")
    others = [of(SECOND, key=b"another"), of(SECOND, caller="bot"), of(SECOND, session="s")]
    assert len({of(SECOND), of(SECOND, application="bot"), *others}) == 5


def test_a_greeting_or_a_session_makes_no_conversation() -> None:
    """Both may be the same for all users; the user's first turn and its answer are not."""
    greeting = [{"role": "assistant", "content": "Hello! How can I help?"}]
    for session in (None, "constant"):
        found = [
            of([*before, *user(f"a{number}"), *greeting, *turns], session=session)
            for number in range(20)
            for before in ([], greeting)
            for turns in (user("And?"), [*user("And?"), *greeting, *user("Well?")])
        ]
        assert len(set(found)) == 40


def test_the_answer_to_a_greeting_makes_no_conversation() -> None:
    """Users greet alike and are answered alike; what they say then is their own."""
    assert len({of([*SECOND[:2], *user(f"{number}")]) for number in range(20)}) == 20


@pytest.mark.parametrize("field", ["messages", "input"])
def test_a_system_prompt_that_changes_makes_no_other_conversation(field: str) -> None:
    """In every API; clients put the time, or what they found for the last question, into it."""
    found = [
        turn_of([*prompt, *turns], field=field)
        for number, turns in enumerate((SECOND, THIRD, THIRD))
        for role in ("system", "developer")
        for prompt in ([], [{"role": role, "content": f"It is {number} o'clock."}])
    ]
    assert len({each and each.conversation for each in found}) == 1
    assert [each and each.number for each in found] == [0] * 4 + [1] * 8
    assert turn_of(FIRST, field=field) is None
    reminded = [[*each[:-1], {"role": "system", "content": "Be brief."}, each[-1]]
                for each in (SECOND, THIRD)]  # fmt: skip
    turns = [turn_of(each) for each in (SECOND, THIRD, *reminded)]
    assert turns[:2] == turns[2:]


def test_the_steps_of_an_agent_are_turns_of_one_conversation() -> None:
    """Each has one number more, and those after the next question are of the same conversation."""
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}, {"id": "2"}]}
    results = [{"role": "tool", "tool_call_id": "1", "content": "a"}] * 2
    steps = [*user("Go"), *2 * [call, *results], {"role": "assistant", "content": "Done"}]
    found = [turn_of(turns) for turns in (steps[:4], steps[:7], [*steps, *user("Again")])]
    assert len({each and each.conversation for each in found}) == 1
    assert [each and each.number for each in found] == [0, 1, 2]


def test_turns_are_numbered_by_the_answers_before_them() -> None:
    """The beginning of the answer, as a client may send it, is none."""
    system, prefix = {"role": "system", "content": "Be brief."}, {"role": "assistant"}
    assert [turn and turn.number for turn in map(turn_of, (FIRST, SECOND, THIRD))] == [None, 0, 1]
    other = turn_of([system, *THIRD, prefix | {"content": "It"}])
    assert (other and other.number) == 1


def sampled_turns(
    rng: np.random.Generator, conversations: int, rate: float, most: int | None = None
) -> list[SampledDecision]:
    """Sampled later turns in random order: few conversations are long, and those are hard.

    The text of a turn is its critical score.
    """
    turns = np.where(rng.random(conversations) < 0.2, LONG, 1)
    drawn = rng.permutation(np.repeat(np.arange(conversations), rng.binomial(turns, rate)))
    found: list[SampledDecision] = []
    for place in drawn[:most]:
        text = str(critical(rng, is_long=bool(turns[place] > 1)))
        decision_id = f"chatcmpl-{len(found)}"
        exchange = SampledExchange(
            request={"messages": [*SECOND[:2], *user(text)]},
            path="chat/completions",
            answers={},
            calls={},
        )
        sample = Sample(
            decision_id=decision_id,
            application=None,
            later=True,
            conversation=f"conversation {place}",
            classes={},
            digests=dict.fromkeys(POOL, "0"),
            whole=True,
            exchange=exchange,
        )
        decision = replace(
            DECISION,
            decision_id=decision_id,
            shadow_rate=rate,
            conversation=f"conversation {place}",
            turn=1,
        )
        correct: dict[str, bool] = dict.fromkeys(POOL, True)
        found.append(
            SampledDecision(decision=decision, sample=sample, correct=correct, judgements={})
        )
    return found


def critical(rng: np.random.Generator, *, is_long: bool) -> float:
    """The critical score of a turn."""
    return float(rng.random()) * (1.0 if is_long else 0.5)


def read_rows(sampled: list[SampledDecision]) -> tuple[list[float], list[str]]:
    """Critical scores and clusters of the rows."""
    rows = exported(sampled, conditions_of=lambda _: None)
    assert len(rows) == len(sampled)
    scores = [float(row["request"]["messages"][-1]["content"]) for row in rows]
    return scores, [row["cluster"] for row in rows]


def threshold(scores: Sequence[float]) -> float:
    """The threshold of the rows' critical scores."""
    return threshold_from_sorted(np.sort(scores), allowed_misses(len(scores), ALPHA, None))


def test_a_lost_later_turn_is_no_first_turn() -> None:
    """Nothing stands beside its decision, whose reasons say what it was."""
    for reason in ("later_turn", "multi_turn_uncalibrated"):
        decision = replace(
            DECISION, shadow_rate=1.0, group_by="application", group="bot", reasons=(reason,)
        )
        lost = SampledDecision(decision=decision, sample=None, correct={}, judgements={})
        [row] = exported([lost], group_by="application", drawn=("bot",))
        assert (row["unlabelled"], row.get("later")) == (True, True)


LAW = (1 + allowed_misses(ROWS, ALPHA, None)) / (ROWS + 1)


def drawn_turns_of(
    rng: np.random.Generator, rate: float, count: int
) -> tuple[list[float], list[str]]:
    """Critical scores and conversations of drawn later turns, until there are so many.

    A fifth of the conversations is long and hard, and has most turns.
    """
    sample = ShadowSample(rate, {}, KEY)
    scores: list[float] = []
    names: list[str] = []
    while len(scores) < count:
        is_long = bool(rng.random() < 0.2)
        name = rng.bytes(8).hex()
        for number in range(LONG if is_long else 1):
            if sample.draw("", rate, ConversationTurn(name, number)):
                scores.append(critical(rng, is_long=is_long))
                names.append(name)
    return scores[:count], names[:count]


@pytest.mark.parametrize("rate", [0.25, 1 / 16])
def test_drawn_turns_keep_alpha_for_a_turn_that_may_be_drawn(rate: float) -> None:
    """The exact law of n exchangeable rows, for whatever sample; false alarm below 1e-6.

    All turns drawn, and certified only where no two rows shared a conversation, had risks of
    0.12 to 0.14: samples with short conversations were chosen.
    """
    rng, trials, missed = np.random.default_rng(1), 600, 0
    turns = drawn_turns(rate)
    longs = 0.2 * min(LONG, turns)
    for _ in range(trials):
        scores, names = drawn_turns_of(rng, rate, ROWS)
        assert len(set(names)) == ROWS
        is_long = bool(rng.random() < longs / (longs + 0.8))
        missed += critical(rng, is_long=is_long) > threshold(scores)
    low, high = stats.binom.interval(1.0 - 1e-6, trials, LAW)
    assert low <= missed <= high


@pytest.mark.parametrize(("rate", "turns"), [(1.0, 1), (0.5, 2), (0.3, 2), (0.25, 4), (0.05, 16)])
def test_no_two_turns_of_a_conversation_are_drawn(rate: float, turns: int) -> None:
    """Of a thousand conversations; each of the first turns is drawn in turn, and no later one."""
    assert drawn_turns(rate) == turns
    sample, seen = ShadowSample(rate, {}, KEY), set[int]()
    for number in range(1_000):
        drawn = [t for t in range(40) if sample.draw("", rate, ConversationTurn(f"{number}", t))]
        assert len(drawn) <= 1
        seen |= {*drawn}
    assert seen == set(range(turns))


def test_one_row_of_each_conversation_keeps_alpha_for_a_random_conversation() -> None:
    """The exact law of n exchangeable conversations; for a random request it fails by far.

    Each with false alarm below 1e-6.
    """
    rng, trials = np.random.default_rng(2), 120
    share = 0.2 * LONG / (0.2 * LONG + 0.8)
    missed = {0.2: 0, share: 0}
    for number in range(trials):
        scores, clusters = read_rows(sampled_turns(rng, ROWS, 1.0))
        units = cluster_units(RowsKind.TRAFFIC, clusters, clusters)
        chosen: list[int] = one_per_unit(units, str(number).encode()).tolist()
        assert len(chosen) == ROWS
        limit = threshold([scores[row] for row in chosen])
        for longs in missed:
            missed[longs] += critical(rng, is_long=bool(rng.random() < longs)) > limit
    low, high = stats.binom.interval(1.0 - 1e-6, trials, LAW)
    assert low <= missed[0.2] <= high
    assert stats.binom.sf(missed[share] - 1, trials, ALPHA) < 1e-6


def conversations(rows: list[dict[str, Any]], name: str, size: int) -> list[dict[str, Any]]:
    """Sampled rows of an application, in conversations of one size; 0: in none."""
    return [
        row
        | {"application": name, "decision_id": f"{name}-{size}-{number}", "weight": 1.0}
        | ({"cluster": f"{name} {number // size}"} if size else {})
        for number, row in enumerate(rows)
    ]


def test_certificates_of_later_turns_are_for_those_that_are_drawn(
    serve: Serve, pool: FakePool
) -> None:
    """At a rate of 1 the first later turn alone is; rows of a turn that was sent twice are one."""
    gateway = serve(calibrated=False, access=ACCESS, applications=BOTH)
    turns = [row | {"request": later(row["request"])} for row in drawn_rows(80, 30_000)]
    rows = [
        row
        for name, size in (("bot", 2), ("agent", 1))
        for row in (*conversations(drawn_rows(60), name, 0), *conversations(turns, name, size))
    ]
    made = upload(gateway, rows, rows_kind="traffic")
    kept = {each["application"]: each for each in made["evidence"]["source"]["sampling"]}
    assert [(kept[name]["kept"], kept[name]["turns"]) for name in BOTH] == [(100, 1), (140, 1)]
    even_later = later(later(whole(TWO)))
    for key in (BOT_KEY, DATA_KEY):
        for body, reasons in (
            (whole(TWO), []),
            (later(whole(TWO)), ["later_turn"]),
            (even_later, ["later_turn", "turn_beyond_sample"]),
        ):
            found = answered(gateway, key, body)
            assert [each for each in found["reasons"] if "turn" in each] == reasons
            assert found["holds"] is ("turn_beyond_sample" not in reasons)
