"""Reasoning text: what stands between markers is no part of an answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from racer_core.aggregation.answers import Equality
from racer_core.aggregation.batch import RowAnswers
from racer_core.aggregation.reasoning import MARKERS, AnswerReader, ReasoningFilter
from racer_core.aggregation.rule import AnswerRule
from racer_core.types import LabelledRow
from tests.kit.answers import answer_classes

HARMONY = (("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("It is 42.", "It is 42."),
        (" 42\n", " 42\n"),  # a text without markers stays as it is
        ("<think>6 times 7</think>\n\n42", "42"),
        ("\n<think>\n</think>\n42\n", "42"),
        ("6 times 7</think>\n42", "42"),  # the template wrote the opening marker
        ("<think>6 times", ""),  # cut by the token limit
        ("<think>", ""),
        ("6</think>", ""),
        ("42 <think>or 43?</think>", "42"),
        ("42 <think>or 43?", "42"),
        ("<think>a</think>4<think>b</think>2", "42"),
        ("<think>a<think>b</think>42", "42"),
        ("a</think>b</think>42", "42"),
        ("<think>a<think>b</think>c</think>42", "42"),
        ("", ""),
        ("1 < 2 </thin", "1 < 2 </thin"),
    ],
)
def test_reasoning_is_no_part_of_an_answer(text: str, answer: str) -> None:
    """Closed, cut off, or without an opening marker."""
    assert ReasoningFilter().answer(text) == answer


def classes(row, pool, equality):
    """The classes of the answers of one row."""
    return RowAnswers.of([row], pool, AnswerRule(equality=equality)).classes.tolist()


def test_other_markers_may_be_set() -> None:
    """Of several pairs each has its own end; with none, nothing is reasoning."""
    text = f"{HARMONY[0][0]}6 times 7{HARMONY[0][1]}42"
    assert ReasoningFilter(HARMONY).answer(text) == "42"
    assert ReasoningFilter().answer(text) == text
    both = ReasoningFilter((*HARMONY, ("[[", "]]")))
    assert both.answer(f"[[a{HARMONY[0][1]}b]]42") == "42"
    assert both.answer(text) == "42"
    assert ReasoningFilter(()).answer("<think>a</think>b") == "<think>a</think>b"


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<th", "ink>", "a", " ", "[[", "]", "[/"])),
    st.lists(st.integers(1, 5)),
)
def test_pieces_are_read_as_the_whole_text(words: list[str], sizes: list[int]) -> None:
    """Wherever a stream is cut into pieces, also in the middle of a marker."""
    reasoning = ReasoningFilter((*MARKERS, ("[[", "]]")))
    text = "".join(words)
    pieces, flags = AnswerReader(reasoning), AnswerReader(reasoning, keeps_text=False)
    left = text
    for size in [*sizes, len(text)]:
        pieces.feed(left[:size])
        flags.feed(left[:size])
        left = left[size:]
    assert pieces.answer.strip() == reasoning.answer(text).strip()
    assert flags.has_answer is pieces.has_answer


def test_recorded_answers_vote_without_their_reasoning() -> None:
    """Other thoughts and equal answers are one vote; a thought that was cut off is none."""
    given = ["<think>6 * 7</think>42", "<think>21 + 21</think>42.", "<think>6 *", None, "42"]
    assert answer_classes([given], Equality.EXACT).tolist() == [[0, 0, -1, -1, 0]]
    row = LabelledRow(query="x", correct=frozenset(), answers={"a": given[0], "b": given[1]})
    assert classes(row, ["b", "a", "c"], Equality.EXACT) == [[0, 0, -1]]
    bare = answer_classes([given], Equality.EXACT, ReasoningFilter(())).tolist()
    assert bare == [[0, 1, 2, -1, 3]]


def test_recorded_tool_calls_vote_as_tool_calls() -> None:
    """Whatever the equality of texts: their last number is no answer."""
    answers = {
        "a": '[{"arguments": {"id": 1, "n": 7}, "name": "f"}]',
        "b": '[{"name": "f", "arguments": {"n": 7, "id": 1}}]',
        "c": '[{"arguments": {"id": 2, "n": 7}, "name": "f"}]',
        "d": "7",
    }
    calls = {name: {"tool_calls": 1} for name in "abc"}
    row = LabelledRow(query="x", correct=frozenset(), answers=answers, calls=calls)
    assert classes(row, "abcd", Equality.NUMBER) == [[0, 0, 1, 2]]
    without = replace(row, calls={})
    assert classes(without, "abcd", Equality.NUMBER) == [[0, 1, 0, 0]]


def test_a_list_of_calls_beside_tools_votes_as_tool_calls() -> None:
    """Hand-written rows have no `calls`; a record without tool calls says that it is a text."""
    answers = {
        "a": '[{"arguments": {"id": 1, "n": 7}, "name": "f"}]',
        "b": '[{"name": "f", "arguments": "{\\"n\\": 7, \\"id\\": 1}"}]',
        "c": '[{"name": "g", "arguments": {"n": 7}}]',
        "d": "7",
    }
    body = {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function"}]}
    row = LabelledRow(query="x", correct=frozenset(), answers=answers, request=body)
    assert classes(row, "abcd", Equality.NUMBER) == [[0, 0, 1, 2]]
    text = replace(row, calls={"a": {"finish_reason": "stop"}})
    assert classes(text, "abcd", Equality.NUMBER) == [[0, 1, 2, 0]]
    plain = replace(row, request={"messages": body["messages"]})
    assert classes(plain, "abcd", Equality.NUMBER) == [[0, 1, 0, 0]]
