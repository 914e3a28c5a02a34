"""Numbers from outside: of candidates, evaluators, checkers and rows, read in one way.

JSON allows integers of any length, which no float holds: arithmetic with them raises. So a number
is compared with its bounds first, and only one within them is used.
"""

from __future__ import annotations

from typing import Final

# Log-probabilities: 0 may be rounded up a little, and a server's minus infinity is the smallest
# number of 32 bits (llama.cpp) or -9999 (vLLM).
_LEAST_LOG: Final = -3.5e38
_MOST_LOG: Final = 0.01


def number_within(value: object, least: float, most: float) -> float | None:
    """The value, where it is a number within these bounds; else None. No boolean is a number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        return None
    return value


def log_probability(value: object) -> float | None:
    """The value, where it is a log-probability that a server can mean; else None."""
    return number_within(value, _LEAST_LOG, _MOST_LOG)
