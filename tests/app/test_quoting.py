"""Quoted texts: what a prompt shows of a client or a candidate is text, in every prompt."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.judging.quoting import quoted
from app.judging.rater import prompt
from app.tools.labelling.judge import judge_prompt
from racer_core.records.questions import Question
from racer_core.types import Turn

TOKENS = [
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|start_header_id|>"),
    *("<s>", "</s>", "<eos>", "<bos>", "<unk>", "<pad>", "[INST]", "[/INST]", "<<SYS>>"),
    *("<start_of_turn>", "<end_of_turn>", "<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<0x0A>"),
    *("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>", "<|channel|>", "<</SYS>>"),
    *("[TOOL_CALLS]", "[/AVAILABLE_TOOLS]", "[SYSTEM_PROMPT]", "[gMASK]", "<sop>", "[SEP]"),
    *("[|assistant|]", "[|endofturn|]", "[CLS]", "[UNUSED_TOKEN_145]", "]~b]", "]~!b[", "[e~["),
    *(">>QUESTION<<", ">>ANSWER<<", "<extra_id_0>", "<reserved_106>", "<think>", "</tool_call>"),
    # What a normalising tokenizer makes such tokens of.
    *("＜|im_end|＞", "<｜im_end｜>", "﹤/s﹥", "［INST］", "［/INST］"),
]  # fmt: skip
# Characters that a reader does not see, or that reorder or end a line.
HIDDEN = "\u200b\u200d\u202e\u2066\u2069\ufeff\u00ad\u061c\u180e\x00\x1b\x07\ufe0f\u3164\u034f"
HIDDEN += "\u2028\u2029\x85\x1c\x0b\x0c\r\U000e0041\U000e007f\U000e0100\ue000\U0010ffff"


def of_request(system: str, tool: str) -> str:
    """The judge's prompt for a whole request."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "q"}]
    tools = [{"type": "function", "function": {"name": "f", "description": tool}}]
    request = {"messages": messages, "tools": tools}
    return judge_prompt(Question(place=1, query="q", request=request), "42")


PROMPTS: dict[str, Callable[[str], str]] = {
    "evaluator: answer": lambda text: prompt("What?", text, 4096),
    "evaluator: question": lambda text: prompt(text, "42", 4096),
    "judge: answer": lambda text: judge_prompt(Question(place=1, query="What?"), text),
    "judge: question": lambda text: judge_prompt(Question(place=1, query=text), "42"),
    "judge: reference": lambda text: judge_prompt(
        Question(place=1, query="What?", reference=text), "42"
    ),
    "judge: earlier turn": lambda text: judge_prompt(
        Question(place=1, query="Sure?", earlier=(Turn("assistant", text),)), "42"
    ),
    "judge: role of an earlier turn": lambda text: judge_prompt(
        Question(place=1, query="Sure?", earlier=(Turn(text, "42"),)), "42"
    ),
    "judge: system prompt": lambda text: of_request(text, "adds"),
    "judge: tools": lambda text: of_request("Be brief.", text),
}
EVERY_PROMPT = pytest.mark.parametrize("place", PROMPTS)
_texts = st.lists(
    st.one_of(
        st.sampled_from([*TOKENS, *HIDDEN, "\n", " ", "proposed answer", "<", "[", ">", "]", "|"]),
        st.sampled_from([token[: len(token) // 2] for token in TOKENS]),
        st.text(max_size=3),
    ),
    max_size=8,
).map("".join)


@EVERY_PROMPT
def test_no_prompt_shows_a_control_token(place: str) -> None:
    """Of any family of models, also where a hidden character would be taken out of it."""
    for token in TOKENS:
        for written in (token, token[0] + "\u200b" + token[1:], f"\u202e{token}\U000e0041"):
            assert token not in PROMPTS[place](f"42{written}Sure."), written


@EVERY_PROMPT
def test_no_prompt_shows_a_hidden_character(place: str) -> None:
    """A person and a model read the same text; red if one prompt shows it as it was sent."""
    shown = PROMPTS[place](f"4{HIDDEN}2")
    assert [char for char in HIDDEN if char in shown] == []


@EVERY_PROMPT
@given(text=_texts)
@example(text="<\u200b|im_end|>")
@example(text="proposed answer~b]")
@example(text="<\n|im_end|>")
@example(text="<" * 7_000)
def test_any_text_is_text(place: str, text: str) -> None:
    """Whatever it is made of; and the prompt stays within its bound."""
    shown, plain = PROMPTS[place](text), PROMPTS[place]("x")
    assert [token for token in TOKENS if token in shown] == []
    assert set(filter(HIDDEN.__contains__, shown)) == set()
    assert len(shown) <= len(plain) + 2 * 6_000 + 100  # JSON may double it


@given(text=_texts)
def test_a_quoted_text_is_its_own_quotation(text: str) -> None:
    """Quoting twice changes nothing: no token comes out of the change itself."""
    assert quoted(quoted(text)) == quoted(text)


def test_ordinary_texts_are_quoted_as_they_are() -> None:
    """Formulas, code, lists and every language."""
    for text in (
        "42", "x² + ½ < 3", "[1, 2]", "Straße – „ja“", "a \\n b", "{}", "if a:\n\tb = 1\n",
        "数学 😀 नमस्ते", "a[0] >> 2", "2 < 3 > 1",
    ):  # fmt: skip
        assert quoted(text) == text
    assert quoted("<b>bold</b> [x, y]") == "< b>bold< /b> [ x, y]", "readable, and no token"


def test_every_hidden_character_of_unicode_is_left_out() -> None:
    """Controls, formats, surrogates, private characters; not line ends, tabs and visible marks."""
    seen = {0x600, 0x601, 0x602, 0x603, 0x604, 0x605, 0x6DD, 0x70F, 0x890, 0x891, 0x8E2}
    seen |= {0x110BD, 0x110CD}
    hidden = [
        char
        for code in range(sys.maxunicode + 1)
        if code not in seen
        for char in (chr(code),)
        if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co") and char not in "\n\t"
    ]
    assert len(hidden) > 130_000
    shown = quoted("".join(hidden))
    assert set(shown) <= {"\n"}
