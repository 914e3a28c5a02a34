"""Statistics of samples: quantiles, a robust slope, and the memory of a process."""

import contextlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np


def quantile(values: Sequence[float], q: float) -> float:
    """The nearest order statistic; NaN of nothing."""
    if not values:
        return math.nan
    return sorted(values)[min(len(values) - 1, round(q * (len(values) - 1)))]


def theil_sen(
    x: Sequence[float], y: Sequence[float], confidence: float = 0.95
) -> tuple[float, float, float]:
    """The median of the slopes between all pairs of points, with its confidence interval.

    The interval is Sen's: order statistics of the slopes, from the variance of Kendall's tau. It
    supposes independent errors; samples of one process are not, so it is rather too narrow.

    Raises:
        ValueError: No two points differ in x.

    References:
        P. K. Sen, Estimates of the regression coefficient based on Kendall's tau, 1968.
    """
    first, second = np.triu_indices(len(x), 1)
    across = np.asarray(x, float)[second] - np.asarray(x, float)[first]
    along = np.asarray(y, float)[second] - np.asarray(y, float)[first]
    slopes = np.sort(along[across != 0] / across[across != 0])
    if not slopes.size:
        raise ValueError("a slope needs two points at different x")
    n = len(x)
    z = _NORMAL[confidence]
    spread = z * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = max(0, math.floor((slopes.size - spread) / 2) - 1)
    high = min(slopes.size - 1, math.ceil((slopes.size + spread) / 2))
    return float(np.median(slopes)), float(slopes[low]), float(slopes[high])


_NORMAL = {0.95: 1.959964, 0.99: 2.575829}


@dataclass(frozen=True, slots=True)
class Held:
    """What a process holds at one moment."""

    rss_kib: int
    descriptors: int
    threads: int
    cpu_s: float  # used since its start


def family(pid: int) -> Held:
    """What a process and its descendants hold together; processor time of those that ended too."""
    members: list[Held] = []
    todo = [pid]
    children: dict[int, list[int]] = {}
    for each in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            children.setdefault(int(_stat(each)[1]), []).append(each)
    while todo:
        todo += children.get(each := todo.pop(), [])
        with contextlib.suppress(OSError, KeyError):  # gone, or dead and not yet waited for
            members.append(held(each))
    ended = _seconds(_stat(pid)[13:15])
    return Held(
        rss_kib=sum(each.rss_kib for each in members),
        descriptors=sum(each.descriptors for each in members),
        threads=sum(each.threads for each in members),
        cpu_s=sum(each.cpu_s for each in members) + ended,
    )


def held(pid: int) -> Held:
    """Read from Linux's /proc."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return Held(
        rss_kib=int(status["VmRSS"].split()[0]),
        descriptors=len(os.listdir(f"/proc/{pid}/fd")),
        threads=int(status["Threads"]),
        cpu_s=_seconds(_stat(pid)[11:13]),
    )


def _stat(pid: int) -> list[str]:
    """From the third field on: the second, the name, may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _seconds(ticks: list[str]) -> float:
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
