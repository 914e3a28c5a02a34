"""Thinning of sampled rows: the exact law of the risk over all requests of several sampling rates.

Statistical tests have a fixed seed and a false-alarm probability of 1e-6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from app.calibrations.columns import RowColumns, Texts
from app.calibrations.thinning import RateInForce, thinned
from racer_core.calibration.shadow import is_sampled, sampling_number
from racer_core.calibration.threshold import allowed_misses
from racer_core.types import RowsKind, Score
from tests.core.laws import assert_binomial
from tests.kit.lazy import LazyModule
from tests.kit.strategies import calibration_of

stats = LazyModule("scipy.stats")

FALSE_ALARM = 1e-6
KEY = b"a key of the store"
DAY = "2026-01-%02dT00:00:00.000000+00:00"

Rule = Callable[[RowColumns, Sequence[RateInForce]], RowColumns]


@dataclass(frozen=True)
class Period:
    """Requests of one application, with critical scores uniform between two bounds."""

    rate: float
    requests: int
    lowest: float
    highest: float
    application: str = ""


def columns(
    ids: Sequence[str],
    weights: Sequence[float],
    critical: Sequence[float],
    groups: Sequence[str] | None = None,
) -> RowColumns:
    """Sampled rows. The second candidate alone is right, at the gap of the critical score."""
    n = len(ids)
    scores = np.column_stack([np.ones(n), 1.0 - np.array(critical)])
    names = tuple(each.encode() for each in ids)
    return RowColumns(
        pool=("a", "b"),
        queries=Texts(b"", np.zeros(n, np.int64)),
        fingerprints=names,
        overlap_prints=names,
        identities=names,
        query_hashes=np.arange(n, dtype=np.uint64),
        labels=np.tile([False, True], (n, 1)),
        scores=scores,
        groups=None if groups is None else tuple(groups),
        clusters=np.full(n, -1),
        answers=None,
        answered=np.zeros(n, bool),
        later=np.zeros(n, bool),
        conditions=(),
        condition_ids=np.full(n, -1),
        duplicates=0,
        near_duplicates=0,
        assumed=0,
        guessed_kind=RowsKind.TRAFFIC,
        unlabelled=np.zeros(n, bool),
        sampled=np.array([bool(each) for each in ids]),
        draws=np.array([sampling_number(KEY, each) if each else math.nan for each in names]),
        decision_ids=np.array(names),
        weights=np.array(weights, np.float64),
    )


def in_force(periods: Sequence[Period]) -> list[RateInForce]:
    """What the store knows of the periods."""
    return [
        RateInForce(
            application=each.application,
            rate=each.rate,
            requests=each.requests,
            last_at=DAY % (place + 1),
        )
        for place, each in enumerate(periods)
    ]


def by_thinning(rows: RowColumns, rates: Sequence[RateInForce]) -> RowColumns:
    """The rule under test."""
    return thinned(rows, rates, by_application=False)[0]


def without_weights(rows: RowColumns, _: Sequence[RateInForce]) -> RowColumns:
    """Negative control: all drawn rows, as if of one rate."""
    return rows


def by_drawn_rates(rows: RowColumns, _: Sequence[RateInForce]) -> RowColumns:
    """Negative control: thinning to the lowest rate of the drawn rows."""
    return thinned(rows, [], by_application=False)[0]


def missed(
    periods: Sequence[Period], rules: Sequence[Rule], *, alpha: float, trials: int
) -> list[tuple[int, float]]:
    """Of each rule how many random requests beside the rows are missed, and the mean exact law.

    With n rows of all requests a random other one is missed with probability (m + 1) / (n + 1), m
    the misses that alpha allows; 0 where alpha is infeasible.
    """
    rng = np.random.default_rng(20)
    counts, laws = [0] * len(rules), [0.0] * len(rules)
    for trial in range(trials):
        critical = dict[str, float]()
        weights = dict[str, float]()  # of the drawn
        for place, period in enumerate(periods):
            values = rng.uniform(period.lowest, period.highest, period.requests).tolist()
            of_period = {f"{trial}-{place}-{i}": value for i, value in enumerate(values)}
            critical |= of_period
            for decision_id in of_period:
                if is_sampled(KEY, decision_id.encode(), period.rate):
                    weights[decision_id] = 1.0 / period.rate
        if not weights:
            continue
        ids = list(weights)
        drawn = columns(ids, list(weights.values()), [critical[each] for each in ids])
        for number, rule in enumerate(rules):
            rows = rule(drawn, in_force(periods))
            if not len(rows):
                continue
            chosen = {each.decode() for each in rows.fingerprints}
            others = [value for name, value in critical.items() if name not in chosen]
            found = calibration_of(rows.scores, rows.labels, alpha=alpha, score=Score.GAP)
            counts[number] += others[rng.integers(len(others))] > found.lambda_hat()
            misses = allowed_misses(found.n, alpha)
            laws[number] += 0.0 if misses < 0 else (misses + 1) / (found.n + 1)
    return [(count, law / trials) for count, law in zip(counts, laws, strict=True)]


CHANGED = [Period(0.8, 50, 0.0, 0.5), Period(0.2, 200, 0.5, 1.0)]
SHORT = [Period(0.8, 60, 0.0, 0.5), Period(0.02, 40, 0.5, 1.0)]


def test_rows_of_several_rates_keep_the_exact_law_of_all_requests() -> None:
    """Easy requests at the rate 0.8, then hard ones at 0.2: about 50 rows remain, alpha 0.1.

    All drawn rows as they are give a risk near 0.17, which the law of these rows allows with a
    probability below 1e-9.
    """
    trials = 1_200
    (count, law), (unweighted, its_law) = missed(
        CHANGED, [by_thinning, without_weights], alpha=0.1, trials=trials
    )
    assert 0.08 < law <= 0.1
    assert_binomial(count, trials, p=law, false_alarm=FALSE_ALARM)
    assert unweighted > stats.binom.isf(1e-9, trials, its_law)


def test_a_period_of_which_nothing_was_drawn_counts() -> None:
    """40 hard requests at the rate 0.02 after 60 easy ones at 0.8, alpha 0.5.

    Thinned to the lowest rate of the drawn rows, 45 % of the samples have easy rows alone: a risk
    near 0.57, which the law of these rows allows with a probability below 1e-9.
    """
    trials = 1_500
    (count, law), (by_drawn, its_law) = missed(
        SHORT, [by_thinning, by_drawn_rates], alpha=0.5, trials=trials
    )
    assert law > 0.3
    assert_binomial(count, trials, p=law, false_alarm=FALSE_ALARM)
    assert by_drawn > stats.binom.isf(1e-9, trials, its_law)


def test_each_application_is_thinned_to_its_own_rate() -> None:
    """Rows of an application whose rows are all sampled have no weights; others keep theirs."""
    ids = [f"id-{number}" for number in range(400)]
    groups = [("bot", "search")[number % 2] for number in range(400)]
    rates = [(0.5, 0.25)[number // 200] if number % 2 else 1.0 for number in range(400)]
    drawn = [i for i in range(400) if is_sampled(KEY, ids[i].encode(), rates[i])]
    rows = columns(
        [ids[i] for i in drawn],
        [1.0 / rates[i] for i in drawn],
        [0.1] * len(drawn),
        [groups[i] for i in drawn],
    )
    rates_of = [
        RateInForce(application="bot", rate=1.0, requests=200, last_at=DAY % 2),
        RateInForce(application="search", rate=0.25, requests=100, last_at=DAY % 1),
        RateInForce(application="search", rate=0.5, requests=100, last_at=DAY % 2),
        RateInForce(application="search", rate=0.0, requests=7, last_at=DAY % 1),
        RateInForce(application="other", rate=0.01, requests=7, last_at=DAY % 1),
    ]
    found, evidence = thinned(rows, rates_of, by_application=True)
    kept = [i for i in drawn if i % 2 == 0 or is_sampled(KEY, ids[i].encode(), 0.25)]
    assert found.weights is None
    assert [each.decode() for each in found.fingerprints] == [ids[i] for i in kept]
    search = sum(i % 2 for i in kept)
    assert evidence == [
        {"application": "bot", "drawn": 200, "kept": 200, "rate": 1.0,
         "turns": 1, "since": None, "unsampled": 0},
        {"application": "search", "drawn": len(drawn) - 200, "kept": search, "rate": 0.25,
         "turns": 2, "since": "2026-01-01T00:00:00.000001+00:00", "unsampled": 7},
    ]  # fmt: skip
    bare = [*ids[:4], ""]
    mixed = columns(bare, [1.0] * 5, [0.1] * 5, ["bot", "search", "bot", "search", "bot"])
    found, _ = thinned(mixed, [replace(rates_of[0], rate=0.5)], by_application=True)
    assert found.weights is not None
    assert set(found.weights[:-1].tolist()) <= {1.0, 2.0}
    assert found.weights[-1] == 1.0


@pytest.mark.parametrize("rate", [1 / 3, 0.1, 0.7, 1 / 7])
def test_a_rate_and_the_inverse_of_its_weight_are_one(rate: float) -> None:
    """The evidence has the rate of the configuration, and no row is lost."""
    ids = [f"id-{i}" for i in range(50) if is_sampled(KEY, f"id-{i}".encode(), rate)]
    rows = columns(ids, [1.0 / rate] * len(ids), [0.1] * len(ids))
    stored = [RateInForce(application="", rate=rate, requests=50, last_at=DAY % 1)]
    found, (evidence,) = thinned(rows, stored, by_application=False)
    assert (len(found), evidence["rate"]) == (len(ids), rate)
