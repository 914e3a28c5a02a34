"""Quotation of untrusted texts in prompts: questions, references and answers are shown as text.

A text of a client or a candidate may hold what a tokenizer reads as the end of a turn, or what a
reader does not see. Every prompt of the gateway shows such texts by :func:`quoted`. It can still
argue for itself: a judgement is an opinion.
"""

from __future__ import annotations

import re
from typing import Final

GAP: Final = " [...] "  # stands for what was cut

_LINE_ENDS: Final = re.compile("\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
# Controls, formats (directions, joiners, tags), fillers, variation selectors, private use.
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ud800-\udfff\ue000-\uf8ff\ufe00-\ufe0f\ufeff"
    "\uffa0\ufff0-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff\U000f0000-\U0010ffff]"
)
# Where texts begin that a tokenizer may read as a control token: <|im_end|>, </s>, [INST],
# [|user|], ]~b], >>ANSWER<<; with the brackets that Unicode's normal forms turn into these.
_CONTROL: Final = re.compile(
    r"[<＜﹤](?=\S)|[\[［﹇](?=[/|_]?[A-Za-z])|[\]］﹈](?=~)|[>＞﹥](?=[>＞﹥][A-Z])"
)


def quoted(text: str) -> str:
    """The text without hidden characters, with possible control tokens broken up by a space.

    Its lines end with a line feed alone.
    """
    shown = _HIDDEN.sub("", _LINE_ENDS.sub("\n", text))
    return _CONTROL.sub(r"\g<0> ", shown)
