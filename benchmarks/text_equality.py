"""Equality of free text and of mathematics on recorded answers: pairs of answers, and votes.

    PYTHONPATH=. python benchmarks/text_equality.py --data DATA [--encoder FOLDER]

DATA is a folder that holds `qa_nq` (sentences of five systems, judged by people) and `math_l5`
(outputs of eight models), in any of its folders. Pairs are those of which at least one answer is
right; AUC is the chance that a pair of two right answers has more evidence of equality than another
one. What is fitted, and the scores by which votes break ties (how often a candidate is right), come
from four fifths of the questions, and are measured on the last one. Cosines are those of --encoder.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import rig
from verdict import table

import racer_core as rc
from app.tools.answer_rules import answer_rule
from racer_core.aggregation.answers import Equality
from racer_core.aggregation.batch import RowAnswers, compared_answers
from racer_core.aggregation.rule import AnswerRule
from racer_core.aggregation.vote import Method
from racer_core.aggregation.wording import (
    LEAST_OVERLAP,
    SHIPPED,
    TextRule,
    Wording,
    features,
)
from racer_core.encoder.huggingface import HuggingFaceEncoder
from racer_core.encoder.word_vectors import WordVectorEncoder, has_word_vectors
from racer_core.offline.standard_errors import standard_error_of_mean
from racer_core.offline.votes import Votes
from racer_core.offline.wordings import area_under_curve, fit_text_rule
from racer_core.sequential.stacked import LogisticScore

FOLDS = 5
SEED = 0
COSINES = (0.8, 0.85, 0.9)  # similarities at which the vote by meaning is counted
THRESHOLDS = (0.4, 0.5, LEAST_OVERLAP, 0.7, 0.8)  # shares of the shorter answer's words
Figures = dict[str, Any]


@dataclass(frozen=True)
class Pairs:
    """Pairs of readable answers to one question, at least one of which is right."""

    rows: Any  # of each pair, shape (m,)
    both: Any  # whether both are right, shape (m,)
    found: Any  # features, shape (m, 5)
    same: Any  # whether the texts are the same but for case and space, shape (m,)
    columns: Any  # of the two answers, shape (m, 2)


@dataclass(frozen=True)
class Answered:
    """Rows of one set, and their parts."""

    rows: Any
    labels: Any
    fold: Any

    @classmethod
    def read(cls, data: Path, name: str) -> "Answered":
        """The rows of a file of DATA."""
        (path,) = data.rglob(f"{name}.jsonl*")
        rows = rc.read_rows(path)
        order = np.random.default_rng(SEED).permutation(len(rows))
        return cls(rows=rows, labels=rows.labels(), fold=order % FOLDS)

    def vote(self, answers: RowAnswers) -> dict[str, float]:
        """The majority of all candidates, ties by how often each is right on the other rows."""
        right = np.zeros(len(self.rows))
        for fold in range(FOLDS):
            own = self.fold == fold
            votes = Votes(
                pool=self.rows.pool,
                labels=self.labels[own],
                scores=np.broadcast_to(self.labels[~own].mean(axis=0), self.labels[own].shape),
                answers=answers.at(own),
                stacked=None,
            )
            everyone = np.ones(self.labels[own].shape, dtype=bool)
            right[own] = votes.right(Method.MAJORITY, everyone, 1.0)
        return figure(right)

    def best_single(self) -> dict[str, float]:
        """The candidate that is right most often on the other rows."""
        right = np.zeros(len(self.rows))
        for fold in range(FOLDS):
            own = self.fold == fold
            right[own] = self.labels[own, self.labels[~own].mean(axis=0).argmax()]
        return figure(right)


def figure(right: Any) -> dict[str, float]:
    """A share in per cent, and its standard error."""
    error = standard_error_of_mean(right, np.arange(len(right)))
    return {"accuracy": 100.0 * float(right.mean()), "se": 100.0 * error}


def pairs_of(answered: Answered) -> Pairs:
    """The pairs of answers as sentences."""
    compared = compared_answers(
        answered.rows.rows, answered.rows.pool, AnswerRule(equality=Equality.TEXT)
    )
    rows, both, found, same, columns = [], [], [], [], []
    for number, answers in enumerate(compared):
        for (i, one), (j, other) in combinations(enumerate(answers), 2):
            labels = answered.labels[number, [i, j]]
            if isinstance(one, Wording) and isinstance(other, Wording) and labels.any():
                rows.append(number)
                both.append(bool(labels.all()))
                found.append(features(one, other))
                same.append(one.form == other.form)
                columns.append((i, j))
    return Pairs(*map(np.array, (rows, both, found, same, columns)))


def ranked(pairs: Pairs, evidence: Any) -> float:
    """AUC of some evidence of equality; the same text is the strongest."""
    return area_under_curve(np.where(pairs.same, np.inf, evidence), pairs.both)


def fitted(answered: Answered, pairs: Pairs, columns: Any) -> Any:
    """Chances by a logistic model of the pairs of other questions."""
    chance, own = np.zeros(len(pairs.both)), answered.fold[pairs.rows]
    for fold in range(FOLDS):
        learned = (own != fold) & ~pairs.same
        model = LogisticScore.fit(columns[learned], pairs.both[learned])
        chance[own == fold] = model.chance(columns[own == fold])
    return chance


def idf_overlap(answered: Answered, pairs: Pairs) -> Any:
    """The overlap with each word weighed by its rarity among all answers of the set."""
    rows, pool = answered.rows.rows, answered.rows.pool
    compared = compared_answers(rows, pool, AnswerRule(equality=Equality.TEXT))
    counts: dict[str, int] = {}
    for row in compared:
        for each in row:
            for word in each.words if isinstance(each, Wording) else ():
                counts[word] = counts.get(word, 0) + 1
    total = sum(map(len, compared))

    def weight(found: frozenset[str]) -> float:
        return sum(float(np.log((total + 1) / (counts[word] + 1))) for word in found)

    def overlap(one: Any, other: Any) -> float:
        least = min(weight(one.words), weight(other.words))
        return weight(one.words & other.words) / least if least > 0.0 else 0.0

    cells = zip(pairs.rows, pairs.columns, strict=True)
    return np.array([overlap(compared[row][i], compared[row][j]) for row, (i, j) in cells])


def sentences(answered: Answered, encoder: Any) -> Figures:
    """AUC of pairs, and votes, of sentences."""
    pairs = pairs_of(answered)
    overlap, conflict = pairs.found[:, 1], pairs.found[:, 2]
    auc: Figures = {
        "exact": ranked(pairs, np.zeros(len(overlap))),
        "overlap": ranked(pairs, overlap),
        "overlap, words weighed by rarity": ranked(pairs, idf_overlap(answered, pairs)),
        "text, as shipped: conflicts decide": ranked(pairs, overlap - conflict),
        "text, fitted": ranked(pairs, fitted(answered, pairs, pairs.found[:, 1:])),
    }
    rules = {
        "exact": AnswerRule(equality=Equality.EXACT),
        "number": AnswerRule(equality=Equality.NUMBER),
        **{
            f"text, overlap {least:g}": AnswerRule(
                equality=Equality.TEXT, text=TextRule(intercept=-least)
            )
            for least in THRESHOLDS
        },
    }
    if encoder is not None:
        rows, pool = answered.rows.rows, answered.rows.pool
        texts = [[row.answers.get(name) or "" for name in pool] for row in rows]
        flat = encoder.encode([text for row in texts for text in row]).embeddings
        vectors = flat.reshape(len(rows), len(pool), -1)
        i, j = pairs.columns.T
        cosine = np.einsum("md,md->m", vectors[pairs.rows, i], vectors[pairs.rows, j])
        auc["cosine"] = ranked(pairs, cosine)
        both = np.column_stack([pairs.found[:, 1:], cosine])
        auc["text, fitted with the cosine"] = ranked(pairs, fitted(answered, pairs, both))
        known = {text: vector for row, of in zip(texts, vectors, strict=True)
                 for text, vector in zip(row, of, strict=True)}  # fmt: skip
        rules |= {
            f"semantic, cosine {least:g}": AnswerRule(
                equality=Equality.SEMANTIC,
                similarity=least,
                embed=lambda given: np.array([known[text] for text in given], dtype=np.float64),
            )
            for least in COSINES
        }
    votes = {
        name: answered.vote(RowAnswers.of(answered.rows.rows, answered.rows.pool, rule))
        for name, rule in rules.items()
    }
    votes["text, fitted"] = fitted_vote(answered)
    return {
        "rows": len(answered.rows),
        "pairs": len(pairs.both),
        "both_right": float(pairs.both.mean()),
        "exact_sees": float(pairs.same[pairs.both].mean()),
        "auc": auc,
        "votes": votes,
        "best_single": answered.best_single(),
    }


def fitted_vote(answered: Answered) -> dict[str, float]:
    """The vote by a rule that `racer train` would fit on the other rows."""
    right = np.zeros(len(answered.rows))
    pool, plain = answered.rows.pool, AnswerRule(equality=Equality.TEXT)
    for fold in range(FOLDS):
        own = answered.fold == fold
        rows = [row for row, is_own in zip(answered.rows.rows, own, strict=True) if not is_own]
        labels = answered.labels[~own]
        text = fit_text_rule(rows, labels, pool, plain, np.arange(len(rows))) or SHIPPED
        tested = [row for row, is_own in zip(answered.rows.rows, own, strict=True) if is_own]
        votes = Votes(
            pool=pool,
            labels=answered.labels[own],
            scores=np.broadcast_to(labels.mean(axis=0), answered.labels[own].shape),
            answers=RowAnswers.of(tested, pool, AnswerRule(equality=Equality.TEXT, text=text)),
            stacked=None,
        )
        everyone = np.ones(answered.labels[own].shape, dtype=bool)
        right[own] = votes.right(Method.MAJORITY, everyone, 1.0)
    return figure(right)


def mathematics(answered: Answered) -> Figures:
    """Pairs and votes under every rule that reads mathematics."""
    rows, pool = answered.rows.rows, answered.rows.pool
    found: Figures = {"rows": len(rows), "best_single": answered.best_single(), "rules": {}}
    for equality in (Equality.MATH, Equality.NUMBER, Equality.EXACT, Equality.TEXT):
        answers = RowAnswers.of(rows, pool, answer_rule(equality))
        readable = answers.classes >= 0
        same = answers.classes[:, :, None] == answers.classes[:, None, :]
        same = same if answers.equal is None else answers.equal
        counts = dict.fromkeys(("both", "found", "others", "wrong"), 0)
        for i, j in combinations(range(len(pool)), 2):
            given = readable[:, i] & readable[:, j]
            both = given & answered.labels[:, i] & answered.labels[:, j]
            other = given & (answered.labels[:, i] ^ answered.labels[:, j])
            counts["both"] += int(both.sum())
            counts["found"] += int((both & same[:, i, j]).sum())
            counts["others"] += int(other.sum())
            counts["wrong"] += int((other & same[:, i, j]).sum())
        found["rules"][equality.value] = {
            "sees": counts["found"] / counts["both"],
            "confuses": counts["wrong"] / counts["others"],
            "vote": answered.vote(answers),
        }
    return found


def markdown(results: Mapping[str, Figures]) -> str:
    """The tables."""
    text, maths = results["qa_nq"], results["math_l5"]

    def share(each: Mapping[str, float]) -> str:
        return f"{each['accuracy']:.1f} ± {each['se']:.1f}"

    return "\n\n".join(
        (
            f"{text['rows']:,} questions, {text['pairs']:,} pairs; both are right in "
            f"{text['both_right']:.0%}, and {text['exact_sees']:.1%} of these are the same text.",
            table(
                ["evidence of equality", "AUC"], [[n, f"{a:.3f}"] for n, a in text["auc"].items()]
            ),
            table(
                ["vote of five", "right %"],
                [
                    *([name, share(each)] for name, each in text["votes"].items()),
                    ["best single system", share(text["best_single"])],
                ],
            ),
            f"Mathematics: {maths['rows']} questions, eight models.",
            table(
                ["rule", "sees equal answers %", "takes for equal what is not %", "vote right %"],
                [
                    [
                        name,
                        f"{100 * each['sees']:.1f}",
                        f"{100 * each['confuses']:.1f}",
                        share(each["vote"]),
                    ]
                    for name, each in maths["rules"].items()
                ]
                + [["best single model", "", "", share(maths["best_single"])]],
            ),
        )
    )


def main() -> None:
    """Measure both sets, and print Markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--encoder", type=Path, help="folder of an encoder, or of word vectors")
    parser.add_argument("--json", type=Path, help="write the result file here")
    args = parser.parse_args()
    encoder = None
    if args.encoder is not None:
        folder = str(args.encoder)
        encoder = (
            WordVectorEncoder(folder)
            if has_word_vectors(folder)
            else HuggingFaceEncoder(folder, dtype="float32", max_tokens=256)
        )
    results = {
        "qa_nq": sentences(Answered.read(args.data, "qa_nq"), encoder),
        "math_l5": mathematics(Answered.read(args.data, "math_l5")),
    }
    manifest = rig.manifest(seed=SEED, folds=FOLDS)
    document = {"manifest": manifest, "results": results}
    rig.publish(document, f"{rig.taken(manifest)}.\n\n{markdown(results)}\n", args.json)


if __name__ == "__main__":
    main()
