"""``racer bootstrap`` with chat models: the rule that it chooses, and labels that it doubts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.errors import GatewayRefused
from app.tools.bootstrap.labels import Grading, grading_of, review
from app.tools.bootstrap.run import vote_alike
from racer_core.records.questions import Question
from racer_core.types import LabelledRow
from tests.kit import chat_models
from tests.kit.chat_models import NAMES
from tests.kit.gateway import ADMIN_KEY, ENVIRONMENT, Command, Gateway, running
from tests.kit.upstream import FakePool

COUNT = 120
COMMENT = "# by hand"
Bootstrap = Callable[..., tuple[int, str, str]]


@pytest.fixture
def pool() -> Iterator[FakePool]:
    """Three chat models behind one server."""
    with FakePool(models=list(NAMES), answer=chat_models.reply) as pool:
        yield pool


@pytest.fixture
def config(tmp_path: Path, pool: FakePool) -> Path:
    """A configuration as `racer init` writes it."""
    named = [{"name": name, "base_url": pool.url} for name in NAMES]
    values = {"schema_version": 1, "artifact": "artifact", "store": "sqlite:///racer.db", "port": 0}
    text = yaml.safe_dump({**values, "candidates": named})
    path = tmp_path / "racer.yaml"
    path.write_text(f"{text}aggregation:\n  equality: exact  {COMMENT}\n", encoding="utf-8")
    return path


@pytest.fixture
def gateway(config: Path) -> Iterator[Gateway]:
    """It waits for an artifact."""
    with running(config, ENVIRONMENT) as gateway:
        yield gateway


@pytest.fixture
def bootstrap(racer: Command, config: Path, gateway: Gateway, tmp_path: Path) -> Bootstrap:
    """``racer bootstrap`` on some questions of a family; further words as given."""

    def run(family: str, *more: object) -> tuple[int, str, str]:
        queries = chat_models.write(
            chat_models.questions(family, COUNT), tmp_path / "questions.jsonl"
        )
        return racer(
            *("bootstrap", "--config", config, "--queries", queries, "--out", tmp_path / "work"),
            *("--url", gateway.url, "--key", ADMIN_KEY, "--encoder", "char-ngrams", *more),
        )

    return run


def equality(config: Path) -> str:
    """What the configuration says."""
    return yaml.safe_load(config.read_text(encoding="utf-8"))["aggregation"]["equality"]


def test_answers_vote_as_they_are_graded(
    bootstrap: Bootstrap, gateway: Gateway, config: Path, tmp_path: Path
) -> None:
    """By numbers: from whole sentences to a certificate, with what it gains at the end."""
    code, out, stderr = bootstrap("numbers")
    assert code == 0, stderr
    assert f"plan: answers are graded by: number, all {COUNT} references are numbers" in stderr
    assert "number (chosen)" in stderr
    assert "text " in stderr
    assert "samples" in stderr
    assert equality(config) == "number"
    assert COMMENT in config.read_text(encoding="utf-8")
    assert "and the gateway has taken it over" in stderr
    for words in (
        "what you gain",
        "alone, the best model",
        "the router's first choice",
        "the set at alpha 0.1, by majority vote",
        "same_answer at alpha 0.02, one by one",
        "all 3, by majority vote",
        "answerable at alpha 0.1",
        "advice",
        "report.txt",
    ):
        assert words in out, words
    question = chat_models.questions("numbers", COUNT + 1)[-1]
    racer = gateway.chat(question.query)["racer"]
    assert racer["certificate"]["holds"], racer["certificate"]
    before = len(out)
    report = (tmp_path / "work" / "report.txt").read_text(encoding="utf-8")
    assert "right, of 120" in report
    assert before < len(report)


def test_stored_answers_are_graded_anew_by_the_cure(
    bootstrap: Bootstrap, config: Path, pool: FakePool, tmp_path: Path
) -> None:
    """Objects by `exact` stop the first step; by `json` it goes on, and no model is called."""
    code, _, stderr = bootstrap("json", "--grade", "exact")
    assert code == 1
    last = stderr.splitlines()[-1]
    assert "run the same command with --grade json, which grades the stored answers anew" in last
    assert "[2/6]" not in stderr
    assert equality(config) == "exact"
    asked = len(pool.requests)
    assert asked == COUNT * len(NAMES)
    code, _, stderr = bootstrap("json")
    assert code == 0, stderr
    assert len(pool.requests) == asked
    assert equality(config) == "json"
    with (tmp_path / "work" / "rows.jsonl").open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    assert len(rows) == COUNT
    for row in rows:
        truth = {name: chat_models.is_right(name, row["query"]) for name in NAMES}
        assert row["correct"] == truth


def test_labels_that_are_all_wrong_are_used_by_nobody() -> None:
    """Neither another rule nor a flag helps: the references belong to other questions."""
    asked = chat_models.questions("names", COUNT)
    questions = [
        Question(place=number, query=each.query, reference=f"Nobody {number}")
        for number, each in enumerate(asked)
    ]
    rows = [
        LabelledRow(
            query=each.query,
            correct=frozenset(),
            answers={name: chat_models.answer(name, each.query) for name in NAMES},
            reference=each.reference,
        )
        for each in questions
    ]
    found = review(rows, NAMES, grading_of(questions, None, None, 9))
    assert found.is_hopeless
    assert found.doubt is not None
    assert "by `text` no answer of any candidate is right" in found.doubt
    assert "mend those in the file and run the same command again" in found.doubt
    assert {each.is_right for each in found.samples} == {False}


@pytest.mark.parametrize("kind", ["page", "judge"])
def test_labels_of_people_and_judges_are_shown_without_a_rule(kind: str) -> None:
    """No text is compared: both read the whole answers. No other rule doubts them."""
    asked = chat_models.questions("names", COUNT)
    questions = [
        Question(place=number, query=each.query, reference=each.reference)
        for number, each in enumerate(asked)
    ]
    rows = [
        LabelledRow(
            query=each.query,
            correct=frozenset(n for n in NAMES if chat_models.is_right(n, each.query)),
            answers={name: chat_models.answer(name, each.query) for name in NAMES},
            reference=each.reference,
        )
        for each in questions
    ]
    found = review(rows, NAMES, grading_of(questions, kind, None, 9))
    assert (found.doubt, {each.read for each in found.samples}) == (None, {""})


def test_labels_by_exact_texts_are_doubted(bootstrap: Bootstrap, config: Path) -> None:
    """Another rule finds clearly more; whoever has checked the labels goes on."""
    code, _, stderr = bootstrap("numbers", "--grade", "exact")
    assert code == 1
    assert "more of the answers are right than by `exact`" in stderr.splitlines()[-1]
    assert "--accept-labels" in stderr.splitlines()[-1]
    code, _, stderr = bootstrap("numbers", "--grade", "exact", "--accept-labels")
    assert "labels are accepted although they are doubted" in stderr
    assert equality(config) == "exact"
    assert "[2/6]" in stderr


def test_a_judge_that_contradicts_itself_is_doubted(bootstrap: Bootstrap) -> None:
    """Two models say the same number, and it calls one right and one wrong."""

    def verdict(body: dict[str, Any]) -> str:
        return "1" if "**" in body["messages"][0]["content"] else "0"

    with FakePool(answer=verdict) as judge:
        code, _, stderr = bootstrap(
            "numbers", "--judge", judge.url, "--judge-model", "j", "--judge-calls", 1_000
        )
    assert code == 1
    assert "grades, in at most 360 calls (equal answers once)" in stderr
    last = stderr.splitlines()[-1]
    assert "pairs of answers that say the same" in last
    assert "give another --judge" in last


def test_longer_references_ask_for_a_judge(
    racer: Command, config: Path, gateway: Gateway, pool: FakePool, tmp_path: Path
) -> None:
    """Before any model is called, with the most calls that it takes."""
    lines = [{"query": f"Why {n}?", "reference": f"Because of {n}, " * 12} for n in range(30)]
    queries = tmp_path / "questions.jsonl"
    queries.write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
    code, _, stderr = racer(
        *("bootstrap", "--config", config, "--queries", queries, "--url", gateway.url),
        *("--key", ADMIN_KEY, "--out", tmp_path / "work"),
    )
    assert code == 1
    assert "all 30 references are longer texts" in stderr
    assert "called at most 90 times; --judge-calls and --judge-cost cap it" in stderr
    assert pool.requests == []


def test_a_grade_that_no_reference_can_have_is_refused(
    bootstrap: Bootstrap, pool: FakePool
) -> None:
    """In one line with the cure, before a model is called."""
    code, _, stderr = bootstrap("json", "--grade", "choice")
    assert code == 1
    assert f"--grade choice cannot read {COUNT} of {COUNT} references" in stderr
    assert "leave --grade out or give --grade json" in stderr
    assert pool.requests == []


class _Refusing:
    """A gateway that reads its configuration at its start alone."""

    def reload(self) -> list[str]:
        raise GatewayRefused("restart it")


def test_a_configuration_that_is_not_taken_over_stays_as_it_was(config: Path) -> None:
    """What is left to do says which setting, and that a restart is needed."""
    before = config.read_text(encoding="utf-8")
    grading = Grading(kind="number", choice=None, is_given=True)
    said: list[str] = []
    gateway: Any = _Refusing()
    left = vote_alike(config, grading, gateway, said.append)
    assert config.read_text(encoding="utf-8") == before
    assert said == ["restart it"]
    assert "set `aggregation.equality: number`" in left[0]
    assert vote_alike(config, replace(grading, kind="exact"), gateway, said.append) == []
