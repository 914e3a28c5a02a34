"""Sequential calls with labels: the stacked vote as the reference, and a logistic stopping score.

What labels and a router add to the calls one by one of ``same_answer.py``. No gateway serves this.
The stopping score is fitted on whether the answer so far differs from the full vote, on all
prefixes of the rows that fit. Its features: posterior and margin of the leading answer, the weight
of the votes that are left, the candidates in and outside the leading group, and router scores.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

import racer_core as rc
from racer_core.aggregation.batch import winners
from racer_core.calibration.threshold import calibrate_threshold
from racer_core.offline.selection import ScoredRows
from racer_core.offline.stacking import fit_stacked
from racer_core.sequential.answer_classes import AnswerClasses
from racer_core.sequential.critical import critical_scores, round_nonconformity, rounds_called

FOLDS = 5
RIDGE = 5.0
OPTIONS = 10


def router_scores(embeddings: Any, labels: Any, fit: Any) -> Any:
    """KNN scores of all rows (n, K); out of fold for the rows that fit."""

    def predicted(training: Any, rows: Any) -> Any:
        router = rc.EmbeddingRouter().fit(embeddings[training], labels[training])
        return np.asarray(router.predict(embeddings[rows]), dtype=np.float64)

    scores = predicted(fit, np.arange(len(labels)))
    for fold in range(FOLDS):
        inside = np.arange(len(fit)) % FOLDS == fold
        scores[fit[inside]] = predicted(fit[~inside], fit[inside])
    return scores


def prefixes(answers: AnswerClasses, scores: Any, counts: Any) -> tuple[Any, Any]:
    """Winners (n, K) and features (n, K, F) after every call; the largest counts are called first.

    Args:
        answers: All rows.
        scores: Router scores, shape (n, K).
        counts: What each vote counts, shape (n, K).
    """
    rows, calls = scores.shape
    same, readable = answers.same.astype(np.float64), answers.classes >= 0
    by_name = sorted(range(calls), key=answers.pool.__getitem__)
    rank = np.argsort(np.argsort(-counts, axis=1, kind="stable"), axis=1)
    chosen, features = [], []
    for called in range(1, calls + 1):
        inside = rank < called
        winner = winners(same, inside, counts, scores, by_name)
        leading = same[np.arange(rows), winner] * inside
        group = same * inside[:, None, :]
        votes = (group * counts[:, None, :]).sum(axis=2)
        lead = (leading * counts).sum(axis=1)
        others = inside & readable & (leading < 0.5)
        margin = lead - np.where(others, votes, 0.0).max(axis=1)
        left = np.where(inside, 0.0, counts)
        spread = np.maximum(np.sqrt((left**2).sum(axis=1)), 0.1)
        share = np.where(inside & readable, 1.0 / np.maximum(group.sum(axis=2), 1.0), 0.0)
        unused = np.maximum(OPTIONS - share.sum(axis=1), 0.0)
        total = (np.exp(np.clip(votes, -20.0, 20.0)) * share).sum(axis=1) + unused
        chance = np.clip(np.exp(np.clip(lead, -20.0, 20.0)) / total, 1e-9, 1.0 - 1e-9)
        size = leading.sum(axis=1)
        numbers = (
            *(np.ones(rows), np.log1p(-chance) - np.log(chance), margin, margin / spread),
            *(margin / np.maximum(np.maximum(left, 0.0).sum(axis=1), 0.1), spread),
            *(np.full(rows, called), size, size / called, np.maximum(margin / spread - 1.0, 0.0)),
            *(scores.max(axis=1), np.where(inside, -1.0, scores).max(axis=1)),
        )
        chosen.append(winner)
        features.append(np.column_stack([*numbers, leading, others]))
    return np.stack(chosen, axis=1), np.stack(features, axis=1)


def logistic(features: Any, outcome: Any) -> Any:
    """Weights of a ridge logistic regression, by Newton's method; the first column is constant."""
    weights = np.zeros(features.shape[1])
    ridge = np.diag([1e-6, *[RIDGE] * (len(weights) - 1)])
    for _ in range(30):
        chance = 1.0 / (1.0 + np.exp(-np.clip(features @ weights, -30.0, 30.0)))
        gradient = features.T @ (chance - outcome) + ridge @ weights
        curvature = (features * (chance * (1.0 - chance))[:, None]).T @ features + ridge
        step = np.linalg.solve(curvature, gradient)
        weights = weights - step
        if np.abs(step).max() < 1e-8:
            break
    return weights


def stacked_calls(
    answers: AnswerClasses,
    labels: Any,
    embeddings: Any,
    parts: tuple[Any, Any, Any],
    alphas: tuple[float, ...],
) -> Mapping[float, dict[str, float]]:
    """Calls, rounds, differences and accuracy on the test rows; none where no vote can be fitted.

    Args:
        answers: All rows.
        labels: Their correctness, shape (n, K).
        embeddings: Of their queries, shape (n, D).
        parts: The rows that fit, calibrate and test.
        alphas: Levels.
    """
    fit, calibration, test = parts
    scores = router_scores(embeddings, labels, fit)
    training = ScoredRows(
        pool=answers.pool,
        fingerprints=answers.at(fit).fingerprints,
        scores=scores[fit],
        neighbours=None,
        labels=labels[fit],
    )
    vote = fit_stacked(training, answers.classes[fit])
    if vote is None:
        return {}
    winner, features = prefixes(answers, scores, vote.counts(scores))
    reference = winner[:, -1:]
    rows = np.arange(len(answers))[:, None]
    differs = ~(answers.same[rows, winner, reference] | (winner == reference))
    features[:, :, 1:] -= features[fit][:, :-1, 1:].mean(axis=(0, 1))
    features[:, :, 1:] /= features[fit][:, :-1, 1:].std(axis=(0, 1)) + 1e-9
    flat = features[fit][:, :-1].reshape(-1, features.shape[2])
    weights = logistic(flat, differs[fit, :-1].reshape(-1).astype(np.float64))
    noise = 1e-6 * np.random.default_rng(0).random(len(answers))
    s = round_nonconformity(features @ weights, noise)
    critical = critical_scores(s[calibration], differs[calibration])
    found = {}
    for alpha in alphas:
        calls = rounds_called(s[test], calibrate_threshold(critical, alpha))
        shown = winner[test, calls - 1]
        found[alpha] = {
            "calls": float(calls.mean()),
            "rounds": float(calls.mean()),
            "differs": float(differs[test, calls - 1].mean()),
            "accuracy": float(labels[test, shown].mean()),
        }
    return found
