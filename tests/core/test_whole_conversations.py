"""Whole conversations: rows and requests that are consecutive turns are told from others."""

from __future__ import annotations

from itertools import permutations

import pytest

from racer_core.records.whole_conversations import TurnMark, WholeConversations
from racer_core.types import Turn

TALK = tuple(
    Turn(role, text)
    for role, text in (
        ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"), ("tool", "e"),
        ("assistant", "f"), ("user", "g"),
    )
)  # fmt: skip
ENDS = (1, 3, 5, 7)  # where its turns end: each is followed by an answer, or is the last


def problem(*turns: tuple[Turn, ...], chars: int | None = None) -> str | None:
    """What is wrong with the conversation of these turns."""
    whole = WholeConversations(chars)
    for each in turns:
        whole.add("talk", each)
    return whole.problem


@pytest.mark.parametrize("order", [*permutations(ENDS)])
def test_all_turns_in_any_order_are_whole(order: tuple[int, ...]) -> None:
    """A step of an agent, after the result of a tool, is a turn as well."""
    assert problem(*(TALK[:end] for end in order)) is None


@pytest.mark.parametrize("missing", ENDS[:-1])
def test_a_turn_that_is_missing_is_noticed(missing: int) -> None:
    """Any but the last, without which it is a shorter conversation."""
    left = [TALK[:end] for end in ENDS if end != missing]
    assert "lacks a turn" in (problem(*left) or "")
    assert problem(*(TALK[:end] for end in ENDS[:-1])) is None


def test_a_turn_that_is_there_twice_is_noticed() -> None:
    """Its loss would count twice."""
    assert "twice" in (problem(*(TALK[:end] for end in (*ENDS, 3))) or "")


def test_turns_of_another_conversation_are_noticed() -> None:
    """Under one name, in whatever order they come."""
    other = (TALK[0], Turn("assistant", "another"), TALK[2])
    for turns in permutations((TALK[:1], other, TALK[:5])):
        assert "continue" in (problem(*turns) or "")


def test_cut_texts_are_equal_to_cut_ones() -> None:
    """A row's query is cut, and later stands whole among the turns before another."""
    long = (Turn("user", "a" * 100), *TALK[1:3])
    assert problem((Turn("user", "a" * 9),), long, chars=9) is None
    assert problem((Turn("user", "a" * 9),), long) is not None


@pytest.mark.parametrize("place", range(len(ENDS) - 1))
def test_the_next_turn_is_known(place: int) -> None:
    """And the same turn again; no turn that skips one, goes back, or is of other texts."""
    mark = TurnMark.of(TALK[: ENDS[place]])
    followed = [end for end in range(len(TALK) + 1) if mark.is_followed_by(TALK[:end])]
    assert followed == [ENDS[place], ENDS[place + 1]]
    changed = (Turn("user", "x"), *TALK[1 : ENDS[place + 1]])
    assert not mark.is_followed_by(changed)
