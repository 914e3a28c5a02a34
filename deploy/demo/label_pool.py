"""Labels of the demo's questions, made by running every candidate, and measures of the pool.

Run ``python deploy/demo/label_pool.py`` after ``train_pool.py``. It writes ``data/*.jsonl`` and
``pool/README.md``, and ends with an error when the pool is not worth routing over. Labels come
from the candidates' answers, never from their training data.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch
from charmodel import MAX_TOKENS
from numpy.typing import NDArray
from pool_report import Candidate, PoolMeasurement, failures, render
from rich.console import Console
from rich.progress import Progress
from safetensors import safe_open
from skills import SPLIT_SIZES, Query, make_splits
from train_pool import POOL, SPLIT_SEED, Diet
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

BATCH: Final = 256

Answers = dict[str, list[str | None]]
"""Per candidate, its answer to each question; None where it said nothing."""


def is_right(answer: str | None, reference: str) -> bool:
    """Return whether an answer equals the reference up to case and outer blanks."""
    return answer is not None and answer.strip().casefold() == reference.strip().casefold()


def prompt_ids(tokenizer: PreTrainedTokenizerBase, query: str) -> list[int]:
    """Return a question's tokens as a chat server would build them."""
    messages = [{"role": "user", "content": query}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def equal_lengths(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return batches of row numbers with prompts of one length, so that nothing is padded."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for row, prompt in enumerate(prompts):
        by_length[len(prompt)].append(row)
    return [
        rows[start : start + BATCH]
        for rows in by_length.values()
        for start in range(0, len(rows), BATCH)
    ]


@torch.inference_mode()
def run_candidate(folder: Path, queries: Sequence[Query], progress: Progress) -> list[str | None]:
    """Return what a candidate says to each question: float32, greedy, at most ``MAX_TOKENS``."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompts = [prompt_ids(tokenizer, query.query) for query in queries]
    answers: list[str | None] = [None] * len(queries)
    task = progress.add_task(folder.name, total=len(queries))
    for rows in equal_lengths(prompts):
        tokens = torch.tensor([prompts[row] for row in rows])
        mask = torch.ones_like(tokens)
        outputs = model.generate(
            tokens, attention_mask=mask, do_sample=False, max_new_tokens=MAX_TOKENS
        )
        texts = tokenizer.batch_decode(outputs[:, tokens.shape[1] :], skip_special_tokens=True)
        for row, text in zip(rows, texts, strict=True):
            answers[row] = text.strip() or None
        progress.update(task, advance=len(rows))
    return answers


def correctness(queries: Sequence[Query], answers: Answers) -> NDArray[np.bool_]:
    """Return who is right on what, shape (queries, candidates)."""
    columns = [
        [is_right(answer, query.reference) for answer, query in zip(column, queries, strict=True)]
        for column in answers.values()
    ]
    return np.array(columns).T


def write_rows(path: Path, queries: Sequence[Query], answers: Answers) -> None:
    """Write one split as JSON lines."""
    right = correctness(queries, answers)
    with path.open("w", encoding="utf-8") as lines:
        for number, query in enumerate(queries):
            row = {
                "query": query.query,
                "correct": dict(zip(answers, right[number].tolist(), strict=True)),
                "answers": {name: texts[number] for name, texts in answers.items()},
                "reference": query.reference,
                "task": query.skill,
                "language": query.language,
            }
            lines.write(json.dumps(row, ensure_ascii=False) + "\n")


def diet_in_words(diet: Diet) -> str:
    """Return a candidate's training mixture as one line."""
    dishes = []
    for dish in diet.dishes:
        limits = [*(dish.languages if len(dish.languages) == 1 else ())]
        limits += ["easy"] if dish.levels == (0,) else []
        dishes.append(f"{dish.skill} {dish.share:.0%}" + (f" ({', '.join(limits)})" * bool(limits)))
    words = (f"continues `{diet.base}`: " if diet.base else "") + ", ".join(dishes)
    return words + (f"; weights rounded, step {diet.rounding}" if diet.rounding else "")


def describe(folder: Path) -> Candidate:
    """Return the facts about a candidate that stand in its folder."""
    weights = folder / "model.safetensors"
    with safe_open(weights, framework="numpy") as tensors:
        shapes = [tensors.get_slice(name).get_shape() for name in tensors.keys()]  # noqa: SIM118
    record = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    return Candidate(
        name=folder.name,
        parameters=int(sum(np.prod(shape) for shape in shapes)),
        bytes=weights.stat().st_size,
        seed=record["seed"],
        steps=record["steps"],
        minutes=record["minutes"],
        diet=diet_in_words(POOL[folder.name]),
    )


def ask_pool(
    pool: Path, splits: Mapping[str, Sequence[Query]], progress: Progress
) -> dict[str, Answers]:
    """Return every candidate's answers to every split."""
    queries = [query for rows in splits.values() for query in rows]
    answers: dict[str, Answers] = {split: {} for split in splits}
    for name in POOL:
        answered = iter(run_candidate(pool / name, queries, progress))
        for split, rows in splits.items():
            answers[split][name] = [next(answered) for _ in rows]
    return answers


def main() -> int:
    """Label, measure, write; return 1 when a required property fails."""
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pool", type=Path, default=here / "pool")
    parser.add_argument("--data", type=Path, default=here / "data")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # Steps this small gain nothing from a second, and lose to contention.
    splits = make_splits(SPLIT_SEED)
    with Progress(console=Console()) as progress:
        answers = ask_pool(arguments.pool, splits, progress)
    arguments.data.mkdir(parents=True, exist_ok=True)
    for split in SPLIT_SIZES:
        write_rows(arguments.data / f"{split}.jsonl", splits[split], answers[split])
    rows = [query for split in SPLIT_SIZES for query in splits[split]]
    right = [correctness(splits[split], answers[split]) for split in SPLIT_SIZES]
    measured = PoolMeasurement(
        names=tuple(POOL),
        skills=tuple(query.skill for query in rows),
        right=np.concatenate(right),
        probe_skills=tuple(query.skill for query in splits["probe"]),
        probe_right=correctness(splits["probe"], answers["probe"]),
    )
    candidates = [describe(arguments.pool / name) for name in POOL]
    text = render(candidates, measured)
    (arguments.pool / "README.md").write_text(text, encoding="utf-8")
    console = Console()
    console.print(text, markup=False, highlight=False)
    for failure in (failed := failures(measured)):
        console.print(f"FAILED: {failure}", style="red")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
