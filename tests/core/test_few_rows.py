"""Reports of few rows: the law of the calibration to come, marks, and errors that are never 0."""

from dataclasses import replace

import pytest

from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.offline import evaluation_tables as tables
from racer_core.offline.evaluate import evaluate
from racer_core.offline.evaluation_result import AVERAGE, Setting
from racer_core.offline.plan import Outlook
from racer_core.offline.protocol import Protocol, Shares
from racer_core.offline.report import differences
from racer_core.offline.table import build_table
from racer_core.types import RiskTarget, Score
from tests.kit.synthetic import POOL, synthetic_rows

ALPHAS = (0.01, 0.04, 0.1, 0.2)


def measured(count, right, benchmarks=("rows",), **options):
    """An evaluation of rows in which these candidates are always right, and no other."""
    rows = synthetic_rows(count, seed=71)
    alike = tuple(replace(row, correct=frozenset(right)) for row in rows.rows)
    files = {
        name: replace(rows, rows=tuple(replace(row, query=f"{name} {row.query}") for row in alike))
        for name in benchmarks
    }
    protocol = Protocol(
        splits=3, alphas=ALPHAS, scores=(Score.COVER, Score.STATIC),
        risk_targets=(RiskTarget.ANSWERABLE,), shares=Shares(), **options,
    )  # fmt: skip
    table = build_table(files, encoder=CharNgramEncoder(), router="knn", protocol=protocol)
    return evaluate(table, encoder="char-ngrams", router="knn")


def of(scope, alpha, score=Score.COVER):
    """A setting of `answerable`."""
    return Setting(scope=scope, risk_target=RiskTarget.ANSWERABLE, score=score, alpha=alpha)


@pytest.mark.parametrize("benchmarks", [("rows",), ("one", "two")])
def test_rows_that_are_all_alike_leave_an_error(benchmarks):
    """A rate of 0 in n rows is at most 1 - 0.05^(1/n) with confidence 0.95; sizes reach the pool.

    Without a threshold nothing is estimated: all are called, in every split.
    """
    found = measured(100, POOL[:1], benchmarks)
    tested = sum(each[2] for each in found.rows.values())
    bound = 1.0 - 0.05 ** (1.0 / tested)
    assert 0.9 < bound * tested / 3.0 < 1.0
    scope = benchmarks[0] if len(benchmarks) == 1 else AVERAGE
    for alpha, error in ((0.01, 0.0), (0.1, bound / 1.96)):
        setting = of(scope, alpha)
        assert found.se_rows(setting, "miss_given_answerable") == pytest.approx(error)
        assert found.se_rows(setting, "size") == pytest.approx(error * len(POOL))
    for each in differences(found):
        if each.alpha is not None:
            assert each.se_rows > 0.0


def test_levels_without_a_threshold_are_marked_in_their_row():
    """Of 30 calibration rows alpha 0.01 has none in any split; other splits may differ."""
    found = measured(100, POOL[:1])
    (grid,) = tables.of_target(found, RiskTarget.ANSWERABLE, ALPHAS)
    named = {row[2] for row in grid.rows}
    assert named == {"0.01 infeasible", "0.04", "0.1", "0.2"}
    cell = found.cells[of("rows", 0.04)]
    cell["infeasible"] = [1.0, 0.0, 0.0]
    (grid,) = tables.of_target(found, RiskTarget.ANSWERABLE, ALPHAS)
    assert "0.04 infeasible in 33%" in {row[2] for row in grid.rows if row[1] == "cover"}


def test_the_law_is_that_of_the_rows_that_will_calibrate():
    """All that did not train or choose: 54 of 100, where a split of them calibrates on 30."""
    found = measured(100, POOL[:1])
    assert found.rows["rows"] == (30, 6, 24)
    (grid,) = tables.forecasts(found, ALPHAS)
    assert grid.head[-1] == "rows for 1.5 alpha"
    law = Outlook.of(54, 0.1)
    expected = ("rows", "0.1", "54", f"{law.mean:.3f}")
    (row,) = [each for each in grid.rows if each[1] == "0.1"]
    assert row[:4] == expected
    assert row[4:] == (f"{law.quantile(0.05):.3f} to {law.quantile(0.95):.3f}", "110")
    assert grid.rows[0][3:5] == ("infeasible: all are called", "-")
