"""Tables of results/recorded_answers.md: `racer evaluate` on recorded answers of real models.

    python benchmarks/recorded_answers.py --data DATA --encoder MINILM [--only merged ...]

DATA is a folder that holds the rows, in any of its folders; MINILM is that of all-MiniLM-L6-v2.
Runs each experiment's command as the document prints it and writes results/recorded_NAME.json, from
which `document.py` fills the document. Takes half an hour on two idle cores.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rig

HERE = Path(__file__).resolve().parent
FOUR = ("gsm8k", "mmlu", "cmmlu", "arc_c")
ENCODER = "--encoder $MINILM --dtype float32 --max-tokens 256"
SAMPLING = "--seed 0 --divisions 5"
EQUAL_RISK = "--false-abstain-budget off"
QUANTILE = 1.96  # of the normal law: 95 % intervals, over rows
DIGITS = {"size": 2, "risk": 3, "miss_given_answerable": 3}
ORDERS = ("static", "static_by_group")  # what `cover` is compared with
SCORES = ("gap", "prob", "static", "cover", "static_by_group")
TARGETS = ("paper", "answerable")
METHODS = ("majority", "weighted", "log_odds", "stacked")


class Results:
    """The results of one command, as its report holds them."""

    def __init__(self, report: Mapping[str, Any]) -> None:
        self.report = report
        self._cells = {
            (cell["scope"], cell["risk_target"], cell["score"], cell["alpha"]): cell
            for cell in report["cells"]
        }
        self._differences = {
            (each["scope"], each["risk_target"], each["what"], each["alpha"]): each
            for each in report["differences"]
        }

    @property
    def scopes(self) -> tuple[str, ...]:
        """Benchmarks in order, then their average or all of them merged."""
        return tuple(self.report["controls"])

    def alphas(self, *wanted: float) -> list[float]:
        """The measured alphas, ascending; those of ``wanted`` if any are named."""
        measured = sorted({alpha for *_, alpha in self._cells})
        return [alpha for alpha in measured if not wanted or alpha in wanted]

    def mean(self, scope: str, target: str, score: str, alpha: float, measure: str) -> float:
        """The mean over splits."""
        return self._cells[scope, target, score, alpha]["mean"][measure]

    def margin(self, scope: str, target: str, score: str, alpha: float, measure: str) -> str:
        """Half of the 95 % interval over rows."""
        error = self._cells[scope, target, score, alpha]["se_rows"].get(measure)
        return "" if error is None else f" ± {QUANTILE * error:.{DIGITS[measure]}f}"

    def smaller(self, scope: str, target: str, other: str, alpha: float) -> str:
        """The size of `cover` minus that of another score, on the same splits."""
        found = self._differences[scope, target, f"cover - {other}", alpha]
        return f"{found['mean']:+.2f} ± {QUANTILE * found['se_rows']:.2f}"

    def control(self, scope: str, name: str) -> float:
        """The mean of a control over splits."""
        return self.report["controls"][scope]["mean"][name]


def sizes_and_risks(results: Results) -> str:
    """Mean sets and realised risks of all rows merged, and differences in size."""
    scope = results.scopes[-1]
    settings = [(target, alpha) for target in TARGETS for alpha in results.alphas()]
    names = [f"{target}, {alpha:g}" for target, alpha in settings]

    def cell(score: str, target: str, alpha: float) -> str:
        at = scope, target, score, alpha
        risk = "risk" if target == "paper" else "miss_given_answerable"
        size = f"{results.mean(*at, 'size'):.2f}{results.margin(*at, 'size')}"
        return f"{size}; risk {results.mean(*at, risk):.3f}"

    last = settings[-1]
    sizes = table(
        ("score", *names, f"random sets of the same sizes miss ({names[-1]})"),
        (
            (
                f"`{score}`",
                *(cell(score, *setting) for setting in settings),
                f"{results.mean(scope, last[0], score, last[1], 'random_miss'):.3f}",
            )
            for score in SCORES
        ),
    )
    gains = table(
        ("difference in size", *names),
        (
            (
                f"`cover` − `{other}`",
                *(results.smaller(scope, target, other, alpha) for target, alpha in settings),
            )
            for other in ORDERS
        ),
    )
    return f"{sizes}\n\nOn the same splits:\n\n{gains}"


def by_benchmark(results: Results) -> str:
    """Sizes by benchmark; realised risks at all levels; accuracy of the candidates."""
    sizes = table(
        (
            *("benchmark", "target", "alpha"),
            *(f"`{score}`" for score in SCORES),
            *(f"`cover` − `{other}`" for other in ORDERS),
        ),
        (
            (
                scope,
                target,
                f"{alpha:g}",
                *(f"{results.mean(scope, target, score, alpha, 'size'):.2f}" for score in SCORES),
                *(results.smaller(scope, target, other, alpha) for other in ORDERS),
            )
            for scope in results.scopes
            for target in TARGETS
            for alpha in results.alphas(0.05, 0.1)
        ),
    )
    average = results.scopes[-1]
    risks = table(
        ("alpha", *(f"`{score}`" for score in SCORES), *(f"size `{score}`" for score in SCORES)),
        (
            (
                f"{alpha:g}",
                *(risk(results, average, score, alpha) for score in SCORES),
                *(
                    f"{results.mean(average, 'paper', score, alpha, 'size'):.2f}"
                    for score in SCORES
                ),
            )
            for alpha in results.alphas()
        ),
    )
    each = table(
        ("alpha", *FOUR),
        (
            (f"{alpha:g}", *(risk(results, scope, "cover", alpha) for scope in FOUR))
            for alpha in results.alphas(0.01, 0.05, 0.1, 0.2, 0.3, 0.5)
        ),
    )
    single = ("best single", "best single here", "router top-1", "answerable")
    names = (*(f"candidate {name}" for name in results.report["pool"]), *single)
    controls = table(
        ("", *results.scopes),
        (
            (
                name.removeprefix("candidate "),
                *(f"{100 * results.control(scope, name):.1f}" for scope in results.scopes),
            )
            for name in names
        ),
    )
    return "\n\n".join(
        (
            sizes,
            "Realised risk, `paper`, mean over the benchmarks, and mean size:",
            risks,
            "The same risk by benchmark, of `cover`:",
            each,
            "Controls (share of test rows, in %, that one candidate answers right):",
            controls,
        )
    )


def risk(results: Results, scope: str, score: str, alpha: float) -> str:
    """The realised risk of the paper's target."""
    at = scope, "paper", score, alpha
    return f"{results.mean(*at, 'risk'):.3f}{results.margin(*at, 'risk')}"


def size(results: Results, scope: str, score: str, alpha: float) -> str:
    """The mean set size at the paper's target."""
    return f"{results.mean(scope, 'paper', score, alpha, 'size'):.2f}"


def votes(results: Results) -> str:
    """Risk, size and accuracy of the votes."""
    scope = results.scopes[-1]

    def row(score: str, target: str, alpha: float) -> tuple[str, ...]:
        at = scope, target, score, alpha
        realised = "risk" if target == "paper" else "miss_given_answerable"
        return (
            f"`{score}`",
            target,
            f"{alpha:g}",
            f"{results.mean(*at, realised):.3f}{results.margin(*at, realised)}",
            f"{results.mean(*at, 'size'):.2f}{results.margin(*at, 'size')}",
            f"{100 * results.mean(*at, 'calls_saved'):.0f}%",
            f"{results.mean(*at, 'random_miss'):.3f}",
            *(f"{100 * results.mean(*at, f'accuracy_{each}'):.1f}" for each in METHODS),
        )

    scores = [each for each in SCORES if each in results.report["protocol"]["scores"]]
    accuracies = table(
        (
            *("score", "target", "alpha", "realised", "size", "calls saved", "random sets miss"),
            *(each.replace("_", "-") for each in METHODS),
        ),
        (
            row(score, target, alpha)
            for target in TARGETS
            for alpha in results.alphas(0.05, 0.1, 0.2)
            for score in scores
        ),
    )
    single = ("best single", "router top-1", "answerable")
    shown = [*single, *(f"full pool {method}" for method in METHODS)]
    controls = ", ".join(
        f"{name.replace('_', '-')} {100 * results.control(scope, name):.1f} %" for name in shown
    )
    paired = table(
        ("sets", "difference", "points"),
        (
            (
                where(each),
                each["what"].split(",")[0].replace("-", "−"),
                f"{100 * each['mean']:+.2f} ± {100 * QUANTILE * each['se_rows']:.2f}",
            )
            for each in results.report["differences"]
            if each["what"].endswith(("sets of cover", "full pool"))
            and each["alpha"] in (None, 0.05, 0.1)
        ),
    )
    return (
        f"{accuracies}\n\nControls: {controls}.\n\n"
        f"Paired differences of accuracy:\n\n{paired}\n\n{chosen(results)}"
    )


def where(difference: Mapping[str, Any]) -> str:
    """The sets on which two votes are compared."""
    if difference["risk_target"] is None:
        return "full pool"
    return f"`cover`, {difference['risk_target']}, {difference['alpha']:g}"


def chosen(results: Results) -> str:
    """What the validation rows chose, for the sets of `cover` and the stricter loss."""
    choices = [
        each
        for each in results.report["choices"]
        if each["score"] == "cover" and each["risk_target"] == "answerable"
    ]
    if not choices:
        return "The validation rows are too few to choose alpha and vote on."
    accuracy = 100 * np.mean([each["accuracy"] for each in choices])
    size = np.mean([each["size"] for each in choices])
    return (
        "Alpha and vote chosen on each split's validation rows (`cover`, `answerable`): test "
        f"accuracy {accuracy:.1f} %, size {size:.2f}; votes chosen: "
        f"{counted(each['rule'] for each in choices)}; alphas: "
        f"{counted(str(each['alpha']) for each in choices)}."
    )


def counted(names: Iterable[str]) -> str:
    """How often each name occurs, the five most frequent first."""
    found = list(names)
    often = sorted(set(found), key=lambda name: (-found.count(name), name))
    return ", ".join(f"{name} ({found.count(name)})" for name in often[:5])


def served(results: Results) -> str:
    """What the gateway's defaults give."""
    scope = results.scopes[-1]
    measures = ("miss_given_answerable", "served_error", "false_abstain", "abstain")
    return table(
        (
            *("score", "alpha", "miss given answerable"),
            *("served error", "false abstain", "abstain", "size"),
        ),
        (
            (
                f"`{score}`",
                f"{alpha:g}",
                *(f"{results.mean(scope, 'answerable', score, alpha, m):.3f}" for m in measures),
                f"{results.mean(scope, 'answerable', score, alpha, 'size'):.2f}",
            )
            for score in SCORES
            for alpha in results.alphas()
        ),
    )


@dataclass(frozen=True)
class Experiment:
    """A command, and the tables made from its report."""

    data: tuple[str, ...]  # names of the files of rows
    options: str
    tables: Callable[[Results], str]

    @property
    def command(self) -> str:
        """The command as the document prints it."""
        rows = " ".join(f"--data $DATA/{name}.jsonl.gz" for name in self.data)
        return f"racer evaluate {rows} {ENCODER} {SAMPLING} {self.options}"


EXPERIMENTS = {
    "merged": Experiment(
        FOUR,
        f"--lexical --calibrated merged {EQUAL_RISK} --alpha 0.05 --alpha 0.1 "
        "--assert 'risk<=alpha'",
        sizes_and_risks,
    ),
    "each": Experiment(
        FOUR,
        "--lexical --share gsm8k=0.5,0.5,0.1 --share arc_c=0.4,0.4,0.2 "
        f"{EQUAL_RISK} --splits 50 --assert 'risk<=alpha'",
        by_benchmark,
    ),
    "mmlu_pro": Experiment(("mmlu_pro",), f"--equality choice {EQUAL_RISK}", votes),
    "mmlu_pro_lexical": Experiment(
        ("mmlu_pro",), f"--lexical --equality choice {EQUAL_RISK}", votes
    ),
    "zeroeval_gsm": Experiment(("zeroeval_gsm",), f"--equality number {EQUAL_RISK}", votes),
    "served_merged": Experiment(
        FOUR, "--lexical --calibrated merged --alpha 0.05 --alpha 0.1 --alpha 0.2", served
    ),
    "served_mmlu_pro": Experiment(
        ("mmlu_pro",), "--equality choice --alpha 0.05 --alpha 0.1 --alpha 0.2", served
    ),
}


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Run the experiments, and write one result file each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the rows")
    parser.add_argument("--encoder", type=Path, required=True, help="folder of all-MiniLM-L6-v2")
    parser.add_argument("--only", choices=EXPERIMENTS, nargs="+", default=list(EXPERIMENTS))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data")
        data.mkdir()
        for file in args.data.rglob("*.jsonl.gz"):
            data.joinpath(file.name).symlink_to(file.resolve())
        places = {"DATA": str(data), "MINILM": str(args.encoder.resolve())}
        for name in args.only:
            print(name, file=sys.stderr)
            publish(name, EXPERIMENTS[name], places, Path(folder, name))


def publish(name: str, experiment: Experiment, places: Mapping[str, str], report: Path) -> None:
    """Run one experiment's command, and write its tables."""
    command = f"{shlex.quote(sys.executable)} -m app {experiment.command.removeprefix('racer ')}"
    subprocess.run(
        ["bash", "-c", f"{command} --report {shlex.quote(str(report))}"],
        check=True,
        cwd=HERE.parent,
        env={**os.environ, **places},
        stdout=subprocess.DEVNULL,
    )
    results = Results(json.loads(report.joinpath("results.json").read_text(encoding="utf-8")))
    manifest = rig.manifest()
    manifest["command"] = experiment.command
    rows = ", ".join(
        f"{scope} {'/'.join(map(str, counts))}" for scope, counts in results.report["rows"].items()
    )
    taken = (
        f"At {manifest['commit']}, {manifest['taken_at'][:10]}; {results.report['n_train']} rows "
        f"train the router; calibration/validation/test rows of a split: {rows}."
    )
    markdown = (
        f"<!-- needs: records -->\n```sh\n{wrapped(experiment.command)}\n```\n\n{taken}\n\n"
        f"{experiment.tables(results)}"
    )
    place = HERE / "results" / f"recorded_{name}.json"
    rig.publish({"manifest": manifest}, markdown, place)


def wrapped(command: str) -> str:
    """A long command on several lines."""
    lines = [""]
    for part in command.split(" --"):
        part = part if lines == [""] else f"--{part}"
        if len(lines[-1]) + len(part) > 110:
            lines.append("")
        lines[-1] += f" {part}" if lines[-1] else part
    return " \\\n  ".join(lines)


if __name__ == "__main__":
    main()
