"""The evaluator's prompt, and the parser of its completion. Paper, Sec. 3.3. Pure functions.

The rated answer is another model's text: data, which must not imitate the lines of the prompt
(prompt injection).
"""

from __future__ import annotations

import math
import re
import unicodedata
from typing import Final

from app.upstream.completions import Completion
from racer_core.aggregation.vote import Weight

TOP: Final = 20  # tokens with log-probabilities, as in the paper

_PROMPT = (
    "Question: {}\n"
    "Proposed Answer: {}\n"
    "Now I will rate my confidence in the proposed answer as either (0) or (1).\n"
    "Proposed confidence: ("
)
_GAP = " [...] "
_OWN_WORDS = re.compile(r"proposed (?:answer|confidence)|rate my confidence", re.IGNORECASE)
# Texts that a tokenizer may read as control tokens: <|im_end|>, </s>, [INST].
_CONTROL = re.compile(r"<(?=\S)|\[(?=/?[A-Z])")
_VERDICT = re.compile(r"\s*([01])\s*(?:\).*)?", re.DOTALL)  # "1", " 1" and "1)" are all a 1


def prompt(question: str, answer: str, max_chars: int) -> str:
    """The paper's prompt, of at most ``max_chars`` characters.

    The answer stands on one line, without the prompt's own words and control tokens; see
    :func:`quoted`. A text that is too long loses its middle, because conclusions stand at the end.
    Each of the two texts may fill half of the room, and the part that the other does not need.
    """
    room = max_chars - len(_PROMPT.format("", ""))
    answer = quoted(_cut(answer, max_chars))  # cut first: an answer may have megabytes
    shown = _cut(answer, max(room - len(question), room // 2))
    return _PROMPT.format(_cut(question, room - len(shown)), shown)


def quoted(answer: str) -> str:
    """An answer that cannot end its own line of the prompt, nor imitate the lines after it.

    White space becomes single spaces, invisible characters are removed, the prompt's own words are
    replaced, and possible control tokens are broken up. The answer can still argue for itself: a
    rating is an opinion.
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
    """The text, or its beginning and end if it is longer than ``room`` characters."""
    if len(text) <= room:
        return text
    left = room - len(_GAP)
    return text[: left // 2] + _GAP + text[len(text) - (left - left // 2) :]
