"""``racer plan``: what a number of questions gives, in words and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kit.gateway import Command


def write(path: Path, rows: int, right: int) -> Path:
    """Labelled rows of three candidates; the first answers the first ``right`` of ten right."""
    lines = (
        {"query": f"question {i}", "correct": {"a": i % 10 < right, "b": False, "c": False}}
        for i in range(rows)
    )
    path.write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
    return path


def planned(racer: Command, *words: object) -> dict[str, Any]:
    """The plan as JSON."""
    code, out, err = racer("plan", *words, "--json")
    assert code == 0, err
    return json.loads(out)


def test_a_plan_before_anything_is_labelled(racer: Command) -> None:
    """Three in four questions are taken to count; the calls are not known yet."""
    found = planned(racer, "--questions", 200)
    assert found["parts"] == {"train": 80, "calibration": 120}
    assert (found["n"], found["misses"], found["feasible"]) == (90, 8, True)
    assert found["risk_mean"] == pytest.approx(9 / 91)
    assert (round(found["risk_q05"], 3), round(found["risk_q95"], 3)) == (0.053, 0.155)
    assert found["calls"] is None
    assert found["within"]["0.15"] == {"rows": 110, "questions": 245, "questions_tuned": 489}
    assert found["within"]["0.125"]["questions"] == 933
    code, out, _ = racer("plan", "--questions", 200)
    assert code == 0
    for words in ("known from 30 labelled rows on", "0.053 to 0.155", "hence 445 questions"):
        assert words in " ".join(out.split())
    assert "advice" not in out


def test_labelled_rows_say_which_share_counts_and_how_many_calls_to_expect(
    racer: Command, tmp_path: Path
) -> None:
    """From 30 rows on; fewer leave both to the assumption."""
    rows = write(tmp_path / "rows.jsonl", 30, 6)
    found = planned(racer, rows)
    assert (found["questions"], found["counted"], found["calls"]) == (30, 0.6, 1.0)
    assert planned(racer, rows, "--questions", 500)["n"] == 180
    assert planned(racer, rows, "--answerable", 0.5)["counted"] == 0.5
    few = planned(racer, write(tmp_path / "few.jsonl", 29, 6))
    assert (few["questions"], few["counted"], few["calls"]) == (29, 0.75, None)
    paper = planned(racer, rows, "--risk-target", "paper")
    assert (paper["counted"], paper["n"]) == (1.0, 18)


def test_few_questions_are_advised_to_begin_otherwise(racer: Command) -> None:
    """Below 100 of them, by the law that a larger alpha has."""
    code, out, _ = racer("plan", "--questions", 60)
    text = " ".join(out.split())
    assert code == 0
    assert "same_answer, which needs no labels" in text
    assert "or take alpha 0.2 (realised risk 0.179 on average, 0.076 to 0.308" in text
    assert "advice" not in racer("plan", "--questions", 100)[1]
    larger = racer("plan", "--questions", 60, "--alpha", 0.3)[1]
    assert "or write more questions" in " ".join(larger.split())


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        ((), 2, "give --questions, or labelled ROWS"),
        (("--questions", 50, "--alpha", 1.5), 1, "alpha must lie strictly between 0 and 1"),
        (("--questions", 50, "--delta", 1), 1, "delta must lie strictly between 0 and 1"),
        (
            ("--questions", 50, "--alpha", 1e-7, "--delta", 0.05),
            1,
            "alpha 1e-07 with delta 0.05 takes 3e+07 rows that count, and a calibration has at "
            "most 2,000,000: take a larger one",
        ),
        (("none.jsonl",), 1, "no question is answered right by any candidate, so none counts"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(
    racer: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[object, ...],
    code: int, sentence: str,
) -> None:  # fmt: skip
    """One sentence each: a level outside (0, 1), too small a delta, no right answer."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "none.jsonl", 40, 0)
    found, out, err = racer("plan", *words)
    assert (found, out) == (code, "")
    assert sentence in err
    assert err.count("\n") == 1
