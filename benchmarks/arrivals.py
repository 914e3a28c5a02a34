"""A vote in simulated time: who is called when, what is written, and when it is over.

Event by event as the gateway does it (``app/answering/fan_out.py``), and by its rules: who is
called next and when the vote is decided is asked of ``racer_core.aggregation.early``. No clock and
no network.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from racer_core.aggregation import early
from racer_core.aggregation.vote import aggregate
from racer_core.types import CandidateAnswer, FloatArray


class Mode(StrEnum):
    """How much of a set is called, and how much of it is waited for."""

    FULL = "full"  # everyone at once, and all of them are waited for
    EARLY = "early"  # everyone at once, until the vote is decided
    FRUGAL = "frugal"  # in waves of as many as could decide, until the vote is decided


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a candidate would answer, and how fast."""

    answer: CandidateAnswer
    tokens: int
    first_s: float  # until it begins to write
    per_token_s: float

    @property
    def takes_s(self) -> float:
        """Until all of it is there."""
        return self.first_s + self.tokens * self.per_token_s

    def written(self, after_s: float) -> int:
        """Tokens by then; the one that is being written is paid for too."""
        return min(self.tokens, max(0, math.ceil((after_s - self.first_s) / self.per_token_s)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a vote gave, and what it cost."""

    winner: str
    form: str | None  # the winning class; None when nothing could be read
    calls: int  # made
    cancelled: int  # of those made
    tokens: int  # written, also by those who were cancelled then
    latency_s: float


def replay(calls: Sequence[Call], mode: Mode, rule: Mapping[str, Any]) -> Outcome:
    """Ask one set.

    Args:
        calls: The set, at least one, in the order in which waves take it.
        mode: Who is called when.
        rule: How votes are counted: the arguments of ``decided`` and ``aggregate``.
    """
    left = list(calls)
    out: list[tuple[float, int, float, Call]] = []  # when it is there, a place, when it was made
    there: list[CandidateAnswer] = []
    now, tokens = 0.0, 0
    while out or left:
        if not out:
            waiting = _scores(left)
            size = early.first_wave(there, waiting, **rule) if mode is Mode.FRUGAL else len(left)
            for place, call in enumerate(left[:size]):
                heapq.heappush(out, (now + call.takes_s, place, now, call))
            left = left[size:]
        now = out[0][0]
        while out and out[0][0] == now:  # paid for and here: it votes too
            call = heapq.heappop(out)[-1]
            there.append(call.answer)
            tokens += call.tokens
        still = _scores([*(call for *_, call in out), *left])
        if mode is not Mode.FULL and early.decided(there, still, **rule):
            break
    winner = aggregate(there, **rule).winner
    return Outcome(
        winner=winner,
        form=next(each.form for each in there if each.candidate == winner),
        calls=len(calls) - len(left),
        cancelled=len(out),
        tokens=tokens + sum(call.written(now - made) for _, _, made, call in out),
        latency_s=now,
    )


def _scores(calls: Sequence[Call]) -> dict[str, float]:
    return {call.answer.candidate: call.answer.score for call in calls}


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """How long answers are and how fast they come: log-normal, by medians and standard deviations.

    What a question adds is common to all candidates, what a candidate adds to all questions. None
    of it depends on the answer.
    """

    tokens: float = 150.0  # medians
    first_s: float = 0.3
    per_token_s: float = 0.02
    tokens_by_question: float = 0.3  # standard deviations of logarithms
    tokens_by_candidate: float = 0.3
    tokens_by_call: float = 0.3
    first_by_call: float = 0.5
    per_token_by_candidate: float = 0.5
    per_token_by_call: float = 0.2

    def draw(self, questions: int, candidates: int, rng: np.random.Generator) -> "Draws":
        """One world: its candidates, and every call that could be made."""
        shape = (questions, candidates)
        tokens = (
            self.tokens_by_question * rng.standard_normal((questions, 1))
            + self.tokens_by_candidate * rng.standard_normal(candidates)
            + self.tokens_by_call * rng.standard_normal(shape)
        )
        first = self.first_by_call * rng.standard_normal(shape)
        speed = self.per_token_by_candidate * rng.standard_normal(candidates)
        each = self.per_token_by_call * rng.standard_normal(shape)
        return Draws(
            tokens=np.maximum(1, np.rint(self.tokens * np.exp(tokens))).astype(np.int64),
            first_s=self.first_s * np.exp(first),
            per_token_s=self.per_token_s * np.exp(speed + each),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Lengths and speeds of all calls, shape (questions, candidates)."""

    tokens: NDArray[np.int64]
    first_s: FloatArray
    per_token_s: FloatArray

    def call(self, question: int, candidate: int, answer: CandidateAnswer) -> Call:
        """One of them, which gives this answer."""
        at = question, candidate
        return Call(
            answer=answer,
            tokens=int(self.tokens[at]),
            first_s=float(self.first_s[at]),
            per_token_s=float(self.per_token_s[at]),
        )
