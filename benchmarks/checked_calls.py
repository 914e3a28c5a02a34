"""A checker as evidence in sequential calls, on recorded answers with simulated checkers.

    PYTHONPATH=. python benchmarks/checked_calls.py --data DATA

A checker of AUC A draws a score for every answer: log odds from a normal distribution, whose means
for right and wrong answers lie apart by sqrt(2) times the normal quantile of A. DATA is a folder
with rows that have answers, as for same_answer.py; without it the rows are simulated. In each split
46 % of the rows fit a policy, 30 % calibrate it, 24 % test it.

The miss promise has labels: its policy is fitted on them, and rows without a right candidate
calibrate nothing. For "the same answer" labels only draw the scores, and measure accuracy.
"""

from collections.abc import Mapping
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
from answer_sets import ALPHAS, Numbers, RecordedRows, law, means, options, publish
from verdict import table

import racer_core as rc
from racer_core.sequential.answer_classes import AnswerClasses
from racer_core.sequential.calibration import SequentialCalibration
from racer_core.sequential.coverage import fit_coverage_policy
from racer_core.sequential.fit import fit_policy
from racer_core.sequential.policy import Policy
from racer_core.sequential.verdicts import EDGES

AUCS = (None, 0.76, 0.86, 0.92, 0.98)
KINDS = ("miss", "same answer: full vote", "same answer: one candidate")


def verdicts(labels: Any, auc: float, rng: np.random.Generator) -> Any:
    """The verdicts of a checker on every answer, shape (n, K)."""
    apart = 2**0.5 * NormalDist().inv_cdf(auc)
    score = rng.normal(size=labels.shape) + np.where(labels, apart / 2, -apart / 2)
    return np.digitize(1.0 / (1.0 + np.exp(-apart * score)), EDGES).astype(np.int8)


def policies(fit: AnswerClasses, reference: str) -> dict[str, Policy]:
    """Policies that call one candidate after the other."""
    return {
        KINDS[0]: fit_coverage_policy(fit, max_rounds=None),
        KINDS[1]: fit_policy(fit, max_rounds=None),
        KINDS[2]: fit_policy(fit, max_rounds=None, reference=reference),
    }


def measured(answers: AnswerClasses, reference: str, parts: list[Any]) -> dict[str, Numbers]:
    """Calls, risk and accuracy of one split, by kind of promise and alpha."""
    fit, calibration, test = (answers.at(part) for part in parts)
    assert test.labels is not None
    found: dict[str, Numbers] = {}
    for kind, policy in policies(fit, reference).items():
        own = calibration.answerable() if kind == KINDS[0] else calibration
        threshold = SequentialCalibration(policy=policy, answers=own, salt=b"checked")
        condition = test.labels.any(axis=1) if kind == KINDS[0] else np.ones(len(test), dtype=bool)
        for alpha in ALPHAS:
            stops = threshold.stops(test, threshold.lambda_hat(alpha))
            right = test.labels[np.arange(len(test)), stops.winner]
            found[f"{kind} @ {alpha:g}"] = {
                "calls": stops.calls.mean(),
                "risk": stops.differs[condition].mean(),
                "accuracy": right.mean(),
                "without": (stops.calls < len(policy.order)).mean(),
            }
        if kind == KINDS[1]:
            every = threshold.stops(test, np.inf)
            right = test.labels[np.arange(len(test)), every.winner]
            found["full vote"] = {"accuracy": right.mean()}
    return found


def run(rows: RecordedRows, splits: int, seed: int) -> dict[str, Any]:
    """Means over splits for each checker."""
    answers = replace(rows.answers, labels=np.asarray(rows.labels, dtype=bool))

    def split(auc: float | None, number: int) -> dict[str, Numbers]:
        rng = np.random.default_rng([seed, number])
        given = None if auc is None else verdicts(rows.labels, auc, rng)
        return measured(replace(answers, verdicts=given), rows.reference, rows.parts(rng))

    _, n, tested = map(len, rows.parts(np.random.default_rng(seed)))
    may = answers.labels.any(axis=1).mean()
    return {
        "rows": [len(answers), n, tested],
        "law": {f"{alpha:g}": law(splits, n, tested, alpha) for alpha in ALPHAS},
        "law of misses": {
            f"{alpha:g}": law(splits, int(may * n), int(may * tested), alpha) for alpha in ALPHAS
        },
        "means": {
            "none" if auc is None else f"{auc:g}": means(split(auc, each) for each in range(splits))
            for auc in AUCS
        },
    }


def markdown(name: str, result: Mapping[str, Any]) -> str:
    """The tables of one set."""
    total, n, tested = result["rows"]
    parts = [f"## {name}: {total} rows, {n} calibrate, {tested} test"]
    for which in ("law", "law of misses"):
        text = ", ".join(f"{each:.3f} at {alpha}" for alpha, each in result[which].items())
        parts.append(f"The {which} allows a mean risk of {text}.")
    for kind in KINDS:
        lines: list[tuple[str, ...]] = []
        for auc, found in result["means"].items():
            cells: list[str] = []
            for alpha in ALPHAS:
                each = found[f"{kind} @ {alpha:g}"]
                first = each["without" if kind == KINDS[2] else "calls"]
                cells.append(f"{first:.2f} ({each['risk']:.3f}; {100 * each['accuracy']:.1f})")
            if kind == KINDS[1]:
                cells.append(f"{100 * found['full vote']['accuracy']:.1f}")
            lines.append((auc, *cells))
        first = "share without the reference" if kind == KINDS[2] else "calls"
        heads = ["AUC of the checker", *(f"alpha {alpha:g}" for alpha in ALPHAS)]
        parts.append(f"{kind}, one by one: {first} (realised risk; accuracy of the answer).")
        parts.append(table((*heads, *(["full vote"] if kind == KINDS[1] else [])), lines))
    return "\n\n".join(parts)


def main() -> None:
    """Measure all sets, and print Markdown tables."""
    args = options(__doc__, splits=24).parse_args()
    publish(args, run, markdown, encoder=rc.CharNgramEncoder())


if __name__ == "__main__":
    main()
