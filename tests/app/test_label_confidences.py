"""``racer label --evaluator``: the confidences in every answer, as serving asks for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from racer_core.records.reader import read_rows
from tests.kit.gateway import POOL, Command, Serve, candidates, configure
from tests.kit.upstream import FakePool, proposed
from tests.kit.waiting import wait_while_running

QUESTIONS = [{"query": f"What is {n} plus {n}?", "reference": "4"} for n in (2, 3, 4)]
KNOWS = {"4": 0.9, "5": 0.25}
Label = Callable[..., tuple[int, str, str]]


@pytest.fixture
def config(tmp_path: Path, pool: FakePool) -> Path:
    """Three candidates; the adder is right."""
    for name, answer in zip(POOL, ("4", "5", "4"), strict=True):
        pool.say(name, answer)
    return configure(tmp_path, tmp_path / "no-artifact-yet", "", candidates=candidates(pool.url))


@pytest.fixture
def label(racer: Command, config: Path, tmp_path: Path) -> Label:
    """``racer label`` into ``rows.jsonl``."""
    questions = tmp_path / "q.jsonl"
    questions.write_text("".join(json.dumps(each) + "\n" for each in QUESTIONS))

    def run(*options: object, config: Path = config) -> tuple[int, str, str]:
        named = ("--config", config, "--out", tmp_path / "rows.jsonl", "--grade", "number")
        return racer("label", questions, "--json", *named, *options)

    return run


def rows(tmp_path: Path) -> list[dict[str, Any]]:
    """What was written, which must be readable as rows."""
    out = tmp_path / "rows.jsonl"
    lines = out.read_text().splitlines()
    if lines:
        read_rows(out, POOL)
    return [json.loads(line) for line in lines]


def test_both_confidences_of_every_answer_are_recorded(
    label: Label, pool: FakePool, tmp_path: Path
) -> None:
    """One call for each distinct text of a question: its token and its logprobs."""
    pool.rate("poet", KNOWS)
    code, printed, stderr = label("--evaluator", "poet")
    assert code == 0, stderr
    p_true = {
        "adder": pytest.approx(0.9),
        "speller": pytest.approx(0.25),
        "poet": pytest.approx(0.9),
    }
    verbal = {"adder": 1.0, "speller": 0.0, "poet": 1.0}
    for row in rows(tmp_path):
        assert row["confidences"] == {"poet": {"verbal": verbal, "p_true": p_true}}
    result = json.loads(printed)
    assert (result["calls"], result["evaluator_calls"], result["failed_ratings"]) == (9, 6, 0)
    assert "9 calls to candidates and at most 9 calls to evaluators are left" in stderr
    questions = Counter(body["prompt"].splitlines()[0] for body in pool.rated)
    assert [questions[f"Question: {each['query']}"] for each in QUESTIONS] == [2, 2, 2]


def test_the_evaluator_is_asked_as_when_serving(
    label: Label, serve: Serve, pool: FakePool, tmp_path: Path
) -> None:
    """The bodies that a gateway sends for a vote by P(True) are those that `label` sends."""
    pool.rate("poet", KNOWS)
    label("--evaluator", "poet", "--confidence", "p_true")
    recorded = of_questions(pool)
    rule = {"method": "weighted", "weight": "p_true", "evaluator": {"candidate": "poet"}}
    gateway = serve(aggregation=rule)
    pool.rated.clear()
    whole_pool = {"alpha": 0.0001, "explain": True}
    answers = [gateway.chat(each["query"], whole_pool)["racer"] for each in QUESTIONS]
    assert of_questions(pool) == recorded != []
    weights = [answer["weights"] for answer in answers]
    assert [row["confidences"]["poet"]["p_true"] for row in rows(tmp_path)] == weights


def of_questions(pool: FakePool) -> list[str]:
    """What the evaluator was sent, without the trials at the start."""
    trials = ("What is 1 plus 1?", "What is one plus one?")
    bodies = (body for body in pool.rated if not any(each in body["prompt"] for each in trials))
    return sorted(json.dumps(body) for body in bodies)


@pytest.mark.parametrize(
    ("behaviour", "failed", "verbal", "p_true"),
    [
        ({"fault": "503", "only": "5"}, 6, None, None),
        ({"fault": "not_openai", "only": "5"}, 6, None, None),
        ({"delay_s": 30, "only": "5"}, 6, None, None),
        ({"spelling": "perhaps {}"}, 6, None, 0.0),
        ({"spelling": "{}) surely"}, 0, 0.0, 0.25),
    ],
    ids=["refusal", "garbage", "timeout", "words", "spelling"],
)
def test_a_failed_rating_is_null_and_counted(
    label: Label,
    pool: FakePool,
    tmp_path: Path,
    behaviour: dict[str, Any],
    failed: int,
    verbal: float | None,
    p_true: float | None,
) -> None:
    """Of the wrong answer "5"; the label stands, and the other answers keep their ratings."""
    pool.rate("judge", KNOWS, **behaviour)
    rule = {"method": "weighted", "weight": "p_true"}
    own = {"base_url": pool.url, "model": "judge", "timeout_s": 2.0}
    artifact = tmp_path / "no-artifact-yet"
    rated = configure(tmp_path / "c", artifact, pool.url, aggregation=rule | {"evaluator": own})
    code, printed, stderr = label("--confidence", "verbal", "--confidence", "p_true", config=rated)
    assert code == 0, stderr
    for row in rows(tmp_path):
        confidences = row["confidences"]["judge"]
        assert confidences["verbal"]["speller"] == verbal
        assert confidences["p_true"]["speller"] == (p_true and pytest.approx(p_true))
        assert row["correct"] == {"adder": True, "speller": False, "poet": True}
        if "only" in behaviour:
            assert confidences["p_true"]["adder"] == pytest.approx(0.9)
    assert json.loads(printed)["failed_ratings"] == failed
    assert (f"{failed} ratings failed and are null" in stderr) == (failed > 0)


# Going on ---------------------------------------------------------------------------------------


def test_rows_of_an_earlier_run_are_rated_without_calling_candidates(
    label: Label, pool: FakePool, tmp_path: Path
) -> None:
    """First no evaluator, then one, then a second: each run makes only the calls that are new."""
    label()
    before = rows(tmp_path)
    assert not any("confidences" in row for row in before)
    for names in (["poet"], ["poet", "adder"]):
        pool.requests.clear()
        pool.rated.clear()
        code, printed, stderr = label(*(part for name in names for part in ("--evaluator", name)))
        assert code == 0, stderr
        result = json.loads(printed)
        assert (result["calls"], result["evaluator_calls"], pool.requests) == (0, 6, [])
        assert "0 calls to candidates and at most 6 calls to evaluators are left" in stderr
        assert len(of_questions(pool)) == 6
        after = rows(tmp_path)
        assert [list(row.pop("confidences")) for row in after] == [names] * 3
        assert after == before
    assert json.loads(label("--evaluator", "adder")[1])["evaluator_calls"] == 0


def test_the_second_kind_is_added_to_the_first(
    label: Label, pool: FakePool, tmp_path: Path
) -> None:
    """A row is finished where it has both."""
    pool.rate("poet", KNOWS)
    label("--evaluator", "poet", "--confidence", "verbal")
    assert all("logprobs" not in body for body in pool.rated)
    assert [list(row["confidences"]["poet"]) for row in rows(tmp_path)] == [["verbal"]] * 3
    assert label("--evaluator", "poet")[0] == 0
    assert {frozenset(row["confidences"]["poet"]) for row in rows(tmp_path)} == {
        frozenset({"verbal", "p_true"})
    }


@pytest.mark.parametrize("labelled", [False, True], ids=["new", "rows"])
def test_a_kill_loses_no_rating(
    label: Label, config: Path, pool: FakePool, tmp_path: Path, labelled: bool
) -> None:
    """``kill -9`` amid the ratings, of new questions and of finished rows."""
    if labelled:
        label()
    pool.rate("poet", KNOWS)
    pool.rate("adder", KNOWS, delay_s=60, only="5")
    command = [
        sys.executable, "-m", "app", "label", tmp_path / "q.jsonl", "--config", config,
        "--out", tmp_path / "rows.jsonl", "--grade", "number", "--concurrency", "3",
        "--evaluator", "poet", "--evaluator", "adder",
    ]  # fmt: skip
    partial = tmp_path / "rows.jsonl.partial"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RACER_")}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
        wait_while_running(
            lambda: partial.exists() and partial.read_text().count('"rated"') == 6, process
        )
        process.kill()
    assert [row.get("confidences") for row in rows(tmp_path)] == [None] * 3 * labelled
    pool.rate("adder", KNOWS)
    pool.rated.clear()
    pool.requests.clear()
    code, printed, stderr = label("--evaluator", "poet", "--evaluator", "adder")
    assert code == 0, stderr
    assert {json.loads(body)["model"] for body in of_questions(pool)} == {"adder"}
    result = json.loads(printed)
    assert (result["calls"], result["evaluator_calls"]) == (0, 6)
    assert all(set(row["confidences"]) == {"poet", "adder"} for row in rows(tmp_path))
    assert len(rows(tmp_path)) == 3


# Refusals ---------------------------------------------------------------------------------------


def test_an_evaluator_that_breaks_is_given_up_and_its_questions_wait(
    racer: Command, config: Path, pool: FakePool, tmp_path: Path
) -> None:
    """After twenty failed calls in a row no more rows are written with nulls."""
    many = [{"query": f"What is {n} plus 0?", "reference": "4"} for n in range(2, 24)]
    questions = tmp_path / "many.jsonl"
    questions.write_text("".join(json.dumps(each) + "\n" for each in many))
    for name in POOL:
        pool.say(name, "4")
    command = (
        "label", questions, "--config", config, "--out", tmp_path / "rows.jsonl",
        "--grade", "number", "--concurrency", "1", "--evaluator", "poet",
    )  # fmt: skip
    pool.rate("poet", KNOWS, fault="400", only="4")
    code, _, stderr = racer(*command)
    assert code == 1
    assert "2 of 22 questions are not labelled" in stderr
    assert "the evaluator poet was given up after 20 failures in a row" in stderr
    assert len(rows(tmp_path)) == 20
    pool.rate("poet", KNOWS)
    pool.requests.clear()
    assert racer(*command)[0] == 0
    assert pool.requests == []
    assert len(of_questions(pool)) == 22


@pytest.mark.parametrize(
    ("behaviour", "options", "code", "words"),
    [
        ({"logprobs": False}, ["poet"], 2, "answered without logprobs"),
        ({"fault": "404"}, ["poet"], 2, "check"),
        ({"fault": "503"}, ["poet"], 3, "start its server, or label without it"),
        ({}, ["nobody"], 2, "--evaluator nobody: no candidate (adder, speller, poet)"),
    ],
)
def test_an_evaluator_that_cannot_rate_stops_the_run_before_a_candidate_is_paid_for(
    label: Label,
    pool: FakePool,
    tmp_path: Path,
    behaviour: dict[str, Any],
    options: list[str],
    code: int,
    words: str,
) -> None:
    """One sentence; no row is written."""
    pool.rate("poet", KNOWS, **behaviour)
    result = label(*(part for name in options for part in ("--evaluator", name)))
    assert (result[0], result[1], pool.requests) == (code, "", [])
    assert words in result[2]


def test_confidences_of_another_model_are_not_mixed(
    label: Label, pool: FakePool, tmp_path: Path
) -> None:
    """The same name with a shorter prompt: another rating."""
    label("--evaluator", "poet")
    pool.rated.clear()
    rule = {"method": "weighted", "weight": "p_true"}
    evaluator = {"candidate": "poet", "prompt_chars": 512}
    other = configure(
        tmp_path / "c", tmp_path / "none", pool.url, aggregation=rule | {"evaluator": evaluator}
    )
    code, _, stderr = label("--confidence", "p_true", config=other)
    assert (code, pool.rated) == (1, [])
    assert "has confidences of 'poet' as another model, or with another prompt_chars" in stderr


def test_a_group_has_the_evaluator_of_its_own(
    racer: Command, pool: FakePool, tmp_path: Path
) -> None:
    """As when serving: the rows of `math` are rated by the abacist alone."""
    pool.say("adder", "5")
    rule = {
        "method": "weighted",
        "weight": "verbal",
        "evaluator": {"candidate": "poet"},
        "evaluators": {"math": {"base_url": pool.url, "model": "abacist"}},
    }
    config = configure(tmp_path, tmp_path / "none", pool.url, aggregation=rule)
    questions = tmp_path / "q.jsonl"
    grouped = [QUESTIONS[0] | {"group": "math"}, QUESTIONS[1] | {"group": "law"}, QUESTIONS[2]]
    questions.write_text("".join(json.dumps(each) + "\n" for each in grouped))
    code, _, stderr = racer(
        "label", questions, "--config", config, "--out", tmp_path / "rows.jsonl",
        "--grade", "number", "--confidence", "verbal",
    )  # fmt: skip
    assert code == 0, stderr
    evaluators = [list(row["confidences"]) for row in rows(tmp_path)]
    assert evaluators == [["abacist"], ["poet"], ["poet"]]


def test_an_answer_without_a_text_has_no_confidence(
    label: Label, pool: FakePool, tmp_path: Path
) -> None:
    """It cannot win a vote, so it is not sent."""
    pool.say("speller", "", message={"role": "assistant", "content": None, "refusal": "No."})
    assert label("--evaluator", "poet")[0] == 0
    assert all(
        set(each["confidences"]["poet"]["verbal"]) == {"adder", "poet"} for each in rows(tmp_path)
    )
    assert {proposed(body) for body in pool.rated} == {"2", "4"}
