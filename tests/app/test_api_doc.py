"""The HTTP reference: its examples run as written, and it names every endpoint and every error."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app.api.routes import ROUTES
from tests.kit.gateway import (
    ADMIN_KEY,
    DATA_KEY,
    ENVIRONMENT,
    ONE,
    Serve,
    as_json,
    candidates,
    labelled,
)
from tests.kit.monitored import KEY, sampled
from tests.kit.upstream import FakePool

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
DOCUMENT = (REFERENCE / "http.md").read_text(encoding="utf-8")
# A block of commands, what they answer, and perhaps a part of the last answer.
EXAMPLE = re.compile(
    r"```sh\n(?P<commands>(?:(?!```).)*?\bcurl\b.*?)```\n\n"
    r"(?P<said>`\d{3}`[^\n]*)\n(?:\n```json\n(?P<shown>.*?)```)?",
    re.DOTALL,
)
ROUTE = re.compile(r"`((?:GET|POST|DELETE) /[^`]*)`")
CURLRC = 'silent\nnoproxy = "*"\nwrite-out = "%{stderr}%{http_code} %{content_type}\\n"\n'
NUMBER = (int, float)


@dataclass(frozen=True, kw_only=True)
class Example:
    """Commands, and what the document says of their answers."""

    commands: str
    statuses: list[int]
    kind: str
    shown: Any = None


def examples() -> Iterator[Example]:
    """In the order of the document."""
    for found in EXAMPLE.finditer(DOCUMENT):
        *statuses, kind = re.findall(r"`([^`]*)`", found["said"])
        shown = None if found["shown"] is None else json.loads(found["shown"])
        yield Example(
            commands=found["commands"],
            statuses=[int(status) for status in statuses],
            kind=kind,
            shown=shown,
        )


def missing(shown: Any, answered: Any, place: str = "$") -> list[str]:
    """What the document shows and the answer lacks, or has as another kind of value."""
    if shown is None:
        return []
    if isinstance(shown, dict) and isinstance(answered, dict):
        absent = [f"{place}.{name}" for name in shown if name not in answered]
        both = [name for name in shown if name in answered]
        return absent + [
            each for n in both for each in missing(shown[n], answered[n], f"{place}.{n}")
        ]
    if isinstance(shown, list) and isinstance(answered, list):
        if shown and not answered:
            return [f"{place}[0]"]
        return missing(shown[0], answered[0], f"{place}[0]") if shown else []
    alike = isinstance(answered, NUMBER if type(shown) in NUMBER else type(shown))
    return [] if alike else [f"{place} is {answered!r}, not as {shown!r}"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="the examples are made of curl")
def test_every_example_answers_as_the_document_says(
    serve: Serve, pool: FakePool, tmp_path: Path
) -> None:
    """Status, content type and the keys that are shown. Red when an example has gone stale."""
    watching = {"false_alarm": 0.01, "shadow_rate": 1.0, "store_requests": True}
    secrets = {**ENVIRONMENT, "RACER_SAMPLES_KEY": KEY}
    gateway = serve(
        watching=watching,
        embeddings="adder",
        environment=secrets,
        candidates=candidates(pool.url, price=0.001),
        budget={"hard": 1000},
    )
    decision = gateway.chat(ONE)["racer"]["decision_id"]
    sampled(gateway, 1)
    pool.tokens |= {"adder": 12, "speller": 15}
    rows = as_json(labelled(10_000, 400))
    (tmp_path / "calibration.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / ".curlrc").write_text(CURLRC)
    environment = {
        "PATH": os.environ["PATH"],
        "CURL_HOME": str(tmp_path),
        "RACER_URL": gateway.url,
        "RACER_DATA_KEY": DATA_KEY,
        "RACER_ADMIN_KEY": ADMIN_KEY,
        "DECISION": decision,
        "CALIBRATION": gateway.ready()["calibration"],
        "JOB": gateway.get("/calibrations/jobs", ADMIN_KEY).json()["data"][0]["id"],
    }
    for example in examples():
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", example.commands],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        lines = [line.split(" ", 1) for line in done.stderr.splitlines()]
        assert [int(status) for status, _ in lines] == example.statuses, example.commands
        assert all(kind.startswith(example.kind) for _, kind in lines), example.commands
        if example.shown is not None:
            absent = missing(example.shown, json.loads(done.stdout))
            assert absent == [], f"{example.commands}{done.stdout}"


def test_no_command_goes_untried() -> None:
    """Red when a block of commands is written so that the test above does not find it."""
    blocks = re.findall(r"```sh\n(.*?)```", DOCUMENT, re.DOTALL)
    commands = [block for block in blocks if "curl" in block]
    assert [example.commands for example in examples()] == commands
    counts = [len(re.findall(r"^curl ", block, re.MULTILINE)) for block in commands]
    assert [len(example.statuses) for example in examples()] == counts


def test_the_document_has_exactly_the_routes_of_the_table() -> None:
    """As a heading or in the sentence below one; and each is tried in some example."""
    routes = {route.name for route in ROUTES}
    described = set(ROUTE.findall(DOCUMENT))
    assert described == routes
    commands = "".join(example.commands for example in examples())
    for name in described:
        path = re.sub(r"\\\{\w+\\\}", r"[$\\w]+", re.escape(name.split()[1]))
        assert re.search(rf'\$RACER_URL{path}[" ?\n]', commands), name
