"""`racer evaluate --assert`: what the rows must show, else exit code 1."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.kit.gateway import Command, as_json, noisy

MEASURED = ["--encoder", "char-ngrams", "--splits", 3, "--alpha", 0.2, "--score", "cover"]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Rows whose labels the wording does not tell, so that sets miss and hold several."""
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in as_json(noisy(0, 200))))
    return path


def measured(racer: Command, rows: Path, target: str, *more: str) -> tuple[int, str, str]:
    """An evaluation under one risk target."""
    return racer(
        "evaluate", "--data", rows, *MEASURED, "--risk-target", target, "--json", *more
    )  # fmt: skip


@pytest.mark.parametrize(
    ("target", "measure"), [("paper", "risk"), ("answerable", "miss_given_answerable")]
)
def test_risk_is_what_alpha_bounds_under_the_target(
    racer: Command, rows: Path, target: str, measure: str
) -> None:
    """Red when the bound is taken a hair off, from the other target, or the wrong way round."""
    code, out, _ = measured(racer, rows, target)
    assert code == 0
    (cell,) = json.loads(out)["cells"]
    risk = cell["mean"][measure]
    assert 0 < risk < 1
    for comparison, holds in {
        f"risk<={risk + 1e-6:.9f}": True,
        f"risk <= {risk - 1e-6:.9f}": False,
        f"risk>{risk - 1e-6:.9f}": True,
        f"risk<{risk - 1e-6:.9f}": False,
        f"{risk + 1e-6:.9f}>=risk": True,
    }.items():
        assert measured(racer, rows, target, "--assert", comparison)[0] == (0 if holds else 1)


def test_alpha_is_the_setting_s_own(racer: Command, rows: Path) -> None:
    """The result stands on stdout all the same; stderr has one sentence that names the figures."""
    code, out, stderr = measured(
        racer, rows, "answerable", "--assert", "alpha>=0.2", "--assert", "size<=alpha"
    )
    assert code == 1
    size = json.loads(out)["cells"][0]["mean"]["size"]
    sentence = stderr.splitlines()[-1]
    assert sentence.startswith("racer: not so: size<=alpha is false in 1 of 1 settings")
    assert f"size {size:.4g}, alpha 0.2, score cover" in sentence
    assert "Traceback" not in stderr


def test_one_setting_of_several_is_enough_to_refute(racer: Command, rows: Path) -> None:
    """Two alphas, of which one is above 0.25."""
    options = ("--alpha", "0.3", "--assert", "alpha<0.25")
    code, _, stderr = measured(racer, rows, "answerable", *options)
    assert code == 1
    assert "false in 1 of 2 settings, the first with alpha 0.3" in stderr


@pytest.mark.parametrize(
    ("comparison", "code"), [("alpha<=0.2", 0), ("alpha<.2", 1), ("alpha>=0.2", 0), ("alpha>.2", 1)]
)
def test_equal_is_not_less(racer: Command, rows: Path, comparison: str, code: int) -> None:
    """Red when one operator is taken for another."""
    assert measured(racer, rows, "paper", "--assert", comparison)[0] == code


@pytest.mark.parametrize(
    "comparison", ["", "risk", "risk=alpha", "risk<=beta", "__import__<=1", "risk<=1<=2", "1e3<nan"]
)
def test_an_invalid_assertion_is_refused_before_any_file_is_read(
    racer: Command, tmp_path: Path, comparison: str
) -> None:
    """One sentence, and not that the file of rows is missing; 1 would say that it is not so."""
    code, out, stderr = racer(
        "evaluate", "--data", tmp_path / "none", "--encoder", "char-ngrams", "--assert", comparison
    )
    assert (code, out) == (2, "")
    assert stderr.startswith(f"racer: Invalid value for '--assert': {comparison!r}: ")
    assert stderr.count("\n") == 1


@pytest.mark.parametrize("target", ["paper", "answerable"])
def test_asserted_is_the_column_that_the_table_calls_risk(
    racer: Command, rows: Path, target: str
) -> None:
    """Red when the table shows another measure as `risk` than the one that is compared."""
    code, out, _ = racer(
        "evaluate", "--data", rows, *MEASURED, "--risk-target", target
    )  # fmt: skip
    assert code == 0
    lines = out.splitlines()
    head = next(i for i, line in enumerate(lines) if "scope" in line and "alpha" in line)
    column = lines[head].split().index("risk")
    values = next(line for line in lines[head:] if line.split()[1:2] == ["cover"])
    shown = float(re.findall(r"\S+", re.sub(r" ±\S+| \(\S+\)", "", values))[column])
    for bound, holds in ((shown + 0.001, True), (shown - 0.001, False)):
        asserted = measured(racer, rows, target, "--assert", f"risk<={bound:.4f}")
        assert asserted[0] == (0 if holds else 1)


def test_the_values_of_an_assertion_are_printed(racer: Command, rows: Path) -> None:
    """The values of the closest setting and the rule; stdout stays pure JSON."""
    code, out, stderr = measured(racer, rows, "answerable", "--assert", "size<=3")
    assert code == 0
    size = json.loads(out)["cells"][0]["mean"]["size"]
    assert stderr.splitlines()[-1] == (
        f"racer: asserted: size<=3 in 1 settings, the closest with size {size:.4g}, score cover, "
        "target answerable, rows rows"
    )
    *_, stderr = measured(racer, rows, "answerable", "--assert", "alpha >= risk")
    assert "a chance of 1% over all settings" in stderr


def test_paper_risk_is_the_paper_s_under_either_target(racer: Command, rows: Path) -> None:
    """It is the table's other column under `answerable`."""
    _, out, _ = measured(racer, rows, "answerable")
    risk = json.loads(out)["cells"][0]["mean"]["risk"]
    for bound, code in ((risk + 1e-6, 0), (risk - 1e-6, 1)):
        asserted = f"paper_risk<={bound:.9f}"
        assert measured(racer, rows, "answerable", "--assert", asserted)[0] == code


@pytest.fixture
def graded(tmp_path: Path) -> Path:
    """Rows with a grade of every answer."""
    path = tmp_path / "graded.jsonl"
    rng = np.random.default_rng(1)
    lines = [
        {
            "query": row["query"],
            "quality": {
                name: round(float(0.3 + 0.4 * right + 0.3 * rng.random()), 3)
                for name, right in row["correct"].items()
            },
        }
        for row in as_json(noisy(0, 200))
    ]
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return path


def test_grades_are_measured_by_their_shortfall(racer: Command, graded: Path) -> None:
    """The bound holds; the size is asserted as for other targets."""
    code, out, stderr = measured(
        racer, graded, "quality", "--assert", "risk<=alpha", "--assert", "size<3"
    )
    assert code == 0, stderr
    (cell,) = json.loads(out)["cells"]
    assert 0 < cell["mean"]["shortfall"] <= 0.2
    assert f"risk {cell['mean']['shortfall']:.4g}, alpha 0.2, score cover" in stderr


def test_grades_have_no_vote_and_need_grades(racer: Command, rows: Path, graded: Path) -> None:
    """Each refusal names the option or the rows."""
    code, _, stderr = measured(racer, graded, "quality", "--equality", "number")
    assert code == 2
    assert "--equality is for votes on answers" in stderr
    code, _, stderr = measured(racer, rows, "quality")
    assert code == 1
    assert "200 of 200 rows have no `quality`" in stderr
    code, _, stderr = measured(racer, graded, "quality", "--risk-target", "paper")
    assert code == 1
    assert "risk target quality is measured alone" in stderr
