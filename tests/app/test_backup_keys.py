"""Keys of a backup that the configuration lacks, and their transfer into its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from app import settings
from app.settings.access import Access
from app.store import Store
from app.store.backup import calibrations
from tests.kit.accounts import configured_key
from tests.kit.gateway import ENVIRONMENT, Command, Serve
from tests.kit.stores import record


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the backup of a test is."""
    return tmp_path / "racer-backup.zip"


FILE = """\
# Our gateway.
schema_version: 1
candidates:
  - name: adder
    base_url: http://127.0.0.1:1/v1  # the small one

access:   # who may
  hosts: [gateway.example]
  keys:   # one a team
    # the shop
    - name: shop  # since May
      hash: "sha256:00000000000000000000000000000001:{zeros}"
    # the team
    - {{name: team, hash: "sha256:00000000000000000000000000000002:{zeros}"}}

# Limits of the machine.
limits:
  queue: 12
# the end
""".format(zeros="0" * 64)


def key(name: str, salt: int, **more: Any) -> dict[str, Any]:
    """A key of a configuration."""
    return {"name": name, "hash": f"sha256:{salt:032x}:{'0' * 64}", **more}


def with_keys(path: Path, keys: list[dict[str, Any]], file: Path) -> None:
    """A backup of a gateway that had these keys."""
    with Store(f"sqlite:///{path.parent / 'saved.db'}") as store:
        store.add(record("cal-1"), activate=True)
        calibrations.save(store, Access.model_validate({"keys": keys}).keys, file)


LIMITED = key(
    "web", 3, role="admin", requests_per_minute=60, max_alpha=0.2, group="ü", candidates=["adder"]
)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That configuration."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "racer.yaml"
    path.write_text(FILE, encoding="utf-8")
    return path


def test_keys_are_reported_and_the_configuration_is_left_alone(
    config: Path, file: Path, racer: Command
) -> None:
    """Those that it lacks, by name: one that is not there, and one with another hash."""
    with_keys(config, [key("shop", 1), LIMITED, key("team", 9)], file)
    code, output, error = racer("restore", file, "--config", config, "--json")
    assert code == 0, error
    assert json.loads(output)["keys lacking"] == ["web", "team"]
    assert config.read_text(encoding="utf-8") == FILE


def test_keys_are_added_and_every_other_line_stays(
    config: Path, file: Path, racer: Command
) -> None:
    """To the last character: comments stay above what they are about."""
    with_keys(config, [key("shop", 1), LIMITED, key("mobile", 4)], file)
    code, output, error = racer("restore", file, "--config", config, "--keys", "--json")
    assert code == 0, error
    assert json.loads(output)["keys added"] == ["web", "mobile"]
    lines = config.read_text(encoding="utf-8").splitlines()
    place = lines.index("  keys:   # one a team")
    added = lines[place + 1 : place + 3]
    assert [*lines[: place + 1], *lines[place + 3 :]] == FILE.splitlines()
    assert all(line.startswith('    - {"name": ') for line in added)
    known = {each.name: each for each in settings.load(config)[0].access.keys}
    assert set(known) == {"web", "mobile", "shop", "team"}
    assert known["web"].model_dump(mode="json", exclude_defaults=True) == LIMITED
    assert racer("restore", file, "--config", config, "--keys")[0] == 0  # nothing is lacking
    assert config.read_text(encoding="utf-8").splitlines() == lines


@pytest.mark.parametrize(
    "access",
    ["", "access: {}\n", "access:\n  hosts: [a.example]  # us\n",
     "access:\n  keys: []\n", "access: {keys: []}\n",
     f"access:\n  keys: [{json.dumps(key('shop', 1))}]  # one\n"],
)  # fmt: skip
def test_keys_find_a_place_in_any_configuration(
    config: Path, file: Path, racer: Command, access: str
) -> None:
    """Without the section, without the list, with one on a line: comments stay, and it starts."""
    head, _, tail = FILE.partition("access:")
    config.write_text(head + access + tail[tail.index("\n# Limits") :], encoding="utf-8")
    with_keys(config, [LIMITED], file)
    code, _, error = racer("restore", file, "--config", config, "--keys", "--json")
    assert code == 0, error
    assert "web" in {each.name for each in settings.load(config)[0].access.keys}
    text = config.read_text(encoding="utf-8")
    for comment in ("# Our gateway.", "# the small one", "# Limits of the machine.", "# the end"):
        assert comment in text


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ([key("web", 3), key("team", 9)], "'team' has another hash"),
        ([key("other", 2)], "two keys have the same hash"),
        ([key("web", 3, candidates=["poet"])], "'poet' is no candidate"),
    ],
    ids=["another hash", "another name", "unknown candidate"],
)
def test_keys_that_do_not_fit_are_refused_and_nothing_is_changed(
    config: Path, file: Path, racer: Command, keys: list[dict[str, Any]], message: str
) -> None:
    """Neither the configuration nor the store."""
    with_keys(config, keys, file)
    code, _, error = racer("restore", file, "--config", config, "--keys")
    assert code in (1, 2)
    assert message in error
    assert config.read_text(encoding="utf-8") == FILE
    assert not (config.parent / "racer.db").exists()


def test_no_secret_is_in_a_backup(
    serve: Serve, racer: Command, tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hashes and limits of keys are; no key, and no variable of the environment."""
    secret, line = configured_key("team", requests_per_minute=60)
    serve(folder=tmp_path, access={"keys": [line]})
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    assert racer("backup", file, "--config", tmp_path / "racer.yaml")[0] == 0
    with ZipFile(file) as opened:
        held = b"".join(opened.read(name) for name in opened.namelist())
    assert line["hash"].encode() in held
    for value in (secret, *ENVIRONMENT.values()):
        assert value.encode() not in held
