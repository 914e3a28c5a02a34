"""Whole conversations: the kept order of candidates, and risk control over their turns."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from racer_core.calibration.calibration import Calibration
from racer_core.calibration.kept_order import COMPUTED, Continuation, warm_costs
from racer_core.calibration.loss_curve import SCALE, LossCurve, unit_steps
from racer_core.calibration.options import CalibrationOptions
from racer_core.errors import CalibrationError
from racer_core.offline.conversations import evaluate_conversations
from racer_core.types import RiskTarget, Score, TurnSizes
from tests.core.conversation_worlds import (
    Talk,
    TurnRow,
    calibration_of,
    conversations,
    drawn_talk,
    kept_by_hand,
    loss_by_hand,
)
from tests.kit.strategies import alphas

scores = st.sampled_from([Score.PROB, Score.GAP])
token_prices = st.tuples(*[st.integers(0, 4).map(float)] * 3)
OWN = 0.1  # alpha of a calibration, by which it keeps orders whatever alpha a request has


def served(calibration: Calibration, talk: Talk, alpha: float) -> list[set[str]]:
    """The sets of a conversation's turns, each from the order of the turn before."""
    order: tuple[str, ...] = ()
    sets: list[set[str]] = []
    for row in talk:
        turn = Continuation(order, TurnSizes(*row.sizes))
        decision = calibration.decide(b"", row.scores, alpha=alpha, continuation=turn)
        sets.append(set(decision.selected))
        order = decision.order
    return sets


# The order --------------------------------------------------------------------------------------


@given(talks=conversations(), score=scores, alpha=alphas, data=st.data())
def test_served_sets_are_those_of_the_oracle(talks, score, alpha, data):
    """Turn by turn from the order before, at the threshold of the rows, by any prices."""
    pool = len(talks[0][0].scores)
    prices = data.draw(st.lists(token_prices, min_size=pool, max_size=pool))
    priced = [each if each[0] + each[2] else COMPUTED for each in prices]
    priced = [(each[0], min(each[1], each[0]), each[2]) for each in priced]
    calibration = calibration_of(talks, score, prices=tuple(prices))
    lambda_hat = calibration.lambda_hat(alpha)
    for talk in talks:
        kept = kept_by_hand(talk, score, OWN, priced)
        expected = [
            {name for name, s in zip(calibration.pool, each, strict=True) if s <= lambda_hat}
            for each in kept
        ]
        assert served(calibration, talk, alpha) == expected


def test_a_candidate_stays_while_it_is_worth_it():
    """A call spares 0.25 of its price, worth 0.025: 0.625 stays in front of 0.64, not of 0.66."""
    first = TurnRow([0.7, 0.2], [True, True], [0, 0], (0, 1, 0))
    calibration = calibration_of([[first]])
    a, b = calibration.pool
    turn = Continuation((a, b), TurnSizes(1, 3, 0))
    for other, order in ((0.64, (a, b)), (0.66, (b, a))):
        later = TurnRow([0.625, other], [True, True], [0, 0], (1, 3, 0))
        of_first = kept_by_hand([first, later], Score.PROB, OWN)[1][0]
        assert of_first == pytest.approx(1 - other if order[0] == a else 0.375)
        decision = calibration.decide(b"", later.scores, continuation=turn)
        assert decision.order == order
        assert calibration.decide(b"", later.scores, alpha=0.3, continuation=turn).order == order


def test_the_cost_of_a_warm_call_counts_its_price_and_its_computation():
    """Without prices of tokens its computation alone; a cache is never dearer."""
    sizes = np.array([[300.0, 50.0, 150.0], [0.0, 50.0, 0.0], [0.0, 0.0, 0.0]])
    prices = [COMPUTED, (2.0, 0.5, 8.0), (0.0, 0.0, 0.0), (1.0, 3.0, 0.0)]
    costs = warm_costs(sizes, prices)
    computed, price = 200 / 500, (150 + 100 + 1200) / 1900
    expected = [computed, (price + computed) / 2, computed, (1.0 + computed) / 2]
    assert costs[0] == pytest.approx(expected)
    assert costs[1:].tolist() == [[1.0] * 4] * 2


@given(talks=conversations(), score=scores)
def test_a_smaller_pool_orders_its_own_candidates(talks, score):
    """As if the others had never been there."""
    calibration = calibration_of(talks, score)
    names = calibration.pool[:2]
    smaller = [
        [replace(row, scores=row.scores[:2], right=row.right[:2]) for row in talk] for talk in talks
    ]
    restricted = calibration.restrict(names)
    for talk in smaller:
        kept = kept_by_hand(talk, score, OWN)
        lambda_hat = restricted.lambda_hat(0.3)
        expected = [
            {n for n, s in zip(names, each, strict=True) if s <= lambda_hat} for each in kept
        ]
        assert served(restricted, talk, 0.3) == expected


# The threshold ----------------------------------------------------------------------------------


def by_hand(talks: list[Talk], score: Score, alpha: float, target: RiskTarget) -> float:
    """The smallest score with (total loss + 1) / (n + 1) <= alpha, in rational arithmetic."""
    kept = [kept_by_hand(talk, score, alpha) for talk in talks]
    for level in sorted({s for of_talk in kept for each in of_talk for s in each}):
        found = [loss_by_hand(t, k, level, target) for t, k in zip(talks, kept, strict=True)]
        losses = [each for each in found if each is not None]
        # One division, rounded to the nearest double, as everywhere.
        if (sum(losses, Fraction(0)) + 1) / (len(losses) + 1) <= Fraction(alpha):
            return level
    return math.inf


@settings(max_examples=40)
@given(talks=conversations(most=10), score=scores, alpha=st.sampled_from([0.125, 0.25, 0.5, 0.75]))
def test_the_threshold_is_the_smallest_that_bounds_the_mean_loss(talks, score, alpha):
    """Every score tried from below. Thirds are rounded up, so that a tie may go to the next one."""
    for target in (RiskTarget.ANSWERABLE, RiskTarget.QUALITY):
        calibration = calibration_of(talks, score, risk_target=target, alpha=alpha)
        expected = by_hand(talks, score, alpha, target)
        found = calibration.lambda_hat()
        if any(len(talk) == 3 for talk in talks):
            assert found >= expected
            assert found <= by_hand(talks, score, alpha * (1 - 1e-4), target)
        elif expected > min_step(calibration):
            assert found == expected


def min_step(calibration: Calibration) -> float:
    """The smallest score at which some loss falls: no threshold is below it."""
    steps = calibration.loss_curve(calibration.options.score).scores
    return float(steps.min(initial=math.inf))


@settings(max_examples=40)
@given(talks=conversations(least=2, most=6), score=scores, alpha=alphas)
def test_the_next_conversation_is_missed_with_at_most_alpha(talks, score, alpha):
    """Exactly, whichever of exchangeable conversations is the next: the mean over all of them."""
    for target in (RiskTarget.ANSWERABLE, RiskTarget.QUALITY):
        losses: list[Fraction] = []
        for number, talk in enumerate(talks):
            others = talks[:number] + talks[number + 1 :]
            lambda_hat = calibration_of(others, score, risk_target=target).lambda_hat(alpha)
            loss = loss_by_hand(talk, kept_by_hand(talk, score, OWN), lambda_hat, target)
            losses += [] if loss is None else [loss]
        if losses:
            assert sum(losses) / len(losses) <= Fraction(alpha)


def test_the_mean_risk_of_conversations_uses_what_alpha_allows():
    """In a continuous world: at most alpha, and above alpha - 2 / (n + 1). False alarm 1e-6.

    4.9 standard errors over 150 calibrations of 19 conversations, of 200 further ones, whose own
    spread counts, too.
    """
    rng = np.random.default_rng(20260301)
    alpha, n = 0.3, 19
    further = [drawn_talk(rng) for _ in range(200)]
    tested = calibration_of(further).loss_curve(Score.PROB)
    drawn = [calibration_of([drawn_talk(rng) for _ in range(n)]) for _ in range(150)]
    thresholds = [each.lambda_hat(alpha) for each in drawn]
    risks = [tested.mean_loss(each) for each in thresholds]
    own = np.std([conversation_loss(talk, float(np.median(thresholds))) for talk in further])
    error = math.hypot(np.std(risks) / math.sqrt(len(risks)), own / math.sqrt(len(further)))
    assert alpha - 2 / (n + 1) - 4.9 * error < np.mean(risks) < alpha + 4.9 * error


def conversation_loss(talk: Talk, lambda_hat: float) -> float:
    """The loss of one conversation; 0 where none of its turns counts."""
    kept = kept_by_hand(talk, Score.PROB, OWN)
    return float(loss_by_hand(talk, kept, lambda_hat, RiskTarget.ANSWERABLE) or 0)


@given(st.data())
def test_unit_losses_are_means_rounded_up(data):
    """Of rows in any order, at every threshold; a unit loses at most 1."""
    count = data.draw(st.integers(1, 8))
    units = np.array(data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)))
    steps = np.array(
        data.draw(st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0, math.inf]), min_size=2,
                                    max_size=2), min_size=count, max_size=count))
    )  # fmt: skip
    drops = np.array(
        data.draw(st.lists(st.lists(st.integers(0, SCALE // 2), min_size=2, max_size=2),
                           min_size=count, max_size=count))
    )  # fmt: skip
    curve = LossCurve.of(*unit_steps(steps, drops, units), units=len(set(units.tolist())))
    for level in (-1.0, 0.0, 0.5, 1.0):
        left = np.where(steps > level, drops, 0).sum(axis=1)
        expected = sum(
            math.ceil(Fraction(int(left[units == unit].sum()), int((units == unit).sum())))
            for unit in set(units.tolist())
        )
        assert curve.mean_loss(level) == expected / (len(set(units.tolist())) * SCALE)


def test_unlabelled_turns_are_misses():
    """At every finite threshold, so that the bound holds whatever is missing."""
    talk = [TurnRow([0.9, 0.1], [True, False], [0, 0], (0, 1, 0))] * 2
    rows = calibration_of([talk] * 3)
    half = replace(
        rows,
        labels=rows.labels & (np.arange(6) % 2 == 0)[:, None],
        unlabelled=np.arange(6) % 2 == 1,
    )
    assert rows.loss_curve(Score.PROB).mean_loss(0.5) == 0.0
    assert half.loss_curve(Score.PROB).mean_loss(0.999) == 0.5
    assert half.n == 3


# The evaluation ---------------------------------------------------------------------------------


def test_an_evaluation_keeps_orders_by_the_alpha_that_it_measures():
    """As a calibration at that alpha does; at another one other candidates would stay."""
    rng = np.random.default_rng(5)
    talks = [drawn_talk(rng) for _ in range(60)]
    rows = [calibration_of(talks, alpha=alpha) for alpha in (0.05, 0.4)]
    measured = [
        evaluate_conversations(each, alphas=(0.4,), splits=3, seed=1).measures for each in rows
    ]
    assert measured[0] == measured[1]
    assert measured[0][0].kept
    assert measured[0][0].cached > measured[0][1].cached


# The certificate --------------------------------------------------------------------------------


def test_a_certificate_of_conversations_promises_a_mean_alone():
    """No Beta law, no band and no point of the realised risk; an alpha that was picked is void."""
    talks = [[TurnRow([0.9, 0.3], [True, False], [0, 0], (0, 1, 0))] * 2 for _ in range(20)]
    calibration = calibration_of(talks)
    guarantee = calibration.certify().as_json()["guarantee"]
    assert (guarantee["unit"], guarantee["law"]) == ("conversation", "expectation")
    assert (calibration.n, guarantee["risk_band"]) == (20, None)
    assert calibration.risk_q95(0.1) is None
    assert calibration.realised_risk(0.1) is None
    assert calibration.certify().holds
    options = replace(calibration.options, is_alpha_fixed=False)
    assert calibration_with(calibration, options).certify().void_reasons == ("alpha_picked",)


def calibration_with(calibration: Calibration, options: CalibrationOptions) -> Calibration:
    """The same rows under other terms."""
    return replace(calibration, options=options)


def test_laws_of_other_rows():
    """An order statistic has a Beta law; grades and weights have a mean, or a tail with delta."""
    plain = CalibrationOptions()
    assert (plain.law, plain.unit) == ("beta", "request")
    assert replace(plain, delta=0.1).law == "beta"
    graded = replace(plain, risk_target=RiskTarget.QUALITY)
    assert (graded.law, replace(graded, delta=0.1).law) == ("expectation", "tail")
    assert replace(plain, max_weight=2.0).law == "expectation"


@settings(max_examples=30)
@given(talks=conversations(least=2))
def test_a_group_keeps_its_conversations_whole(talks):
    """Each conversation is of one group, with a threshold of its own."""
    rows = calibration_of(talks)
    names = [("x", "y")[number % 2] for number, talk in enumerate(talks) for _ in talk]
    grouped = replace(rows, groups=tuple(names))
    alone = calibration_of(talks[::2])
    assert grouped.group("x").lambda_hat(0.3) == alone.lambda_hat(0.3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"conversations": np.array([0, 1, 0])}, "must stand together"),
        ({"conversations": np.array([0, 0])}, "2 conversations for 3 rows"),
        ({"turn_sizes": None}, "need the lengths"),
        ({"turn_sizes": np.full((3, 3), -1.0)}, "at least 0"),
        ({"weights": np.array([1.0, 2.0, 1.0])}, "neither weights"),
    ],
)
def test_rows_that_are_no_whole_conversations_are_refused(changes, message):
    """Instead of a threshold that bounds something else."""
    talk = [TurnRow([0.9, 0.3], [True, False], [0, 0], (0, 1, 0))]
    rows = calibration_of([talk, talk, talk])
    with pytest.raises(CalibrationError, match=message):
        replace(rows, **changes)


def test_candidates_that_left_the_pool_leave_the_order():
    """Those behind them move up; what the order lacks follows by its scores."""
    turn = Continuation(("b", "gone", "a"), TurnSizes(0, 1, 0))
    assert turn.columns(("a", "b", "c")).tolist() == [[1, 0, -1]]
