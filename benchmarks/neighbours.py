"""Nearest-neighbour search among a million rows: exact, our inverted file, and FAISS's.

    pip install faiss-cpu   # in a separate environment; without it the FAISS arm is skipped
    python benchmarks/neighbours.py --records mmlu_pro.jsonl.gz \
      --json benchmarks/results/neighbours.json

Measures time, memory and recall, and the time of a `cover` set after the search. Rows and queries
are drawn from one distribution: a centre plus isotropic noise of a given length. Centres are
embeddings of recorded queries (files in $DATA, encoder in $MINILM), or random directions without
``--records``. Every arm builds its index in one process and answers from the written file in
another, one query at a time; embedding the query is not part of the times. FAISS gets as many lists
and probes as ours. Its times end with row numbers; ours include scores and neighbours' patterns.
"""

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import numpy as np
import rig
from measures import held, quantile
from safetensors.numpy import load_file, save_file
from verdict import Goal, aims, number, table

from racer_core.calibration.calibration import Calibration
from racer_core.calibration.options import CalibrationOptions
from racer_core.calibration.patterns import PatternModel
from racer_core.encoder.base import EncoderOutput, EncoderSpec, unit_rows
from racer_core.encoder.char_ngrams import SPEC
from racer_core.encoder.huggingface import HuggingFaceEncoder
from racer_core.offline.selection import NEIGHBOURS
from racer_core.records.reader import read_rows
from racer_core.routers.base import Batch
from racer_core.routers.inverted_file import InvertedFile
from racer_core.routers.knn import KnnRouter
from racer_core.types import Score

EXACT: Final = "all rows"
OURS: Final = "inverted file"
FAISS: Final = "FAISS, inverted file"
CANDIDATES: Final = 8
K, REACH = 40, 200
CALIBRATION_ROWS: Final = 10_000
EXACT_TIMED: Final = 40  # queries; comparing with all rows is slow
ROWS_PER_LIST: Final = 64  # for FAISS's k-means, as for ours
AT_ONCE: Final = 8  # queries in one exact search, which holds their similarities to all rows
ENCODER: Final = Path(__file__).parent / "results" / "encoder_cpu.json"
ENCODER_RUN, ENCODER_ARM = "2 threads", "lean, float32"


@dataclass(frozen=True)
class RowNumberEncoder:
    """An encoder whose texts are row numbers of precomputed embeddings."""

    vectors: np.ndarray
    spec: EncoderSpec = SPEC

    def encode(self, texts: Sequence[str]) -> EncoderOutput:
        """The rows with these numbers."""
        rows = self.vectors[[int(text) for text in texts]]
        return EncoderOutput(rows, np.zeros(len(texts), dtype=bool))


def main() -> None:
    """Measure, and print Markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=1_000)
    parser.add_argument("--records", nargs="*", default=[], help="labelled rows, files in $DATA")
    parser.add_argument("--centres", type=int, default=6_000, help="random ones")
    parser.add_argument("--width", type=int, default=384, help="of random centres")
    parser.add_argument("--noise", type=float, default=0.5, help="its length; a centre's is 1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the result file here")
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    centres = (
        recorded(args.records)
        if args.records
        else unit_rows(rng.standard_normal((args.centres, args.width), np.float32))
    )
    manifest = rig.manifest(
        rows=args.rows,
        width=centres.shape[1],
        centres=len(centres),
        records=args.records,
        noise=args.noise,
        seed=args.seed,
        faiss=metadata.version("faiss-cpu") if find_spec("faiss") else None,
    )
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder, "rows.npy"), drawn(centres, args.rows, args.noise, rng))
        np.save(Path(folder, "queries.npy"), drawn(centres, args.queries, args.noise, rng))
        arms = measured(Path(folder))
    document = {"manifest": manifest, "arms": arms, "encoder_s": encoder_s()}
    rig.publish(document, markdown(document), args.json)


def recorded(files: Sequence[str]) -> np.ndarray:
    """The embeddings of recorded queries, shape (n, D)."""
    paths = [Path(os.environ.get("DATA", ""), file) for file in files]
    texts = [text for path in paths for text in read_rows(path).queries]
    return HuggingFaceEncoder(os.environ["MINILM"], dtype="float32").encode(texts).embeddings


def drawn(centres: np.ndarray, count: int, noise: float, rng: np.random.Generator) -> np.ndarray:
    """Unit vectors around centres, shape (count, D)."""
    rows = rng.standard_normal((count, centres.shape[1]), np.float32)
    rows *= noise / np.sqrt(centres.shape[1])
    rows += centres[rng.integers(0, len(centres), count)]
    return unit_rows(rows)


def measured(folder: Path) -> dict[str, dict[str, Any]]:
    """Every available arm; the exact search runs first and gives the true neighbours."""
    found: dict[str, dict[str, Any]] = {}
    for name in (EXACT, OURS, *([FAISS] if find_spec("faiss") else [])):
        with alone() as process:
            built = process.submit(build, name, folder).result()
        with alone() as process:
            answered, nearest = process.submit(answer, name, folder).result()
        if name == EXACT:
            true = nearest
        recall = {f"recall_{count}": recalled(nearest, true, count) for count in (K, REACH)}
        found[name] = {**built, **answered, **recall}
    return found


def alone() -> ProcessPoolExecutor:
    """A fresh process, so that memory figures of arms do not mix."""
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))


def recalled(found: np.ndarray, true: np.ndarray, count: int) -> float:
    """The share of the ``count`` nearest that are among the first ``count`` found."""
    pairs = zip(found[:, :count], true[:, :count], strict=True)
    return float(np.mean([np.isin(one, seen).mean() for seen, one in pairs]))


def build(name: str, folder: Path) -> dict[str, Any]:
    """Write an arm's index; return its time and peak memory."""
    rows = np.load(folder / "rows.npy")
    before = held(os.getpid()).rss_kib
    begun = time.perf_counter()
    if name == FAISS:
        build_faiss(rows, folder)
    else:
        labels = np.random.default_rng(1).random((len(rows), CANDIDATES)) < 0.5
        limit = len(rows) + 1 if name == EXACT else 1
        # As in `racer train`: for the largest number of neighbours that validation may choose.
        wide = KnnRouter.fit(rows, labels, K, max(NEIGHBOURS), exact_below=limit)
        router = wide.reaching(REACH)
        save_file(dict(router.tensors()), folder / f"{name}.safetensors")
        (folder / f"{name}.json").write_text(json.dumps(router.settings()), encoding="utf-8")
    took = time.perf_counter() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"build_s": took, "build_mib": (peak - before) / 1024}


def build_faiss(rows: np.ndarray, folder: Path) -> None:
    """FAISS's IVFFlat by inner product, with our numbers of lists and probes."""
    import faiss

    ours = load_file(folder / f"{OURS}.safetensors")
    lists = len(ours["list_sizes"])
    centres = faiss.IndexFlatIP(rows.shape[1])
    index = faiss.IndexIVFFlat(centres, rows.shape[1], lists, faiss.METRIC_INNER_PRODUCT)
    index.cp.max_points_per_centroid = ROWS_PER_LIST
    index.train(rows)
    index.add(rows)
    index.nprobe = int(ours["list_probes"][REACH - 1])
    faiss.write_index(index, str(folder / FAISS))


def answer(name: str, folder: Path) -> tuple[dict[str, Any], np.ndarray]:
    """Open an arm's index and query it; return the figures, and every query's nearest rows."""
    queries = np.load(folder / "queries.npy")
    before = held(os.getpid()).rss_kib
    begun = time.perf_counter()
    ask, nearest, settings = (open_faiss if name == FAISS else open_router)(name, folder, queries)
    ask(0)
    opened = time.perf_counter() - begun
    count = min(EXACT_TIMED, len(queries)) if name == EXACT else len(queries)
    timed = [ask(number) for number in range(count)]
    memory = held(os.getpid()).rss_kib - before
    spent = {part: [each[part] for each in timed] for part in timed[0]}
    return {"open_s": opened, "mib": memory / 1024, **settings, **spent}, nearest()


Ask = Callable[[int], dict[str, float]]  # query number to seconds of each part
Opened = tuple[Ask, Callable[[], np.ndarray], Mapping[str, Any]]


def open_router(name: str, folder: Path, queries: np.ndarray) -> Opened:
    """Router scores, neighbours' patterns and the `cover` set of one query."""
    settings = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    router = KnnRouter.load(load_file(folder / f"{name}.safetensors"), settings)
    calibration = calibrated(router)
    encoder = RowNumberEncoder(queries)

    def ask(number: int) -> dict[str, float]:
        begun = time.perf_counter()
        output = router.predict(Batch([str(number)], encoder))
        found = time.perf_counter()
        calibration.decide(b"", output.scores[0].tolist(), neighbours=output.neighbours[0])
        return {"knn_s": found - begun, "cover_s": time.perf_counter() - found}

    def nearest() -> np.ndarray:
        parts = np.array_split(queries.astype(np.float64), -(-len(queries) // AT_ONCE))
        return np.concatenate([router.index.nearest(part, REACH) for part in parts])

    if isinstance(index := router.index, InvertedFile):
        settings |= {"lists": len(index.sizes), "probes": int(index.probes[REACH - 1])}
    return ask, nearest, settings


def calibrated(router: KnnRouter) -> Calibration:
    """A calibration on random rows: the time of a set depends on shapes alone."""
    rng = np.random.default_rng(2)
    patterns = PatternModel.of(router.labels)
    scores = rng.random((CALIBRATION_ROWS, CANDIDATES))
    ids = rng.integers(0, len(patterns.frequencies), (CALIBRATION_ROWS, REACH))
    return Calibration(
        pool=tuple(f"candidate-{i}" for i in range(CANDIDATES)),
        fingerprints=(b"",) * CALIBRATION_ROWS,
        scores=scores,
        labels=rng.random(scores.shape) < scores,
        options=CalibrationOptions(score=Score.COVER),
        neighbours=ids.astype(np.min_scalar_type(len(patterns.frequencies) - 1)),
        patterns=patterns,
    )


def open_faiss(name: str, folder: Path, queries: np.ndarray) -> Opened:
    """The nearest rows of one query."""
    import faiss

    index = faiss.read_index(str(folder / name))

    def ask(number: int) -> dict[str, float]:
        begun = time.perf_counter()
        index.search(queries[number : number + 1], REACH)
        return {"knn_s": time.perf_counter() - begun}

    settings = {"probes": index.nprobe}
    return ask, lambda: index.search(queries, REACH)[1], settings


def encoder_s() -> float:
    """The median time of one query in our own forward, from `encoder.py`'s results."""
    run = json.loads(ENCODER.read_text(encoding="utf-8"))["runs"][ENCODER_RUN]
    return statistics.median(
        each for one in run["rounds"] for each in one["seconds"][ENCODER_ARM]["1"]
    )


def markdown(document: Mapping[str, Any]) -> str:
    """Provenance, targets, and a row for each arm."""
    manifest, arms = document["manifest"], document["arms"]
    settings, ours = manifest["settings"], arms[OURS]
    both = [sum(each) for each in zip(ours["knn_s"], ours["cover_s"], strict=True)]
    goals = [
        Goal("inverted file, p50", 1e3 * quantile(ours["knn_s"], 0.5), 5, unit=" ms"),
        *(
            Goal(f"recall of the {count} nearest", 100 * ours[f"recall_{count}"], 99, True, " %")
            for count in (K, REACH)
        ),
        Goal("`cover`, p50", 1e6 * quantile(ours["cover_s"], 0.5), 200, unit=" µs"),
        Goal(
            f"search and `cover`, p50, of the encoder's {1e3 * document['encoder_s']:.0f} ms",
            100 * quantile(both, 0.5) / document["encoder_s"],
            5,
            unit=" %",
        ),
    ]

    def row(name: str) -> list[str]:
        arm = arms[name]
        return [
            name,
            number(arm["build_s"], 0),
            number(arm["open_s"], 1),
            number(arm["mib"], 0),
            *(number(1e3 * quantile(arm["knn_s"], q), 2) for q in (0.5, 0.95)),
            *(f"{arm[f'recall_{count}']:.4f}" for count in (K, REACH)),
        ]

    head = (
        "search",
        "build, s",
        "open, s",
        "memory, MiB",
        "one query, p50 ms",
        "p95",
        f"recall of {K}",
        f"of {REACH}",
    )
    records = settings["records"]
    kind = f"queries of {', '.join(records)}" if records else "random"
    where = (
        f"{rig.taken(manifest)}. {settings['rows']:,} rows of {settings['width']} numbers around "
        f"{settings['centres']:,} centres ({kind}), noise {settings['noise']:g}; "
        f"{len(ours['knn_s']):,} queries; {ours['probes']} of {ours['lists']:,} lists probed.\n"
    )
    return "\n".join((where, aims(goals), table(head, map(row, arms))))


if __name__ == "__main__":
    main()
