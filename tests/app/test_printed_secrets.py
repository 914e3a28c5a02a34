"""Secrets in a configuration by mistake: no command, log or answer prints them."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import assume, example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from app.errors import SettingsError
from app.settings import base
from app.settings.loading import parse
from app.store.engine import open_engine
from tests.kit.gateway import ADMIN_KEY, Command, Serve, candidates, configure, error_message

SECRET = "hunter2-SeCrEt"
URL = "http://127.0.0.1:1/v1"
WITH_USER = f"http://user:{SECRET}@127.0.0.1:1/v1"
ABSENT = Path("absent")  # no artifact: nothing but the configuration is looked at


COMMANDS = (["validate"], ["serve"], ["doctor"])
EDITING = (["key", "new", "bot"], ["key", "revoke", "bot"])


def printed(racer: Command, path: Path, commands: Sequence[Sequence[str]] = COMMANDS) -> str:
    """What commands that read a configuration print; each of them fails."""
    found: list[str] = []
    for command in commands:
        code, out, err = racer(*command, "--config", path)
        assert code != 0, (command, out, err)
        found += [out, err]
    return "".join(found)


# Passwords in URLs ------------------------------------------------------------------------------

EVALUATED = {"method": "weighted", "weight": "p_true"}
PLACES: dict[str, Callable[[str], dict[str, Any]]] = {
    "candidates.0.base_url": lambda url: {"candidates": candidates(URL, adder={"base_url": url})},
    "candidates.0.base_urls.0": lambda url: {
        "candidates": candidates(URL, adder={"base_url": None, "base_urls": [url, URL]})
    },
    "aggregation.evaluator.base_url": lambda url: {
        "aggregation": {**EVALUATED, "evaluator": {"base_url": url, "model": "m"}}
    },
    "applications.bot.checker.url": lambda url: {
        "applications": {"bot": {"checker": {"url": url}}}
    },
    "same_answer.evidence.url": lambda url: {"same_answer": {"evidence": {"url": url}}},
    "telemetry.otlp_endpoint": lambda url: {"telemetry": {"otlp_endpoint": url}},
    "store": lambda url: {"store": url.replace("http", "postgresql")},
    "artifact": lambda url: {"artifact": f"{url}#sha256={'0' * 64}"},
}


@pytest.mark.parametrize("place", PLACES)
def test_a_password_in_a_url_is_refused_and_not_printed(
    racer: Command, tmp_path: Path, place: str
) -> None:
    """At every setting that is a URL; red: `racer doctor` printed that of a candidate."""
    for url in (WITH_USER, WITH_USER.replace("user:", ":"), WITH_USER.replace("@127", "@[127")):
        changes = PLACES[place](url)
        artifact = changes.pop("artifact", ABSENT)
        shown = printed(racer, configure(tmp_path, artifact, URL, **changes))
        assert SECRET not in shown
        assert place.partition(".")[0] in shown


def test_init_prints_no_password(racer: Command, tmp_path: Path) -> None:
    """Of a URL that is wrong in another way, too."""
    for url in (WITH_USER, f"{WITH_USER}?x=1", f"ftp://user:{SECRET}@host"):
        code, out, err = racer("init", url, "--out", tmp_path / "racer.yaml")
        assert code != 0
        assert SECRET not in out + err


# Lines of the file ------------------------------------------------------------------------------

# What is no YAML, around or behind a secret.
BROKEN = {
    "an open list": "{secret}: [1",
    "two colons": "password: {secret}: x",
    "a tab": "password: {secret}\n\t- x",
    "an alias": "password: *{secret}",
    "a tag": "password: !{secret} x",
    "a tag of YAML": "password: !!int {secret}",
    "a date": "password: {secret}\ndate: 2020-99-99",
    "a number": "password: !!int '{secret}'",
    "an anchor twice": "a: &{secret} 1\nb: &{secret} 2\nc: [",
    "a control character": "password: {secret} \x01",
    "a key twice": "{secret}: 1\n{secret}: 2",
    "a list as a key": "[{secret}]: 1\n[{secret}]: 2",
    "quotes": "password: '{secret}",
    "deep": "password: {secret}\na: " + "[" * 5_000,
}


@pytest.mark.parametrize("case", BROKEN)
def test_no_line_of_the_file_is_printed(racer: Command, tmp_path: Path, case: str) -> None:
    """By no command; the place is said where it is known."""
    path = tmp_path / "racer.yaml"
    path.write_text(BROKEN[case].format(secret=SECRET))
    shown = printed(racer, path, [*COMMANDS, *EDITING])
    assert SECRET not in shown
    assert "racer.yaml" in shown
    if case not in ("a control character", "deep"):
        assert re.search(r"line \d", shown), shown


def test_no_line_of_the_file_is_in_a_log_or_an_answer(
    serve: Serve, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A reload says what the start would say, to the caller and in the log."""
    gateway = serve(artifact=ABSENT, calibrated=False)
    assert gateway.config is not None
    before = gateway.config.read_text()
    for text in BROKEN.values():
        gateway.config.write_text(before + "\n" + text.format(secret=SECRET))
        refused = gateway.post("/admin/reload", ADMIN_KEY)
        assert "Nothing was changed" in error_message(refused, 409)
        assert SECRET not in refused.text
    out, err = capsys.readouterr()
    assert SECRET not in out + err + caplog.text


@given(before=st.text(max_size=12), after=st.text(max_size=12))
@example(before="a: &x [*x, ", after="]")
@example(before="'", after="\n: '\"")
def test_any_broken_file_is_one_sentence_without_its_text(before: str, after: str) -> None:
    """Whatever stands around the secret; of a file that can be read, names are printed."""
    text = f"{before}{SECRET}{after}"
    with contextlib.suppress(yaml.YAMLError, ValueError):
        assume(not isinstance(yaml.safe_load(text), dict))
    with pytest.raises(SettingsError) as raised:
        parse(text, Path("racer.yaml"), {})
    assert SECRET not in str(raised.value)
    assert "\n" not in str(raised.value)
    assert raised.value.__cause__ is None


# Keys in place of the names of their variables ---------------------------------------------------

KEYS = [
    "sk-proj-4f9aQ2xLk7Bv",  # OpenAI
    "hf_QwErTyUiOpAsDfGhJkLzXcVb",  # Hugging Face
    "gsk_abcDEF0123456789abcdef",
    "AIzaSyA1b2C3d4E5f6G7h8",
    "0f1e2d3c4b5a69788796a5b4c3d2e1f0",
    "9F1E2D3C4B5A69788796A5B4C3D2E1F0",
    "F19E2D3C4B5A69788796A5B4C3D2E1F0",
    "racer_Zm9vYmFyYmF6",
]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    "place", ["candidates", "evaluator", "data_key_env", "admin_key_env", "store_env"]
)
def test_a_key_in_place_of_a_variables_name_is_not_printed(
    racer: Command, tmp_path: Path, place: str, key: str
) -> None:
    """It is refused as what it is not: the name of a variable."""
    changes: dict[str, Any] = {
        "candidates": {"candidates": candidates(URL, adder={"api_key_env": key})},
        "evaluator": {
            "aggregation": {
                **EVALUATED,
                "evaluator": {"base_url": URL, "model": "m", "api_key_env": key},
            }
        },
        "store_env": {"store_env": key},
    }.get(place, {"access": {place: key}})
    shown = printed(racer, configure(tmp_path, ABSENT, URL, **changes))
    assert key not in shown
    assert "environment variable" in shown


def test_init_prints_no_key_in_place_of_a_name(racer: Command, tmp_path: Path) -> None:
    """The option takes a name, too."""
    for key in KEYS:
        code, out, err = racer("init", URL, "--key-env", key, "--out", tmp_path / "racer.yaml")
        assert code != 0
        assert key not in out + err


def test_names_of_variables_are_accepted() -> None:
    """As people write them; one that is not set is named, so that it can be set."""
    check = TypeAdapter(base.VariableName).validate_python
    for name in ("OPENAI_API_KEY", "KEY", "_KEY", "RACER_TEST_CANDIDATE_KEY", "KEY2", "A_1_B"):
        assert check(name) == name
    for name in ("", "lower_case", "A-B", "A B", "1KEY", "$KEY", "KÉY", "A" * 40, "A_" * 100):
        with pytest.raises(ValidationError):
            check(name)


def test_a_variable_that_is_not_set_is_named(racer: Command, tmp_path: Path) -> None:
    """The usual mistake, whose cure needs the name."""
    adder = {"api_key_env": "NOT_SET_ANYWHERE_KEY"}
    path = configure(tmp_path, ABSENT, URL, candidates=candidates(URL, adder=adder))
    assert "$NOT_SET_ANYWHERE_KEY is not set" in printed(racer, path)


# The store's files ------------------------------------------------------------------------------


def mode_of(path: Path) -> int:
    """The permissions of a file."""
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def open_umask() -> Iterator[None]:
    """A process whose files are open to everyone, unless it says otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
def test_the_store_of_a_gateway_is_its_owners_alone(serve: Serve) -> None:
    """Labels, decisions and the key of hashes are no one else's; red: 0666, or 0644 usually."""
    gateway = serve(calibrated=False)
    assert gateway.config is not None
    files = [*gateway.config.parent.glob("racer.db*")]
    assert [(each.name, mode_of(each)) for each in files] == [("racer.db", 0o600)]


@pytest.mark.usefixtures("open_umask")
@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("exists", [False, True])
def test_a_store_and_its_journal_are_made_private(tmp_path: Path, link: bool, exists: bool) -> None:
    """A new file, one that an earlier version made, and those beside it; behind a link, too."""
    file = tmp_path / "real.db"
    name = tmp_path / "racer.db"
    beside = [Path(f"{name}-wal"), Path(f"{name}-shm")]
    if exists:
        for each in (file if link else name, *beside):
            each.touch(0o666)
    if link:
        name.symlink_to(file)
    engine = open_engine(f"sqlite:///{name}")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (x)")
        connection.exec_driver_sql("INSERT INTO t VALUES (1)")
        journal = [each for each in tmp_path.glob("*-journal")]
        assert journal
        assert {mode_of(each) for each in journal} == {0o600}
    engine.dispose()
    assert {mode_of(each) for each in tmp_path.iterdir()} == {0o600}


def test_a_store_in_memory_makes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor one of an odd name."""
    monkeypatch.chdir(tmp_path)
    for url in ("sqlite://", "sqlite:///:memory:", "sqlite:///file::memory:?uri=true"):
        with open_engine(url).connect() as connection:
            connection.exec_driver_sql("CREATE TABLE t (x)")
    assert [*tmp_path.iterdir()] == []


def test_making_a_store_private_lets_no_lock_go(tmp_path: Path) -> None:
    """A descriptor of the file that is closed would end this process's locks on it (POSIX)."""
    url = f"sqlite:///{tmp_path / 'racer.db'}"
    with open_engine(url).begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (x)")
    holder = open_engine(url)
    with holder.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        with open_engine(url).connect() as other:  # of this process
            assert other.exec_driver_sql("SELECT count(*) FROM t").scalar() == 0
        probe = (
            "import sqlite3, sys\n"
            "try: sqlite3.connect(sys.argv[1], timeout=0).execute('BEGIN IMMEDIATE')\n"
            "except sqlite3.OperationalError as exc: print(exc)"
        )
        command = [sys.executable, "-c", probe, str(tmp_path / "racer.db")]
        found = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "locked" in found.stdout
