"""`racer key list` and `racer key revoke`: the keys in the configuration's file."""

from __future__ import annotations

from pathlib import Path

import pytest

from app import settings
from tests.kit.command_results import failed, parsed
from tests.kit.gateway import ADMIN_KEY, ENVIRONMENT, Command, running
from tests.kit.upstream import FakePool

HASHES = {name: f"sha256:{'0' * 32}:{digit * 64}" for name, digit in zip("abc", "123", strict=True)}
BLOCK = f"""\
# the gateway of the tests
access:
  keys:
    # of the first team
    - name: a  # phone 1
      hash: "{HASHES["a"]}"
      max_alpha: 0.2

    # of the second team
    - {{name: b, role: admin, hash: "{HASHES["b"]}"}}
    - hash: {HASHES["c"]}
      # a comment inside
      name: c
  # who may call
  hosts: [gateway.example]
"""
FLOW = f"""\
access: {{keys: [{{name: a, hash: "{HASHES["a"]}"}}, {{name: b, hash: "{HASHES["b"]}"}},
  {{name: c, hash: "{HASHES["c"]}"}}]}}
"""
ONE_KEY = f"""\
access:
  keys:
    - name: b
      hash: {HASHES["b"]}
"""


def configured(folder: Path, access: str, url: str = "http://127.0.0.1:1/v1") -> Path:
    """A configuration with a part that is written as given."""
    path = folder / "racer.yaml"
    rest = f"schema_version: 1\nport: 0\ncandidates: [{{name: adder, base_url: '{url}'}}]\n"
    path.write_text(access + rest)
    return path


def names(path: Path) -> list[str]:
    """The keys of a configuration."""
    return [key.name for key in settings.read(path).access.keys]


def test_keys_are_listed_without_their_hashes(
    racer: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With role and limits; of the environment's only that they are set."""
    path = configured(tmp_path, BLOCK)
    monkeypatch.setenv("RACER_ADMIN_KEY", ENVIRONMENT["RACER_ADMIN_KEY"])
    found = parsed(racer("key", "list", "--config", path, "--json"))
    assert [(key["name"], key["role"]) for key in found["keys"]] == [
        ("a", "data"), ("b", "admin"), ("c", "data"),
    ]  # fmt: skip
    assert found["keys"][0]["max_alpha"] == 0.2
    assert found["environment"] == {"RACER_DATA_KEY": False, "RACER_ADMIN_KEY": True}
    out = racer("key", "list", "--config", path)[1]
    assert "$RACER_ADMIN_KEY" in out
    assert "sha256" not in out + str(found)
    assert ENVIRONMENT["RACER_ADMIN_KEY"] not in out
    monkeypatch.delenv("RACER_ADMIN_KEY")
    assert "racer key new NAME" in racer("key", "list", "--config", configured(tmp_path, ""))[1]


@pytest.mark.parametrize("name", ["a", "b", "c"])
@pytest.mark.parametrize("access", [BLOCK, FLOW], ids=["block", "flow"])
def test_a_revoked_key_leaves_the_file(
    racer: Command, tmp_path: Path, access: str, name: str
) -> None:
    """Its entry and nothing else: other keys, comments and sections stay as they are written."""
    path = configured(tmp_path, access)
    before = path.read_text()
    result = parsed(racer("key", "revoke", name, "--config", path, "--json"))
    assert result["revoked"] == name
    assert names(path) == [each for each in "abc" if each != name]
    after = path.read_text()
    assert HASHES[name] not in after
    if access is BLOCK:
        lines = before.splitlines()
        assert [line for line in lines if line not in after.splitlines()] == [
            line[1:] for line in result["diff"].splitlines()[2:] if line.startswith("-")
        ]
        comments = [line for line in lines if line.lstrip().startswith("#")]
        inside = {"c": ["      # a comment inside"]}.get(name, [])
        assert all((each in after) is (each not in inside) for each in comments)
        assert settings.read(path).access.hosts == ("gateway.example",)


def test_the_last_data_key_is_revoked_only_by_force(racer: Command, tmp_path: Path) -> None:
    """A gateway without one asks for no key; admin keys do not count, and may be the last."""
    admin = f"    - {{name: boss, role: admin, hash: '{HASHES['a']}'}}\n"
    path = configured(tmp_path, ONE_KEY + admin)
    before = path.read_text()
    failed(racer("key", "revoke", "b", "--config", path), 2, "last data key", "--force")
    assert path.read_text() == before
    assert racer("key", "revoke", "boss", "--config", path)[0] == 0
    assert names(path) == ["b"]
    code, out, _ = racer("key", "revoke", "b", "--config", path, "--force")
    assert (code, "Reload" in out) == (0, True)
    assert names(path) == []  # and not `keys:` without a value, which no start accepts


def test_an_unknown_key_changes_nothing(racer: Command, tmp_path: Path) -> None:
    """The names that are there are listed, and where other keys come from."""
    path = configured(tmp_path, BLOCK)
    given = ("key", "revoke", "d", "--config", path)
    failed(racer(*given), 2, "no key 'd'", "a, b, c", "$RACER_DATA_KEY")
    assert path.read_text().startswith(BLOCK)
    configured(tmp_path, "")
    failed(racer(*given), 2, "it has none")


def test_a_gateway_refuses_a_revoked_key(racer: Command, tmp_path: Path, pool: FakePool) -> None:
    """After a reload, and not before; the other keys stay."""
    made = {name: parsed(racer("key", "new", name, "--json")) for name in ("old", "kept")}
    listed = "".join(f"    - {{name: {n}, hash: '{each['hash']}'}}\n" for n, each in made.items())
    path = configured(tmp_path, f"access:\n  keys:\n{listed}", pool.url)
    old, kept = (made[name]["key"] for name in ("old", "kept"))
    with running(path, {"RACER_ADMIN_KEY": ADMIN_KEY}) as gateway:
        racer("key", "revoke", "old", "--config", path)
        assert gateway.get("/v1/models", old).status_code == 200
        assert gateway.post("/admin/reload", ADMIN_KEY).status_code == 200
        assert gateway.get("/v1/models", old).status_code == 401
        assert gateway.get("/v1/models", kept).status_code == 200
