"""Calls a query with few questions, by `racer evaluate` on recorded answers of real models.

    python benchmarks/few_rows.py --data DATA [--checkout OLD --out OLD.json]

DATA is a folder that holds the rows of the four benchmarks, in any of its folders. Of n questions
40 % train, and the others calibrate: 60 % where `racer tune` cannot run, else 30 %, and 30 % are
left for it. Up to 2,000 further rows are tested. Another checkout is measured with its own
`racer evaluate` and 30 % that calibrate at any n. Writes results/few_rows.json, or OUT; takes ten
minutes on two cores.
"""

import argparse
import gzip
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import rig

HERE = Path(__file__).resolve().parent
BENCHMARKS = ("gsm8k", "mmlu", "cmmlu", "arc_c")
COUNTS = (60, 200, 500, None)  # of questions; None: all but the tested ones
TESTED = 2_000
TUNED_FROM = 100  # answerable validation rows that `racer tune` needs
SPLITS = 20
ALPHA = 0.1
TRAIN, VALIDATION = 0.4, 0.3
RACER = "import sys; from racer_gateway import main; sys.argv[0] = 'racer'; main()"


def shares(questions: int, tested: int, answerable: float, idle_calibrates: bool) -> str:
    """The option `--share` of a file of questions and tested rows."""
    total, train = questions + tested, round(TRAIN * questions)
    left = total - train
    is_tuned = VALIDATION * questions * answerable >= TUNED_FROM
    validation = round(VALIDATION * questions) if is_tuned or not idle_calibrates else 1
    calibration = questions - train - round(VALIDATION * questions)
    if validation == 1:
        calibration = questions - train - 1
    return f"all={train / total},{calibration / left},{validation / left}"


def measured(checkout: Path, rows: list[str], share: str, folder: Path) -> dict[str, Any]:
    """Mean calls, risk and refusals of `cover` and `static`, by `racer evaluate` of a checkout."""
    file, report = folder / "rows.jsonl", folder / "report"
    file.write_text("".join(rows), encoding="utf-8")
    options = (
        f"evaluate --data rows={file} --encoder char-ngrams --share {share} --seed 0 "
        f"--divisions {SPLITS} --splits {SPLITS} --alpha {ALPHA} --score cover --score static "
        f"--risk-target answerable --report {report}"
    )
    subprocess.run(
        [sys.executable, "-c", RACER, *options.split()],
        cwd=checkout,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    results = json.loads((report / "results.json").read_text(encoding="utf-8"))
    cells = [each for each in results["cells"] if each["scope"] == "rows"]
    shown = {"size": "calls", "miss_given_answerable": "risk", "abstain": "refused"}
    return {
        each["score"]: {name: round(each["mean"][field], 4) for field, name in shown.items()}
        for each in cells
    } | {"calibration_rows": cells[0]["mean"]["calibration_rows"]}


def main() -> None:
    """Measure every benchmark at every number of questions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the rows")
    parser.add_argument("--checkout", type=Path, default=HERE.parent)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "few_rows.json")
    arguments = parser.parse_args()
    is_own = arguments.checkout == HERE.parent
    found: dict[str, Any] = {}
    for name in BENCHMARKS:
        (path,) = arguments.data.rglob(f"{name}.jsonl.gz")
        with gzip.open(path, "rt", encoding="utf-8") as file:
            rows = list(file)
        random.Random(0).shuffle(rows)
        answerable = sum(bool(json.loads(row)["correct"]) for row in rows) / len(rows)
        for count in COUNTS:
            tested = min(TESTED, len(rows) // 2)
            questions = len(rows) - tested if count is None else count
            share = shares(questions, tested, answerable, is_own)
            with tempfile.TemporaryDirectory() as folder:
                place = Path(folder)
                result = measured(arguments.checkout, rows[: questions + tested], share, place)
            found.setdefault(name, {})[str(questions)] = result
            print(name, questions, result, flush=True)
    git = ["git", "-C", str(arguments.checkout), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    manifest = rig.manifest() | {"commit": commit}
    document = {"manifest": manifest, "alpha": ALPHA, "benchmarks": found}
    arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
