"""`racer tune` and the same answer: levels that fitted on other rows, and which is chosen."""

import numpy as np
import pytest

from racer_core.offline.same_answer_levels import cheapest_level, same_answer_levels
from tests.core.sequential_worlds import answers


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
