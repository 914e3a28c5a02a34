"""What the first calibration from traffic changes, before and after it had to be worth it.

    python benchmarks/first_certificate.py [--samples 60] [--json OUT]

Three stand-ins answer as chat models do, right on 90, 83 and 80 % of the questions of four families
(tests/kit/chat_models.py). Each sample of questions fits a policy and calibrates it by the
functions of the gateway, at alpha 0.05; then it answers further questions of the family, beside the
fallback. "Before" takes 39 rows, of which 20 fit, and refuses only what spares no call against the
whole pool. "After" takes the rows of today's gateway and its refusals: where it refuses, the
fallback goes on. Writes results/first_certificate.json and .md, or OUT; takes minutes on one core.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from app.same_answer.calibration import fitting_rows, refusal_of, rows_needed  # noqa: E402
from app.same_answer.change import change_of  # noqa: E402
from app.settings import SameAnswer, Settings  # noqa: E402
from racer_core.aggregation.answers import Equality  # noqa: E402
from racer_core.aggregation.rule import AnswerRule  # noqa: E402
from racer_core.sequential.answer_classes import AnswerClasses  # noqa: E402
from racer_core.sequential.calibration import SequentialCalibration  # noqa: E402
from racer_core.sequential.fit import fit_policy, tuned_policy  # noqa: E402
from racer_core.types import LabelledRow, LabelledRows  # noqa: E402
from tests.kit import chat_models  # noqa: E402

ALPHA = 0.05
QUESTIONS = 1_600  # of a family: there are no more of names
TESTED = 1_000
FITTING = (20, 50, 100, 200, 300)
BEFORE = 39, 20  # rows, and how many of them fit
# Of each family the rule that fits it, beside `exact` and the default.
RULES = {
    "numbers": (Equality.EXACT, Equality.NUMBER, Equality.AUTO),
    "letters": (Equality.EXACT, Equality.CHOICE, Equality.AUTO),
    "names": (Equality.EXACT, Equality.TEXT, Equality.AUTO),
    "json": (Equality.EXACT, Equality.JSON, Equality.AUTO),
}


def answered(family: str, count: int, equality: Equality) -> AnswerClasses:
    """The answers of all stand-ins to questions of a family, with their correctness."""
    asked = [each.query for each in chat_models.questions(family, count)]
    pool = chat_models.NAMES
    right = np.array([[chat_models.is_right(name, query) for name in pool] for query in asked])
    rows = tuple(
        LabelledRow(
            query=query,
            correct=frozenset(),
            answers={name: chat_models.answer(name, query) for name in pool},
        )
        for query in asked
    )
    prints = [query.encode() for query in asked]
    found = AnswerClasses.of(
        LabelledRows(pool=pool, rows=rows), AnswerRule(equality=equality), prints
    )
    return replace(found, labels=right)


def settings(fallback: str, equality: Equality) -> Settings:
    """A configuration with nothing but candidates."""
    candidates = [{"name": name, "base_url": "http://127.0.0.1:1/v1"} for name in chat_models.NAMES]
    return Settings.model_validate(
        {
            "schema_version": 1,
            "candidates": candidates,
            "aggregation": {"equality": str(equality)},
            "routing": {"fallback": fallback},
        }
    )


def tried(
    answers: AnswerClasses, configured: Settings, rows: int, fitting: int, rng: np.random.Generator
) -> dict[str, Any]:
    """One sample of rows: what its policy gives on further questions, and what refuses it."""
    order = rng.permutation(len(answers))
    sample, test = order[:rows], answers.at(order[rows : rows + TESTED])
    fit, rest = answers.at(sample[:fitting]), answers.at(sample[fitting:])
    policy = tuned_policy(fit_policy(fit), fit, ALPHA, 2)
    found = SequentialCalibration(policy=policy, answers=rest, salt=b"salt")
    stops = found.stops(test, found.lambda_hat(ALPHA))
    places, now = np.arange(len(test)), answers.pool.index(configured.fallback)
    change = change_of(configured.fallback, replace(found, answers=fit), ALPHA, None, {})
    refused = refusal_of(configured, SameAnswer(alpha=ALPHA), found, fit, None, change)
    assert test.labels is not None
    right, right_now = test.labels[places, stops.winner], test.labels[:, now]
    return {
        "calls": float(stops.calls.mean()),
        "gain": 100.0 * float(right.mean() - right_now.mean()),
        "differs": float(stops.differs.mean()),
        "refused": refused,
    }


def summary(found: Sequence[dict[str, Any]], *, must_be_worth_it: bool) -> dict[str, float]:
    """Means over the samples. A refused one is answered by the fallback: one call, no gain."""
    old = ("no finite", "not certifiable cheaply")
    kept = [
        not ((each["refused"] or "").startswith(old) if not must_be_worth_it else each["refused"])
        for each in found
    ]
    gains = np.array(
        [each["gain"] if is_kept else 0.0 for each, is_kept in zip(found, kept, strict=True)]
    )
    calls = np.array(
        [each["calls"] if is_kept else 1.0 for each, is_kept in zip(found, kept, strict=True)]
    )
    return {
        "certified": float(np.mean(kept)),
        "calls": float(calls.mean()),
        "gain": float(gains.mean()),
        "worst": float(np.quantile(gains, 0.05)),
    }


def measured(family: str, equality: Equality, samples: int, seed: int) -> dict[str, Any]:
    """Before and after, for every fallback."""
    answers = answered(family, QUESTIONS, equality)
    needed = rows_needed(ALPHA)
    sizes = {"before": BEFORE, "after": (needed, fitting_rows(needed))}
    found: dict[str, Any] = {}
    for fallback in chat_models.NAMES:
        configured = settings(fallback, equality)
        for when, (rows, fitting) in sizes.items():
            rng = np.random.default_rng(seed)
            each = [tried(answers, configured, rows, fitting, rng) for _ in range(samples)]
            found.setdefault(fallback, {})[when] = summary(each, must_be_worth_it=when == "after")
    return found


def ranked(answers: AnswerClasses, samples: int, seed: int) -> dict[int, float]:
    """Share of the samples in which the best candidate is first, by the rows that fit."""
    rng, found = np.random.default_rng(seed), dict[int, float]()
    best = chat_models.NAMES[0]
    # By name the best would come first where all tie.
    names = dict(zip(chat_models.NAMES, reversed(chat_models.NAMES), strict=True))
    renamed = replace(answers, pool=tuple(names[name] for name in answers.pool))
    for count in FITTING:
        firsts = [
            fit_policy(renamed.at(rng.permutation(len(answers))[:count])).order[0]
            for _ in range(samples)
        ]
        found[count] = firsts.count(names[best]) / samples
    return found


def page(results: dict[str, Any]) -> str:
    """The tables."""
    lines = [
        "# The first certificate from traffic",
        "",
        "Written by `benchmarks/first_certificate.py`, which says what is measured.",
        "",
        "Share of samples in which the best of the three is called first, by the rows that fit:",
        "",
        "| family | " + " | ".join(map(str, FITTING)) + " |",
        "| --- |" + " --- |" * len(FITTING),
    ]
    for family, shares in results["ranked"].items():
        lines.append(
            f"| {family} | " + " | ".join(f"{100 * each:.0f} %" for each in shares.values()) + " |"
        )
    lines += [
        "",
        f"At alpha {ALPHA:g}, {results['samples']} samples each. Gain: points of right answers",
        "over the fallback on the same questions; in brackets the 5 % point over samples.",
        "",
        "| family | equality | fallback | before: certified | calls | gain "
        "| after: certified | calls | gain |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for family, rules in results["results"].items():
        for rule, fallbacks in rules.items():
            for fallback, both in fallbacks.items():
                cells = [
                    f"{100 * each['certified']:.0f} % | {each['calls']:.2f} | "
                    f"{each['gain']:+.1f} ({each['worst']:+.1f})"
                    for each in (both["before"], both["after"])
                ]
                lines.append(f"| {family} | `{rule}` | {fallback} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=60)
    parser.add_argument("--json", type=Path, default=HERE / "results" / "first_certificate.json")
    given = parser.parse_args()
    results: dict[str, Any] = {"samples": given.samples, "results": {}, "ranked": {}}
    for family, rules in RULES.items():
        results["ranked"][family] = ranked(
            answered(family, QUESTIONS, rules[1]), 5 * given.samples, 1
        )
        results["results"][family] = {
            str(rule): measured(family, rule, given.samples, 2) for rule in rules
        }
        print(family, results["ranked"][family], flush=True)
        for rule, found in results["results"][family].items():
            print(" ", rule, json.dumps(found), flush=True)
    given.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    given.json.with_suffix(".md").write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
