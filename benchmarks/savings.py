"""What ending votes early, and calling in waves, saves on recorded letters at the same winner.

    python benchmarks/savings.py --data $DATA/mmlu_pro.jsonl.gz --rows 100

Of the rows that did not train the router half calibrate it, a tenth chooses its settings, and the
others are asked again: what was recorded is answered, at lengths and speeds that are drawn from a
law (`arrivals.py`). Every vote is taken in full too; a winning class that differs is exit code 1.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any, Final

import numpy as np
import rig
from arrivals import Call, Draws, Law, Mode, Outcome, replay

from racer_core.aggregation.answers import Equality
from racer_core.aggregation.vote import Method
from racer_core.calibration.calibration import Calibration, CalibrationOptions
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.offline.protocol import Protocol, Rows, Shares, split
from racer_core.offline.selection import choose_patterns, choose_tau
from racer_core.offline.table import Table, build_table
from racer_core.records.reader import read_rows
from racer_core.types import CandidateAnswer, RiskTarget, RoutingDecision, Score

ALPHAS: Final = (0.05, 0.1, 0.2)
POOL: Final = "whole pool"
SERVED: Final = tuple(f"`cover`, {alpha}" for alpha in ALPHAS)
PAPER: Final = tuple(f"`{score}`, {alpha}" for score in ("gap", "prob") for alpha in ALPHAS)
MAJORITY: Final = "majority"
STATED: Final = "as stated"
LAWS: Final = {
    STATED: Law(),
    "candidates equally fast and terse": Law(tokens_by_candidate=0.0, per_token_by_candidate=0.0),
    "speeds twice as far apart": Law(per_token_by_candidate=1.0),
    "answers ten times as long": Law(tokens=1500.0),
}
FALSE_ABSTAIN_BUDGET: Final = 0.01  # the gateway's default

OF_ITSELF: Final = (
    "calls a query",
    "early: tokens saved",
    "frugal: calls saved",
    "frugal: tokens saved",
    "full / early / frugal: p50, s",
    "p95, s",
)
OF_POOL: Final = (
    "right",
    "calls a query",
    "calls saved: in full",
    "calls saved: frugal",
    "tokens saved: in full",
    "tokens saved: early",
    "tokens saved: frugal",
)


@dataclass(frozen=True, slots=True)
class Cell:
    """What is measured in every split."""

    sets: str
    vote: str
    law: str
    mode: Mode


@dataclass(slots=True)
class Seen:
    """What the rows of one split gave in one cell."""

    rows: int
    outcomes: list[Outcome] = field(default_factory=list[Outcome])  # of rows that did not abstain
    right: int = 0

    def a_row(self, what: str) -> float:
        """The mean over all rows: where nobody was called nothing was spent."""
        return sum(getattr(each, what) for each in self.outcomes) / self.rows

    def latency_s(self, q: float) -> float:
        """Over the rows that were answered."""
        return float(np.quantile([each.latency_s for each in self.outcomes], q))


Decide = Callable[[int], RoutingDecision]  # of a row
Rule = Mapping[str, Any]
Split = dict[Cell, Seen]
Measured = dict[str, list[float]]  # mean, lowest and highest split


def main() -> None:
    """Measure, print, and fail where a winner differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(os.environ.get("DATA", ""), "mmlu_pro.jsonl.gz"),
        help="labelled rows with letters for answers; mmlu_pro.jsonl.gz in $DATA unless given",
    )
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--rows", type=int, help="ask no more of a split's rows")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the document here, not to stdout")
    given = parser.parse_args()
    encoder = CharNgramEncoder()
    table = build_table(
        {"mmlu_pro": read_rows(given.data)},
        encoder=encoder,
        router="knn",
        protocol=Protocol(equality=Equality.CHOICE, seed=given.seed),
    )
    splits = [measure(table, (given.seed, number), given.rows) for number in range(given.splits)]
    compared, differ = compare(splits)
    cells = summary(splits)
    manifest = rig.manifest(
        data=given.data.name,
        encoder=encoder.spec.name,
        training_rows=table.n_train,
        splits=given.splits,
        rows_asked_a_split=next(iter(splits[0].values())).rows,
        seed=given.seed,
    )
    document = {
        "manifest": manifest,
        "laws": {name: asdict(law) for name, law in LAWS.items()},
        "votes_compared": compared,
        "winners_that_differ": differ,
        "cells": [asdict(cell) | measured for cell, measured in cells.items()],
        "markdown": markdown(cells, manifest["settings"], compared, differ),
    }
    print(document["markdown"])
    text = json.dumps(document, indent=1)
    if given.json is None:
        print(f"\n```json\n{text}\n```")
    else:
        given.json.write_text(text + "\n", encoding="utf-8")
    if differ:
        raise SystemExit(1)


def measure(table: Table, seed: tuple[int, int], limit: int | None) -> Split:
    """Calibrate on one part of the rows, and ask another in every way."""
    part = split(np.arange(len(table.rows.scores)), Shares(), np.random.default_rng(seed))
    asked = part.test[:limit]
    decisions = {
        sets: [decide(int(row)) for row in asked]
        for sets, decide in calibrated(table, part.calibration, part.validation).items()
    }
    # The same numbers for every law, so that nothing but the law differs.
    draws = {
        name: law.draw(len(asked), len(table.pool), np.random.default_rng((*seed, 1)))
        for name, law in LAWS.items()
    }
    votes = rules(table)
    return {
        cell: ask(
            table,
            asked,
            decisions[cell.sets],
            draws[cell.law],
            partial(replay, mode=cell.mode, rule=votes[cell.vote]),
        )
        for cell in grid(votes)
    }


def grid(votes: Iterable[str]) -> Iterator[Cell]:
    """What is measured: the paper's sets and the other laws by majority alone."""
    of_interest = chain(
        product((POOL, *SERVED), votes, (STATED,)),
        product(PAPER, (MAJORITY,), (STATED,)),
        product((POOL, SERVED[1]), (MAJORITY,), [law for law in LAWS if law != STATED]),
    )
    return (Cell(*each, mode) for each, mode in product(of_interest, Mode))


def rules(table: Table) -> dict[str, Rule]:
    """The votes that can be over early, by their names in the tables."""
    votes: dict[str, Rule] = {
        MAJORITY: {"method": Method.MAJORITY},
        "weighted, T 0.1": {"method": Method.WEIGHTED, "temperature": 0.1},
        "log-odds": {"method": Method.LOG_ODDS},
    }
    if table.stacked is not None:
        votes["stacked"] = {"method": Method.STACKED, "stacked": table.stacked}
    return votes


def calibrated(table: Table, rows: Rows, validation: Rows) -> dict[str, Decide]:
    """What chooses a row's set: as the gateway does by default, and as the paper does."""
    held_out, known = table.rows.at(validation), table.rows.at(rows)
    patterns = choose_patterns(table.patterns[0], held_out)
    tau = choose_tau(held_out.scores, held_out.labels, FALSE_ABSTAIN_BUDGET)
    served = known.calibration(CalibrationOptions(score=Score.COVER, null_threshold=tau), patterns)
    as_published = CalibrationOptions(risk_target=RiskTarget.PAPER, smoothing_salt=b"savings")
    paper = known.calibration(as_published, patterns)

    near = table.rows.neighbours
    assert near is not None  # of a KNN router

    def by(calibration: Calibration, score: Score, alpha: float) -> Decide:
        return lambda row: calibration.decide(
            table.rows.fingerprints[row],
            table.rows.scores[row].tolist(),
            neighbours=near[row],
            alpha=alpha,
            score=score,
        )

    deciders: list[Decide] = [
        lambda row: served.whole_pool(table.rows.scores[row].tolist()),
        *(by(served, Score.COVER, alpha) for alpha in ALPHAS),
        *(by(paper, score, alpha) for score in (Score.GAP, Score.PROB) for alpha in ALPHAS),
    ]
    return dict(zip((POOL, *SERVED, *PAPER), deciders, strict=True))


def ask(
    table: Table,
    rows: Rows,
    decisions: Sequence[RoutingDecision],
    draws: Draws,
    take: Callable[[Sequence[Call]], Outcome],
) -> Seen:
    """One vote on each row's set."""
    column = {name: place for place, name in enumerate(table.pool)}
    seen = Seen(len(rows))
    for question, (row, decision) in enumerate(zip(rows, decisions, strict=True)):
        if decision.abstained:
            continue
        outcome = take(
            [
                draws.call(question, column[name], recorded(table, int(row), column[name], score))
                for name, score in zip(decision.selected, decision.scores, strict=True)
            ]
        )
        seen.outcomes.append(outcome)
        right = table.rows.labels[row, column[outcome.winner]]
        seen.right += int(right and outcome.form is not None)
    return seen


def recorded(table: Table, row: int, column: int, score: float) -> CandidateAnswer:
    """What a candidate said; the number of its class stands for the text."""
    assert table.classes is not None
    said = int(table.classes[row, column])
    form = None if said < 0 else str(said)
    return CandidateAnswer(candidate=table.pool[column], text="", form=form, score=score)


def compare(splits: Sequence[Split]) -> tuple[int, int]:
    """How many votes that were cut short there are, and how many elected another class."""
    same = [
        short.form == full.form
        for each in splits
        for cell, seen in each.items()
        if cell.mode is not Mode.FULL
        for short, full in zip(seen.outcomes, in_full(each, cell).outcomes, strict=True)
    ]
    return len(same), same.count(False)


def in_full(split: Split, cell: Cell, sets: str | None = None) -> Seen:
    """The same vote, waited for; of other sets if asked."""
    return split[replace(cell, sets=sets or cell.sets, mode=Mode.FULL)]


def summary(splits: Sequence[Split]) -> dict[Cell, Measured]:
    """Every measure of every cell over the splits."""
    cells: dict[Cell, Measured] = {}
    for cell in splits[0]:
        runs = [measured(each, cell) for each in splits]
        values = {name: [run[name] for run in runs] for name in runs[0]}
        cells[cell] = {
            name: [float(np.mean(each)), min(each), max(each)] for name, each in values.items()
        }
    return cells


def measured(split: Split, cell: Cell) -> dict[str, float]:
    """One split; shares are of what the full vote of the same sets takes, or that of the pool."""
    seen, full, pool = split[cell], in_full(split, cell), in_full(split, cell, POOL)
    return {
        "calls": seen.a_row("calls"),
        "tokens": seen.a_row("tokens"),
        "calls_saved": 1.0 - seen.a_row("calls") / full.a_row("calls"),
        "calls_cancelled": seen.a_row("cancelled") / full.a_row("calls"),
        "tokens_saved": 1.0 - seen.a_row("tokens") / full.a_row("tokens"),
        "calls_saved_of_pool": 1.0 - seen.a_row("calls") / pool.a_row("calls"),
        "tokens_saved_of_pool": 1.0 - seen.a_row("tokens") / pool.a_row("tokens"),
        "p50_s": seen.latency_s(0.5),
        "p95_s": seen.latency_s(0.95),
        "right": seen.right / seen.rows,
    }


def markdown(
    cells: Mapping[Cell, Measured], settings: Mapping[str, Any], compared: int, differ: int
) -> str:
    """The tables, with what they are about."""
    full = [cell for cell in cells if cell.mode is Mode.FULL]
    stated = [cell for cell in full if cell.law == STATED]
    other = sorted((cell for cell in full if cell.law != STATED), key=lambda each: each.sets)
    return "\n\n".join(
        (
            f"{settings['splits']} splits, {settings['rows_asked_a_split']:,} rows asked in each; "
            f"mean (lowest to highest split). Of {compared:,} votes that were cut short {differ} "
            "elected another class than the full vote. Against the full vote of the same sets:",
            rendered(
                ("sets", "vote", "right", *OF_ITSELF),
                [
                    (each.sets, each.vote, percent(cells[each]["right"]), *of_itself(cells, each))
                    for each in stated
                    if each.sets not in PAPER
                ],
            ),
            "By majority, against the full vote of the whole pool:",
            rendered(
                ("sets", *OF_POOL),
                [(each.sets, *of_pool(cells, each)) for each in stated if each.vote == MAJORITY],
            ),
            "By majority, under other laws:",
            rendered(
                ("sets", "law", *OF_ITSELF),
                [(each.sets, each.law, *of_itself(cells, each)) for each in other],
            ),
        )
    )


def of_itself(cells: Mapping[Cell, Measured], cell: Cell) -> tuple[str, ...]:
    """Against the full vote of the same sets."""
    full, early, frugal = (cells[replace(cell, mode=mode)] for mode in Mode)
    return (
        f"{full['calls'][0]:.2f}",
        percent(early["tokens_saved"]),
        percent(frugal["calls_saved"]),
        percent(frugal["tokens_saved"]),
        *(
            " / ".join(f"{each[q][0]:.1f}" for each in (full, early, frugal))
            for q in ("p50_s", "p95_s")
        ),
    )


def of_pool(cells: Mapping[Cell, Measured], cell: Cell) -> tuple[str, ...]:
    """Against the full vote of everybody."""
    full, early, frugal = (cells[replace(cell, mode=mode)] for mode in Mode)
    return (
        percent(full["right"]),
        f"{full['calls'][0]:.2f}",
        percent(full["calls_saved_of_pool"]),
        percent(frugal["calls_saved_of_pool"]),
        percent(full["tokens_saved_of_pool"]),
        percent(early["tokens_saved_of_pool"]),
        percent(frugal["tokens_saved_of_pool"]),
    )


def percent(measured: Sequence[float]) -> str:
    """Mean, and lowest to highest split."""
    mean, low, high = (f"{100 * each:.1f}" for each in measured)
    return f"{mean} % ({low}–{high})"


def rendered(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """One Markdown table."""
    lines = (header, ["---"] * len(header), *rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
