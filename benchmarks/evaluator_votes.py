"""Questions and configuration of results/evaluator_votes.md.

    python benchmarks/evaluator_votes.py FOLDER

FOLDER gets questions.jsonl, 582 of the demo's English sums and Roman numerals whose answer is a
number, at most 300 of a kind, shuffled by the seed 1; and pool.yaml. The servers are started by
hand, as the page says.
"""

import argparse
import json
import random
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parents[1] / "deploy" / "demo" / "data"
FILES = ("train", "calibration", "test", "validation")
KINDS = ("arithmetic", "roman")
MOST = 300
POOL = """\
schema_version: 1
candidates:
  - {name: abacus, base_url: "http://127.0.0.1:18101/v1", parameters: {temperature: 0, max_tokens: 16}, timeout_s: 120}
  - {name: smollm2, base_url: "http://127.0.0.1:18103/v1", parameters: {temperature: 0, max_tokens: 32}, timeout_s: 120}
  - {name: smollm2-warm, model: smollm2, base_url: "http://127.0.0.1:18103/v1", parameters: {temperature: 0.8, seed: 1, max_tokens: 32}, timeout_s: 120}
artifact: artifact
aggregation:
  equality: number
  method: weighted
  weight: p_true
  evaluator: {candidate: smollm2, timeout_s: 120}
  evaluators:
    arithmetic: {candidate: abacus, timeout_s: 120, prompt_chars: 900}
"""  # noqa: E501


def questions() -> list[dict[str, Any]]:
    """Distinct questions with their references, tasks and groups."""
    found: dict[str, dict[str, Any]] = {}
    counts = dict.fromkeys(KINDS, 0)
    for name in FILES:
        for line in (DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            task, query, reference = row.get("task"), row["query"], str(row.get("reference", ""))
            is_number = row.get("language") == "en" and reference.isdigit()
            if task in KINDS and is_number and query not in found and counts[task] < MOST:
                counts[task] += 1
                found[query] = {
                    "query": query,
                    "reference": reference,
                    "task": task,
                    "group": task,
                }
    rows = list(found.values())
    random.Random(1).shuffle(rows)
    return rows


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, help="write the result file here")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    rows = questions()
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (args.folder / "questions.jsonl").write_text(text, encoding="utf-8")
    (args.folder / "pool.yaml").write_text(POOL, encoding="utf-8")
    print(f"{len(rows)} questions and pool.yaml in {args.folder}")
    if args.json:
        args.json.write_text(json.dumps({"questions": len(rows)}), encoding="utf-8")


if __name__ == "__main__":
    main()
