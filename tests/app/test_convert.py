"""``racer convert``: other people's records become a file that `racer calibrate` can upload."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from racer_core.records.reader import read_rows
from racer_core.records.writer import write_rows
from tests.kit.gateway import Command

TABLE = "sample_id,prompt,eval_name,m,m|total_cost\n1,a,x,1.0,0.1\n2,b,y,0.5,0.1\n"


def run(folder: Path, model: str, documents: int) -> None:
    """A model's folder with two metrics under two filters."""
    lines: list[dict[str, Any]] = [
        {
            "doc_id": i,
            "doc": {"question": f"{i}?"},
            "target": "1",
            "arguments": {"gen_args_0": {"arg_0": f"Q: {i}?"}},
            "filtered_resps": ["1"],
            "filter": name,
            "exact_match": int(name == "strict-match"),
            "em": 1,
        }
        for i in range(documents)
        for name in ("strict-match", "flexible-extract")
    ]
    (folder / model).mkdir(parents=True)
    path = folder / model / "samples_sums_2026-01-01T00-00-00.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_folders_become_one_file(racer: Command, tmp_path: Path) -> None:
    """The options reach the reader; omitted rows and chosen columns are reported."""
    run(tmp_path / "runs", "a", 3)
    run(tmp_path / "runs", "b", 2)
    out = tmp_path / "rows.jsonl"
    code, _, stderr = racer("convert", tmp_path / "runs", "--out", out)
    assert (code, "a lacks" in stderr, "b lacks 1 of 3 documents" in stderr) == (1, False, True)
    assert not out.exists()
    code, printed, _ = racer(
        "convert", tmp_path / "runs" / "b", tmp_path / "runs" / "a", "--out", out, "--json",
        "--incomplete", "drop", "--filter", "flexible-extract", "--metric", "em",
        "--question", "question",
    )  # fmt: skip
    assert code == 0
    assert json.loads(printed) == {
        "out": str(out),
        "rows": 2,
        "pool": ["b", "a"],
        "duplicates": 0,
        "dropped": 1,
        "metrics": {"sums": "em"},
        "filters": {"sums": "flexible-extract"},
    }
    rows = read_rows(out)
    assert rows.queries == ["0?", "1?"]
    assert rows.labels(["a", "b"]).all()


def test_a_table_with_its_threshold_or_without_a_task(racer: Command, tmp_path: Path) -> None:
    """Fractional labels are refused without a threshold option."""
    table = tmp_path / "bench.csv"
    table.write_text(TABLE)
    code, _, stderr = racer("convert", table, "--out", tmp_path / "a.jsonl")
    assert (code, "line 3: the score 0.5" in stderr) == (1, True)
    for number, options in enumerate((["--threshold", 0.5], ["--task", "x"])):
        out = tmp_path / f"{number}.jsonl"
        assert racer("convert", table, "--out", out, *options)[0] == 0
        assert all(row.correct == {"m"} for row in read_rows(out).rows)
        assert len(read_rows(out)) == 2 - number


def test_whole_requests_become_json_lines_and_are_read_back(racer: Command, tmp_path: Path) -> None:
    """From a table with a column of JSON text; later turns and 20,000 characters stay whole."""
    turns = [{"role": "user", "content": "x" * 20_000}, {"role": "assistant", "content": "y"}]
    requests = [
        {"messages": [*turns, {"role": "user", "content": "z"}], "tools": [{"type": "function"}]},
        {"input": "x", "instructions": "Be brief.\u2028"},
    ]
    table, out = tmp_path / "requests.csv", tmp_path / "rows.jsonl"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows(
            [["request", "m", "n"], *([json.dumps(each), 1, 0] for each in requests)]
        )
    assert racer("convert", table, "--out", out)[0] == 0
    lines = [json.loads(line) for line in out.read_bytes().split(b"\n") if line]
    assert [line["request"] for line in lines] == requests
    rows = read_rows(out, text="last_user")
    assert [row.request for row in rows.rows] == requests
    assert [row.query for row in rows.rows] == ["z", "x"]
    write_rows(rows, tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == out.read_bytes()


def test_an_existing_file_is_left_alone(racer: Command, tmp_path: Path) -> None:
    """One sentence and exit code 1."""
    table, out = tmp_path / "bench.csv", tmp_path / "rows.jsonl"
    table.write_text(TABLE)
    out.write_text("mine")
    code, _, stderr = racer("convert", table, "--out", out, "--threshold", 0.5)
    assert (code, "is there already" in stderr, out.read_text()) == (1, True, "mine")
    assert racer("convert", table, "--out", tmp_path / "no" / "x", "--threshold", 0.5)[0] == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["bench.csv", "--metric", "acc"], "for folders of lm-evaluation-harness"),
        (["bench.csv", "--incomplete", "drop"], "for folders of lm-evaluation-harness"),
        (["runs", "--threshold", "0.5"], "for RouterBench's table"),
        (["runs", "bench.csv"], "one file, or only folders"),
        (["nowhere.csv"], "cannot be read"),
    ],
)
def test_an_option_of_another_format_is_refused(
    racer: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], words: str
) -> None:
    """An option without effect must not look as if it had one."""
    run(tmp_path / "runs", "a", 1)
    (tmp_path / "bench.csv").write_text(TABLE)
    monkeypatch.chdir(tmp_path)
    code, _, stderr = racer("convert", *options, "--out", "rows.jsonl")
    assert code == 1
    assert words in stderr
    assert not (tmp_path / "rows.jsonl").exists()
