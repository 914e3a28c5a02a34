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
from racer_core.offline.same_answer_levels import cheapest_level, same_answer_levels
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


def test_the_levels_of_rows():
    """One round is the full vote; more risk takes fewer calls; only prices offer references."""
    rows = answers(np.random.default_rng(1), 800, (0.55, 0.75, 0.6, 0.45, 0.85), common=0.2)
    labels, alphas = rows.classes == 0, (0.001, 0.05, 0.1)
    levels = list(same_answer_levels(rows, labels, alphas=alphas))
    assert len(levels) == 2 * 3  # 600 rows are too few for 0.001
    found = {(each.reference, each.max_rounds, each.alpha): each for each in levels}
    full = found[None, 1, 0.05]
    assert (full.calls, full.rounds, full.price) == (5.0, 1.0, 5.0)
    assert found[None, 3, 0.1].calls < found[None, 3, 0.05].calls < 5.0
    own = labels[np.random.default_rng(0).permutation(800)[200:]]
    assert full.accuracy > own.mean(axis=0).max() - 0.02
    prices = dict(zip(rows.pool, (1.0, 1.0, 1.0, 1.0, 9.0), strict=True))
    dear = {
        (each.reference, each.max_rounds): each
        for each in same_answer_levels(rows, labels, prices, (0.1,))
    }
    assert dear[None, 1].price == pytest.approx(13.0)
    assert len(dear) == 3 + 5
    assert dear["e", 2].price <= 9.0


def test_the_cheapest_of_the_accurate_is_chosen():
    """Within a standard error of the best, and with no more rounds than wanted."""
    rows = answers(np.random.default_rng(2), 800, (0.55, 0.75, 0.6, 0.45, 0.85), common=0.2)
    levels = list(same_answer_levels(rows, rows.classes == 0))
    for rounds in (1, 2, 3):
        chosen = cheapest_level(levels, rounds)
        offered = [each for each in levels if each.max_rounds <= rounds]
        best = max(offered, key=lambda each: each.accuracy)
        assert chosen in offered
        assert chosen.accuracy >= best.accuracy - best.se
        assert not any(
            each.price < chosen.price and each.accuracy >= best.accuracy - best.se
            for each in offered
        )
    assert cheapest_level([], 2) is None
