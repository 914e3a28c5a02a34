"""CPU time of the policy in requests under the promise `same_answer`.

    PYTHONPATH=. python benchmarks/policy_cpu.py

A gateway in a thread before five scripted candidates answers requests in two rounds. Counted is
the time that this thread spends in `CallSequence` (choosing rounds, votes, doubts and stops), and
in `Rounds`, which also reads results and writes what the certificate says about the calls.
"""

import argparse
import functools
import inspect
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Self

import rig
from verdict import table

from app.answering.rounds import Rounds
from racer_core.sequential.serving import CallSequence
from tests.kit.gateway import ENVIRONMENT, configure, running
from tests.kit.same_answer import activate, configured, talk
from tests.kit.upstream import FakePool

WARM_UP = 50  # requests


@dataclass
class ThreadClock:
    """CPU time of the calling thread inside the functions that it wraps, in nanoseconds."""

    spent_ns: int = 0
    inside: int = field(default=0, init=False)

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function; calls of one wrapped function by another are counted once."""

        @functools.wraps(function)
        def timed(*args: Any, **options: Any) -> Any:
            begun, self.inside = time.thread_time_ns(), self.inside + 1
            try:
                return function(*args, **options)
            finally:
                self.inside -= 1
                if not self.inside:
                    self.spent_ns += time.thread_time_ns() - begun

        return timed

    @classmethod
    def of(cls, kind: type) -> Self:
        """A clock of every method and property of a class, which it replaces."""
        clock = cls()
        for name, member in list(vars(kind).items()):
            if inspect.isfunction(member):
                setattr(kind, name, clock.wrap(member))
            elif isinstance(member, property) and member.fget is not None:
                setattr(kind, name, property(clock.wrap(member.fget)))
        return clock


def measured(requests: int) -> dict[str, list[float]]:
    """Microseconds of each class for each candidate called, by request."""
    clocks = {kind.__name__: ThreadClock.of(kind) for kind in (CallSequence, Rounds)}
    found: dict[str, list[float]] = {name: [] for name in clocks}
    with tempfile.TemporaryDirectory() as folder, FakePool() as pool:
        talk(pool)
        changes = configured(pool)
        del changes["calibrated"]
        path = configure(Path(folder), changes.pop("artifact"), pool.url, **changes)
        with running(path, ENVIRONMENT) as gateway:
            activate(gateway)
            for number in range(WARM_UP + requests):
                before = {name: clock.spent_ns for name, clock in clocks.items()}
                answer = gateway.chat(f"question {number}")
                calls = answer["racer"]["certificate"]["rounds"]["calls"]
                for name, clock in clocks.items():
                    found[name].append((clock.spent_ns - before[name]) / 1e3 / calls)
    return {name: each[WARM_UP:] for name, each in found.items()}


def main() -> None:
    """Measure, and print medians and 95 % points."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000)
    parser.add_argument("--json", type=Path, help="write the result file here")
    args = parser.parse_args()
    found = measured(args.requests)
    document = {"manifest": rig.manifest(requests=args.requests), "microseconds_a_call": found}
    rows = [
        (f"`{name}`", f"{median(each):.0f}", f"{quantiles(each, n=20)[-1]:.0f}")
        for name, each in found.items()
    ]
    text = table(("CPU in a request, µs a call", "median", "95 % point"), rows)
    rig.publish(document, f"{rig.taken(document['manifest'])}.\n\n{text}", args.json)


if __name__ == "__main__":
    main()
