"""Votes over recorded answers read them as the gateway reads served ones."""

from __future__ import annotations

from dataclasses import replace

from racer_core.aggregation.answers import Equality
from racer_core.aggregation.batch import row_classes
from racer_core.types import LabelledRow


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
    assert row_classes([row], "abcd", Equality.NUMBER).tolist() == [[0, 0, 1, 2]]
    without = replace(row, calls={})
    assert row_classes([without], "abcd", Equality.NUMBER).tolist() == [[0, 1, 0, 0]]


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
    assert row_classes([row], "abcd", Equality.NUMBER).tolist() == [[0, 0, 1, 2]]
    text = replace(row, calls={"a": {"finish_reason": "stop"}})
    assert row_classes([text], "abcd", Equality.NUMBER).tolist() == [[0, 1, 2, 0]]
    plain = replace(row, request={"messages": body["messages"]})
    assert row_classes([plain], "abcd", Equality.NUMBER).tolist() == [[0, 1, 0, 0]]
