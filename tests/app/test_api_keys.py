"""API keys: generation, stored hashes and look-up."""

from __future__ import annotations

import json
from collections.abc import Callable
from hmac import compare_digest
from typing import Any

import pytest
import yaml
from pydantic import SecretStr

from app.access.api_keys import Caller, KeyRing
from app.settings import Secrets, key_format
from app.settings.access import Access, Key
from tests.kit.gateway import Command, Serve


def test_a_key_is_made_and_its_hash_can_be_configured(racer: Command, serve: Serve) -> None:
    """The key stands on the first line, the rest is YAML without it; JSON opens a gateway."""
    code, out, err = racer("key", "new", "team-a", "--role", "admin")
    assert (code, err) == (0, "")
    key, _, rest = out.partition("\n")
    access = Access.model_validate(yaml.safe_load(rest[rest.index("access:") :])["access"])
    assert [(each.name, each.role) for each in access.keys] == [("team-a", "admin")]
    assert key not in rest
    ring = KeyRing(access.keys, Secrets())
    assert ring.find(key.encode()) == Caller(name="team-a", role="admin")
    made = json.loads(racer("key", "new", "team-b", "--json")[1])
    key = made.pop("key")
    gateway = serve(access={"keys": [made]}, environment={}, calibrated=False)
    assert gateway.get("/v1/models", key).status_code == 200
    assert gateway.get("/v1/models", key[:-1]).status_code == 401


def entry(key: str, name: str, **fields: Any) -> Key:
    """A configured key."""
    written = key_format.format_hash(key, key_format.new_salt())
    return Key.model_validate({"name": name, "hash": written, **fields})


@pytest.mark.parametrize("name", ["", "a b", "data", "local", "é", "x" * 200, "a\nb"])
def test_a_name_that_could_not_be_configured_is_refused(racer: Command, name: str) -> None:
    """It is refused before an unusable key is shown."""
    code, out, err = racer("key", "new", name)
    assert (code, out) == (2, "")
    assert "name of a key" in err


def test_keys_are_long_different_and_know_when_they_were_cut() -> None:
    """256 random bits each, and a checksum that a lost or a changed letter breaks."""
    keys = [key_format.new_key() for _ in range(200)]
    assert len(set(keys)) == 200
    assert {key[:6] for key in keys} == {"racer-"}
    assert {len(key) for key in keys} == {6 + 43 + 8}
    assert not any(map(key_format.is_damaged, keys))
    assert all(key_format.is_damaged(key[:-1]) for key in keys)
    assert all(key_format.is_damaged(key[:10] + key[11:]) for key in keys)
    assert not key_format.is_damaged("key-of-another-service")


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The digests and comparisons that are made, by the function's name."""
    calls: list[str] = []

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any) -> Any:
            calls.append(function.__name__)
            return function(*args)

        return wrapper

    for name in ("digest", "peppered_digest"):
        monkeypatch.setattr(key_format, name, counting(getattr(key_format, name)))
    monkeypatch.setattr("app.access.api_keys.hmac.compare_digest", counting(compare_digest))
    return calls


def test_a_key_costs_one_digest_for_any_number_of_keys(hashed: list[str]) -> None:
    """One look-up and one comparison of whole digests, for the first of 1,000 keys and the last."""
    keys = [key_format.new_key() for _ in range(1000)]
    ring = KeyRing(
        [entry(key, f"k{number}") for number, key in enumerate(keys)],
        Secrets(data_key=SecretStr("d" * 20), admin_key=SecretStr("a" * 20)),
    )
    names = {keys[0]: "k0", keys[-1]: "k999", "d" * 20: "data", "a" * 20: "admin"}
    for key in names:  # once: their salts are their own
        ring.find(key.encode())
    for key, name in names.items():
        hashed.clear()
        found = ring.find(key.encode())
        assert found is not None
        assert found.name == name
        assert hashed == ["peppered_digest", "compare_digest"]


def test_every_salt_is_tried_after_a_match_too(hashed: list[str]) -> None:
    """The first use of the first of four takes as many digests as the last and a wrong one."""
    keys = [key_format.new_key() for _ in range(4)]
    configured = [entry(key, f"k{number}") for number, key in enumerate(keys)]
    for presented, name in ((keys[0], "k0"), (keys[3], "k3"), ("x", None)):
        hashed.clear()
        found = KeyRing(configured, Secrets()).find(presented.encode())
        assert (found.name if found else None) == name
        assert hashed.count("digest") == 4


def test_a_digest_that_only_begins_like_a_keys_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look-up by the first bytes decides nothing."""
    digests = {b"right": b"same 8 bytes, one end", b"wrong": b"same 8 bytes, another"}

    def digest(key: bytes, _: bytes) -> bytes:
        return digests[key]

    monkeypatch.setattr(key_format, "peppered_digest", digest)
    ring = KeyRing([], Secrets(data_key=SecretStr("right")))
    assert ring.find(b"right") == Caller(name="data")
    assert ring.find(b"wrong") is None


def test_a_huge_key_is_refused_unhashed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway hashes no text that is too long for a key."""
    ring = KeyRing([entry("k" * 256, "long")], Secrets())
    assert ring.find(b"k" * 256) == Caller(name="long")

    def digest(*_: bytes) -> bytes:
        raise AssertionError

    monkeypatch.setattr(key_format, "digest", digest)
    monkeypatch.setattr(key_format, "peppered_digest", digest)
    assert ring.find(b"k" * 257) is None


def test_a_caller_is_what_its_key_may_do() -> None:
    """Name, role and the limits that handlers keep; never the key."""
    fields: dict[str, Any] = {"max_alpha": 0.2, "group": "team-a", "candidates": ("adder",)}
    ring = KeyRing([entry("a-key-of-team-a", "team-a", **fields)], Secrets())
    found = ring.find(b"a-key-of-team-a")
    assert found == Caller(name="team-a", role="data", **fields)
    assert "a-key-of-team-a" not in repr(found)
