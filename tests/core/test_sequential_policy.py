"""Policies of sequential calls: reliabilities, votes, doubts, and the calibration of real votes."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from racer_core.aggregation.vote import Method, aggregate
from racer_core.calibration.threshold import allowed_misses
from racer_core.errors import CalibrationError, InputError
from racer_core.sequential.answer_classes import AnswerClasses
from racer_core.sequential.calibration import SequentialCalibration
from racer_core.sequential.critical import critical_scores
from racer_core.sequential.fit import default_borders, fit_policy, tuned_policy
from racer_core.sequential.policy import Loss, Policy
from racer_core.sequential.reliability import one_coin_reliabilities
from racer_core.types import CandidateAnswer
from tests.core.laws import assert_at_most, assert_binomial
from tests.core.sequential_worlds import FALSE_ALARM, NAMES, answers, thresholds

CHANCES = (0.55, 0.75, 0.6, 0.45, 0.85)
N, ALPHA, TRIALS = 29, 0.1, 1_500


def one_coin(rng, rows, reliabilities, options):
    """Answers that follow the model: the right one is class 0."""
    size = rows, len(reliabilities)
    wrong = rng.integers(1, options, size)
    return np.where(rng.random(size) < np.array(reliabilities), 0, wrong).astype(np.int16)


def test_reliabilities_are_found_without_labels():
    """4,000 rows of the model itself: within three standard errors and a bit."""
    truth = np.array([0.9, 0.75, 0.6, 0.5, 0.35])
    classes = one_coin(np.random.default_rng(1), 4_000, truth, 6)
    found, _ = one_coin_reliabilities(classes, 6)
    np.testing.assert_allclose(found, truth, atol=0.04)
    np.testing.assert_array_equal(found, one_coin_reliabilities(classes, 6)[0])
    order = [3, 0, 4, 1, 2]
    np.testing.assert_allclose(one_coin_reliabilities(classes[:, order], 6)[0], found[order])


def test_reliabilities_of_hopeless_rows_are_finite():
    """Nothing readable, all alike, one candidate, one row."""
    for classes in (np.full((5, 3), -1), np.zeros((5, 3)), np.zeros((4, 1)), np.array([[0, 1, 2]])):
        found, _ = one_coin_reliabilities(classes.astype(np.int16), 10)
        assert ((found > 0.0) & (found < 1.0)).all()
    with pytest.raises(CalibrationError, match="no rows"):
        one_coin_reliabilities(np.zeros((0, 3), np.int16), 10)
    with pytest.raises(CalibrationError, match="at least 3"):
        one_coin_reliabilities(np.zeros((5, 3), np.int16), 2)


def policy_of(reliabilities, borders=None, options=10, **fields):
    """A policy in the order of reliabilities."""
    pool = NAMES[: len(reliabilities)]
    order = sorted(pool, key=lambda name: -reliabilities[pool.index(name)])
    return Policy(
        pool=pool,
        reliabilities=tuple(reliabilities),
        order=tuple(order),
        borders=borders or tuple(range(1, len(pool) + 1)),
        options=options,
        **fields,
    )


def posterior(classes, reliabilities, options):
    """P(each answer is right), by Bayes' rule over all C answers; answers that nobody gave last."""
    likelihood = []
    for answer in range(options):
        factors = [
            p if given == answer else (1 - p) / (options - 1)
            for given, p in zip(classes, reliabilities, strict=True)
            if given >= 0
        ]
        likelihood.append(math.prod(factors))
    return np.array(likelihood) / sum(likelihood)


def test_doubt_is_one_minus_the_posterior_and_the_winner_its_largest():
    """All answers of four candidates of whom each gives one of three answers or none."""
    reliabilities = (0.55, 0.7, 0.31, 0.62)
    policy = policy_of(reliabilities, options=5)
    every = list(itertools.product((-1, 0, 1, 2), repeat=4))
    classes = np.array(every, dtype=np.int16)
    last = classes[np.arange(len(classes)), policy.standing(classes, 4)[0]]
    for called in range(1, 5):
        columns = [policy.pool.index(name) for name in policy.order[:called]]
        winner, doubt = policy.standing(classes, called)
        for row, given_classes in enumerate(every):
            own = [given_classes[i] for i in columns]
            chances = posterior(own, [reliabilities[i] for i in columns], 5)
            answer = given_classes[winner[row]]
            alike = (classes[:, columns] == classes[row, columns]).all(axis=1)
            is_decided = answer >= 0 and (last[alike] == answer).all()
            expected = 1.0 - (chances[answer] if answer >= 0 else 1 / 5)
            assert doubt[row] == pytest.approx(0.0 if is_decided else expected, abs=1e-12)
            if answer >= 0:
                assert chances[answer] == pytest.approx(max(chances[i] for i in own if i >= 0))


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), called=st.integers(1, 5))
def test_the_vote_is_the_gateways_vote_with_reliabilities_for_scores(seed, called):
    """``aggregate`` by log odds elects the same candidate, ties and unreadable answers included."""
    rng = np.random.default_rng(seed)
    reliabilities = rng.choice([0.25, 0.5, 0.75, 0.995, 0.31], 5)
    rows = answers(rng, 4, CHANCES, unreadable=0.3)
    policy = policy_of(reliabilities.tolist())
    winner, _ = policy.standing(rows.classes, called)
    for row, found in zip(rows.classes, winner, strict=True):
        voters = [
            CandidateAnswer(
                candidate=name,
                text="",
                form=None if row[column] < 0 else str(row[column]),
                score=reliabilities[column],
            )
            for column, name in enumerate(policy.pool)
            if name in policy.order[:called]
        ]
        elected = aggregate(voters, method=Method.LOG_ODDS, options=policy.options).winner
        assert policy.pool[found] == elected


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6))
def test_a_decided_vote_never_differs_from_the_full_vote(seed):
    """Also where some candidates vote against their answer, and where votes tie."""
    rng = np.random.default_rng(seed)
    policy = policy_of(rng.choice([0.03, 0.1, 0.25, 0.5, 0.75, 0.9], 5).tolist())
    rows = answers(rng, 500, CHANCES, unreadable=0.2)
    outcomes = policy.outcomes(rows)
    assert not outcomes.differs[outcomes.doubt == 0.0].any()
    smaller = policy.restrict(("a", "c", "e")).outcomes(rows.restrict(("a", "c", "e")))
    assert not smaller.differs[smaller.doubt == 0.0].any()


def test_the_last_round_has_the_references_answer():
    """A full vote or the reference itself; two unreadable answers are not the same."""
    rows = answers(np.random.default_rng(2), 500, CHANCES, unreadable=0.4)
    for reference in (None, "d"):
        policy = fit_policy(rows, reference=reference, max_rounds=None)
        outcomes = policy.outcomes(rows)
        assert not outcomes.differs[:, -1].any()
        assert outcomes.differs[:, 0].mean() > 0.05
        if reference is not None:
            assert policy.order[-1] == reference
            assert (outcomes.winner[:, -1] == rows.pool.index(reference)).all()
    blank = replace(rows, classes=np.full_like(rows.classes, -1))
    assert fit_policy(rows, reference="d", max_rounds=2).outcomes(blank).differs[:, 0].all()


def test_borders():
    """Three and then the rest; two, two and the rest; one by one; small pools."""
    plain = {(8, 2): (3, 8), (8, 3): (2, 4, 8), (8, 1): (8,), (3, 2): (3,), (4, None): (1, 2, 3, 4)}
    assert {terms: default_borders(*terms) for terms in plain} == plain
    alone = {(6, 1): (6,), (6, 2): (5, 6), (6, 3): (3, 5, 6), (1, 3): (1,), (3, None): (1, 2, 3)}
    assert {terms: default_borders(*terms, has_reference=True) for terms in alone} == alone


def test_tuned_policy_call_the_fewest_candidates():
    """Among all borders of at most three rounds, on the rows that they were chosen on."""
    rows = answers(np.random.default_rng(3), 400, CHANCES)
    policy = fit_policy(rows, max_rounds=3)
    tuned = tuned_policy(policy, rows, 0.05, 3)
    assert tuned_policy(policy, rows, 0.05, None).borders == (1, 2, 3, 4, 5)

    def calls(borders):
        calibration = SequentialCalibration(policy=replace(policy, borders=borders), answers=rows)
        return calibration.stops(rows, calibration.lambda_hat(0.05)).calls.mean()

    inner = [(), *((i,) for i in range(1, 5)), *itertools.combinations(range(1, 5), 2)]
    assert calls(tuned.borders) == min(calls((*each, 5)) for each in inner)
    assert tuned_policy(policy, rows, 0.001, 3) is policy


def test_prices_decide_whether_the_reference_is_called_alone():
    """Ten times dearer, it is spared where others agree; at the price of the others it is not."""
    rows = answers(np.random.default_rng(4), 400, CHANCES)
    dear = {name: 10.0 if name == "e" else 1.0 for name in rows.pool}
    policy = fit_policy(rows, reference="e", prices=dear, before_reference=3)
    assert len(policy.order) == 4
    tuned = tuned_policy(policy, rows, 0.2, 2, dear)
    assert 2 <= len(tuned.order) <= 4
    assert tuned.borders == (len(tuned.order) - 1, len(tuned.order))
    assert tuned_policy(policy, rows, 0.2, 2).order == ("e",)
    assert tuned_policy(policy, rows, 0.001, 2, dear) is policy


def test_a_policy_survives_json():
    """As a gateway stores it."""
    rows = answers(np.random.default_rng(5), 100, CHANCES)
    for policy in (fit_policy(rows), fit_policy(rows, reference="a", max_rounds=3)):
        assert Policy.from_state(json.loads(json.dumps(policy.to_state()))) == policy
    with pytest.raises(InputError, match="fit a new one"):
        Policy.from_state({"pool": ["a"]})


def test_parts_that_do_not_fit_are_refused():
    """With the reason."""
    policy = policy_of(CHANCES, borders=(5,))
    good = {name: getattr(policy, name) for name in Policy.__dataclass_fields__}
    good["order"] = ("a", "d", "c", "e", "b")
    for fields, message in (
        ({"borders": (2, 4)}, "ascend to 5"),
        ({"borders": (3, 2, 5)}, "ascend"),
        ({"borders": (0, 5)}, "ascend"),
        ({"order": ("b", "a")}, "whole pool"),
        ({"order": ("b", "b", "d", "c", "e")}, "each once"),
        ({"reference": "a"}, "end with the reference"),
        ({"reliabilities": (0.5, 0.5)}, "2 reliabilities"),
        ({"reliabilities": (0.5, 0.5, 0.5, 0.5, 1.0)}, "between 0 and 1"),
        ({"options": 4}, "at least 5"),
    ):
        with pytest.raises(InputError, match=message):
            Policy(**{**good, **fields})
    rows = answers(np.random.default_rng(10), 20, CHANCES)
    with pytest.raises(InputError, match="another pool"):
        fit_policy(rows).outcomes(rows.restrict(("a", "b", "c", "d", "e")))
    with pytest.raises(CalibrationError, match="regrets are counted by labels"):
        replace(fit_policy(rows), loss=Loss.REGRETS).outcomes(rows)
    with pytest.raises(CalibrationError, match="must be"):
        AnswerClasses(pool=("a",), classes=rows.classes, fingerprints=rows.fingerprints)


def critical_of(policy, rows, salt=b"salt"):
    """Critical scores of rows in their own order."""
    calibration = SequentialCalibration(policy=policy, answers=rows, salt=salt)
    outcomes = policy.outcomes(rows)
    s = calibration.nonconformity(outcomes.doubt, rows.fingerprints)
    return critical_scores(s, outcomes.differs)


@pytest.fixture(scope="module")
def world():
    """Rows that fit policies, and rows of TRIALS calibrations with a request each."""
    fitted = answers(np.random.default_rng(6), 300, CHANCES)
    return fitted, answers(np.random.default_rng(7), TRIALS * (N + 1), CHANCES)


@pytest.mark.parametrize("reference", [None, "d"])
@pytest.mark.parametrize(
    ("max_rounds", "loss"),
    [(None, Loss.DIFFERS), (2, Loss.DIFFERS), (3, Loss.DIFFERS), (2, Loss.REGRETS)],
)
def test_real_votes_obey_the_law(world, reference, max_rounds, loss):
    """P(differs from the stop on) = m/(n + 1), for a vote, a named reference, and any rounds."""
    fitted, rows = world
    policy = replace(fit_policy(fitted, reference=reference, max_rounds=max_rounds), loss=loss)
    differs = replace(policy, loss=Loss.DIFFERS).outcomes(rows.at(np.arange(500))).differs
    rows = replace(rows, labels=rows.classes == 0)
    lost = policy.outcomes(rows.at(np.arange(500))).differs
    assert (lost <= differs).all()
    assert (lost.sum() < differs.sum()) == (loss is Loss.REGRETS)
    critical = critical_of(policy, rows).reshape(TRIALS, N + 1)
    lost = (critical[:, -1:] > thresholds(critical[:, :-1], ALPHA)).sum()
    assert_at_most(int(lost), TRIALS, ALPHA, FALSE_ALARM)
    # Rows that never lose are equal; ranked at random among themselves all scores are distinct.
    ranked = -2.0 - np.random.default_rng(77).random(critical.shape)
    critical = np.where(np.isneginf(critical), ranked, critical)
    above = (critical[:, -1:] > thresholds(critical[:, :-1], ALPHA)).sum()
    share = (allowed_misses(N, ALPHA) + 1) / (N + 1)
    assert_binomial(int(above), TRIALS, share, FALSE_ALARM)


def test_a_smaller_pool_obeys_its_own_law_and_not_the_old_thresholds(world):
    """Without the best candidate: everything is recomputed; the old threshold lets too much by."""
    fitted, rows = world
    policy = fit_policy(fitted, max_rounds=None)
    names = tuple(name for name in rows.pool if name != "e")
    smaller = critical_of(policy.restrict(names), rows.restrict(names)).reshape(TRIALS, N + 1)
    above = (smaller[:, -1:] > thresholds(smaller[:, :-1], ALPHA)).sum()
    share = (allowed_misses(N, ALPHA) + 1) / (N + 1)
    assert_binomial(int(above), TRIALS, share, FALSE_ALARM)
    restricted = SequentialCalibration(policy=policy, answers=rows.at(np.arange(99))).restrict(
        names
    )
    anew = SequentialCalibration(
        policy=policy.restrict(names), answers=rows.restrict(names).at(np.arange(99))
    )
    np.testing.assert_array_equal(restricted.ascending, anew.ascending)
    assert restricted.policy.borders == (1, 2, 3, 4)
    with pytest.raises(InputError, match="is not among"):
        fit_policy(fitted, reference="e").restrict(names)


def test_too_few_rows_call_everything():
    """Alpha < 1/(n + 1): the whole pool, no risk, and no test of it."""
    rows = answers(np.random.default_rng(9), 20, CHANCES)
    calibration = SequentialCalibration(policy=fit_policy(rows), answers=rows)
    assert calibration.lambda_hat(0.01) == math.inf
    assert (calibration.stops(rows, math.inf).calls == 5).all()
    assert not calibration.stops(rows, math.inf).differs.any()
    assert calibration.realised_risk(0.01) is None
    with pytest.raises(CalibrationError, match="no finite threshold"):
        calibration.risk_e_process(0.01, level=0.05)
    risk = calibration.realised_risk(0.2)
    assert risk is not None
    assert calibration.risk_e_process(0.2, level=0.05).rho == risk.upper()


@pytest.mark.parametrize("verdicts", [None, 5])
def test_votes_of_200_candidates_are_numbers(verdicts):
    """Products of their odds are beyond 1e308: two answers with equal votes have doubt 1/2."""
    pool = tuple(f"c{number:03}" for number in range(200))
    classes = np.zeros((40, 200), np.int16)
    classes[:20, 1::2] = 1
    given = None if verdicts is None else np.full(classes.shape, verdicts, np.int16)
    rows = AnswerClasses(
        pool=pool, classes=classes, verdicts=given,
        fingerprints=tuple(row.to_bytes(4) for row in range(40)),
    )  # fmt: skip
    fitted = fit_policy(rows)
    assert np.isfinite(fitted.reliabilities).all()
    policy = replace(fitted, reliabilities=(0.99,) * 200, order=pool, borders=(198, 200))
    doubt = policy.outcomes(rows).doubt
    assert doubt[:20] == pytest.approx(0.5, abs=1e-9)
    assert not doubt[20:].any()
    forms = {name: str(number % 2) for number, name in enumerate(pool[:198])}
    given_verdicts = {} if verdicts is None else dict.fromkeys(pool, verdicts)
    assert policy.doubt(forms, pool[0], given_verdicts) == doubt[0, 0]
    assert not policy.is_decided(forms, pool[0], pool[198:], given_verdicts)
    agreed = dict.fromkeys(pool[:198], "0")
    assert policy.is_decided(agreed, pool[0], pool[198:], given_verdicts)


def test_groups_have_their_own_rows():
    """A group's threshold is that of its rows alone."""
    rows = answers(np.random.default_rng(8), 60, CHANCES)
    rows = replace(rows, groups=("x", "y", "y") * 20)
    calibration = SequentialCalibration(policy=fit_policy(rows), answers=rows)
    own = calibration.group("y")
    assert own.n == 40
    assert own.lambda_hat(0.1) == SequentialCalibration(
        policy=calibration.policy, answers=rows.at(np.arange(60) % 3 > 0)
    ).lambda_hat(0.1)
    with pytest.raises(CalibrationError, match="needs rows"):
        calibration.group("z")


def test_prices_move_cheap_candidates_to_the_front():
    """By log odds over the square root of the price."""
    rows = answers(np.random.default_rng(4), 400, CHANCES)
    assert fit_policy(rows).order[0] == "e"
    prices = {name: 100.0 if name == "e" else 1.0 for name in rows.pool}
    assert fit_policy(rows, prices=prices).order[-1] == "e"
