"""The bootstrap, started as manifests, chart and compose start it, leads to a certified answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app import artifact_watch
from tests.deploy import bootstrap, chart, compose, plain
from tests.kit.gateway import ADMIN_KEY, DATA_KEY, ONE, labelled, running
from tests.kit.upstream import FakePool

KEYS = {"RACER_DATA_KEY": DATA_KEY, "RACER_ADMIN_KEY": ADMIN_KEY}
COUNT = 60


@dataclass(frozen=True)
class Start:
    """How a deployment starts the command.

    Attributes:
        words: Of ``racer``.
        environment: Its variables, all of them.
        config: The text of racer.yaml, which the gateway has, too.
        folder: The working directory of the image.
    """

    words: list[str]
    environment: dict[str, str]
    config: str
    folder: str = compose.RUNTIME.one("WORKDIR").text


def _variables(container: dict[str, Any]) -> dict[str, str]:
    """What the pod's environment becomes with the Secret of the tests."""
    return {
        each["name"]: each["value"] if "value" in each else KEYS[each["name"]]
        for each in container["env"]
    }


def _of_kubernetes() -> Start:
    config = (plain.FOLDER / "racer.yaml").read_text(encoding="utf-8")
    return Start(bootstrap.CONTAINER["args"], _variables(bootstrap.CONTAINER), config)


def _of_compose() -> Start:
    """The profile, with the option that a machine without a hub adds."""
    _, *words = bootstrap.SERVICE["entrypoint"]
    environment = {
        name: KEYS.get(name, "") for name in bootstrap.SERVICE["environment"]
    }  # as .env.example leaves the others
    config = (compose.FOLDER / "racer.yaml").read_text(encoding="utf-8")
    return Start([*words, "--encoder=char-ngrams"], environment, config)


def _of_chart() -> Start:
    manifests = chart.render(chart.VARIANTS["bootstrap"])
    [container] = chart.pod(manifests, "bootstrap", "Job")["containers"]
    config = chart.found(manifests, "ConfigMap")["data"]["racer.yaml"]
    return Start(container["args"], _variables(container), config)


STARTS: dict[str, Callable[[], Start]] = {
    "kubernetes": _of_kubernetes,
    "chart": _of_chart,
    "compose": _of_compose,
}
PLACES = {"config", "queries", "folder", "url"}  # where files and the gateway are


def test_all_deployments_give_the_same_options() -> None:
    """Places apart. Red when one is changed and the others forgotten."""
    options = {name: bootstrap.given(start().words) for name, start in STARTS.items()}
    without = [{k: v for k, v in each.items() if k not in PLACES} for each in options.values()]
    assert without[0] == without[1] == without[2]
    assert {start().environment["RACER_ADMIN_KEY"] for start in STARTS.values()} == {ADMIN_KEY}


@pytest.fixture
def pool() -> Any:
    """Candidates of the default names, each right on what one of the tests' pool is right on."""
    right = {row.query: row.correct for row in labelled(0, COUNT + 1).rows}
    names = {"candidate-a": "adder", "candidate-b": "speller"}

    def answer(body: dict[str, Any]) -> str:
        return (
            "yes"
            if names[body["model"]] in right.get(body["messages"][-1]["content"], ())
            else "no"
        )

    with FakePool() as pool:
        pool.answer = answer
        yield pool


@pytest.mark.parametrize("name", ["kubernetes", pytest.param("compose", marks=pytest.mark.slow)])
def test_it_leads_to_a_certified_answer(
    name: str, pool: FakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own words and variables, in a process; only addresses and folders are the machine's."""
    monkeypatch.setattr(artifact_watch, "EVERY_S", 0.1)
    start = STARTS[name]()
    options = bootstrap.given(start.words)

    def here(text: str) -> str:
        """A text with places below the test's folder in the place of the container's."""
        outside = (Path(str(options[each])).parent for each in ("config", "queries"))
        folders = {start.folder, "/etc/racer", "/rows", *map(str, outside)}
        for folder in sorted(folders, key=len, reverse=True):
            text = text.replace(f"{folder}/", f"{tmp_path}{folder}/")
        text = text.replace("--out=/rows", f"--out={tmp_path}/rows")
        for candidate in ("candidate-a", "candidate-b"):
            text = text.replace(f"http://{candidate}:8000/v1", pool.url)
        return text.replace("drain_delay_s: 10", "drain_delay_s: 0")

    config = Path(here(str(options["config"])))
    queries = Path(here(str(options["queries"])))
    for folder in (config.parent, queries.parent, Path(f"{tmp_path}{start.folder}")):
        folder.mkdir(parents=True, exist_ok=True)
    config.write_text(f"{here(start.config)}\nport: 0\n", encoding="utf-8")
    lines = [{"query": row.query, "reference": "yes"} for row in labelled(0, COUNT).rows]
    queries.write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
    store = {"RACER_STORE_URL": f"sqlite:///{tmp_path}/shared.db"} if name == "kubernetes" else {}
    with running(config, KEYS | store) as gateway:
        before = gateway.chat(ONE)["racer"]["certificate"]
        assert before["reasons"] == ["not_calibrated"]
        words = [here(word).replace(str(options["url"]), gateway.url) for word in start.words]
        done = subprocess.run(
            [sys.executable, "-m", "app", *words],
            env=start.environment
            | {"PATH": os.environ["PATH"], "HOME": f"{tmp_path}{start.folder}"},
            cwd=f"{tmp_path}{start.folder}",
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        answer = gateway.chat(ONE)["racer"]
    assert answer["certificate"]["holds"], answer["certificate"]
    assert "candidate-a" in answer["selected"]
