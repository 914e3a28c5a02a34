"""Whole requests: calls per request and certificates by kind of request, in the demo's pool.

    PYTHONPATH=. python benchmarks/whole_requests.py

Of each kind, demo queries become rows by `racer label` and `racer calibrate`, and other queries are
sent by the official client, all kinds in turn: one kind after the other is a drift. The pool reads
the paragraph of long requests as one token. References are the demo's.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean
from typing import Any, Final

import rig
from verdict import table

from app.tools.demo import run
from racer_core.records.reader import read_rows
from racer_core.types import LabelledRow
from tests.kit.demo import LONG, configure, long_pool
from tests.kit.gateway import ADMIN_KEY, ENVIRONMENT, running, user

SYSTEM: Final = {"role": "system", "content": "Answer the question."}
TOOL: Final = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
EARLIER: Final = [*user("What is 1 plus 1?"), {"role": "assistant", "content": "2"}]
KINDS: Final[dict[str, Callable[[str], dict[str, Any]]]] = {
    "plain": lambda query: {"messages": user(query)},
    "system prompt": lambda query: {"messages": [SYSTEM, *user(query)]},
    "tools": lambda query: {"messages": user(query), "tools": [TOOL]},
    "20,000 characters": lambda query: {"messages": user(query + LONG)},
    "five turns": lambda query: {"messages": [*EARLIER, *EARLIER, *user(query)]},
}


def racer(*arguments: object) -> None:
    """Run a command of `racer`."""
    subprocess.run([sys.executable, "-m", "app", *map(str, arguments)], check=True)


def measure(server: str, folder: Path, labelled: list[LabelledRow], sent: list[LabelledRow],
            alpha: float) -> dict[str, Any]:  # fmt: skip
    """Label, calibrate and send; figures by kind."""
    questions, rows = folder / "questions.jsonl", folder / "rows.jsonl"
    lines = [
        json.dumps({"request": make(row.query), "reference": row.reference}) + "\n"
        for make in KINDS.values()
        for row in labelled
    ]
    questions.write_text("".join(lines), encoding="utf-8")
    config = configure(folder, server)
    racer("label", questions, "--config", config, "--out", rows, "--grade", "exact")
    with running(config, ENVIRONMENT) as gateway:
        racer("calibrate", rows, "--url", gateway.url, "--key", ADMIN_KEY, "--rows", "traffic",
              "--alpha", alpha)  # fmt: skip
        create: Any = gateway.openai().chat.completions.create
        answers = [
            (kind, create(model="auto", **make(row.query)).model_extra["racer"])
            for row in sent
            for kind, make in KINDS.items()
        ]
    found = {}
    for kind in KINDS:
        decided = [racer for each, racer in answers if each == kind]
        found[kind] = {
            "certified": mean(each["certificate"]["holds"] for each in decided),
            "calls": mean(len(each["selected"]) for each in decided),
            "reasons": sorted({why for each in decided for why in each["certificate"]["reasons"]}),
        }
    return found


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100, help="of each kind")
    parser.add_argument("--requests", type=int, default=50, help="of each kind")
    parser.add_argument("--alpha", type=float, default=0.1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    rows = read_rows(run.FOLDER / "data" / "test.jsonl").rows
    labelled, rest = rows[: options.rows], rows[options.rows :]
    with tempfile.TemporaryDirectory() as name, long_pool(Path(name)) as server:
        found = measure(
            server, Path(name), list(labelled), list(rest[: options.requests]), options.alpha
        )
    settings = {"rows": options.rows, "requests": options.requests, "alpha": options.alpha}
    document = {"manifest": rig.manifest(**settings), "kinds": found}
    text = f"{rig.taken(document['manifest'])}.\n\n{markdown(found)}"
    rig.publish(document, text, options.json)


def markdown(found: Mapping[str, Mapping[str, Any]]) -> str:
    """One row for each kind of request."""
    return table(
        ("kind of request", "certified", "calls a request", "reasons"),
        [
            (kind, f"{each['certified']:.0%}", f"{each['calls']:.2f}", ", ".join(each["reasons"]))
            for kind, each in found.items()
        ],
    )


if __name__ == "__main__":
    main()
