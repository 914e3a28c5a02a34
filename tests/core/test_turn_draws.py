"""The draw of turns: each at the known rate, seldom two of one conversation, and its exact law."""

from __future__ import annotations

import numpy as np
import pytest

from racer_core.calibration.shadow import is_sampled, sampling_number
from racer_core.calibration.threshold import allowed_misses, threshold_from_sorted
from racer_core.types import FloatArray
from tests.kit.lazy import LazyModule

stats = LazyModule("scipy.stats")

KEY = b"a key of the tests"
ALPHA = 0.1
ROWS = 19
TRIALS = 800
LONG = 15  # later turns of a long conversation
RATE = 1 / 16


def test_a_decision_has_the_number_that_earlier_versions_gave_it() -> None:
    """Rows that they drew are checked by it."""
    assert sampling_number(b"key", b"chatcmpl-1") == 0.21707402046566893


def test_every_turn_is_drawn_at_its_rate() -> None:
    """Whatever its number, and however many there are. False alarm below 1e-6."""
    low, high = stats.binom.interval(1.0 - 1e-7, 2_000, 0.15)
    for turn in (0, 1, 2, 7, 300, 2**60):
        drawn = sum(is_sampled(KEY, b"c%d" % each, 0.15, turn) for each in range(2_000))
        assert low <= drawn <= high


@pytest.mark.parametrize("turns", [1, 2, 8, 32])
def test_of_as_many_turns_as_the_rate_allows_one_is_drawn(turns: int) -> None:
    """Exactly one at the rate 1 / turns, a power of two; a lower rate draws a part of them."""
    for each in range(200):
        name = b"conversation %d" % each
        drawn = {turn for turn in range(turns) if is_sampled(KEY, name, 1 / turns, turn)}
        assert len(drawn) == 1
        assert {t for t in range(turns) if is_sampled(KEY, name, 0.7 / turns, t)} <= drawn


def difficulty(conversation: FloatArray, turn: FloatArray, length: FloatArray) -> FloatArray:
    """The critical score of a turn: that of its conversation, larger if it is late, or long."""
    return conversation + 0.01 * turn + 0.3 * (length > 1)


def traffic(rng: np.random.Generator, conversations: int) -> tuple[FloatArray, FloatArray]:
    """The critical scores of all requests, and their conversations; half of them are long."""
    length = np.where(rng.random(conversations) < 0.5, LONG, 1)
    names = np.repeat(np.arange(conversations), length)
    turn = np.concatenate([np.arange(1, 1 + each) for each in length])
    return difficulty(rng.random(conversations)[names], turn, length[names]), names


def exceeding(*, by_conversation: bool) -> int:
    """How often a threshold's risk is above the 95 % point of the law of independent rows."""
    rng = np.random.default_rng(1)
    requests = np.sort(traffic(rng, 60_000)[0])
    misses = allowed_misses(ROWS, ALPHA, None)
    largest, found = stats.beta.ppf(0.95, misses + 1, ROWS - misses), 0
    for trial in range(TRIALS):
        scores, names = traffic(rng, 110)
        turns = np.arange(len(names)) - np.searchsorted(names, names) + 1
        rows = [
            score
            for place, (score, name, turn) in enumerate(zip(scores, names, turns, strict=True))
            if (
                is_sampled(KEY, b"%d %d" % (trial, name), RATE, int(turn))
                if by_conversation
                else is_sampled(KEY, b"%d %d" % (trial, place), RATE)
            )
        ][:ROWS]
        assert len(rows) == ROWS
        limit = threshold_from_sorted(np.sort(rows), misses)
        found += 1.0 - np.searchsorted(requests, limit, "right") / len(requests) > largest
    return found


def test_rows_drawn_by_their_conversation_have_the_exact_law_of_a_random_request() -> None:
    """Half of the conversations are long, and as hard as a whole. False alarm below 1e-6."""
    low, high = stats.binom.interval(1.0 - 1e-6, TRIALS, 0.05)
    assert low <= exceeding(by_conversation=True) <= high


def test_turns_drawn_independently_have_another_law() -> None:
    """The law of the test above would give as many once in 1e6: it has the power to see this."""
    assert stats.binom.sf(exceeding(by_conversation=False) - 1, TRIALS, 0.05) < 1e-6
