"""Every command finds the configuration in the same places, and the gateway by its address."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from app.settings.address import gateway_url
from app.settings.model import Settings
from tests.kit.command_results import failed, parsed
from tests.kit.commands import COMMANDS
from tests.kit.gateway import ADMIN_KEY, DATA_KEY, ONE, Command, Gateway

CANDIDATE = {"name": "adder", "base_url": "http://127.0.0.1:1/v1"}


def options(name: str) -> dict[str, click.Parameter]:
    """The options of a command by their first spelling."""
    return {each.opts[0]: each for each in COMMANDS[name].params}


def listening(folder: Path, gateway: Gateway, name: str = "racer.yaml") -> Path:
    """A configuration whose port is the gateway's."""
    port = gateway.url.rpartition(":")[2]
    path = folder / name
    path.write_text(f"{{schema_version: 1, port: {port}, candidates: [{CANDIDATE}]}}")
    return path


def test_every_configuration_is_found_alike() -> None:
    """By one option and one variable. Red when a command brings a `--config` of its own."""
    found = {name: options(name)["--config"] for name in COMMANDS if "--config" in options(name)}
    assert {"serve", "label", "train", "route", "calibrations list", "key revoke"} <= set(found)
    assert {each.envvar for each in found.values()} == {"RACER_CONFIG"}
    assert not any(each.required for each in found.values())


def test_the_address_comes_from_the_working_directory(
    racer: Command, gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`racer.yaml` there says the port; `$RACER_CONFIG` goes before it, `--config` before both."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    ask = ["route", ONE, "--key", DATA_KEY, "--json"]
    right = listening(elsewhere, gateway, "other.yaml")
    wrong = elsewhere / "wrong.yaml"
    wrong.write_text(f"{{schema_version: 1, port: 1, candidates: [{CANDIDATE}]}}")
    failed(racer(*ask, "--config", wrong), 3, "http://127.0.0.1:1")
    assert parsed(racer(*ask, "--config", right))["selected"] == ["adder"]
    monkeypatch.setenv("RACER_CONFIG", str(right))
    assert parsed(racer(*ask))["selected"] == ["adder"]
    failed(racer(*ask, "--config", wrong), 3)
    monkeypatch.setenv("RACER_CONFIG", str(wrong))
    listening(tmp_path, gateway)
    failed(racer(*ask), 3)
    monkeypatch.delenv("RACER_CONFIG")
    assert parsed(racer(*ask))["selected"] == ["adder"]
    assert parsed(racer("calibrations", "list", "--key", ADMIN_KEY, "--json"))["calibrations"]


def test_a_given_address_needs_no_configuration(
    racer: Command, gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken one is not read; without `--url` its error says that there is this way."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "racer.yaml").write_text("prot: 1")
    ask = ["route", ONE, "--key", DATA_KEY, "--json"]
    assert parsed(racer(*ask, "--url", gateway.url))["selected"] == ["adder"]
    failed(racer(*ask), 2, "did you mean `port`?", "--url names a gateway")


@pytest.mark.parametrize("command", ["serve", "validate", "key list", "tune --validation x"])
def test_a_missing_configuration_says_how_to_get_one(
    racer: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """No usage error: `racer.yaml` is looked for."""
    monkeypatch.chdir(tmp_path)
    failed(racer(*command.split()), 2, "racer.yaml: cannot be read", "racer init", "$RACER_CONFIG")


@pytest.mark.parametrize(
    ("changes", "admin", "url"),
    [
        ({}, False, "http://127.0.0.1:8080"),
        ({"port": 9}, True, "http://127.0.0.1:9"),
        ({"host": "0.0.0.0"}, False, "http://127.0.0.1:8080"),
        ({"host": "::"}, False, "http://[::1]:8080"),
        ({"host": "gateway.internal"}, False, "http://gateway.internal:8080"),
        ({"access": {"admin": {"port": 9}}}, False, "http://127.0.0.1:8080"),
        ({"access": {"admin": {"port": 9, "host": "::1"}}}, True, "http://[::1]:9"),
    ],
    ids=repr,
)
def test_the_address_is_one_that_this_machine_reaches(
    changes: dict[str, Any], admin: bool, url: str
) -> None:
    """All interfaces are reached by one; admin endpoints where they are."""
    settings = Settings.model_validate({"schema_version": 1, "candidates": [CANDIDATE]} | changes)
    assert gateway_url(settings, admin=admin) == url
