"""`racer init`: a configuration is written from the servers' model lists, or nothing is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from app import settings
from app.settings import schema
from app.tools import first_configuration
from tests.kit.gateway import Command
from tests.kit.monitored import KEY
from tests.kit.upstream import FakePool

UNREACHABLE = "http://127.0.0.1:1"
SECRET = "sk-of-the-servers-0a1b2c3d4e5f"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty folder, without the user's environment variables."""
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def written(racer: Command, *arguments: object) -> dict[str, Any]:
    """What was written: it loads, fits the schema beside it and names that, and says what it is."""
    code, out, stderr = racer("init", *arguments, "--json")
    assert (code, stderr) == (0, "")
    output = json.loads(out)
    path = Path(output["config"])
    configured, _ = settings.load(path)
    assert list(configured.pool) == output["candidates"]
    text = path.read_text(encoding="utf-8")
    named = text.splitlines()[0].removeprefix(schema.modeline(""))
    values = yaml.safe_load(text)
    fits = json.loads((path.parent / named).read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(fits).validate(values)
    assert "racer doctor" in text
    return values


def files() -> dict[Path, bytes]:
    """What is here, with what is in it."""
    return {path: path.read_bytes() for path in Path.cwd().rglob("*") if path.is_file()}


def fails_and_writes_nothing(racer: Command, code: int, *arguments: object) -> str:
    """One sentence, and nothing is written."""
    before = files()
    found, out, stderr = racer("init", *arguments)
    assert (found, out) == (code, "")
    assert stderr.startswith("racer: ")
    assert stderr.count("\n") == 1
    assert "Traceback" not in stderr
    assert files() == before
    return stderr


def test_every_model_is_a_candidate(racer: Command) -> None:
    """Of all servers, in order; ``/v1`` is added; a model at two servers has two replicas."""
    with (
        FakePool(models=["qwen", "org/llama-3:8b"]) as one,
        FakePool(models=["org/llama-3:8b"]) as two,
    ):
        values = written(racer, one.url.removesuffix("/v1"), two.url)
    decoding = {"temperature": 0, "max_tokens": 512}
    assert values["candidates"] == [
        {"name": "qwen", "base_url": one.url, "parameters": decoding},
        {"name": "org/llama-3:8b", "base_urls": [one.url, two.url], "parameters": decoding},
    ]
    assert one.seen == two.seen == ["GET /v1/models"]


def test_the_gateway_starts_with_it(racer: Command) -> None:
    """As far as `racer validate` goes, which opens what a start opens."""
    with FakePool(models=["qwen"]) as server:
        values = written(racer, server.url, "--out", "deep/er/gateway.yaml", "--port", 8123)
    assert values["port"] == 8123
    assert racer("validate", "--config", "deep/er/gateway.yaml")[0] == 0


def test_its_commented_lines_sample_live_traffic(racer: Command) -> None:
    """Red when the lines are no valid settings."""
    with FakePool(models=["qwen"]) as server:
        written(racer, server.url)
    path = Path("racer.yaml")
    text = path.read_text()
    commented = text[text.index("# applications:") : text.index("aggregation:")]
    path.write_text(text.replace(commented, re.sub("(?m)^# ", "", commented)))
    read, _ = settings.load(path, {"RACER_SAMPLES_KEY": KEY})
    assert read.drawn_applications == ("bot",)
    assert read.samples_traffic
    assert read.watching.store_requests


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("/srv/models/qwen-7b/", "qwen-7b"),
        ("my model: v1 # best", "my-model:-v1-best"),
        ("auto", "model-auto"),
        ("auto/fast", "model-auto/fast"),
        ("true", "true"),
        ("1e3", "1e3"),
        ("größe", "gr-e"),
        ("-", "model"),
        ("x\n  - name: y", "x---name:-y"),
        ("long" * 50, ("long" * 50)[:128]),
    ],
)
def test_a_name_that_does_not_fit_is_made_to(racer: Command, model: str, name: str) -> None:
    """And ``model`` keeps what the server calls it. Red when YAML reads it as something else."""
    with FakePool(models=[model]) as server:
        (candidate,) = written(racer, server.url)["candidates"]
    assert candidate["name"] == name
    assert candidate.get("model", candidate["name"]) == model


def test_the_key_stays_in_the_environment(racer: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is sent, and its variable is named. Red when a byte of it reaches the disk."""
    monkeypatch.setenv("FLEET_KEY", SECRET)
    with FakePool(models=["qwen"], key=SECRET) as server:
        values = written(racer, server.url, "--key-env", "FLEET_KEY")
        assert "--key-env" in fails_and_writes_nothing(racer, 2, server.url, "--out", "other.yaml")
    assert values["candidates"][0]["api_key_env"] == "FLEET_KEY"
    assert SECRET not in "".join(path.read_text() for path in Path.cwd().iterdir())


def test_the_usual_variables_are_enough(racer: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the ``openai`` client, where no URL is given."""
    assert "$OPENAI_BASE_URL" in fails_and_writes_nothing(racer, 2)
    with FakePool(models=["gpt"], key=SECRET) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", SECRET)
        values = written(racer)
        assert "refuses the key" in fails_and_writes_nothing(
            racer, 2, server.url, "--out", "other.yaml"
        )
    assert values["candidates"][0]["api_key_env"] == "OPENAI_API_KEY"
    assert values["candidates"][0]["base_url"] == server.url


@pytest.mark.parametrize(
    ("environment", "given", "url", "key_env"),
    [
        ({"OPENAI_API_KEY": "k"}, [], "https://api.openai.com/v1", "OPENAI_API_KEY"),
        ({"OPENAI_BASE_URL": "http://a"}, [], "http://a/v1", None),
        ({"OPENAI_BASE_URL": "http://a", "OPENAI_API_KEY": ""}, [], "http://a/v1", None),
        ({"OPENAI_BASE_URL": "http://b", "OPENAI_API_KEY": "k"}, ["http://a"], "http://a/v1", None),
    ],
)
def test_a_key_is_sent_only_to_its_own_endpoint(
    environment: dict[str, str], given: list[str], url: str, key_env: str | None
) -> None:
    """A key alone is OpenAI's, as the client itself has it; a URL argument gets none."""
    plan = first_configuration.InitOptions.of(
        given, path=Path("racer.yaml"), port=0, key_env=None, environment=environment
    )
    assert (plan.urls, plan.key_env) == ((url,), key_env)


def test_an_unreachable_server_is_named_and_written_only_on_request(racer: Command) -> None:
    """Exit code 3, because a pool without one of its candidates is another pool."""
    with FakePool(models=["qwen"]) as server:
        stderr = fails_and_writes_nothing(racer, 3, server.url, UNREACHABLE)
        assert f"{UNREACHABLE}/v1 cannot be reached" in stderr
        assert "--keep-unreachable" in stderr
        assert server.url not in stderr
        values = written(racer, server.url, UNREACHABLE, "--keep-unreachable")
    assert [each["name"] for each in values["candidates"]] == ["qwen", "127.0.0.1-1"]
    assert f"# {UNREACHABLE}/v1 cannot be reached" in Path("racer.yaml").read_text()


@pytest.mark.parametrize("there", ["racer.yaml", "racer.schema.json"])
def test_nothing_is_replaced_without_force(racer: Command, there: str) -> None:
    """Neither file, and the error comes before any call."""
    Path(there).write_text("mine")
    with FakePool(models=["qwen"]) as server:
        assert "--force" in fails_and_writes_nothing(racer, 2, server.url)
        assert server.seen == []
        written(racer, server.url, "--force")
    assert Path(there).read_text() != "mine"


@pytest.mark.parametrize("folder", [".", "/", "inner"])
@pytest.mark.parametrize("force", [(), ("--force",)], ids=["", "force"])
def test_an_output_path_that_is_a_folder_is_refused(
    racer: Command, folder: str, force: tuple[str, ...]
) -> None:
    """Nothing is left in or beside it. Red when it is found out while the files are written."""
    Path("inner").mkdir()
    with FakePool(models=["qwen"]) as server:
        stderr = fails_and_writes_nothing(racer, 2, server.url, "--out", folder, *force)
    assert "is a folder: name a file in it with --out" in stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"models_status": 500}, "answers 500"),
        ({"models_body": b"<html>"}, "no list of models"),
        ({"models_body": b'{"data": 7}'}, "no list of models"),
        ({"models_body": b'{"data": [{"id": 7}]}'}, "no list of models"),
        ({"models_body": b'{"object": "list"}'}, "no list of models"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_response_that_is_no_model_list_is_reported(
    racer: Command, change: dict[str, Any], words: str
) -> None:
    """Handled like an unreachable server."""
    with FakePool(**change) as server:
        assert words in fails_and_writes_nothing(racer, 3, server.url)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nonsense", "http://host:8000/v1"),
        ("ftp://x", "http://host:8000/v1"),
        ("http://", "http://host:8000/v1"),
        ("http://x:99999", "http://host:8000/v1"),
        ("http://me:hunter2@127.0.0.1:1/v1", "password"),
    ],
)
def test_a_url_that_cannot_stand_in_the_file_is_refused(
    racer: Command, url: str, words: str
) -> None:
    """With the shape of one, and without repeating a password."""
    stderr = fails_and_writes_nothing(racer, 2, url)
    assert words in stderr
    assert "hunter2" not in stderr


def test_models_of_one_name_and_a_repeated_url(racer: Command) -> None:
    """Names differ, a server is asked once, and a second file may lie beside the first."""
    with FakePool() as server:
        assert "no model is served" in fails_and_writes_nothing(racer, 2, server.url)
    with FakePool(models=["/a/qwen", "/b/qwen"]) as server:
        values = written(racer, server.url, f"{server.url}/")
        assert server.seen == ["GET /v1/models"]
        assert [each["name"] for each in values["candidates"]] == ["qwen", "qwen-2"]
        code, out, _ = racer("init", server.url, "--out", "second.yaml")
    assert code == 0
    assert out.splitlines()[-1] == "next: racer doctor --config second.yaml"
