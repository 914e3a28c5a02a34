"""Where the gateway's time goes, by the part of the program: a profile, not a timing.

    python benchmarks/shares.py --json benchmarks/results/shares.json

The event loop's thread under cProfile, which makes short functions look dearer than they are. The
time of C code counts for the Python that called it. Two runs of different lengths,
so that starting and stopping cancel out.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import pstats
import sys
import tempfile
from collections import Counter
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import arms
import load
import queries
import rig
import yaml
from load import Ask, Client

CLIENTS = 16
# The first that a file's path holds is its part.
PARTS = {
    "aiohttp/": "calls to candidates: aiohttp",
    "yarl/": "calls to candidates: aiohttp",
    "multidict/": "calls to candidates: aiohttp",
    "app/upstream/": "calls to candidates: replicas, retries, limits",
    "uvicorn/": "the server: uvicorn",
    "app/http/": "the server: deadlines, keys, quotas, request ids",
    "app/access/": "the server: deadlines, keys, quotas, request ids",
    "starlette/": "requests and responses: Starlette",
    "pydantic": "the body: JSON, shape, limits",
    "strict_json": "the body: JSON, shape, limits",
    "json/": "the body: JSON, shape, limits",
    "app/wire/bodies": "the body: JSON, shape, limits",
    "app/wire/schemas": "the body: JSON, shape, limits",
    "app/api/request_limits": "the body: JSON, shape, limits",
    "app/wire/candidate_payload": "the body: JSON, shape, limits",
    "app/routing/query": "the decision",
    "app/routing/service": "the decision",
    "app/routing/decision_cache": "the decision",
    "app/routing/certificate": "the decision",
    "racer_core/aggregation": "the vote",
    "app/answering/vote": "the vote",
    "app/answering/fan_out": "the vote",
    "app/answering/answer_forms": "the vote",
    "app/wire": "the candidates' answers",
    "app/answering": "the answer, and what is remembered",
    "app/api": "the answer, and what is remembered",
    "app/monitoring": "the answer, and what is remembered",
    "prometheus_client": "metrics and logs",
    "app/telemetry/logs": "metrics and logs",
    "logging/": "metrics and logs",
    "asyncio/": "tasks and time limits: asyncio",
}
OTHER = "everything else"

Profile = Mapping[str, tuple[float, float]]  # of each part, seconds and calls


def main() -> None:
    """Profile, print a Markdown table and write the document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=3_000)
    parser.add_argument("--json", type=Path, help="write the document here")
    given = parser.parse_args()
    manifest = rig.manifest(requests=given.requests)
    profiled(arms.PINNED, 1, 1)  # bytecode is made, which no later start does again
    found = {
        "pinned model": shares(arms.PINNED, 1, given.requests),
        "set of one": shares("auto", 1, given.requests),
        "set of three": shares("auto", 3, given.requests),
    }
    document: dict[str, Any] = {"manifest": manifest, "parts": found}
    document["markdown"] = markdown(document)
    print(document["markdown"])
    if given.json:
        given.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def shares(model: str, size: int, requests: int) -> dict[str, dict[str, float]]:
    """Of each part, its share of a request's time, and its calls of functions."""
    few, many = profiled(model, size, requests // 3), profiled(model, size, requests)
    more = requests - requests // 3
    spent = {part: many[part][0] - few.get(part, (0.0, 0.0))[0] for part in many}
    calls = {part: many[part][1] - few.get(part, (0.0, 0.0))[1] for part in many}
    whole = sum(spent.values())
    return {
        part: {"share": spent[part] / whole, "calls": calls[part] / more}
        for part in sorted(spent, key=lambda part: -spent[part])
    }


def profiled(model: str, size: int, requests: int) -> Profile:
    """A gateway's whole life with so many requests."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        profile = folder / "profile"
        with rig.candidates(0.0) as upstream:
            config = rig.configure(folder, upstream.url + "/v1", watching={"false_alarm": None})
            with gateway(config, profile) as started:
                started.calibrate(3)
                asyncio.run(ask(started, model, size, requests))
        return by_part(pstats.Stats(str(profile)))


@contextlib.contextmanager
def gateway(config: Path, profile: Path) -> Generator[rig.Gateway]:
    """The gateway under the profiler, which writes when it ends."""
    port = yaml.safe_load(config.read_text(encoding="utf-8"))["port"]
    keys = {"RACER_DATA_KEY": rig.KEY, "RACER_ADMIN_KEY": rig.ADMIN_KEY}
    command = [sys.executable, "-m", "cProfile", "-o", str(profile), "-m", "app"]
    command += ["serve", "--config", str(config)]
    log = config.with_name("gateway.log")
    with rig.listening(command, port, "/healthz", log, keys) as started:
        yield rig.Gateway(started.port, started.pid, started.ready_s)


async def ask(gateway: rig.Gateway, model: str, size: int, requests: int) -> None:
    """Every answer must be right."""
    client = Client(gateway.port, rig.KEY, model=model)
    asks = (Ask(query) for query in queries.repeated(size, digits=arms.SHORT))
    outcomes = await load.closed(client, itertools.islice(asks, requests), CLIENTS)
    client.close()
    wrong = [outcome for outcome in outcomes if outcome.kind is not load.Kind.RIGHT]
    if wrong:
        raise SystemExit(f"{len(wrong)} of {requests} answers were not right: {wrong[0].said}")


def by_part(stats: pstats.Stats) -> Profile:
    """Own time and calls of every function; what has no file counts for those that called it."""
    spent, calls = Counter[str](), Counter[str]()
    profile: dict[Any, Any] = stats.stats  # type: ignore[attr-defined]
    for (file, _, _), (_, count, own, _, callers) in profile.items():
        if file != "~":
            spent[part_of(file)] += own
            calls[part_of(file)] += count
            continue
        for (caller, _, _), (count_of, _, own_of, _) in callers.items():
            spent[part_of(caller)] += own_of
            calls[part_of(caller)] += count_of
    return {part: (spent[part], calls[part]) for part in spent}


def part_of(file: str) -> str:
    """Which part a file belongs to."""
    return next((part for piece, part in PARTS.items() if piece in file), OTHER)


def markdown(document: Mapping[str, Any]) -> str:
    """What was found."""
    manifest, parts = document["manifest"], document["parts"]
    names = list(dict.fromkeys(part for found in parts.values() for part in found))
    lines = [
        f"`{manifest['command']}` at {manifest['commit']}, {manifest['taken_at'][:10]}: "
        f"{manifest['processor']}, {manifest['cores']} cores; Python {manifest['python']}.",
        "",
        "| share of the loop's time (calls of functions a request) | " + " | ".join(parts) + " |",
        "| --- |" + " --- |" * len(parts),
    ]
    for name in names:
        cells = [found.get(name) for found in parts.values()]
        told = [f"{c['share']:.0%} ({c['calls']:.0f})" if c else "–" for c in cells]
        lines.append(f"| {name} | " + " | ".join(told) + " |")
    sums = [sum(each["calls"] for each in found.values()) for found in parts.values()]
    lines.append("| calls together | " + " | ".join(f"{each:.0f}" for each in sums) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
