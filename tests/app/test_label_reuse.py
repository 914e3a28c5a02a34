"""``racer label`` on rows that carry answers: only new and changed candidates are called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kit.gateway import POOL, Command, candidates, configure
from tests.kit.upstream import FakePool

QUESTIONS = [
    {"query": f"What is {n} plus {n}?", "reference": str(2 * n), "cluster": "sums"}
    for n in range(2, 8)
]


class Labelling:
    """Runs the command in a folder, with other candidates each time."""

    def __init__(self, racer: Command, pool: FakePool, folder: Path) -> None:
        self.racer, self.pool, self.folder = racer, pool, folder

    def __call__(
        self, rows: list[dict[str, Any]], name: str, *, grade: Any = ("number",), **changes: Any
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Label rows by these candidates; returns the report and the new rows."""
        chosen = changes.pop("chosen", POOL)
        named = [each for each in candidates(self.pool.url, **changes) if each["name"] in chosen]
        config = configure(self.folder, self.folder / "none", "", candidates=named)
        source, out = self.folder / f"{name}-in.jsonl", self.folder / f"{name}.jsonl"
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.pool.requests.clear()
        code, printed, err = self.racer(
            "label", source, "--config", config, "--out", out, "--json", "--grade", *grade
        )
        assert code == 0, err
        return json.loads(printed), [json.loads(line) for line in out.read_text().splitlines()]


@pytest.fixture
def labelling(racer: Command, pool: FakePool, tmp_path: Path) -> Labelling:
    """Candidates of which the adder is right on the first question."""
    pool.say("adder", "It is 4.")
    pool.say("speller", "four")
    pool.say("poet", "Perhaps 5?")
    return Labelling(racer, pool, tmp_path)


def test_a_new_candidate_alone_is_called(labelling: Labelling, pool: FakePool) -> None:
    """Its column is filled; answers, labels and calls of the others are those of the rows."""
    _, old = labelling(QUESTIONS, "old", chosen=("adder", "speller"))
    report, new = labelling([row | {"weight": 50} for row in old], "new")
    assert set(pool.models_called()) == {"poet"}
    assert (report["calls"], report["reused"]) == (len(QUESTIONS), 2 * len(QUESTIONS))
    for before, after in zip(old, new, strict=True):
        assert after["correct"] == {**before["correct"], "poet": False}
        assert after["answers"] == {**before["answers"], "poet": "Perhaps 5?"}
        assert after["weight"] == 50
        for name in ("adder", "speller"):
            assert after["calls"][name] == before["calls"][name]
            assert after["conditions"][name] == before["conditions"][name]


@pytest.mark.parametrize(
    "changes",
    [{"adder": {"model": "adder-2"}}, {"adder": {"parameters": {"temperature": 1}}}],
    ids=["model", "parameter"],
)
def test_a_changed_candidate_is_called_again(
    labelling: Labelling, pool: FakePool, changes: dict[str, Any]
) -> None:
    """What it was sent differs, so its answers are not those of what is served now."""
    _, old = labelling(QUESTIONS, "old")
    pool.say("adder-2", "It is 4.")
    labelling(old, "new", **changes)
    assert len(pool.models_called()) == len(QUESTIONS)
    assert set(pool.models_called()) <= {"adder", "adder-2"}


def test_answers_without_digests_are_not_reused(labelling: Labelling, pool: FakePool) -> None:
    """Nothing says what gave them; a label without an answer says less still."""
    _, old = labelling(QUESTIONS, "old")
    bare = [{name: row[name] for name in row if name != "conditions"} for row in old]
    labelling(bare, "new")
    assert len(pool.models_called()) == len(QUESTIONS) * len(POOL)


def test_a_judge_is_not_asked_again(labelling: Labelling, pool: FakePool) -> None:
    """Verdicts on reused answers are those of the rows, of people or of a judge."""
    _, old = labelling(QUESTIONS, "old", chosen=("adder", "speller"))
    for row in old:
        del row["reference"]
        row["correct"] = {"adder": False, "speller": True}
    pool.say("poet", "1")
    _, new = labelling(old, "new", grade=("judge", "--judge", "poet"))
    assert len(pool.models_called()) == 2 * len(QUESTIONS)  # an answer and a verdict for each
    assert [row["correct"] for row in new] == [{"adder": False, "speller": True, "poet": True}] * 6


def test_an_unlabelled_row_brings_its_answers_alone(labelling: Labelling, pool: FakePool) -> None:
    """Rows of a sample that wait for a label: nothing is known of whether they are right."""
    _, old = labelling(QUESTIONS, "old", chosen=("adder", "speller"))
    for row in old:
        del row["correct"]
        row["unlabelled"] = True
    _, new = labelling(old, "new")
    assert set(pool.models_called()) == {"poet"}
    assert new[0]["correct"] == {"adder": True, "speller": False, "poet": False}
