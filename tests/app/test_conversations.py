"""Sampled turns of one conversation: found by a keyed hash, and one of them kept at random."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from app.monitoring.shadow_sample import conversation_id, thinned

KEY = b"a key of the tests"
FIRST: list[Any] = [{"role": "user", "content": "Hello"}]
SECOND = [*FIRST, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "And?"}]
THIRD = [*SECOND, {"role": "assistant", "content": "So"}, {"role": "user", "content": "Well?"}]
OTHER = [*FIRST, {"role": "assistant", "content": "What?"}, {"role": "user", "content": "And?"}]


def of(turns: list[Any], key: bytes = KEY, caller: str = "data", session: str | None = None) -> Any:
    """The conversation of a chat request."""
    fields = {"messages": turns}
    return conversation_id(key, fields, "chat/completions", caller=caller, session=session)


def test_later_turns_share_their_beginning() -> None:
    """Up to the first answer; a first turn has no conversation, whatever its session."""
    assert of(FIRST) is None is of(FIRST, session="s")
    assert of(SECOND) == of(THIRD) != of(OTHER)
    assert of(SECOND, session="s") == of(OTHER, session="s") != of(SECOND, session="t")
    others = [of(SECOND, key=b"another"), of(SECOND, caller="bot"), of(SECOND, session="s")]
    assert len({of(SECOND), *others}) == 4


@pytest.mark.parametrize("field", ["messages", "input"])
def test_a_conversation_of_every_api_is_found(field: str) -> None:
    """One text of a beginning is one conversation in chat and in responses."""
    path = "responses" if field == "input" else "chat/completions"
    found = [
        conversation_id(KEY, {field: turns}, path, caller="data", session=None)
        for turns in (FIRST, SECOND, THIRD)
    ]
    assert found[0] is None
    assert found[1] == found[2] is not None


def test_one_turn_of_each_conversation_is_kept_uniformly() -> None:
    """Of three turns each is kept in a third of 3,000 conversations; false alarm below 1e-6."""
    kept: Counter[int] = Counter()
    turns = [
        (f"chatcmpl-{number}-{turn}", f"conversation-{number}")
        for number in range(3_000)
        for turn in range(3)
    ]
    left_out = thinned(turns, KEY)
    assert len(left_out) == 6_000
    assert left_out == thinned(turns[::-1], KEY)
    assert left_out != thinned(turns, b"another")
    kept.update(int(each[-1]) for each, _ in turns if each not in left_out)
    assert all(abs(kept[turn] - 1_000) < 130 for turn in range(3))  # 5 standard deviations
    assert thinned([("a", None), ("b", None)], KEY) == set()
