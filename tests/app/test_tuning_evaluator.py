"""`racer tune` asks the evaluator on a real socket, and takes its vote where it is worth it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app import settings
from app.tools import tuning
from app.tools.tuning import CONCURRENCY, EvaluatorRatings
from racer_core.aggregation.vote import Method, Weight
from racer_core.offline import tune as search
from racer_core.records.writer import write_rows
from racer_core.types import LabelledRow, LabelledRows
from tests.kit.command_results import written
from tests.kit.gateway import POOL, Command, configure, noisy
from tests.kit.upstream import FakePool, proposed

KNOWS = {"right": 0.9, "wrong": 0.1}


def evaluation(url: str, weight: str = "p_true", **changes: Any) -> dict[str, Any]:
    """An aggregation block at a temperature that no search tries."""
    evaluator = {"base_url": url, "model": "judge", "timeout_s": 5}
    rule = {"method": "weighted", "weight": weight, "temperature": 7.0, "evaluator": evaluator}
    return rule | changes


def two_answers(count: int) -> LabelledRows:
    """Rows whose wrong candidates agree: two of them outvote the one who is right."""
    rows = noisy(30_000, count)
    return LabelledRows(
        pool=POOL,
        rows=tuple(
            LabelledRow(
                query=row.query,
                correct=row.correct,
                answers={name: "right" if name in row.correct else "wrong" for name in POOL},
            )
            for row in rows.rows
        ),
    )


@pytest.fixture
def validation(tmp_path: Path) -> Path:
    """300 of them, as a file."""
    return written(tmp_path / "validation.jsonl", two_answers(300))


@pytest.fixture
def config(tmp_path: Path, noisy_artifact: Path, pool: FakePool) -> Path:
    """A gateway that asks the judge, around a router that is unsure; with a comment."""
    path = configure(
        tmp_path,
        noisy_artifact,
        pool.url,
        routing={"alpha": 0.45},
        aggregation=evaluation(pool.url),
    )
    path.write_text("# ours\n" + path.read_text())
    return path


def tune(racer: Command, config: Path, validation: Path, *more: str) -> tuple[int, str, str]:
    """The command."""
    return racer("tune", "--config", config, "--validation", validation, *more)


# The command ----------------------------------------------------------------------------------


def test_an_evaluator_that_knows_is_kept_at_a_tuned_temperature(
    racer: Command, config: Path, validation: Path, pool: FakePool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The gateway reads what was written: the same judge, another temperature, another alpha."""
    monkeypatch.setattr(search, "CHOOSING_ROWS", 300)
    before, _ = settings.load(config, {})
    pool.rate("judge", KNOWS)
    code, out, stderr = tune(racer, config, validation, "--write", "--json")
    assert code == 0, stderr
    result = json.loads(out)
    assert (result["chosen"]["rule"], result["chosen"]["weight"]) == ("weighted", "p_true")
    after, _ = settings.load(config, {})
    assert after.aggregation.method is Method.WEIGHTED
    assert after.aggregation.weight is Weight.P_TRUE
    assert after.aggregation.temperature == result["chosen"]["temperature"] < 7.0
    assert after.aggregation.evaluator == before.aggregation.evaluator
    assert config.read_text().startswith("# ours\n")
    removed = [line for line in result["diff"].splitlines() if line.startswith("-  ")]
    assert [line.split(":")[0] for line in removed] == ["-  temperature", "-  alpha", "-  score"]
    assert "failed" not in stderr


@pytest.mark.parametrize("chances", [{}, {"right": 0.1, "wrong": 0.9}], ids=["same", "misled"])
def test_a_useless_evaluator_goes_and_the_diff_shows_it(
    racer: Command, config: Path, validation: Path, pool: FakePool, chances: dict[str, float]
) -> None:
    """The report states the value of the ratings, since they have a cost."""
    pool.rate("judge", chances)
    code, out, stderr = tune(racer, config, validation, "--write")
    assert code == 0, stderr
    assert {"-  weight: p_true", "-  evaluator:", "-    model: judge"} <= set(out.splitlines())
    assert "uses no evaluator; the best that does: weighted by p_true, T " in " ".join(out.split())
    after, _ = settings.load(config, {})
    assert after.aggregation.weight is Weight.ROUTER
    assert after.aggregation.evaluator is None
    assert not after.aggregation.raters


def test_no_rating_is_requested_where_the_configuration_has_no_evaluator(
    racer: Command, tmp_path: Path, noisy_artifact: Path, validation: Path, pool: FakePool
) -> None:
    """And no vote of one is compared."""
    config = configure(tmp_path, noisy_artifact, pool.url)
    _, out, _ = tune(racer, config, validation, "--json")
    assert {trial["weight"] for trial in json.loads(out)["trials"]} == {None, "router"}
    assert pool.rated == []


def test_ratings_that_failed_are_counted(
    racer: Command, config: Path, validation: Path, pool: FakePool
) -> None:
    """Every rating of a wrong answer fails; the other ratings still count."""
    pool.rate("judge", KNOWS, fault="400", only="wrong")
    code, _, stderr = tune(racer, config, validation)
    assert code == 0
    rows = [row for row in two_answers(300).rows if 0 < len(row.correct) < len(POOL)]
    failed = sum(len(POOL) - len(row.correct) for row in rows)
    text = " ".join(stderr.split())
    assert f"{failed} of {3 * len(rows)} ratings failed (upstream_rejected: {failed})" in text


def test_an_evaluator_without_a_single_rating_stops_the_command(
    racer: Command, tmp_path: Path, noisy_artifact: Path, validation: Path, pool: FakePool
) -> None:
    """Tuned on nothing the majority would win, as if the evaluator had been tried."""
    rule = evaluation(pool.url, "verbal")
    config = configure(tmp_path, noisy_artifact, pool.url, aggregation=rule)
    before = config.read_bytes()
    pool.rate("judge", KNOWS, spelling="I say {}")
    code, out, stderr = tune(racer, config, validation, "--write")
    assert (code, out) == (3, "")
    assert "the evaluator rated none of" in stderr
    assert "evaluation_unreadable" in stderr
    assert "Traceback" not in stderr
    assert config.read_bytes() == before


def test_what_cannot_be_tuned_costs_no_rating(
    racer: Command, config: Path, validation: Path, tmp_path: Path, pool: FakePool
) -> None:
    """Too few rows, or an evaluator that cannot serve: the sentence of the gateway's start."""
    few = written(tmp_path / "few.jsonl", two_answers(60))
    code, _, stderr = tune(racer, config, few)
    assert (code, "too few to tune on" in stderr, pool.rated) == (1, True, [])
    pool.rate("judge", KNOWS, logprobs=False)
    code, out, stderr = tune(racer, config, validation)
    assert (code, out) == (2, "")
    assert "without logprobs" in stderr
    assert not {"right", "wrong"} & {proposed(body) for body in pool.rated}


# The ratings ----------------------------------------------------------------------------------


def rated(
    folder: Path, artifact: Path, pool: FakePool, rows: list[LabelledRow]
) -> EvaluatorRatings:
    """What the judge says of these rows; questions of the group `math` have an abacist."""
    own = {"math": {"base_url": pool.url, "model": "abacist"}}
    rule = evaluation(pool.url, evaluators=own)
    configured, secrets = settings.load(configure(folder, artifact, pool.url, aggregation=rule), {})
    of = LabelledRows(pool=tuple(reversed(POOL)), rows=tuple(rows))
    heard: list[tuple[str, int, int]] = []

    def hear(stage: str, done: int, total: int) -> None:
        heard.append((stage, done, total))

    result = tuning.rate_rows(configured, secrets, of, hear)
    assert heard == [("ratings", number, len(rows)) for number in range(1, len(rows) + 1)]
    return result


def row(*texts: str | None, query: str = "?", group: str | None = None) -> LabelledRow:
    """A row with these answers of the pool."""
    answers: dict[str, str | None] = dict(zip(POOL, texts, strict=True))
    return LabelledRow(query=query, correct=frozenset(), answers=answers, group=group)


def test_ratings_stand_in_the_configured_order_with_their_gaps(
    tmp_path: Path, artifact: Path, pool: FakePool
) -> None:
    """NaN for what agrees, cannot be read, is missing or failed; those that failed are counted."""
    pool.rate("judge", {"7": 0.75, "8": 0.25, "9": 0.5}, fault="400", only="9")
    result = rated(
        tmp_path,
        artifact,
        pool,
        [row("7", "8", "8"), row("7", "7", "7"), row("7", ".", "8"), row(None, "7", "9")],
    )
    nan = np.nan
    expected = [[0.75, 0.25, 0.25], [nan, nan, nan], [0.75, nan, 0.25], [nan, 0.75, nan]]
    assert result.ratings.weight is Weight.P_TRUE
    np.testing.assert_allclose(result.ratings.values, expected)
    assert (result.answers, result.failed, result.causes) == (7, 1, "upstream_rejected: 1")


def test_the_question_and_its_groups_evaluator_are_asked(
    tmp_path: Path, artifact: Path, pool: FakePool
) -> None:
    """As when serving a request of that group."""
    pool.rate("judge", {"7": 0.25})
    pool.rate("abacist", {"7": 0.75})
    rows = [row("7", "8", "8", query="law?"), row("7", "8", "8", query="sum?", group="math")]
    result = rated(tmp_path, artifact, pool, rows)
    np.testing.assert_allclose(result.ratings.values, [[0.25, 0.5, 0.5], [0.75, 0.5, 0.5]])
    request = {(body["prompt"].splitlines()[0], body["model"]) for body in pool.rated}
    assert {("Question: law?", "judge"), ("Question: sum?", "abacist")} <= request


def test_a_few_questions_are_rated_at_once(tmp_path: Path, artifact: Path, pool: FakePool) -> None:
    """Not one by one, and never more than the limit: three answers each."""
    pool.rate("judge", {}, delay_s=0.2)
    rated(tmp_path, artifact, pool, [row("7", "8", "9") for _ in range(3 * CONCURRENCY)])
    assert 3 < pool.peak <= 3 * CONCURRENCY


# Recorded confidences ---------------------------------------------------------------------------


def recorded(rows: LabelledRows, **evaluators: dict[str, float]) -> LabelledRows:
    """The rows with P(True) of these evaluators, by the answer's text."""
    rated = tuple(
        replace(
            row,
            group="law" if place % 3 else "sums",
            confidences={
                name: {"p_true": {m: chances[row.answers[m] or ""] for m in POOL}}
                for name, chances in evaluators.items()
            },
        )
        for place, row in enumerate(rows.rows)
    )
    return replace(rows, rows=rated)


LIES = {"right": 0.1, "wrong": 0.9}


def test_recorded_confidences_are_tuned_without_a_call(
    racer: Command, tmp_path: Path, noisy_artifact: Path, pool: FakePool
) -> None:
    """The evaluator that knows is chosen and written, with a T; its AUC is printed."""
    config = configure(tmp_path, noisy_artifact, pool.url)
    rows = recorded(two_answers(300), poet=LIES, adder=KNOWS)
    write_rows(rows, validation := tmp_path / "validation.jsonl")
    code, out, stderr = tune(racer, config, validation, "--write", "--json")
    assert code == 0, stderr
    result = json.loads(out)
    assert (result["chosen"]["rule"], result["chosen"]["weight"]) == ("weighted", "p_true")
    assert result["evaluator_choices"] == {"p_true": {"common": "adder", "of_groups": {}}}
    auc = {each["evaluator"]: each["auc"] for each in result["evaluators"] if not each["group"]}
    assert auc == {"poet": 0.0, "adder": 1.0}
    after, _ = settings.load(config, {})
    assert after.aggregation.weight is Weight.P_TRUE
    assert after.aggregation.evaluator is not None
    assert after.aggregation.evaluator.candidate == "adder"
    assert after.aggregation.temperature == result["chosen"]["temperature"]
    assert pool.rated == []
    code, out, stderr = tune(racer, config, validation)
    assert code == 0, stderr
    assert "nothing to change" in out
    (line,) = [each for each in out.splitlines() if " all " in each and "adder" in each]
    assert line.split() == ["p_true", "all", "adder", "1.000", *line.split()[4:-1], "chosen"]


def test_a_group_gets_the_evaluator_that_knows_it(
    racer: Command, config: Path, tmp_path: Path, pool: FakePool
) -> None:
    """The judge of the configuration keeps its server; the adder weighs the votes on sums."""
    rows = two_answers(600)
    by_group = [
        recorded(rows, judge=own, adder=other) for own, other in ((KNOWS, LIES), (LIES, KNOWS))
    ]
    mixed = tuple(
        by_group[row.group == "sums"].rows[place] for place, row in enumerate(by_group[0].rows)
    )
    write_rows(replace(rows, rows=mixed), validation := tmp_path / "grouped.jsonl")
    before, _ = settings.load(config, {})
    code, out, stderr = tune(racer, config, validation, "--write", "--json")
    assert code == 0, stderr
    after, _ = settings.load(config, {})
    assert after.aggregation.evaluator == before.aggregation.evaluator
    assert {g: e.candidate for g, e in after.aggregation.evaluators.items()} == {"sums": "adder"}
    assert json.loads(out)["chosen"]["accuracy"] > 0.75
    assert pool.rated == []


def test_rows_that_lack_the_configured_evaluator_are_refused(
    racer: Command, config: Path, tmp_path: Path, pool: FakePool
) -> None:
    """It would go from the configuration as if it had been tried."""
    rows = recorded(two_answers(300), poet=KNOWS)
    before = config.read_bytes()
    write_rows(rows, validation := tmp_path / "v.jsonl")
    code, out, stderr = tune(racer, config, validation, "--write")
    assert (code, out, pool.rated) == (2, "", [])
    assert "record confidences of poet, but not of the configured evaluator judge" in stderr
    assert config.read_bytes() == before


def test_an_evaluator_that_cannot_serve_is_not_chosen(
    racer: Command, tmp_path: Path, noisy_artifact: Path, pool: FakePool
) -> None:
    """It is no candidate, and the configuration does not name its server."""
    config = configure(tmp_path, noisy_artifact, pool.url)
    rows = recorded(two_answers(300), oracle=KNOWS, adder={"right": 0.6, "wrong": 0.4})
    write_rows(rows, validation := tmp_path / "v.jsonl")
    code, out, stderr = tune(racer, config, validation, "--json")
    assert code == 0, stderr
    assert json.loads(out)["evaluator_choices"]["p_true"]["common"] == "adder"
