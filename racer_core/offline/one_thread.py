"""Linear algebra in one thread, so that a training gives the same bits on every machine.

The last bits of a sum depend on how many threads share it. Long sums whose results are stored run
in one; comparisons need not, for they are made on a grid.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from threadpoolctl import threadpool_limits  # pyright: ignore[reportMissingTypeStubs]


def one_thread() -> AbstractContextManager[object]:
    """A context in which numpy computes in one thread."""
    return threadpool_limits(1)
