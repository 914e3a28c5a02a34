"""How many of what for how many requests a second, from what was measured, and what breaks first.

    python benchmarks/capacity.py

Reads `results/{gateway,encoder_cpu,state}.json` and writes `results/capacity.{json,png}`. A model
and no measurement: parts do not slow each other, a fleet balances evenly, and everything runs at
`FULL` of what it can. What no file has is an argument, and said to be assumed.
"""

import argparse
import json
import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import rig
from verdict import Arm, table, typical

from app.monitoring.drift import SETTLE_S
from app.store.engine import PULSES, THREADS
from racer_core.offline.report.canvas import LAW, Canvas

RESULTS = rig.HERE / "results"
FULL = 0.7  # of what a part can, or its queue grows without end
RATES = (10, 100, 1_000, 10_000, 100_000)
MAX_CONNECTIONS, RESERVED = 100, 3  # PostgreSQL's, as it comes
CONNECTIONS = THREADS + PULSES + 2  # of a gateway: its threads, the journal, the bell
DAY_S = 86_400
ENCODER = "lean, float32"
TOKENS = 64
GPU_TFLOPS, GPU_SHARE = 989.0, 0.35  # an H100's bfloat16 by its data sheet; what is aimed at


@dataclass(frozen=True)
class Parts:
    """What one of each can do."""

    gateway_per_s: float  # requests with a set of so many, on a core
    encoder_per_s: float  # queries of 64 tokens, on a core, eight together
    gpu_per_s: float
    decisions_per_s: float  # written to one database
    bytes_a_decision: float
    watch_s: float  # for which one gateway has the watch
    pulse_s: float

    def gateways(self, rate: float) -> int:
        """Processes, a core each."""
        return math.ceil(rate / (FULL * self.gateway_per_s))

    def encoder_cores(self, rate: float, unseen: float) -> int:
        """Cores of encoders, where so much of the traffic was not seen before."""
        return math.ceil(rate * unseen / (FULL * self.encoder_per_s))

    def gpus(self, rate: float, unseen: float) -> int:
        """GPUs instead."""
        return math.ceil(rate * unseen / (FULL * self.gpu_per_s))

    def breaks(self, unseen: float) -> Iterator[tuple[float, str, str]]:
        """Each thing of which there is a limit: the rate it is good for, its name, the cure."""
        gateway = FULL * self.gateway_per_s
        pooled = (MAX_CONNECTIONS - RESERVED) // CONNECTIONS
        yield (
            FULL * self.encoder_per_s / unseen if unseen else math.inf,
            "one core for the encoder",
            "more cores, a GPU, or routers of their own",
        )
        yield gateway, "one gateway", "several on one PostgreSQL"
        yield (
            gateway * pooled,
            f"PostgreSQL's {MAX_CONNECTIONS} connections, {CONNECTIONS} a gateway",
            "`max_connections`: they idle most of the time",
        )
        yield (
            FULL * self.decisions_per_s,
            "decisions written to one database",
            "a larger server, or cells: fleets with a database each",
        )
        yield (
            gateway * FULL * SETTLE_S / self.watch_s,
            f"one watch, to which every gateway adds each {SETTLE_S:g} s",
            "cells; with `false_alarm: null` nothing is watched",
        )


def parts(results: Path, arm: Arm, gpu_per_s: float) -> Parts:
    """What was measured."""
    gateway = _read(results / "gateway.json")
    store = _read(results / "state.json")["stores"]["PostgreSQL"]
    rounds = _read(results / "encoder_cpu.json")["runs"]["1 threads"]["rounds"]
    eight = [s for each in rounds for s in each["seconds"].get(ENCODER, {}).get("8", ())]
    return Parts(
        gateway_per_s=typical(gateway, arm, "closed", "rate"),
        encoder_per_s=8 / statistics.median(eight),
        gpu_per_s=gpu_per_s,
        decisions_per_s=max(each["per_s"] for each in store["written"].values()),
        bytes_a_decision=store["bytes_a_decision"],
        watch_s=store["watch_ms"] / 1e3,
        pulse_s=store["pulse_ms"] / 1e3,
    )


def assumed_gpu_per_s() -> float:
    """Queries that a GPU would score in a second, if it did what is aimed at."""
    from encoder import flops  # it loads torch and transformers

    return GPU_SHARE * GPU_TFLOPS * 1e12 / flops(1, TOKENS)


def main() -> None:
    """Write the model's tables and its picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arm", type=Arm, default=Arm.SET_2, help="how many candidates a set has")
    parser.add_argument("--unseen", type=float, default=1.0, help="share of queries that are new")
    parser.add_argument(
        "--gpu-per-s",
        type=float,
        help="queries a GPU scores in a second; assumed, where nobody measured it",
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    measured = parts(given.results, given.arm, given.gpu_per_s or assumed_gpu_per_s())
    document: dict[str, Any] = {
        "manifest": rig.manifest(arm=given.arm, unseen=given.unseen, full=FULL),
        "parts": asdict(measured),
    }
    tables = markdown(measured, given.arm, given.unseen)
    document["markdown"] = f"{rig.taken(document['manifest'])}\n\n{tables}"
    (given.results / "capacity.json").write_text(
        json.dumps(document, indent=1) + "\n", encoding="utf-8"
    )
    (given.results / "capacity.png").write_bytes(picture(measured, given.unseen))
    print(document["markdown"])


def markdown(measured: Parts, arm: Arm, unseen: float) -> str:
    """What one of each can do; how many are needed; what breaks first."""
    size = f"{measured.bytes_a_decision:,.0f}"
    known = [
        [f"gateway, `{arm}`, one core", f"{measured.gateway_per_s:,.0f} requests/s", "measured"],
        [
            "encoder, one core",
            f"{measured.encoder_per_s:,.1f} queries/s of {TOKENS} tokens",
            "measured",
        ],
        ["encoder, one GPU", f"{measured.gpu_per_s:,.0f} queries/s", "assumed, never measured"],
        [
            "PostgreSQL on two cores",
            f"{measured.decisions_per_s:,.0f} decisions/s of {size} bytes",
            "measured, its clients on the same cores",
        ],
        ["the watch", f"{measured.watch_s * 1e3:,.0f} ms for 500 queries", "measured"],
    ]
    needed = [
        [
            f"{rate:,}",
            f"{(gateways := measured.gateways(rate)):,}",
            f"{measured.encoder_cores(rate, unseen):,}",
            f"{measured.gpus(rate, unseen):,}",
            f"{rate / measured.decisions_per_s:.0%}",
            f"{gateways * CONNECTIONS:,}",
            f"{gateways * measured.watch_s / SETTLE_S:.0%}",
            f"{rate * measured.bytes_a_decision * DAY_S / 2**30:,.0f}",
        ]
        for rate in RATES
    ]
    first = [[f"{rate:,.0f}", what, cure] for rate, what, cure in sorted(measured.breaks(unseen))]
    return "\n".join(
        [
            table(("part", "what it can", ""), known),
            table(
                (
                    "requests/s",
                    "gateways",
                    "cores of encoders",
                    "or GPUs (assumed)",
                    "of one database's writes",
                    "connections",
                    "of the watch",
                    "GiB of decisions a day",
                ),
                needed,
            ),
            table(("good for, requests/s", "what", "then"), first),
        ]
    )


def picture(measured: Parts, unseen: float) -> bytes:
    """How many are needed by rate, and where something breaks."""
    canvas = Canvas.of(1, 1)
    (panel,) = canvas.panels
    rates = [10 ** (1 + step / 20) for step in range(81)]
    for name, count in (
        ("gateways", measured.gateways),
        ("cores of encoders", lambda rate: measured.encoder_cores(rate, unseen)),
        ("GPUs instead (assumed)", lambda rate: measured.gpus(rate, unseen)),
    ):
        panel.plot(rates, [count(rate) for rate in rates], label=name)
    for rate, what, _ in sorted(measured.breaks(unseen)):
        if RATES[0] <= rate <= RATES[-1]:
            panel.axvline(rate, color=LAW, linewidth=0.5)
            panel.text(rate, 1.2, what, rotation=90, fontsize=6, va="bottom", ha="right")
    panel.set(xscale="log", yscale="log", xlabel="requests/s", ylabel="how many")
    panel.legend(loc="upper left")
    return canvas.png()


def _read(path: Path) -> Mapping[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
