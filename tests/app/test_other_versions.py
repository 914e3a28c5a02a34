"""A store or an artifact of another version: one sentence with the cure, exit code 1, no change."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from app.store.engine import open_engine
from tests.kit.gateway import ENVIRONMENT, Command, configure
from tests.kit.stores import set_version
from tests.kit.upstream import FakePool


@pytest.fixture
def config(tmp_path: Path, artifact: Path, pool: FakePool, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration whose artifact may be changed."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    copy = Path(shutil.copytree(artifact, tmp_path / "artifact"))
    return configure(tmp_path, copy, pool.url)


def content(folder: Path) -> dict[Path, bytes]:
    """Every file below a folder."""
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def refused(racer: Command, config: Path) -> str:
    """What `racer serve` says; it changes no file that was there."""
    before = content(config.parent)
    code, output, error = racer("serve", "--config", config)
    assert (code, output, error.count("\n")) == (1, "", 1)
    assert before.items() <= content(config.parent).items()
    return error


def test_an_artifact_of_another_version_is_trained_again(racer: Command, config: Path) -> None:
    """The artifact stays as it was."""
    manifest = config.parent / "artifact" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"schema_version": 99}))
    assert "train it again with `racer train`" in refused(racer, config)


def test_a_store_of_another_version_is_left_to_its_program(racer: Command, config: Path) -> None:
    """The tables stay as they were."""
    store = config.parent / "racer.db"
    values = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump(values | {"store": f"sqlite:///{store}"}))
    engine = open_engine(f"sqlite:///{store}")
    set_version(engine, "9999")
    engine.dispose()
    assert "start the program that wrote it" in refused(racer, config)
