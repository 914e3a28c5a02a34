"""Beside Firstpass on its own records: what each rule certifies, serves cheaply and costs.

    PYTHONPATH=. python benchmarks/firstpass.py --data DATA --json benchmarks/results/firstpass.json

DATA is a folder with `mbpp-974-opus.jsonl.gz` and `mbpp-974-sonnet-k5.jsonl.gz`, in any of its
folders; without it the tasks are simulated. In each random split one half of the tasks calibrates
and the other half is served, so that no task does both; what a rule fits takes a quarter of the
half that calibrates. Splits share tasks: their spread says what another draw of halves would show,
not what other tasks would.
"""

import argparse
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import rig
from cascade_rules import (
    NEVER,
    POOL,
    Cascade,
    ServedAnswers,
    firstpass_conformal,
    firstpass_ltt,
    halves,
    most_served,
    ranked,
    rounds,
)
from verdict import table

from racer_core.calibration.learn_then_test import clopper_pearson_upper

DELTA = 0.05
FILES = ("mbpp-974-opus", "mbpp-974-sonnet-k5")
OF_CHEAP = (0.1, 0.07, 0.05, 0.04)  # limits on wrong answers among those of the cheap candidate
OF_ALL = (0.11, 0.1, 0.09, 0.08)  # among all answers
MISSES = (0.05, 0.03, 0.02)
Rule = Callable[[Cascade, Cascade, float], float]  # fits, tests, limit -> threshold
Numbers = dict[str, float]


def conformal(fit: Cascade, rows: Cascade, limit: float) -> float:
    """Firstpass's default rule, on the whole half."""
    return firstpass_conformal(fit.joined(rows), limit, DELTA).threshold


def sequence(fit: Cascade, rows: Cascade, limit: float) -> float:
    """Firstpass's other rule, on the whole half."""
    return firstpass_ltt(fit.joined(rows), limit, DELTA)


def by_strictness(fit: Cascade, rows: Cascade, limit: float, *, of_cheap: bool) -> float:
    """Ours, in an order that is fixed beforehand, on the whole half."""
    half = fit.joined(rows)
    levels = half.levels[1:] if of_cheap else half.levels
    return most_served(half, levels, limit, DELTA, of_cheap=of_cheap)


def by_rank(fit: Cascade, rows: Cascade, limit: float, *, of_cheap: bool) -> float:
    """Ours, in the order that a part of the half ranks, as `answer_risk_max` does."""
    return most_served(rows, ranked(fit, of_cheap=of_cheap), limit, DELTA, of_cheap=of_cheap)


FIXED, RANKED = "learn_then_test, strictest first", "learn_then_test, order by a quarter"
RULES_OF_CHEAP: Mapping[str, Rule] = {
    "Firstpass, split conformal": conformal,
    "Firstpass, Learn then Test": sequence,
    FIXED: partial(by_strictness, of_cheap=True),
    RANKED: partial(by_rank, of_cheap=True),
}
RULES_OF_ALL: Mapping[str, Rule] = {
    FIXED: partial(by_strictness, of_cheap=False),
    RANKED: partial(by_rank, of_cheap=False),
}


def mixed(tasks: Cascade, rng: np.random.Generator) -> ServedAnswers:
    """The cheap candidate for a random share of tasks that spends as much as the whole check."""
    cheap, strong = tasks.cost.mean(axis=0)
    share = max(0.0, (strong - tasks.served(1.0).dollars.mean()) / (strong - cheap))
    is_cheap = rng.random(len(tasks)) < share
    return tasks.serving(is_cheap, np.where(is_cheap, tasks.cost[:, 0], tasks.cost[:, 1]))


POLICIES: Mapping[str, Callable[[Cascade, np.random.Generator], ServedAnswers]] = {
    "always the strong candidate": lambda tasks, _: tasks.strong_alone(),
    "always the cheap one": lambda tasks, _: tasks.serving(
        np.ones(len(tasks), dtype=bool), tasks.cost[:, 0]
    ),
    "a random mixture, no dearer than the next": mixed,
    "cheap where the whole check passes": lambda tasks, _: tasks.served(1.0),
    "cheap where half of it passes": lambda tasks, _: tasks.served(0.5),
}


def of_rule(rule: Rule, parts: tuple[Cascade, Cascade, Cascade], limit: float) -> Numbers:
    """What a rule serves of the other half; where nothing passes, the strong candidate alone."""
    fit, rows, test = parts
    threshold = rule(fit, rows, limit)
    found = (test.strong_alone() if threshold == NEVER else test.served(threshold)).figures()
    return found | {"passes": float(threshold != NEVER)}


def split(tasks: Cascade, rng: np.random.Generator) -> dict[str, Numbers]:
    """All figures of one split."""
    fit, rows, test = parts = halves(tasks, rng)
    found: dict[str, Numbers] = {}
    for name, policy in POLICIES.items():
        wrong, served = policy(fit.joined(rows), rng).errors(of_cheap=False)
        bound = clopper_pearson_upper(wrong, served, DELTA)
        found[f"policy: {name}"] = policy(test, rng).figures() | {"bound": bound}
    for kind, rules, limits, error in (
        ("of cheap", RULES_OF_CHEAP, OF_CHEAP, "error_of_cheap"),
        ("of all", RULES_OF_ALL, OF_ALL, "error"),
    ):
        for limit in limits:
            for name, rule in rules.items():
                cell = of_rule(rule, parts, limit)
                cell["exceeds"] = float(cell["passes"] and cell[error] > limit)
                found[f"{kind}: {name} @ {limit:g}"] = cell
    half = fit.joined(rows)
    certified = firstpass_conformal(half, OF_CHEAP[0], DELTA)
    found["ties"] = {"cut": float(certified.is_cut(half, OF_CHEAP[0], DELTA))}
    for alpha in MISSES:
        for name, order in (("cheap first", POOL), ("the gateway's order", None)):
            served, missed = rounds(fit, rows, test, alpha, DELTA, order=order)
            found[f"rounds: {name} @ {alpha:g}"] = served.figures() | {"missed": missed}
    return found


def run(tasks: Cascade, splits: int, seed: int) -> dict[str, Any]:
    """Means and standard deviations over splits."""
    every = [split(tasks, np.random.default_rng([seed, number])) for number in range(splits)]
    cells: dict[str, Any] = {}
    for cell in every[0]:
        of = {name: [each[cell][name] for each in every] for name in every[0][cell]}
        cells[cell] = {
            "mean": {name: float(np.mean(values)) for name, values in of.items()},
            "deviation": {name: float(np.std(values)) for name, values in of.items()},
        }
    return {"tasks": len(tasks), "splits": splits, "cells": cells}


def percent(cell: Mapping[str, Any], name: str) -> str:
    """A share with its deviation over splits."""
    return f"{100 * cell['mean'][name]:.1f} ± {100 * cell['deviation'][name]:.1f}"


def dollars(cell: Mapping[str, Any]) -> str:
    """Dollars of a thousand tasks."""
    return f"{1000 * cell['mean']['dollars']:.2f}"


def policies(result: Mapping[str, Any]) -> str:
    """Policies that nothing fits, bounded by one half of the tasks."""
    cells = result["cells"]
    return table(
        ("policy", "wrong at most, %", "wrong, %", "by the cheap one, %", "$ for 1,000 tasks"),
        (
            (
                name,
                percent(cell, "bound"),
                percent(cell, "error"),
                f"{100 * cell['mean']['cheap']:.0f}",
                dollars(cell),
            )
            for name in POLICIES
            for cell in (cells[f"policy: {name}"],)
        ),
    )


def limited(result: Mapping[str, Any], kind: str, rules: Iterable[str], limits: Any) -> str:
    """In how many splits a rule passes, what it serves then, and how often the limit breaks."""
    own = ["error_of_cheap"] if kind == "of cheap" else []

    def row(limit: float, name: str) -> tuple[str, ...]:
        cell = result["cells"][f"{kind}: {name} @ {limit:g}"]
        mean = cell["mean"]
        return (
            f"{100 * limit:g}",
            name,
            f"{100 * mean['passes']:.0f}",
            f"{100 * mean['cheap']:.0f}",
            *(f"{100 * mean[each]:.1f}" for each in [*own, "error"]),
            f"{100 * mean['exceeds']:.0f}",
            dollars(cell),
        )

    heads = ("limit, %", "rule", "splits in which it passes, %", "by the cheap one, %")
    errors = (*("wrong of these, %" for _ in own), "wrong of all, %", "splits above the limit, %")
    lines = (row(limit, name) for limit in limits for name in rules)
    return table((*heads, *errors, "$ for 1,000 tasks"), lines)


def in_rounds(result: Mapping[str, Any]) -> str:
    """The promise of misses."""
    names = ("cheap first", "the gateway's order")
    return table(
        (
            *("alpha, %", "order", "missed, %", "by the cheap one, %"),
            *("wrong of all, %", "$ for 1,000 tasks"),
        ),
        (
            (
                f"{100 * alpha:g}",
                name,
                percent(cell, "missed"),
                percent(cell, "cheap"),
                percent(cell, "error"),
                dollars(cell),
            )
            for alpha in MISSES
            for name in names
            for cell in (result["cells"][f"rounds: {name} @ {alpha:g}"],)
        ),
    )


def details(name: str, result: Mapping[str, Any]) -> str:
    """All tables of one file."""
    return "\n\n".join(
        (
            f"### {name}: {result['tasks']} tasks, {result['splits']} splits",
            "Policies, with a bound at 95 % on their wrong answers by one half:",
            policies(result).strip(),
            "A limit on wrong answers among those of the cheap candidate, at 95 %:",
            limited(result, "of cheap", RULES_OF_CHEAP, OF_CHEAP).strip(),
            f"In {100 * result['cells']['ties']['mean']['cut']:.0f} % of the splits what "
            "Firstpass's split conformal certifies at 10 % ends among equal scores, all of which "
            "are served: "
            "with them its own bound is above the limit.",
            "A limit on wrong answers among all that are served, at 95 %:",
            limited(result, "of all", RULES_OF_ALL, OF_ALL).strip(),
            "In rounds, the check as evidence: for at most alpha of the tasks that a candidate "
            "answers right none of these is called, at 95 %:",
            in_rounds(result).strip(),
        )
    )


def main() -> None:
    """Measure each file, print the tables, and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="without it: simulated tasks")
    parser.add_argument("--splits", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the result file here")
    args = parser.parse_args()
    if args.data is None:
        tasks = {"simulated": Cascade.simulated(974)}
    else:
        found = {path.name: path for path in args.data.rglob("*.jsonl.gz")}
        tasks = {name: Cascade.read(found[f"{name}.jsonl.gz"]) for name in FILES}
    results = {name: run(each, args.splits, args.seed) for name, each in tasks.items()}
    tables = "\n\n".join(details(name, each) for name, each in results.items())
    print(tables)
    first = next(iter(results.values()))
    manifest = rig.manifest()
    manifest["command"] = f"python benchmarks/firstpass.py --data $DATA --splits {args.splits}"
    document = {"manifest": manifest, "results": results, "details": tables}
    rig.publish(document, policies(first), args.json)


if __name__ == "__main__":
    main()
