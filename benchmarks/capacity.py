"""Capacity model: processes and hardware needed for a request rate, and the first bottleneck.

    python benchmarks/capacity.py

Reads `results/{gateway,encoder_cpu,encoder_gpu_loads,state}.json` and writes
`results/capacity.{json,png}`. It is a model, not a measurement: components do not slow each other,
load is balanced evenly, and every component runs at `UTILISATION` of its measured rate.
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
from canvas import LAW, Canvas
from verdict import Arm, table, typical

from app.monitoring.drift.alarms import FLUSH_S
from app.store.engine import SHARED_STATE_THREADS, THREADS

RESULTS = rig.HERE / "results"
UTILISATION = 0.7  # share of a component's measured rate
RATES = (10, 100, 1_000, 10_000, 100_000)
MAX_CONNECTIONS, RESERVED = 100, 3  # PostgreSQL's defaults
# Of one gateway: store threads, polling, the decision writer and the notification listener.
CONNECTIONS = THREADS + SHARED_STATE_THREADS + 2
DAY_S = 86_400
ENCODER = "lean, float32"
TOKENS = 64


@dataclass(frozen=True)
class Parts:
    """Measured rates of single components.

    Attributes:
        watch_s: Time for which one gateway locks the drift state at each update.
        pulse_s: Time of one poll for the active calibration.
    """

    gateway_per_s: float  # requests, on one core
    encoder_per_s: float  # queries of 64 tokens, on a core, eight together
    gpu_per_s: float  # the same on a GPU, 32 together
    decisions_per_s: float  # written to one database
    bytes_a_decision: float
    watch_s: float
    pulse_s: float

    def gateways(self, rate: float) -> int:
        """Gateway processes, one core each."""
        return math.ceil(rate / (UTILISATION * self.gateway_per_s))

    def encoder_cores(self, rate: float, unseen: float) -> int:
        """Encoder cores; ``unseen`` is the share of queries without a cached decision."""
        return math.ceil(rate * unseen / (UTILISATION * self.encoder_per_s))

    def gpus(self, rate: float, unseen: float) -> int:
        """GPUs for the encoder, instead of cores."""
        return math.ceil(rate * unseen / (UTILISATION * self.gpu_per_s))

    def breaks(self, unseen: float) -> Iterator[tuple[float, str, str]]:
        """Each bottleneck: the rate at which it is reached, its name, the remedy."""
        gateway = UTILISATION * self.gateway_per_s
        pooled = (MAX_CONNECTIONS - RESERVED) // CONNECTIONS
        yield (
            UTILISATION * self.encoder_per_s / unseen if unseen else math.inf,
            "one core for the encoder",
            "more cores, a GPU, or separate routers",
        )
        yield gateway, "one gateway", "several on one PostgreSQL"
        yield (
            gateway * pooled,
            f"PostgreSQL's {MAX_CONNECTIONS} connections, {CONNECTIONS} a gateway",
            "raise `max_connections`: connections idle most of the time",
        )
        yield (
            UTILISATION * self.decisions_per_s,
            "decisions written to one database",
            "a larger server, or cells: gateways with a database each",
        )
        yield (
            gateway * UTILISATION * FLUSH_S / self.watch_s,
            f"the drift state, which every gateway updates each {FLUSH_S:g} s",
            "cells, or `false_alarm: null`: no drift detection",
        )


def parts(results: Path, arm: Arm) -> Parts:
    """The measured rates."""
    gateway = _read(results / "gateway.json")
    gpu = _read(results / "encoder_gpu_loads.json")
    store = _read(results / "state.json")["stores"]["PostgreSQL"]
    rounds = _read(results / "encoder_cpu.json")["runs"]["1 threads"]["rounds"]
    eight = [s for each in rounds for s in each["seconds"].get(ENCODER, {}).get("8", ())]
    return Parts(
        gateway_per_s=typical(gateway, arm, "closed", "rate"),
        encoder_per_s=8 / statistics.median(eight),
        gpu_per_s=32 / gpu["batches"]["lean"][f"32 x {TOKENS}"]["ms"] * 1e3,
        decisions_per_s=max(each["per_s"] for each in store["written"].values()),
        bytes_a_decision=store["bytes_a_decision"],
        watch_s=store["watch_ms"] / 1e3,
        pulse_s=store["pulse_ms"] / 1e3,
    )


def main() -> None:
    """Write the model's tables and its picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arm", type=Arm, default=Arm.SET_2, help="how many candidates a set has")
    parser.add_argument("--unseen", type=float, default=1.0, help="share of queries that are new")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    measured = parts(args.results, args.arm)
    document: dict[str, Any] = {
        "manifest": rig.manifest(arm=args.arm, unseen=args.unseen, full=UTILISATION),
        "parts": asdict(measured),
    }
    taken = rig.taken(document["manifest"])
    document["markdown"] = f"{taken}\n\n{markdown(measured, args.unseen)}"
    document["details"] = f"{taken}\n\n{components(measured, args.arm)}"
    (args.results / "capacity.json").write_text(
        json.dumps(document, indent=1) + "\n", encoding="utf-8"
    )
    (args.results / "capacity.png").write_bytes(picture(measured, args.unseen))
    print(document["details"], document["markdown"], sep="\n\n")


def components(measured: Parts, arm: Arm) -> str:
    """Rates of components."""
    size = f"{measured.bytes_a_decision:,.0f}"
    rows = [
        [f"gateway, `{arm}`, one core", f"{measured.gateway_per_s:,.0f} requests/s", "measured"],
        [
            "encoder, one core",
            f"{measured.encoder_per_s:,.1f} queries/s of {TOKENS} tokens",
            "measured",
        ],
        [
            "encoder, one GPU",
            f"{measured.gpu_per_s:,.0f} queries/s of {TOKENS} tokens",
            "measured, an H200, tokenized before",
        ],
        [
            "PostgreSQL on two cores",
            f"{measured.decisions_per_s:,.0f} decisions/s of {size} bytes",
            "measured, clients on the same cores",
        ],
        ["drift state", f"{measured.watch_s * 1e3:,.0f} ms for 500 queries", "measured"],
    ]
    return table(("component", "rate", ""), rows)


def markdown(measured: Parts, unseen: float) -> str:
    """Components needed by rate, and bottlenecks in their order."""
    needed = [
        [
            f"{rate:,}",
            f"{(gateways := measured.gateways(rate)):,}",
            f"{measured.encoder_cores(rate, unseen):,}",
            f"{measured.gpus(rate, unseen):,}",
            f"{rate / measured.decisions_per_s:.0%}",
            f"{gateways * CONNECTIONS:,}",
            f"{gateways * measured.watch_s / FLUSH_S:.0%}",
            f"{rate * measured.bytes_a_decision * DAY_S / 2**30:,.0f}",
        ]
        for rate in RATES
    ]
    first = [[f"{rate:,.0f}", what, cure] for rate, what, cure in sorted(measured.breaks(unseen))]
    return "\n".join(
        [
            table(
                (
                    "requests/s",
                    "gateways",
                    "encoder cores",
                    "or GPUs",
                    "of one database's writes",
                    "connections",
                    "of the drift state's time",
                    "GiB of decisions a day",
                ),
                needed,
            ),
            table(("requests/s", "bottleneck", "remedy"), first),
        ]
    )


def picture(measured: Parts, unseen: float) -> bytes:
    """Components needed by rate, with the bottlenecks as lines."""
    canvas = Canvas.of(1, 1)
    (panel,) = canvas.panels
    rates = [10 ** (1 + step / 20) for step in range(81)]
    for name, count in (
        ("gateways", measured.gateways),
        ("encoder cores", lambda rate: measured.encoder_cores(rate, unseen)),
        ("or GPUs", lambda rate: measured.gpus(rate, unseen)),
    ):
        panel.plot(rates, [count(rate) for rate in rates], label=name)
    for rate, what, _ in sorted(measured.breaks(unseen)):
        if RATES[0] <= rate <= RATES[-1]:
            panel.axvline(rate, color=LAW, linewidth=0.5)
            panel.text(rate, 1.2, what, rotation=90, fontsize=6, va="bottom", ha="right")
    panel.set(xscale="log", yscale="log", xlabel="requests/s", ylabel="count")
    panel.legend(loc="upper left")
    return canvas.png()


def _read(path: Path) -> Mapping[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
