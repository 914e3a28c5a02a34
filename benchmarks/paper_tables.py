"""Tables of results/paper_tables.md: the paper's figures beside those of `racer evaluate`.

    python benchmarks/paper_tables.py --data DATA --encoder MINILM

DATA is a folder that holds the rows of the four benchmarks, in any of its folders; MINILM is that
of all-MiniLM-L6-v2. Two routers, two encoders, two scores, four benchmarks and eight levels are 256
cells of risk. Writes results/paper_tables.json, from which `document.py` fills the document. Takes
a quarter of an hour on two idle cores.

The paper's figures are those of its tables "Performance comparison on diverse benchmarks" and "Risk
across varying target risk levels" (arXiv 2603.06616).
"""

import argparse
import itertools
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import rig

HERE = Path(__file__).resolve().parent
BENCHMARKS = ("gsm8k", "mmlu", "cmmlu", "arc_c")
ROUTERS = {"knn": "KNNR", "mlp": "MLPR"}
SCORES = {"gap": "RACER-G", "prob": "RACER-P"}
ENCODERS = {"MiniLM": "$MINILM --dtype float32 --max-tokens 256", "n-grams": "char-ngrams"}
ALPHAS = (0.01, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
RISKS: Mapping[tuple[str, str, str], tuple[float, ...]] = {
    ("gsm8k", "knn", "gap"): (0.010, 0.048, 0.098, 0.147, 0.197, 0.297, 0.394, 0.495),
    ("gsm8k", "knn", "prob"): (0.009, 0.048, 0.098, 0.147, 0.196, 0.296, 0.395, 0.495),
    ("gsm8k", "mlp", "gap"): (0.010, 0.048, 0.096, 0.145, 0.195, 0.297, 0.396, 0.497),
    ("gsm8k", "mlp", "prob"): (0.010, 0.048, 0.096, 0.145, 0.195, 0.296, 0.396, 0.497),
    ("mmlu", "knn", "gap"): (0.010, 0.050, 0.100, 0.151, 0.200, 0.301, 0.400, 0.500),
    ("mmlu", "knn", "prob"): (0.010, 0.050, 0.100, 0.150, 0.200, 0.300, 0.400, 0.500),
    ("mmlu", "mlp", "gap"): (0.010, 0.048, 0.098, 0.149, 0.199, 0.298, 0.397, 0.498),
    ("mmlu", "mlp", "prob"): (0.010, 0.049, 0.098, 0.148, 0.199, 0.298, 0.397, 0.498),
    ("cmmlu", "knn", "gap"): (0.010, 0.050, 0.099, 0.149, 0.199, 0.298, 0.398, 0.499),
    ("cmmlu", "knn", "prob"): (0.010, 0.050, 0.099, 0.147, 0.197, 0.298, 0.398, 0.499),
    ("cmmlu", "mlp", "gap"): (0.010, 0.048, 0.098, 0.151, 0.201, 0.300, 0.399, 0.500),
    ("cmmlu", "mlp", "prob"): (0.010, 0.048, 0.098, 0.151, 0.201, 0.300, 0.399, 0.500),
    ("arc_c", "knn", "gap"): (0.008, 0.048, 0.098, 0.146, 0.194, 0.294, 0.391, 0.493),
    ("arc_c", "knn", "prob"): (0.008, 0.048, 0.098, 0.145, 0.194, 0.294, 0.393, 0.494),
    ("arc_c", "mlp", "gap"): (0.008, 0.048, 0.097, 0.146, 0.197, 0.296, 0.395, 0.497),
    ("arc_c", "mlp", "prob"): (0.008, 0.048, 0.097, 0.147, 0.197, 0.296, 0.395, 0.497),
}
CANDIDATES: Mapping[str, tuple[float, ...]] = {
    "Chinese-Mistral-7B-v0.1": (42.7, 57.5, 49.1, 45.3),
    "dolphin-2.6-mistral-7b": (54.7, 60.7, 44.2, 53.7),
    "dolphin-2.9-llama3-8b": (75.0, 59.6, 43.9, 49.8),
    "Meta-Llama-3-8B": (47.1, 64.6, 51.2, 50.5),
    "MetaMath-Mistral-7B": (75.1, 59.9, 44.4, 48.7),
    "Mistral-7B-v0.1": (37.5, 62.1, 44.6, 50.7),
    "zephyr-7b-beta": (34.0, 59.6, 43.5, 57.6),
}
FIRST_CHOICES = {"knn": (74.1, 62.5, 48.1, 54.6), "mlp": (75.1, 59.9, 44.4, 48.7)}


def command(router: str, encoder: str) -> str:
    """The command of one router and encoder, as the document prints it."""
    return " ".join(
        (
            "racer evaluate",
            *(f"--data $DATA/{name}.jsonl.gz" for name in BENCHMARKS),
            f"--encoder {ENCODERS[encoder]} --router {router} --seed 0 --divisions 5 --splits 50",
            "--share gsm8k=0.5,0.5,0.1 --share arc_c=0.4,0.4,0.2 --risk-target paper",
            *(f"--score {score}" for score in SCORES),
            *(f"--alpha {alpha:g}" for alpha in ALPHAS),
        )
    )


def evaluated(text: str, places: Mapping[str, str], report: Path) -> dict[str, Any]:
    """The report of one command."""
    line = f"{shlex.quote(sys.executable)} -m app {text.removeprefix('racer ')}"
    for name, value in places.items():
        line = line.replace(f"${name}", shlex.quote(value))
    subprocess.run(
        ["bash", "-c", f"{line} --report {shlex.quote(str(report))}"],
        check=True,
        cwd=HERE.parent,
        stdout=subprocess.DEVNULL,
    )
    return json.loads(report.joinpath("results.json").read_text(encoding="utf-8"))


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    columns = tuple(head)
    lines = [columns, ("---",) * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def measures(results: Mapping[str, Any], measure: str) -> dict[tuple[str, str, float], float]:
    """Means over splits, by benchmark, score and level."""
    return {
        (cell["scope"], cell["score"], cell["alpha"]): cell["mean"][measure]
        for cell in results["cells"]
    }


def risks(results: Mapping[tuple[str, str], Mapping[str, Any]]) -> str:
    """The paper's risk and ours in every cell, and the mean differences."""
    found = {key: measures(each, "risk") for key, each in results.items()}

    def rows() -> Iterator[tuple[str, ...]]:
        for (name, router, score), published in RISKS.items():
            for encoder in ENCODERS:
                ours = [found[router, encoder][name, score, alpha] for alpha in ALPHAS]
                cells = (f"{p:.3f}, {o:.3f}" for p, o in zip(published, ours, strict=True))
                method = f"{ROUTERS[router]} + {SCORES[score]}"
                yield (name, method, encoder, *cells)

    differences = [
        abs(found[router, encoder][name, score, alpha] - value)
        for encoder in ENCODERS
        for (name, router, score), published in RISKS.items()
        for alpha, value in zip(ALPHAS, published, strict=True)
    ]
    return (
        f"{len(differences)} cells; the mean absolute difference is {np.mean(differences):.4f}, "
        f"the largest {max(differences):.3f}.\n\n"
        + table(("benchmark", "method", "our encoder", *(f"{a:g}" for a in ALPHAS)), rows())
    )


def sizes(results: Mapping[tuple[str, str], Mapping[str, Any]]) -> str:
    """Models called; the paper has them in figures alone."""

    def rows() -> Iterator[tuple[str, ...]]:
        for (router, encoder), each in results.items():
            found = measures(each, "size")
            for score in SCORES:
                means = (np.mean([found[name, score, a] for name in BENCHMARKS]) for a in ALPHAS)
                yield (
                    f"{ROUTERS[router]} + {SCORES[score]}",
                    encoder,
                    *(f"{m:.2f}" for m in means),
                )

    return table(("method", "our encoder", *(f"{a:g}" for a in ALPHAS)), rows())


def accuracies(results: Mapping[tuple[str, str], Mapping[str, Any]]) -> str:
    """Accuracy in % of the candidates and of the routers' first choices: published, ours."""
    controls = next(iter(results.values()))["controls"]

    def pair(published: float, ours: float) -> str:
        return f"{published:.1f}, {100 * ours:.1f}, {100 * ours - published:+.1f}"

    rows = [
        (name, *(pair(p, controls[b]["mean"][f"candidate {name}"])
                 for p, b in zip(published, BENCHMARKS, strict=True)))
        for name, published in CANDIDATES.items()
    ]  # fmt: skip
    for (router, encoder), each in results.items():
        ours = [each["controls"][name]["mean"]["router top-1"] for name in BENCHMARKS]
        pairs = map(pair, FIRST_CHOICES[router], ours)
        rows.append((f"first choice of {ROUTERS[router]} ({encoder})", *pairs))
    for name in ("best single here", "answerable"):
        means = (f"-, {100 * controls[b]['mean'][name]:.1f}" for b in BENCHMARKS)
        rows.append((name, *means))
    return table(("", *BENCHMARKS), rows)


def main() -> None:
    """Run the four commands, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the rows")
    parser.add_argument("--encoder", type=Path, required=True, help="folder of all-MiniLM-L6-v2")
    args = parser.parse_args()
    results: dict[tuple[str, str], dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data")
        data.mkdir()
        for file in args.data.rglob("*.jsonl.gz"):
            data.joinpath(file.name).symlink_to(file.resolve())
        places = {"DATA": str(data), "MINILM": str(args.encoder.resolve())}
        for router, encoder in itertools.product(ROUTERS, ENCODERS):
            print(router, encoder, file=sys.stderr)
            report = Path(folder, f"{router} {encoder}")
            results[router, encoder] = evaluated(command(router, encoder), places, report)
    manifest = rig.manifest()
    taken = f"At {manifest['commit']}, {manifest['taken_at'][:10]}. One of the four commands:"
    markdown = "\n\n".join(
        (
            f"{taken}\n\n<!-- needs: records -->\n```sh\n{command('knn', 'MiniLM')}\n```",
            f"### Risk: published, ours\n\n{risks(results)}",
            f"### Models called, mean of the four benchmarks: ours\n\n{sizes(results)}",
            f"### Accuracy in %: published, ours, difference\n\n{accuracies(results)}",
        )
    )
    rig.publish({"manifest": manifest}, markdown, HERE / "results" / "paper_tables.json")


if __name__ == "__main__":
    main()
