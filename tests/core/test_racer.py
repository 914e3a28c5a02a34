"""The facade: load, calibrate, route."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from racer_core.artifacts import Artifact
from racer_core.calibration.options import SMOOTHING_SALT, CalibrationOptions
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.errors import CalibrationError, OverlapError, RowsError
from racer_core.racer import Racer
from racer_core.routers.base import RouterOutput
from racer_core.trained_router import RouterScores
from racer_core.types import LabelledRow, LabelledRows, RiskTarget, Score, Turn
from tests.kit.synthetic import POOL, synthetic_rows


@pytest.fixture(scope="module")
def rows():
    """Calibration rows that the router has not seen."""
    return synthetic_rows(300, seed=11)


def test_the_selected_candidates_depend_on_the_query(racer, rows):
    """Each topic's own candidate is called nearly always, and first."""
    calibration = racer.calibrate(rows, alpha=0.1)
    for query, best in (
        ("What is 123 plus 77?", "adder"),
        ("How far is it from town 123 to town 77 by train?", "traveller"),
        ("Which colour do you get when you mix paint 123 with paint 77?", "painter"),
    ):
        assert racer.route_batch([query], calibration)[0].selected[0] == best


def test_default_options_abstain_by_the_artifacts_tau(racer, rows):
    """Tau was chosen on validation rows when training; options given in full replace it."""
    assert racer.artifact.null_threshold is not None
    options = racer.calibrate(rows, alpha=0.2).options
    tau = racer.artifact.null_threshold
    assert options == CalibrationOptions(
        alpha=0.2, score=Score.COVER, null_threshold=tau, smoothing_salt=SMOOTHING_SALT
    )
    full = CalibrationOptions(alpha=0.3, score=Score.PROB, risk_target=RiskTarget.PAPER)
    assert racer.calibrate(rows, options=full).options == full


def disguised(rows):
    """The same queries in capitals and with more space."""
    return replace(rows, rows=tuple(replace(r, query=f" {r.query.upper()}\n") for r in rows.rows))


@pytest.mark.parametrize("seed", [1, 2])
def test_rows_of_training_or_validation_are_refused(racer, rows, seed):
    """The first one is named; case and space are no disguise."""
    seen = synthetic_rows(20, seed=seed)
    mixed = replace(rows, rows=(*rows.rows[:10], *disguised(seen).rows))
    with pytest.raises(OverlapError, match=r"20 of 30 rows .* row 11"):
        racer.calibrate(mixed)


def test_overlap_may_be_allowed(racer, rows):
    """The caller then knows that the guarantee is lost; overlap() still says where."""
    mixed = replace(rows, rows=(*synthetic_rows(1, seed=1).rows, *rows.rows))
    assert racer.calibrate(mixed, allow_overlap=True).n == racer.calibrate(rows).n + bool(
        mixed.rows[0].correct
    )
    assert racer.overlap([racer.fingerprint(query) for query in mixed.queries]) == [0]
    assert racer.overlap([racer.fingerprint(query) for query in rows.queries]) == []


def test_rows_of_another_pool_are_refused(racer):
    """Both pools are named."""
    other = LabelledRows(pool=("poet",), rows=(LabelledRow(query="x", correct=frozenset()),))
    with pytest.raises(RowsError, match=r"poet.*adder"):
        racer.calibrate(other)


def test_unanswerable_rows_cannot_calibrate_the_answerable_target(racer, rows):
    """For the paper's target they count: the null model is right on each."""
    unanswerable = replace(rows, rows=tuple(replace(row, correct=frozenset()) for row in rows.rows))
    with pytest.raises(CalibrationError, match="no row is answered right by any candidate"):
        racer.calibrate(unanswerable)
    paper = CalibrationOptions(risk_target=RiskTarget.PAPER)
    assert racer.calibrate(unanswerable, options=paper).n == len(rows)


def with_scores(rows, scores, pool=POOL):
    """The same labels, with router scores in place of the queries."""
    return LabelledRows(
        pool=pool,
        rows=tuple(
            LabelledRow(query="", correct=row.correct, scores=tuple(f))
            for row, f in zip(rows.rows, scores.tolist(), strict=True)
        ),
    )


def test_turns_after_the_first_are_refused(racer, rows):
    """They are another population: one threshold for both would hold for neither."""
    later = replace(rows.rows[0], earlier=(Turn("user", "Hello"),))
    mixed = LabelledRows(pool=rows.pool, rows=(*rows.rows[1:], later))
    with pytest.raises(RowsError, match="another population"):
        racer.calibrate(mixed)


def test_rows_may_name_the_pool_in_another_order(racer, rows):
    """Labels and scores follow the names, not the positions."""
    mine = racer.calibrate(rows)
    theirs = racer.calibrate(replace(rows, pool=POOL[::-1]))
    np.testing.assert_array_equal(mine.labels, theirs.labels)
    scored = with_scores(rows, mine.scores[:, ::-1], POOL[::-1])
    np.testing.assert_array_equal(racer.calibrate(scored).scores, mine.scores)


def test_rows_that_carry_router_scores_need_no_query(racer, rows):
    """Mixed with rows that do not: each keeps its place."""
    scored = with_scores(rows, np.tile([0.5, 0.25, 0.125], (len(rows), 1)))
    mixed = replace(rows, rows=(scored.rows[0], *rows.rows[1:3], scored.rows[3]))
    calibration = racer.calibrate(mixed)
    assert calibration.scores[[0, 3]].tolist() == [[0.5, 0.25, 0.125]] * 2
    expected = racer.score([row.query for row in rows.rows[1:3]]).scores
    np.testing.assert_array_equal(calibration.scores[1:3], expected)


def test_another_scorer_may_score_the_rows(racer, rows):
    """A server hands in one that shares the device with live traffic."""
    scored_texts = []

    def scorer(queries):
        scored_texts.extend(queries)
        return RouterScores(np.full((len(queries), 3), 0.25), np.zeros(len(queries), bool))

    assert np.all(racer.calibrate(rows, scorer=scorer).scores == 0.25)
    assert scored_texts == rows.queries


def test_query_that_the_encoder_cuts_is_marked(racer, rows):
    """The set rests on its beginning alone."""
    calibration = racer.calibrate(rows)
    decisions = racer.route_batch(["x" * 2_049, "short"], calibration)
    assert [decision.truncated for decision in decisions] == [True, False]


@dataclass(frozen=True)
class Wobbly:
    """A router whose kernels depend on the batch: the scores move by 1e-9 a row."""

    base: tuple[float, ...] = (2 / 3, 1 / 3, 0.1)

    def predict(self, batch):
        """Almost the same scores for every query."""
        wobble = 1e-9 * len(batch.texts)
        return RouterOutput(np.tile(np.array(self.base) + wobble, (len(batch.texts), 1)))


def wobbly(racer):
    """The facade around that router."""
    values = {name: getattr(racer.artifact, name) for name in Artifact.__slots__}
    artifact = Artifact(**{**values, "router": Wobbly(), "null_threshold": None})
    return Racer(artifact, CharNgramEncoder())


def test_scores_are_on_a_grid_of_a_millionth(racer):
    """Not more digits than the arithmetic has in common between machines and batches."""
    assert wobbly(racer).score(["x"]).scores.tolist() == [[0.666667, 0.333333, 0.1]]


def test_decisions_do_not_depend_on_the_batch(racer):
    """All critical scores are one atom, so lambda_hat sits on it: without the grid it is missed."""
    rounded = wobbly(racer)
    rows = LabelledRows(
        pool=POOL,
        rows=tuple(
            LabelledRow(query=f"row {i}", correct=frozenset({"traveller"})) for i in range(50)
        ),
    )
    for options in (CalibrationOptions(score=Score.PROB), CalibrationOptions(score=Score.GAP)):
        calibration = rounded.calibrate(rows, options=options)
        alone = rounded.route_batch(["query"], calibration)[0]
        together = rounded.route_batch(["query"] * 9, calibration)
        assert alone.selected == ("adder", "traveller")
        assert together == [alone] * 9


def test_scores_that_rows_carry_are_put_on_the_same_grid(racer):
    """The same router's scores, computed elsewhere, are the same scores."""
    rounded = wobbly(racer)
    label = LabelledRow(query="", correct=frozenset({"traveller"}))
    raw = LabelledRows(pool=POOL, rows=(replace(label, scores=(2 / 3, 1 / 3, 0.1)),) * 50)
    calibration = rounded.calibrate(raw, options=CalibrationOptions(score=Score.GAP))
    assert rounded.route_batch(["query"], calibration)[0].selected == ("adder", "traveller")


def test_rows_without_a_query_do_not_share_their_noise(racer, rows):
    """Smoothing breaks ties between rows; one fingerprint for all would leave them in place."""
    scored = with_scores(rows, np.full((len(rows), 3), 0.5))
    calibration = racer.calibrate(scored, options=CalibrationOptions(smoothing_salt=SMOOTHING_SALT))
    assert len(set(calibration.fingerprints)) == len(rows)
