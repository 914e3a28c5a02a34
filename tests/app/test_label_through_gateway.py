"""``racer label --through-gateway``: the same rows, where only the gateway reaches the pool."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.gateway import (
    ADMIN_KEY,
    ENVIRONMENT,
    POOL,
    Command,
    Gateway,
    candidates,
    configure,
    running,
)
from tests.kit.upstream import FakePool

QUESTIONS = [
    {"query": "What is 20 plus 22?", "reference": "42"},
    {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"},
                  {"role": "user", "content": "6 times 7?"}], "reference": "42"},
    {"request": {"messages": [{"role": "system", "content": "Be brief."},
                              {"role": "user", "content": "1 plus 1?"}], "seed": 3},
     "reference": "2"},
]  # fmt: skip
PARAMETERS = {
    "adder": {"parameters": {"temperature": 0, "max_tokens": 5}},
    "speller": {"renames": {"seed": "random_seed"}, "model": "speller-2"},
    "poet": {"api_key_env": "KEY_OF_THE_POET"},
}


@pytest.fixture
def config(tmp_path: Path, pool: FakePool) -> Path:
    """Candidates with parameters, renames and a key of their own."""
    named = candidates(pool.url, **{name: dict(each) for name, each in PARAMETERS.items()})
    return configure(tmp_path, tmp_path / "artifact", "", candidates=named)


@pytest.fixture
def gateway(config: Path) -> Iterator[Gateway]:
    """It alone has the poet's key."""
    with running(config, {**ENVIRONMENT, "KEY_OF_THE_POET": "sk-of-the-poet-42"}) as gateway:
        yield gateway


def questions(folder: Path, given: list[dict[str, Any]] = QUESTIONS) -> Path:
    """Questions as JSON lines."""
    path = folder / "questions.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in given), encoding="utf-8")
    return path


def rows(path: Path) -> list[dict[str, Any]]:
    """Rows without the seconds of their calls."""
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for row in found:
        for call in row["calls"].values():
            call.pop("seconds")
    return found


def test_rows_and_what_candidates_are_sent_are_the_same(
    racer: Command,
    config: Path,
    gateway: Gateway,
    pool: FakePool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Red when a parameter, a rename or a key is lost on the way, or added twice."""
    given = questions(tmp_path)
    label = ["label", given, "--config", config, "--grade", "number"]
    through = ["--through-gateway", "--url", gateway.url, "--key", ADMIN_KEY]
    code, _, stderr = racer(*label, "--out", tmp_path / "through.jsonl", *through)
    assert code == 0, stderr
    sent = [list(zip(map(json.dumps, pool.requests), map(keys, pool.headers), strict=True))]
    pool.reset()
    monkeypatch.setenv("KEY_OF_THE_POET", "sk-of-the-poet-42")
    code, _, stderr = racer(*label, "--out", tmp_path / "direct.jsonl")
    assert code == 0, stderr
    sent.append(list(zip(map(json.dumps, pool.requests), map(keys, pool.headers), strict=True)))
    assert sorted(sent[0]) == sorted(sent[1])
    assert len(sent[0]) == len(QUESTIONS) * len(POOL)
    assert rows(tmp_path / "through.jsonl") == rows(tmp_path / "direct.jsonl")


def keys(headers: dict[str, str]) -> str | None:
    """The key that a candidate was sent."""
    return headers.get("authorization")


def test_a_judge_of_the_pool_is_asked_through_the_gateway(
    racer: Command, config: Path, gateway: Gateway, pool: FakePool, tmp_path: Path
) -> None:
    """A candidate that grades is reached as it answers."""
    pool.answer = lambda body: str(int("You grade" in body["messages"][-1]["content"]))
    try:
        code, out, stderr = racer(
            *("label", questions(tmp_path, [{"query": "Is it one?"}]), "--config", config),
            *("--out", tmp_path / "rows.jsonl", "--grade", "judge", "--judge", "adder", "--json"),
            *("--through-gateway", "--url", gateway.url, "--key", ADMIN_KEY),
        )
    finally:
        pool.answer = lambda _: "42"
    assert code == 0, stderr
    assert json.loads(out)["kinds"]["plain"]["right"] == dict.fromkeys(POOL, 1)


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"--url": "http://127.0.0.1:1"}, 3, "no gateway answers"),
        ({"--url": "nonsense"}, 2, "--url"),
        ({"--key": "another-key-of-the-tests"}, 1, "API key"),
    ],
)
def test_a_gateway_that_does_not_serve_them_is_refused_first(
    racer: Command, config: Path, gateway: Gateway, pool: FakePool, tmp_path: Path,
    change: dict[str, str], code: int, words: str,
) -> None:  # fmt: skip
    """Before any candidate is called, and with the cause."""
    options = {"--url": gateway.url, "--key": ADMIN_KEY} | change
    given = [word for pair in options.items() for word in pair]
    found = racer(
        *("label", questions(tmp_path), "--config", config, "--out", tmp_path / "rows.jsonl"),
        *("--grade", "number", "--through-gateway", *given),
    )
    assert found[:2] == (code, "")
    assert words in found[2]
    assert pool.requests == []


def test_references_of_another_file_are_those_of_the_questions(
    racer: Command, config: Path, gateway: Gateway, tmp_path: Path
) -> None:
    """`--reference` labels as if the questions had them, in any order; one that lacks is named."""
    bare = [{k: v for k, v in each.items() if k != "reference"} for each in QUESTIONS]
    given, references = questions(tmp_path, bare), tmp_path / "references.jsonl"
    references.write_text("".join(json.dumps(each) + "\n" for each in reversed(QUESTIONS)))
    label = [
        *("label", given, "--config", config, "--grade", "number", "--through-gateway"),
        *("--url", gateway.url, "--key", ADMIN_KEY, "--reference", references),
    ]
    code, _, stderr = racer(*label, "--out", tmp_path / "rows.jsonl")
    assert code == 0, stderr
    assert [row["reference"] for row in rows(tmp_path / "rows.jsonl")] == ["42", "42", "2"]
    references.write_text(json.dumps(QUESTIONS[0]) + "\n")
    code, _, stderr = racer(*label, "--out", tmp_path / "others.jsonl")
    assert code == 1
    assert "no reference for the question of line 2" in stderr


def test_stored_answers_exclude_it(racer: Command, config: Path) -> None:
    """Usage: exit code 2."""
    grade = ("--grade", "judge", "--through-gateway", "--from-shadow")
    found = racer("label", "--config", config, *grade)
    assert found[0] == 2
    assert "--through-gateway" in found[2]
