"""Whole conversations: rows and requests that are consecutive turns are told from others."""

from __future__ import annotations

import re
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from racer_core.records.conversation import RoutedText
from racer_core.records.left_out import LeftOut, outside
from racer_core.records.request import request_conversation
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


REMINDER = LeftOut("<r>", "</r>")

NOTES = LeftOut("Notes:")

texts = st.lists(
    st.sampled_from(["<r>", "</r>", "a", "b c", " ", "\n", "\n\n", "Notes:", "<", "r>"])
).map("".join)


def by_patterns(text: str) -> str:
    """An oracle: the text split by regular expressions."""
    for pattern in (r"<r>.*?</r>", r"Notes:.*\Z"):
        pieces = (piece.strip() for piece in re.split(pattern, text, flags=re.DOTALL))
        text = "\n".join(piece for piece in pieces if piece)
    return text


@given(texts)
def test_the_rest_is_what_patterns_leave(text: str) -> None:
    """Each passage from its beginning to the first end behind it."""
    assert outside(text, [REMINDER, NOTES]) == by_patterns(text)


def user(content: object) -> dict[str, object]:
    """A turn of the user."""
    return {"role": "user", "content": content}


IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}

ANSWER = {"role": "assistant", "content": "Done. <r>x</r>"}


@pytest.mark.parametrize(
    ("turns", "read", "text"),
    [
        ([user("<r>x</r>\nFix it.")], "last_user", "Fix it."),
        ([user("Fix it."), ANSWER, user("<r>x</r>")], "last_user", "Fix it."),
        ([user("Fix it."), ANSWER, user("<r>x</r> More.")], "last_user", "More."),
        (
            [user("Fix it."), ANSWER, user("<r>x</r> More.")],
            "conversation",
            "Fix it.\n\nDone.\n\nMore.",
        ),
        (
            [{"role": "system", "content": "Rules. <r>y</r>"}, user("<r>x</r>Fix it.")],
            "with_system",
            "Rules.\n\nFix it.",
        ),
        ([user("<r>x</r>")], "last_user", "<r>x</r>"),
        ([user("<r>x</r>"), ANSWER], "conversation", "<r>x</r>\n\nDone. <r>x</r>"),
        ([user([IMAGE, {"type": "text", "text": "<r>x</r>"}])], "last_user", "(no text)"),
        ([user("Fix it."), ANSWER, user([IMAGE])], "last_user", "(no text)"),
        ([user([{"type": "text", "text": "Fix"}, {"type": "text", "text": "<r>x</r>"}])],
         "last_user", "Fix"),
        ([{"role": "system", "content": "Rules. <r>y</r>"}], "last_user", "Rules. <r>y</r>"),
    ],
    ids=str,
)  # fmt: skip
def test_the_turn_that_asks_has_words(
    turns: list[dict[str, object]], read: RoutedText, text: str
) -> None:
    """A turn of reminders alone is skipped; where no words are left, everything is read."""
    conversation = request_conversation({"messages": turns})
    assert conversation.text(read, [REMINDER]) == text
    assert conversation.text(read, ()) == conversation.text(read)


@given(
    st.lists(
        st.tuples(st.sampled_from(["user", "assistant", "system", "tool"]), texts), max_size=4
    ),
    texts.filter(str.strip),
    st.sampled_from(["last_user", "conversation", "with_system", "conversation_with_system"]),
)
def test_a_request_with_a_text_keeps_one(
    before: list[tuple[str, str]], last: str, read: RoutedText
) -> None:
    """Rules refuse no request that is accepted without them: rows are checked without them."""
    turns = [{"role": role, "content": content} for role, content in before]
    conversation = request_conversation({"messages": [*turns, user(last)]})
    assert conversation.text(read, [REMINDER, NOTES]).strip()
