"""The promise "the same answer" on recorded answers: calls, rounds, price, risk, beside rivals.

    PYTHONPATH=. python benchmarks/same_answer.py --data DATA [--encoder MINILM]

DATA is a folder with rows that have answers, in any of its folders; without it the rows are
simulated. In each split 46 % of the rows fit a policy, 30 % calibrate it, 24 % test it. Labels
measure accuracy, and fit the rivals that need them and the one policy "with labels". What looks at
the query reads embeddings of --encoder, by default character n-grams.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import rig
from answer_sets import ALPHAS, SETS, Numbers, RecordedRows, law, means, recorded, simulated
from verdict import table

import racer_core as rc
from app.same_answer.alarms import level_of
from racer_core.aggregation.batch import RowAnswers
from racer_core.calibration.realised_risk import RealisedRisk
from racer_core.calibration.risk_e_process import RiskEProcess
from racer_core.calibration.threshold import allowed_misses, calibrate_threshold
from racer_core.offline.embeddings import CachedEncoder, default_cache
from racer_core.offline.same_answer import SequenceTrial
from racer_core.offline.selection import ScoredRows
from racer_core.offline.stacking import fit_stacked
from racer_core.sequential.critical import (
    critical_scores,
    round_nonconformity,
    rounds_called,
    tie_noise,
)
from racer_core.sequential.fit import default_borders, fit_policy, tuned_policy
from racer_core.sequential.policy import Policy
from racer_core.sequential.serving import CallSequence
from racer_core.sequential.stacked import fit_stacked_policy

FALSE_ALARM = 0.01  # over all calibrations of an application, by default
QUIET = 1_000  # samples without a difference before one begins to differ
FOLDS = 5  # of the rows that fit, for their router scores
FIRST_ROWS = 200  # of a gateway that has just begun: a quarter fits, the rest calibrates


@dataclass(frozen=True)
class Split:
    """One split: policies are fitted, calibrated and tested on its parts."""

    rows: RecordedRows
    fit: Any
    calibration: Any
    test: Any
    salt: bytes

    def trial(self, policy: Policy, own: Any = None) -> SequenceTrial:
        """The policy with its rows; ``own`` replaces the calibration rows."""
        rows = self.rows
        return SequenceTrial(
            policy=policy,
            answers=rows.answers,
            labels=rows.labels,
            calibration=self.calibration if own is None else own,
            test=self.test,
            prices=tuple(rows.prices[name] for name in rows.answers.pool),
            salt=self.salt,
        )

    def with_reference(self, policy: Policy, alpha: float) -> Numbers:
        """A policy with a named reference: its share without it, and its price in its calls."""
        measured = self.trial(policy).sequential(alpha)
        total = sum(self.rows.prices.values())
        before = np.cumsum([self.rows.prices[name] for name in policy.order])[:-1]
        asks = (measured["price"] * total - before[-1]) if len(before) else 0.0
        one = self.rows.prices[self.rows.reference]
        share = 1.0 - asks / one if len(before) else 0.0
        return {**measured, "without": share, "price": measured["price"] * total / one}

    def votes(self, policy: Policy) -> Numbers:
        """Accuracy of the full pool's votes and of the best candidate, by the test rows."""
        labels, test = self.rows.labels, self.rows.answers.at(self.test)
        equal = replace(policy, reliabilities=(0.5,) * len(policy.pool))
        best = int(labels[self.fit].mean(axis=0).argmax())
        return {
            "majority": labels[self.test, equal.outcomes(test).winner[:, -1]].mean(),
            "vote": labels[self.test, policy.outcomes(test).winner[:, -1]].mean(),
            "best single": labels[self.test, best].mean(),
        }

    def chances(self, labels: Any, at: Any = slice(None)) -> Any:
        """Router scores of rows: a KNN on the rows that fit, with labels (n, K)."""
        near = self.rows.embeddings
        router = rc.EmbeddingRouter().fit(near[self.fit], labels[self.fit])
        return np.asarray(router.predict(near[at]), dtype=np.float64)

    def labelled(self, chances: Any) -> Mapping[float, Numbers]:
        """Calls one by one by the stacked vote; nothing where none can be fitted.

        Args:
            chances: Router scores of all rows; those of the rows that fit are not used.
        """
        rows, fit, scores = self.rows, self.fit, chances.copy()
        for fold in range(FOLDS):  # out of fold, as in training
            inside = np.arange(len(fit)) % FOLDS == fold
            own = replace(self, fit=fit[~inside])
            scores[fit[inside]] = own.chances(rows.labels, fit[inside])
        training = ScoredRows(
            pool=rows.answers.pool,
            fingerprints=rows.answers.at(fit).fingerprints,
            scores=scores[fit],
            neighbours=None,
            labels=rows.labels[fit],
        )
        vote = fit_stacked(training, RowAnswers(classes=rows.answers.classes[fit]))
        if vote is None:
            return {}
        policy = fit_stacked_policy(vote, rows.answers.at(fit), scores[fit])
        return self.trial(fit_policy(rows.answers.at(fit))).stacked(policy, scores, ALPHAS)

    def last_round_by_lambda(self, policy: Policy, alpha: float) -> Numbers:
        """Two rounds, and lambda decides how many candidates the second one calls.

        The forecast for t calls is q after the first round times the share of rows whose last
        difference comes after t calls or later, of the rows that fit and differ after that round.
        The size of the first round is chosen on these rows.

        Args:
            policy: It calls the candidates one by one.
            alpha: The largest share of differences.
        """
        answers, test = self.rows.answers, self.test
        outcomes, calls = policy.outcomes(answers), len(policy.order)
        last = np.where(outcomes.differs, np.arange(1, calls + 1), 0).max(axis=1)[self.fit]
        noise = tie_noise(self.salt, answers.fingerprints)

        def called(first: int, own: Any, at: Any) -> Any:
            late = (last[:, None] >= np.arange(first, calls + 1)).sum(axis=0)
            forecast = outcomes.doubt[:, first - 1, None] * (late / max(1, late[0]))
            s = round_nonconformity(forecast, noise)
            critical = critical_scores(s[own], outcomes.differs[own, first - 1 :])
            return first - 1 + rounds_called(s[at], calibrate_threshold(critical, alpha))

        first = min(range(1, calls), key=lambda each: called(each, self.fit, self.fit).mean())
        made = called(first, self.calibration, test)
        return {
            "calls": made.mean(),
            "differs": outcomes.differs[test, made - 1].mean(),
            "rounds": 1.0 + (made > first).mean(),
            "accuracy": self.rows.labels[test, outcomes.winner[test, made - 1]].mean(),
        }

    def without_reference(self, policy: Policy) -> dict[str, Numbers]:
        """Share of requests without the reference at realised differences: ours and rivals'."""
        answers = self.rows.answers
        column = answers.pool.index(self.rows.reference)
        outcomes = policy.outcomes(answers.at(self.test))
        same = answers.same[:, :, column]
        chances = np.delete(self.chances(same)[self.test], column, axis=1)
        routed = np.delete(same[self.test], column, axis=1)
        chosen = routed[np.arange(len(routed)), chances.argmax(axis=1)]
        ours = swept(outcomes.doubt[:, -2], outcomes.differs[:, -2])
        routing = swept(-chances.max(axis=1), ~chosen)
        least = float((~np.delete(same[self.fit], column, axis=1)).mean(axis=0).min())
        chance = {f"{alpha:g}": min(1.0, alpha / least) for alpha in ALPHAS}
        return {"agreement": ours, "routing by embedding": routing, "chance": chance}


def swept(doubt: Any, differs: Any) -> Numbers:
    """The largest share of requests, by ascending doubt, with these shares of differences."""
    order = np.argsort(doubt + 1e-9 * np.random.default_rng(0).random(len(doubt)))
    share = np.cumsum(differs[order]) / len(doubt)
    return {f"{alpha:g}": float((share <= alpha).mean()) for alpha in ALPHAS}


def measured(rows: RecordedRows, split: Split) -> dict[str, Numbers]:
    """All measures of a split, by name."""
    fit = rows.answers.at(split.fit)
    found: dict[str, Numbers] = {}
    single = fit_policy(fit, max_rounds=None)
    cheap = fit_policy(fit, max_rounds=None, prices=rows.prices)
    spared = fit_policy(fit, max_rounds=2, reference=rows.reference)
    priced = fit_policy(fit, max_rounds=2, reference=rows.reference, prices=rows.prices)
    calls = len(single.order)
    order = np.concatenate([split.fit, split.calibration])[:FIRST_ROWS]
    few, rest = np.split(order, [FIRST_ROWS // 4])
    young = fit_policy(rows.answers.at(few), max_rounds=None)
    chances = split.chances(rows.labels)
    for alpha in ALPHAS:

        def put(name: str, numbers: Numbers, alpha: float = alpha) -> None:
            found[f"{name} @ {alpha:g}"] = numbers

        put("one by one", split.trial(single).sequential(alpha))
        for rounds in (2, 3):
            plain = replace(single, borders=default_borders(calls, rounds))
            put(f"{rounds} rounds", split.trial(plain).sequential(alpha))
            tuned = tuned_policy(single, fit, alpha, rounds)
            put(f"{rounds} rounds, borders chosen", split.trial(tuned).sequential(alpha))
        put("2 rounds, the last by lambda", split.last_round_by_lambda(single, alpha))
        put("one shot", split.trial(single).ignoring_answers(alpha, shuffled=False))
        put("another row's answers", split.trial(single).ignoring_answers(alpha, shuffled=True))
        put("200 rows, one by one", split.trial(young, rest).sequential(alpha))
        both = replace(young, borders=default_borders(calls, 2))
        put("200 rows, 2 rounds", split.trial(both, rest).sequential(alpha))
        by_price = split.trial(cheap).sequential(alpha)
        put("by price, one by one", by_price)
        tuned = tuned_policy(cheap, fit, alpha, 2, rows.prices)
        put("by price, 2 rounds, borders chosen", split.trial(tuned).sequential(alpha))
        put("chain", split.trial(cheap).chain(chances, by_price["price"]))
        put("reference", split.with_reference(spared, alpha))
        tuned = tuned_policy(priced, fit, alpha, 2, rows.prices)
        put("reference, by price", split.with_reference(tuned, alpha))
        tuned = tuned_policy(spared, fit, alpha, 2)
        put("reference, equal prices", split.with_reference(tuned, alpha))
    for alpha, numbers in split.labelled(chances).items():
        found[f"with labels, one by one @ {alpha:g}"] = numbers
    found["exact waves"] = split.trial(single).until_decided()
    found["votes"] = split.votes(single)
    found |= {f"swept {name}": each for name, each in split.without_reference(spared).items()}
    return found


def alarm_within(n: int, differing: float, alpha: float) -> int | None:
    """Samples until the first calibration's alarm, with a chance of 0.95.

    Args:
        n: Its rows.
        differing: The share of answers that differ from now on; none did since the calibration.
        alpha: Its level of risk.
    """
    risk = RealisedRisk.of(np.arange(n, dtype=np.float64), allowed_misses(n, alpha))
    test = RiskEProcess.for_calibration(risk, level=level_of(FALSE_ALARM, 0))
    for _ in range(QUIET):
        test.update(0.0)
    return test.alarm_within(differing)


def microseconds_a_call(rows: RecordedRows, requests: int = 200) -> float:
    """CPU time of the policy, votes included, divided by the candidates called; one by one."""
    policy = fit_policy(rows.answers, max_rounds=None)
    forms = [[str(each) if each >= 0 else None for each in row] for row in rows.answers.classes]
    column, called = {name: i for i, name in enumerate(policy.pool)}, 0
    begin = time.process_time()
    for row in forms[:requests]:
        sequence = CallSequence(policy, -0.02)
        while candidates := sequence.next_round():
            for name in candidates:
                called += 1
                sequence.add(name, row[column[name]])
    return 1e6 * (time.process_time() - begin) / called


def run(rows: RecordedRows, splits: int, seed: int) -> dict[str, Any]:
    """Means over splits, with the laws that bound their risks."""
    each = [
        Split(rows, *rows.parts(np.random.default_rng([seed, number])), salt=b"%d" % number)
        for number in range(splits)
    ]
    sizes = len(each[0].calibration), len(each[0].test)
    return {
        "rows": [len(rows.answers), *sizes],
        "law": {f"{alpha:g}": law(splits, *sizes, alpha) for alpha in ALPHAS},
        "microseconds_a_call": microseconds_a_call(rows),
        "means": means(measured(rows, split) for split in each),
    }


def markdown(name: str, result: Mapping[str, Any]) -> str:
    """The tables of one set."""
    found = result["means"]

    def cell(method: str, alpha: float, keys: Sequence[str]) -> str:
        each = found.get(f"{method} @ {alpha:g}") or found.get(method, {})
        digits = {"calls": 2, "rounds": 2, "differs": 3, "price": 2, "without": 2}
        shown = [
            f"{100 * each[key]:.1f}" if key == "accuracy" else f"{each[key]:.{digits[key]}f}"
            for key in keys
            if key in each
        ]
        return "; ".join(shown)

    def rows_of(methods: Sequence[str], keys: Sequence[str]) -> list[tuple[str, ...]]:
        return [(each, *(cell(each, alpha, keys) for alpha in ALPHAS)) for each in methods]

    heads = [f"alpha {alpha:g}" for alpha in ALPHAS]
    calls = (
        *("one shot", "one by one", "2 rounds", "2 rounds, borders chosen"),
        *("2 rounds, the last by lambda", "3 rounds"),
        *("3 rounds, borders chosen", "200 rows, one by one", "200 rows, 2 rounds"),
        *("another row's answers", "exact waves", "with labels, one by one"),
    )
    prices = ("by price, one by one", "by price, 2 rounds, borders chosen", "chain")
    references = ("reference", "reference, by price", "reference, equal prices")
    law_text = ", ".join(f"{each:.3f} at {alpha}" for alpha, each in result["law"].items())
    votes = ", ".join(f"{key} {100 * each:.1f} %" for key, each in found["votes"].items())
    swept_rows = [
        (each, *(f"{found[f'swept {each}'][f'{alpha:g}']:.2f}" for alpha in ALPHAS))
        for each in ("agreement", "routing by embedding", "chance")
    ]
    total, n, tested = result["rows"]
    alarms = [
        (f"{share:.0%}", *(f"{alarm_within(n, share, alpha)}" for alpha in ALPHAS))
        for share in (0.5, 0.3)
    ]
    return "\n\n".join(
        (
            f"## {name}: {total} rows, {n} calibrate, {tested} test",
            f"Full pool: {votes}. The law allows a mean risk of {law_text}. CPU of the policy "
            f"{result['microseconds_a_call']:.0f} µs a call.",
            "Calls (realised difference; rounds; accuracy):",
            table(
                ("reference: full vote", *heads),
                rows_of(calls, ("calls", "differs", "rounds", "accuracy")),
            ),
            "Share of the full pool's price (realised difference; calls; accuracy):",
            table(
                ("reference: full vote", *heads),
                rows_of(prices, ("price", "differs", "calls", "accuracy")),
            ),
            "Share of requests without the reference (realised difference; calls; price in calls "
            "of the reference; accuracy):",
            table(
                ("reference: one candidate", *heads),
                rows_of(references, ("without", "differs", "calls", "price", "accuracy")),
            ),
            "The same share at equal realised difference, thresholds chosen on the test rows:",
            table(("rule", *heads), swept_rows),
            f"Samples until an alarm with probability 0.95, after {QUIET} without a difference:",
            table(("answers that begin to differ", *heads), alarms),
        )
    )


def main() -> None:
    """Measure all sets, and print Markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="without it: simulated rows")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=[*SETS], help="of DATA")
    parser.add_argument("--rows", type=int, default=660, help="simulated rows")
    parser.add_argument("--splits", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--encoder", type=Path, help="folder of all-MiniLM-L6-v2")
    parser.add_argument("--json", type=Path, help="write the result file here")
    args = parser.parse_args()
    sets = {"simulated": simulated(args.rows)} if args.data is None else {}
    for name in args.sets if args.data else ():
        (path,) = args.data.rglob(f"{name}.jsonl*")
        sets[name] = recorded(path, name, encoder_of(args.encoder))
    results = {name: run(rows, args.splits, args.seed) for name, rows in sets.items()}
    manifest = rig.manifest(splits=args.splits, seed=args.seed)
    text = "\n\n".join(markdown(name, each) for name, each in results.items())
    document = {"manifest": manifest, "results": results}
    rig.publish(document, f"{rig.taken(manifest)}.\n\n{text}\n", args.json)


def encoder_of(folder: Path | None) -> Any:
    """MiniLM from a folder, or character n-grams."""
    if folder is None:
        return rc.CharNgramEncoder()
    from racer_core.encoder.huggingface import HuggingFaceEncoder

    encoder = HuggingFaceEncoder(str(folder), dtype="float32", max_tokens=256)
    return CachedEncoder(encoder, default_cache())


if __name__ == "__main__":
    main()
