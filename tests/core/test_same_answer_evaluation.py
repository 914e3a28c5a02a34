"""Sequential calls in `racer evaluate`: their measures are those of a calibration and of rivals."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from racer_core.aggregation.stacked import StackedVote
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.offline import evaluation_tables
from racer_core.offline.evaluate import evaluate
from racer_core.offline.protocol import Protocol
from racer_core.offline.same_answer import Calling, SequenceTrial, compared
from racer_core.offline.table import build_table
from racer_core.sequential.calibration import SequentialCalibration
from racer_core.sequential.fit import fit_policy
from racer_core.types import Score
from tests.core.sequential_worlds import answers
from tests.kit.synthetic import synthetic_rows

CHANCES = (0.55, 0.75, 0.6, 0.45, 0.85)
PRICES = (1.0, 2.0, 3.0, 4.0, 5.0)


@pytest.fixture(scope="module")
def rows():
    """Rows of five candidates, who are right where they give class 0."""
    return answers(np.random.default_rng(1), 600, CHANCES, common=0.2)


@pytest.fixture(scope="module")
def trial(rows):
    """A policy one by one, fitted on the first rows."""
    return SequenceTrial(
        policy=fit_policy(rows.at(np.arange(100)), max_rounds=None),
        answers=rows,
        labels=rows.classes == 0,
        calibration=np.arange(100, 350),
        test=np.arange(350, 600),
        prices=PRICES,
        salt=b"salt",
    )


def test_a_trial_is_a_calibration_and_its_stops(trial, rows):
    """Calls, rounds, differences, accuracy and price of the same stops."""
    calibration = SequentialCalibration(
        policy=trial.policy, answers=rows.at(trial.calibration), salt=b"salt"
    )
    stops = calibration.stops(rows.at(trial.test), calibration.lambda_hat(0.1))
    spent = np.cumsum([PRICES[rows.pool.index(name)] for name in trial.policy.order])
    assert trial.sequential(0.1) == pytest.approx(
        {
            "calls": stops.calls.mean(),
            "rounds": stops.rounds.mean(),
            "price": spent[stops.calls - 1].mean() / 15.0,
            "differs": stops.differs.mean(),
            "accuracy": (rows.classes[trial.test, stops.winner] == 0).mean(),
        }
    )


def test_a_decided_vote_cannot_change(trial, rows):
    """Every answer that the others could give is tried: existing classes, a new one, none."""
    policy = trial.policy
    few = replace(trial, test=np.arange(350, 400))
    measured = few.until_decided()
    assert measured["differs"] == 0.0
    calls = 0
    for row in few.test:
        forms = {
            name: None if number < 0 else str(number)
            for name, number in zip(rows.pool, rows.classes[row], strict=True)
        }
        for called in range(1, 6):
            given, left = policy.order[:called], policy.order[called:]
            possible = {"new", None, *(forms[name] for name in given)}
            winners = {
                ({name: forms[name] for name in given} | dict(zip(left, each, strict=True)))[
                    policy.vote(
                        {name: forms[name] for name in given} | dict(zip(left, each, strict=True))
                    )
                ]
                for each in itertools.product(possible, repeat=len(left))
            }
            if len(winners) == 1:
                break
        calls += called
    assert measured["calls"] == pytest.approx(calls / len(few.test))


def test_answers_make_the_saving(trial):
    """The control with another row's answers saves little more than one shot, which has none."""
    ours = trial.sequential(0.1)["calls"]
    one_shot = trial.ignoring_answers(0.1, shuffled=False)
    control = trial.ignoring_answers(0.1, shuffled=True)
    assert ours < 0.85 * min(one_shot["calls"], control["calls"])
    assert one_shot["rounds"] == 1.0


def test_the_chain_keeps_the_price(trial, rows):
    """Perfect scores make it accept the first right answer; without any it takes what is cheap."""
    perfect = (rows.classes == 0).astype(float)
    found = trial.chain(perfect, 1.0)
    assert found["accuracy"] == pytest.approx((rows.classes[trial.test] == 0).any(axis=1).mean())
    cheapest = trial.chain(perfect, 0.0)
    assert trial.chain(np.zeros_like(perfect), 0.5)["price"] <= 0.5
    assert cheapest["calls"] < found["calls"]


def test_everything_is_compared_at_every_level(rows):
    """Eight ways of calling; the one with labels only where a stacked vote was fitted."""
    parts = np.arange(100), np.arange(100, 350), np.arange(350, 600)
    vote = StackedVote(rows.pool, np.array([0.5, 1.5, 1.0, 0.3, 2.0]), np.full(5, 0.1))
    given = rows, rows.classes == 0, parts, (0.05, 0.1), np.full((600, 5), 0.5)
    found = {(calling, alpha): each for calling, alpha, each in compared(*given, PRICES, vote)}
    assert set(found) == set(itertools.product(Calling, (0.05, 0.1)))
    labelled = found[Calling.STACKED, 0.1]
    assert labelled["calls"] < found[Calling.ONE_SHOT, 0.1]["calls"]
    assert 0.0 < labelled["price"] < 1.0
    assert Calling.STACKED not in {calling for calling, _, _ in compared(*given)}


def test_the_report_shows_them_where_rows_have_answers():
    """A line for each way of calling, and the same in JSON; nothing without answers."""
    for has_answers, lines in ((True, 8), (False, 0)):
        table = build_table(
            {"one": synthetic_rows(200, seed=61, answers=has_answers)},
            encoder=CharNgramEncoder(),
            router="knn",
            protocol=Protocol(splits=1, alphas=(0.1, 0.3), scores=(Score.STATIC,)),
        )
        evaluation = evaluate(table, encoder="char-ngrams", router="knn")
        assert sum(len(grid.rows) for grid in evaluation_tables.same_answer(evaluation)) == lines
        shown = evaluation.as_json()["same_answer"]
        assert [each["calling"] for each in shown] == [*Calling][:lines]
        assert all({"calls", "rounds", "differs", "accuracy"} <= {*x["mean"]} for x in shown)
