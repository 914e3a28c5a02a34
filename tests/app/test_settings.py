"""A wrong configuration stops the start: one sentence, exit code 2, through the command line."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from app import settings
from racer_core.artifacts import CandidateSpec
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.offline.train import train
from tests.kit.gateway import POOL, Command, candidates, configure, labelled

URL = "http://127.0.0.1:1/v1"


def validate_and_serve_fail(racer: Command, path: Path, *words: str) -> str:
    """``racer validate`` and ``racer serve`` say the same one sentence and exit with 2."""
    stderr = ""
    for command in ("validate", "serve"):
        code, out, stderr = racer(command, "--config", path)
        assert (code, out) == (2, ""), stderr
        assert stderr.startswith("racer: ")
        assert stderr.count("\n") == 1
        assert stderr.endswith("\n")
        assert "Traceback" not in stderr
        assert "Value error" not in stderr  # pydantic's own words
        for word in words:
            assert word in stderr
    return stderr


def test_a_good_configuration_is_validated(racer: Command, tmp_path: Path, artifact: Path) -> None:
    """The control of everything below: pool, router and encoder are named."""
    path = configure(tmp_path, artifact, URL)
    code, out, stderr = racer("validate", "--config", path, "--json")
    assert (code, stderr) == (0, "")
    assert json.loads(out) == {
        "config": str(path),
        "pool": list(POOL),
        "router": "knn",
        "encoder": "char-ngrams",
        "backend": "numpy",
        "dtype": "float32",
    }
    code, out, _ = racer("validate", "--config", path)
    assert code == 0
    assert "adder, speller, poet" in out


FIELDS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "unknown_key": ({"prot": 80}, ("prot",)),
    "unknown_key_inside": ({"limits": {"bodybytes": 1}}, ("limits.bodybytes",)),
    "port_too_large": ({"port": 70_000}, ("port",)),
    "alpha_nan": ({"routing": {"alpha": float("nan")}}, ("routing.alpha",)),
    "on_abstain": ({"routing": {"on_abstain": "guess"}}, ("routing.on_abstain",)),
    "limit_nan": ({"limits": {"route_timeout_s": float("nan")}}, ("limits.route_timeout_s",)),
    "twice": ({"candidates": candidates(URL)[:1] * 2}, ("candidates", "adder")),
    "auto": ({"candidates": [{"name": "auto", "base_url": URL}]}, ("candidates", "auto")),
    "name_with_comma": ({"candidates": [{"name": "a,b", "base_url": URL}]}, ("candidates.0.name",)),
    "name_outside_ascii": ({"candidates": [{"name": "é", "base_url": URL}]}, ("candidates.0",)),
    "name_with_line_end": (
        {"candidates": [{"name": "a\n", "base_url": URL}]}, ("candidates.0.name",)
    ),
    "no_url": ({"candidates": [{"name": "a"}]}, ("candidates.0", "`base_url`",)),
    "timeout_0": (
        {"candidates": [{"name": "a", "base_url": URL, "timeout_s": 0}]},
        ("candidates.0.timeout_s",),
    ),
    "price_0": ({"candidates": candidates(URL, price=0)}, ("candidates.0.price",)),
    "price_nan": ({"candidates": candidates(URL, price=float("nan"))}, ("candidates.0.price",)),
    "one_price_missing": (
        {"candidates": candidates(URL, adder={"price": 1}, poet={"price": 2})},
        ("'speller' has no price",),
    ),
    "cover_cost_without_prices": (
        {"routing": {"score": "cover_cost"}}, ("routing.score", "price for every candidate")
    ),
    "key_in_the_file": (
        {"candidates": [{"name": "a", "base_url": URL, "api_key": "sk-1"}]},
        ("candidates.0.api_key",),
    ),
    "missing_candidate_key": (
        {"candidates": candidates(URL, poet={"api_key_env": "NO_SUCH_KEY"})}, ("$NO_SUCH_KEY",)
    ),
    "open_door": ({"host": "0.0.0.0"}, ("0.0.0.0", "$RACER_DATA_KEY")),
    "other_order": ({"candidates": candidates(URL)[::-1]}, ("pool", "poet")),
    "fewer": ({"candidates": candidates(URL)[:2]}, ("pool", "poet")),
    "more": (
        {"candidates": [*candidates(URL), {"name": "x", "base_url": URL}]}, ("pool", "'x'")
    ),
    "encoder_dtype": ({"encoder": {"dtype": "bfloat16"}}, ("encoder.dtype", "bfloat16")),
    "encoder_backend": ({"encoder": {"backend": "cuda"}}, ("encoder.backend", "cuda")),
}  # fmt: skip


@pytest.mark.parametrize("case", FIELDS)
def test_a_wrong_field_is_named(racer: Command, tmp_path: Path, artifact: Path, case: str) -> None:
    """The file or the field, and what is wrong with it."""
    changes, words = FIELDS[case]
    validate_and_serve_fail(racer, configure(tmp_path, artifact, URL, **changes), *words)


@pytest.mark.parametrize(
    "url",
    ["ftp://host/v1", "localhost:8000/v1", "host", "", "http://", "http:///v1", "http://host/v1?x=1",
     "http://host/v1#x", "http://host:99999/v1", "http://host:x/v1", "http://[::1/v1",
     "http://ho st/v1", "file:///etc/passwd", 7],
)  # fmt: skip
def test_a_url_that_cannot_be_called_is_named(
    racer: Command, tmp_path: Path, artifact: Path, url: object
) -> None:
    """Found at the start, not at the first request."""
    path = configure(tmp_path, artifact, URL, candidates=candidates(URL, adder={"base_url": url}))
    validate_and_serve_fail(racer, path, "candidates.0.base_url")


@pytest.mark.parametrize(
    "text",
    [
        "a: [1",
        "a: b: c",
        "\t- x",
        "just text",
        "- a\n- b\n",
        "",
        "42",
        "a: &x [*x]",
        "!!python/object/apply:os.system ['true']",
        "date: 2020-99-99",
        "1: 2",
        "{[1]: 2}",
        "a: \x00",
        "[" * 5_000,
    ],
    ids=lambda text: repr(text[:20]),
)
def test_an_invalid_configuration_file_is_refused(
    racer: Command, tmp_path: Path, text: str
) -> None:
    """No mapping, an unsafe tag, invalid dates and keys, control characters, deep nesting."""
    path = tmp_path / "racer.yaml"
    path.write_text(text, encoding="utf-8")
    validate_and_serve_fail(racer, path, "racer.yaml")


def test_a_file_that_cannot_be_read(racer: Command, tmp_path: Path) -> None:
    """Missing, a folder, or not UTF-8."""
    validate_and_serve_fail(
        racer, tmp_path / "missing.yaml", "missing.yaml", "No such file", "`racer init`"
    )
    validate_and_serve_fail(racer, tmp_path, "directory")
    (tmp_path / "latin1.yaml").write_bytes(b"host: \xe9")
    validate_and_serve_fail(racer, tmp_path / "latin1.yaml", "latin1.yaml")


def test_a_key_that_stands_twice_is_refused(racer: Command, tmp_path: Path, artifact: Path) -> None:
    """YAML takes the last value, and a reader of the first would assume another alpha."""
    path = configure(tmp_path, artifact, URL)
    path.write_text(path.read_text() + "same_answer: {alpha: 0.1}\nsame_answer: {alpha: 0.5}\n")
    validate_and_serve_fail(racer, path, "same_answer", "duplicated")


def test_every_problem_is_listed(racer: Command, tmp_path: Path, artifact: Path) -> None:
    """One look is enough to repair the file."""
    path = configure(tmp_path, artifact, URL, port=-1, routing={"alpha": 2}, typo=1)
    validate_and_serve_fail(racer, path, "port", "routing.alpha", "typo")


def test_candidates_must_be_as_they_were_labelled(racer: Command, tmp_path: Path) -> None:
    """Another temperature than the labels' is refused; the same or an unrecorded one is not."""
    artifact = tmp_path / "artifact"
    train(
        labelled(0, 40),
        labelled(5_000, 40),
        artifact,
        encoder=CharNgramEncoder(),
        kind="knn",
        candidates=[CandidateSpec(name=name, parameters={"temperature": 0}) for name in POOL],
    )
    same = candidates(URL, parameters={"temperature": 0})
    path = configure(tmp_path, artifact, URL, candidates=same)
    assert racer("validate", "--config", path)[0] == 0
    other = candidates(URL, parameters={"temperature": 0}, poet={"parameters": {"temperature": 1}})
    path = configure(tmp_path, artifact, URL, candidates=other)
    validate_and_serve_fail(racer, path, "poet", "temperature")


@pytest.mark.parametrize("name", ["manifest.json", "router.safetensors"])
@pytest.mark.parametrize("damage", ["missing", "cut", "nonsense"])
def test_a_damaged_artifact_is_one_sentence(
    racer: Command, tmp_path: Path, artifact: Path, name: str, damage: str
) -> None:
    """Missing, half or other files."""
    folder = tmp_path / "artifact"
    shutil.copytree(artifact, folder)
    file = folder / name
    match damage:
        case "missing":
            file.unlink()
        case "cut":
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        case _:
            file.write_bytes(b'{"schema_version": 1}')
    validate_and_serve_fail(racer, configure(tmp_path, folder, URL), str(folder))


@pytest.mark.parametrize(
    "store",
    ["sqlite:////no/such/folder/racer.db", "sqlite:///{here}", "nonsense", "sqlite:///{text}"],
)
def test_a_store_that_cannot_be_written_stops_the_start(
    racer: Command, tmp_path: Path, artifact: Path, store: str
) -> None:
    """``racer serve`` ends before a socket accepts."""
    (tmp_path / "text").write_text("no database " * 1_000)
    url = store.format(here=tmp_path, text=tmp_path / "text")
    path = configure(tmp_path, artifact, URL, store=url)
    code, out, stderr = racer("serve", "--config", path)
    assert (code, out) == (2, "")
    assert stderr.startswith("racer: store ")
    assert stderr.count("\n") == 1


def test_a_store_is_beside_its_configuration(tmp_path: Path, artifact: Path) -> None:
    """Relative paths are relative to the file, absolute ones stay, memory stays memory."""
    for store, expected in (
        ("sqlite:///racer.db", f"sqlite:///{tmp_path}/racer.db"),
        ("sqlite:////var/x.db", "sqlite:////var/x.db"),
        ("postgresql://h/d", "postgresql://h/d"),
    ):
        path = configure(tmp_path, artifact, URL, store=store)
        assert settings.load(path, {})[0].store == expected
    shutil.copytree(artifact, tmp_path / "router")
    path = configure(tmp_path, Path("router"), URL)
    assert settings.load(path, {})[0].artifact == tmp_path / "router"


def test_a_port_in_use_is_one_sentence(racer: Command, tmp_path: Path, artifact: Path) -> None:
    """It names the port and the way out."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        path = configure(tmp_path, artifact, URL, port=port)
        code, _, stderr = racer("serve", "--config", path)
    assert code == 2
    assert stderr == f"racer: 127.0.0.1:{port} is in use: choose another port with --port\n"


@pytest.mark.parametrize("host", ["203.0.113.7", "no-such-host.invalid"])
def test_an_address_of_another_machine(
    racer: Command,
    tmp_path: Path,
    artifact: Path,
    monkeypatch: pytest.MonkeyPatch,
    host: str,
) -> None:
    """The gateway cannot listen there."""
    monkeypatch.setenv("RACER_DATA_KEY", "a-data-key-of-24-chars--")
    code, _, stderr = racer("serve", "--config", configure(tmp_path, artifact, URL, host=host))
    assert code == 2
    assert host in stderr
    assert stderr.count("\n") == 1


def test_the_command_line_goes_before_the_file(
    racer: Command, tmp_path: Path, artifact: Path
) -> None:
    """``--host`` and ``--port`` are checked like the file's own."""
    path = configure(tmp_path, artifact, URL)
    code, _, stderr = racer("serve", "--config", path, "--host", "0.0.0.0")
    assert code == 2
    assert "$RACER_DATA_KEY" in stderr
    code, _, stderr = racer("serve", "--config", path, "--port", "99999")
    assert code == 2
    assert "port" in stderr


def test_secrets_do_not_show(tmp_path: Path, artifact: Path) -> None:
    """Printing the keys prints stars."""
    path = configure(tmp_path, artifact, URL)
    _, secrets = settings.load(path, {"RACER_DATA_KEY": "a-data-key-of-24-chars--"})
    assert "a-data-key" not in repr(secrets)
