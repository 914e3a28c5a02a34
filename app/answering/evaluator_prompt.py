"""The prompt that asks a model how sure it is of an answer, and its reading. Paper, Sec. 3.3.

Pure text. The answer is another model's: it is data, and must not write the prompt's own lines.
"""

from __future__ import annotations

import math
import re
import unicodedata
from typing import Final

from app.upstream.completions import Completion
from racer_core.aggregation.vote import Weight

TOP: Final = 20  # tokens whose probability is asked for, as in the paper

_PROMPT = (
    "Question: {}\n"
    "Proposed Answer: {}\n"
    "Now I will rate my confidence in the proposed answer as either (0) or (1).\n"
    "Proposed confidence: ("
)
_GAP = " [...] "
_OWN_WORDS = re.compile(r"proposed (?:answer|confidence)|rate my confidence", re.IGNORECASE)
# What tokenizers may read as control tokens: <|im_end|>, </s>, [INST].
_CONTROL = re.compile(r"<(?=\S)|\[(?=/?[A-Z])")
_VERDICT = re.compile(r"\s*([01])\s*(?:\).*)?", re.DOTALL)  # "1", " 1" and "1)" are all a 1


def prompt(question: str, answer: str, max_chars: int) -> str:
    """The paper's prompt, of at most ``max_chars`` characters.

    The answer stands on one line, without the prompt's own words and control tokens; see
    :func:`quoted`. What is too long loses its middle: conclusions stand at the end. Each of the
    two texts may fill half of the room, and what the other leaves.
    """
    room = max_chars - len(_PROMPT.format("", ""))
    answer = quoted(_cut(answer, max_chars))  # cut before, too: an answer may have megabytes
    kept = _cut(answer, max(room - len(question), room // 2))
    return _PROMPT.format(_cut(question, room - len(kept)), kept)


def quoted(answer: str) -> str:
    """An answer that cannot end its own line of the prompt, nor imitate the lines after it.

    All white space becomes single spaces, characters that do not show are left out, the prompt's
    own words are replaced, and what a tokenizer may take for a control token is broken up. It can
    still argue for itself: a rating is an opinion.
    """
    hidden = ("Cc", "Cf")  # control and format characters
    shown = [c for c in answer if c.isspace() or unicodedata.category(c) not in hidden]
    line = " ".join("".join(shown).split())
    return _CONTROL.sub(r"\g<0> ", _OWN_WORDS.sub(_GAP.strip(), line))


def read(weight: Weight, completion: Completion) -> float | None:
    """The weight in [0, 1] that a completion states; None when it states none.

    ``verbal`` is the token itself. ``p_true`` is the probability of the token "1" among the
    likeliest, however it is spelt (" 1", "1)"), and 0 where it is not among them.
    """
    if weight is Weight.VERBAL:
        verdict = _VERDICT.fullmatch(completion.text)
        return float(verdict[1]) if verdict else None
    if completion.top is None:
        return None
    verdicts = {token: _VERDICT.fullmatch(token) for token in completion.top}
    ones = [token for token, verdict in verdicts.items() if verdict and verdict[1] == "1"]
    return min(1.0, math.fsum(math.exp(completion.top[token]) for token in ones))


def _cut(text: str, room: int) -> str:
    """The beginning and the end of a text that has no room."""
    if len(text) <= room:
        return text
    kept = room - len(_GAP)
    return text[: kept // 2] + _GAP + text[len(text) - (kept - kept // 2) :]
