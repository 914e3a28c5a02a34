"""Passages that a router does not read: what is left of a text, and which turn asks."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from racer_core.records.conversation import RoutedText
from racer_core.records.left_out import LeftOut, outside
from racer_core.records.request import request_conversation

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


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Fix it.", "Fix it."),
        ("<r>x</r>\nFix it.", "Fix it."),
        ("Fix it.\n\n<r>x</r>\n<r>y</r>", "Fix it."),
        ("Fix <r>x</r> it.", "Fix\nit."),
        ("What is <r>?", "What is <r>?"),
        ("<r>x", "<r>x"),
        ("a</r>b", "a</r>b"),
        ("<r>x</r>", ""),
        ("Fix it.\nNotes: <r> and more", "Fix it."),
        ("<r>Notes:</r>Fix it.", "Fix it."),
    ],
)
def test_what_is_left(text: str, left: str) -> None:
    """A beginning without an end is a quotation."""
    assert outside(text, [REMINDER, NOTES]) == left


def test_the_time_is_linear() -> None:
    """Many beginnings without an end, and many passages: half a second is a thousand times more."""
    for text in ("<r>" * 200_000, "<r></r>" * 200_000, "<r>a</r> b " * 100_000):
        assert len(outside(text, [REMINDER])) <= len(text)


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
