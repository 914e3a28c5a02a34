"""The strict reader: a value as the library reads it, or a sentence."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from racer_core import strict_json
from racer_core.errors import InputError

from .strategies import damaged, json_texts


@given(data=st.one_of(st.binary(max_size=60), damaged(json_texts.map(lambda text: text.encode()))))
@example(data=b"[" * 200_000)
@example(data=b"1" * 5_000)
def test_any_bytes_are_a_value_or_a_sentence(data: bytes) -> None:
    """Nothing but InputError comes out."""
    try:
        value = strict_json.loads(data)
    except InputError:
        return
    assert value == json.loads(data)
    _check_can_be_sent_on(value)


@given(text=st.one_of(st.text(st.characters(), max_size=40), json_texts))
@example(text='"\ud800"')
def test_any_text_is_a_value_or_a_sentence(text: str) -> None:
    """Texts that never were bytes too: halves of surrogate pairs, say."""
    try:
        value = strict_json.loads(text)
    except InputError:
        return
    assert value == json.loads(text)
    _check_can_be_sent_on(value)


def _check_can_be_sent_on(value: Any) -> None:
    """The parsed value can be serialised, and any JSON parser can read the result."""
    sent = json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
    assert json.loads(sent) == value
