"""Turn shapes: the content of turns is no condition; how it is given, and the rest, is one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.routing.conditions import canonical, turn_shapes

IMAGE: dict[str, Any] = {"type": "image_url", "image_url": {"url": "data:,1", "detail": "low"}}
CALL: dict[str, Any] = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
USER: dict[str, Any] = {"role": "user", "content": [IMAGE, {"type": "text", "text": "What?"}]}
CALLS: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT: dict[str, Any] = {"role": "tool", "tool_call_id": "1", "content": "7"}
AUDIO: dict[str, Any] = {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}
# Paths to contents in TURNS.
CONTENTS: list[tuple[int | str, ...]] = [
    (0, "content", 0, "image_url", "url"),
    (0, "content", 1, "text"),
    (1, "tool_calls", 0, "id"),
    (1, "tool_calls", 0, "function", "name"),
    (1, "tool_calls", 0, "function", "arguments"),
    (2, "tool_call_id"),
    (2, "content"),
]
TURNS = [USER, CALLS, RESULT]


def shapes(turns: list[Any], field: str = "messages") -> dict[str, str]:
    """The shapes of some turns."""
    return turn_shapes(field, turns, canonical)


@given(texts=st.lists(st.text(), min_size=len(CONTENTS), max_size=len(CONTENTS)))
@settings(max_examples=50, deadline=None)
def test_contents_are_no_conditions(texts: list[str]) -> None:
    """Other texts, images, arguments and results have the same shapes."""
    changed: Any = copy.deepcopy(TURNS)
    for path, text in zip(CONTENTS, texts, strict=True):
        *above, last = path
        place = changed
        for each in above:
            place = place[each]
        place[last] = text
    assert shapes(changed) == shapes(TURNS) != {}


def test_how_often_a_turn_occurs_is_no_condition() -> None:
    """Two images in a turn, two calls, or another round of calls are of the same population."""
    twice = {"role": "user", "content": [IMAGE, IMAGE, {"type": "text", "text": "Which?"}]}
    calls = {**CALLS, "tool_calls": [CALL, {**CALL, "id": "2"}]}
    assert shapes([twice, calls, RESULT, CALLS, RESULT]) == shapes(TURNS)


@pytest.mark.parametrize(
    "turns",
    [
        [{"role": "user", "content": "What?"}, CALLS, RESULT],
        [{**USER, "content": USER["content"][:1]}, CALLS, RESULT],
        [{**USER, "content": [*USER["content"], AUDIO]}, CALLS, RESULT],
        [{**USER, "name": "ann"}, CALLS, RESULT],
        [{**USER, "cache_control": {"type": "ephemeral"}}, CALLS, RESULT],
        [USER, {**CALLS, "refusal": "No."}, RESULT],
        [USER, {**CALLS, "tool_calls": []}, RESULT],
        [USER, {**CALLS, "content": "I will."}, RESULT],
        [USER, CALLS],
        [USER, CALLS, {**RESULT, "content": [{"type": "text", "text": "7"}]}],
        [USER, CALLS, RESULT, {"role": "user", "content": "And then?"}],
        [{"role": "system", "content": "Be brief."}, *TURNS],
        [*TURNS, {"role": "assistant", "content": "The sum is"}],
        [
            {**USER, "content": [{**IMAGE, "image_url": {"url": "data:,1"}}, USER["content"][1]]},
            CALLS,
            RESULT,
        ],
    ],
)
def test_how_content_is_given_is_a_condition(turns: list[Any]) -> None:
    """Whether there are images, names, refusals, calls and results, and what else a turn holds."""
    assert shapes(turns) != shapes(TURNS)


@pytest.mark.parametrize("role", ["system", "developer", "critic"])
def test_other_turns_are_conditions_with_their_text_and_place(role: str) -> None:
    """So is a beginning of the answer, which decides how it goes on."""
    question = {"role": "user", "content": "What?"}
    turn = {"role": role, "content": "Be brief."}
    found = [
        shapes([turn, question]),
        shapes([{**turn, "content": "Be long."}, question]),
        shapes([question, turn, question]),
        shapes([question, {"role": "assistant", "content": "Seven"}]),
        shapes([question, {"role": "assistant", "content": "Eight"}]),
    ]
    assert len({str(each) for each in found}) == len(found)


def test_items_of_the_responses_api_have_shapes() -> None:
    """Calls and their results as items; an item of another type is a condition as it is."""

    def items(argument: str, **other: Any) -> list[Any]:
        call = {"type": "function_call", "call_id": argument, "name": "f", "arguments": argument}
        result = {"type": "function_call_output", "call_id": argument, "output": argument}
        return [{"role": "user", "content": argument}, call, result, *([other] if other else [])]

    assert shapes(items("1"), "input") == shapes(items("2"), "input") != {}
    one, two = ({"type": each, "id": "1"} for each in ("item_reference", ["function_call"]))
    assert shapes(items("1", **one), "input") != shapes(items("1", **two), "input")
