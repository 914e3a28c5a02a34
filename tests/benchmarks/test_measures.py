"""The figures that benchmarks compute from their samples."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.measures import family, held, theil_sen
from tests.kit.lazy import LazyModule

stats = LazyModule("scipy.stats")


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(5, 60))
def test_the_slope_is_scipys_and_its_interval_no_narrower(seed: int, n: int) -> None:
    """The interval may be one order statistic wider on either side, never narrower."""
    rng = np.random.default_rng(seed)
    x, y = np.sort(rng.random(n)), rng.standard_normal(n)
    slope, low, high = theil_sen(x.tolist(), y.tolist())
    known = stats.theilslopes(y, x, 0.95)
    assert slope == pytest.approx(known.slope)
    assert low <= known.low_slope + 1e-12
    assert high >= known.high_slope - 1e-12


def test_a_leak_is_seen_through_a_fifth_of_outliers() -> None:
    """A line with slope 3, a fifth of whose points are anywhere."""
    rng = np.random.default_rng(20260201)
    x = np.arange(200.0)
    y = 3 * x + rng.standard_normal(200)
    y[::5] = 1e4 * rng.random(40)
    slope, low, high = theil_sen(x.tolist(), y.tolist())
    assert low <= slope <= high
    assert slope == pytest.approx(3, abs=0.5)
    with pytest.raises(ValueError, match="two points"):
        theil_sen([1.0, 1.0], [1.0, 2.0])


def test_a_process_holds_what_it_opened() -> None:
    """One descriptor more, and processor time that only grows."""
    before = held(os.getpid())
    with open(os.devnull, "rb"):
        after = held(os.getpid())
    assert after.descriptors == before.descriptors + 1
    assert after.cpu_s >= before.cpu_s > 0
    assert after.rss_kib > 0 < after.threads


def test_a_process_tree_sums_memory_and_accumulates_cpu_time() -> None:
    """Grandchildren too; the time of those that ended counts on, their memory does not."""
    busy = "import time\nwhile time.process_time() < 0.6: pass\n"  # ticks are rounded down
    rests = f"{busy}print(flush=True)\ninput()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {rests!r}])"
    before = family(os.getpid())
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        during = family(os.getpid())
        child.stdin.write(b"\n")
        child.stdin.close()
        child.wait()
    after = family(os.getpid())
    assert during.rss_kib > before.rss_kib + 2 * 4_000  # two interpreters
    assert during.cpu_s > before.cpu_s + 0.3
    assert after.rss_kib < during.rss_kib - 2 * 4_000
    assert after.cpu_s > before.cpu_s + 0.3
