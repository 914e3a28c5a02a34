"""``racer split``: parts of a file of labelled rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from racer_core.records.reader import read_rows
from racer_core.records.writer import row_line
from racer_core.types import LabelledRow, LabelledRows
from tests.kit.gateway import Command, labelled

PARTS = ("train", "validation", "calibration", "check")


def write(path: Path, rows: LabelledRows) -> Path:
    """The rows as JSON lines."""
    path.write_text("".join(row_line(row, rows.pool) for row in rows.rows), encoding="utf-8")
    return path


def test_four_parts_hold_every_row_once(racer: Command, tmp_path: Path) -> None:
    """By default 40, 10, 40 and 10 %; the same again with the same seed."""
    path, rows = tmp_path / "rows.jsonl", labelled(0, 100)
    write(path, rows)
    for folder in ("one", "two"):
        code, out, err = racer("split", str(path), "--out", str(tmp_path / folder), "--json")
        assert code == 0
        assert "questions (--rows says what it is)" in err
    sizes = json.loads(out)
    assert list(sizes) == [str(tmp_path / "two" / f"{name}.jsonl") for name in PARTS]
    assert list(sizes.values()) == [40, 10, 40, 10]
    parts = [read_rows(name) for name in sizes]
    assert sorted(query for part in parts for query in part.queries) == sorted(rows.queries)
    for name in PARTS:
        one, two = (tmp_path / folder / f"{name}.jsonl" for folder in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()
    code, out, _ = racer("split", str(path), "--out", str(tmp_path / "3"), "--seed", "1", "--json")
    assert read_rows(next(iter(json.loads(out)))).queries != parts[0].queries


def test_a_row_keeps_all_that_it_says(racer: Command, tmp_path: Path) -> None:
    """Turns, answers, references, conditions, groups, weights and so on."""
    labels = {"correct": {"a": True, "b": False}, "answers": {"a": "1", "b": None}}
    row = {
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello"},
            {"role": "user", "content": "1?"},
        ],
        **labels,
        "reference": "1",
        "task": "t",
        "group": "g",
        "cluster": "c",
        "conditions": {"a": "0" * 32, "b": "1" * 32},
        "confidences": {"a": {"verbal": {"a": 0.5}}},
        "weight": 2.0,
    }
    other = {"query": "2?", "quality": {"a": 0.5, "b": 0.1}, **labels}
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{json.dumps(row)}\n{json.dumps(other)}\n")
    code, out, _ = racer(
        "split", str(path), "--out", str(tmp_path), "--share", "x=0.5", "--share", "y=0.5", "--json"
    )
    assert code == 0
    written = [json.loads(Path(name).read_text()) for name in json.loads(out)]
    assert sorted(written, key=lambda each: "query" in each) == [row, other]


@pytest.mark.parametrize("kind", ["questions", "traffic"])
def test_groups_are_divided_alike_and_copies_stay_together(
    racer: Command, tmp_path: Path, kind: str
) -> None:
    """Each of 40 groups of ten rows, five queries twice; traffic is divided row by row."""
    rows = LabelledRows(
        pool=("a",),
        rows=tuple(
            LabelledRow(query=f"{group} {i % 5}", correct=frozenset("a"), group=str(group))
            for group in range(40)
            for i in range(10)
        ),
    )
    code, out, _ = racer(
        "split", str(write(tmp_path / "rows.jsonl", rows)), "--out", str(tmp_path / "parts"),
        "--share", "one=0.6", "--share", "other=0.4", "--rows", kind, "--json",
    )  # fmt: skip
    assert code == 0
    one, other = (read_rows(name) for name in json.loads(out))
    assert len(one) + len(other) == 400
    shared = set(one.queries) & set(other.queries)
    assert bool(shared) is (kind == "traffic")
    for group in range(40):
        assert sum(row.group == str(group) for row in one) == 6


def test_groups_of_one_row_reach_every_part(racer: Command, tmp_path: Path) -> None:
    """Fails where every group is rounded alike. 400 groups; false alarm below 1e-9."""
    rows = LabelledRows(
        pool=("a",),
        rows=tuple(
            LabelledRow(query=str(i), correct=frozenset("a"), group=str(i)) for i in range(400)
        ),
    )
    code, out, _ = racer(
        "split", str(write(tmp_path / "rows.jsonl", rows)), "--out", str(tmp_path), "--json"
    )
    assert code == 0
    sizes = dict(zip(PARTS, json.loads(out).values(), strict=True))
    for name, share in zip(PARTS, (0.4, 0.1, 0.4, 0.1), strict=True):
        assert abs(sizes[name] - 400 * share) < 6.2 * (400 * share * (1 - share)) ** 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--share", "one=0.6", "--share", "two=0.6"), "at most 1"),
        (("--share", "one"), "not NAME=SHARE"),
        (("--share", "../one=1"), "no name of a file"),
        (("--share", "one=0.999", "--share", "two=0.001"), "too few for 2 parts"),
    ],
)
def test_wrong_shares_write_nothing(
    racer: Command, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    """One sentence, and no file."""
    path = write(tmp_path / "rows.jsonl", labelled(0, 10))
    code, _, err = racer("split", str(path), "--out", str(tmp_path / "parts"), *options)
    assert code in (1, 2)
    assert message in " ".join(err.split())
    assert not list(tmp_path.glob("parts/*"))


def test_an_existing_part_is_not_overwritten(racer: Command, tmp_path: Path) -> None:
    """Nor are the others written."""
    path = write(tmp_path / "rows.jsonl", labelled(0, 20))
    (tmp_path / "check.jsonl").write_text("mine")
    code, _, err = racer("split", str(path), "--out", str(tmp_path))
    assert (code, "check.jsonl: is there already" in " ".join(err.split())) == (1, True)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["check.jsonl", "rows.jsonl"]
    assert (tmp_path / "check.jsonl").read_text() == "mine"


def test_a_part_that_cannot_be_written_leaves_none(racer: Command, tmp_path: Path) -> None:
    """A folder stands where the last part would be written; the first parts are removed."""
    path = write(tmp_path / "rows.jsonl", labelled(0, 20))
    out = tmp_path / "parts"
    name = "x" * 300  # longer than a file's name may be
    code, _, err = racer(
        "split", str(path), "--out", str(out), "--share", "one=0.5", "--share", f"{name}=0.5"
    )
    assert (code, "cannot be written" in " ".join(err.split())) == (1, True)
    assert not list(out.iterdir())
