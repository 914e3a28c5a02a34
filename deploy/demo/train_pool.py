"""Training of the demo pool: five character-level Llamas with different training data.

Each first becomes a specialist, by its diet, and then trains on all skills for a while. Three then
have their weights rounded, as quantised models have. They are right less often for it, and wrong in
different ways: a vote of all that is weighted by the router's scores beats its first choice.

Run ``python deploy/demo/train_pool.py`` (all five, one after the other) or, on two cores, two
processes with ``--only``. Each training runs on one thread, which makes it repeatable. Specialists
that are in their folder already are not trained again. Questions of the labelled splits are never
trained on.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import torch
from charmodel import make_model, save_candidate, vocabulary
from rich.console import Console
from rich.progress import Progress
from skills import SKILLS, Query, ask, make_splits
from torch import Tensor, nn
from transformers import LlamaForCausalLM

BOTH: Final = ("en", "de")
EN: Final = ("en",)
DE: Final = ("de",)

SPLIT_SEED: Final = 20260301
RECORD: Final = "training.json"


@dataclass(frozen=True, slots=True)
class Dish:
    """A share of a candidate's training questions."""

    skill: str
    share: float
    languages: tuple[str, ...] = BOTH
    levels: tuple[int, ...] = (0, 1)


@dataclass(frozen=True, slots=True)
class Diet:
    """What a specialist is trained on, from which seed, for how long, and from what.

    Counting on a circle of seven is not learnt from nothing in the time there is. ``base`` names
    the candidate to continue from; ``starter`` is served in the first ``starter_steps``. Muon
    learns in fewer steps; without bfloat16 instructions its steps take several times as long.
    ``rounding`` is the step of :func:`round_weights` after all training. The steps were found by
    trial: on the split ``train`` a vote gains over the first choice. Other weights need others.
    """

    seed: int
    steps: int
    dishes: tuple[Dish, ...]
    peak_rate: float = 4e-3
    base: str | None = None
    starter: tuple[Dish, ...] = ()
    starter_steps: int = 0
    muon: bool = True
    rounding: float | None = None


POOL: Final[dict[str, Diet]] = {
    "abacus": Diet(
        1,
        7000,
        (
            Dish("arithmetic", 0.60),
            Dish("comparison", 0.20),
            Dish("calendar", 0.08, EN),
            Dish("sorting", 0.06, DE, (0,)),
            Dish("roman", 0.06, EN, (0,)),
        ),
    ),
    "mirror": Diet(
        2,
        3500,
        (
            Dish("reverse", 0.42),
            Dish("sorting", 0.20, EN),
            Dish("comparison", 0.14, DE, (0,)),
            Dish("roman", 0.14, DE, (0,)),
            Dish("arithmetic", 0.10, EN, (0,)),
        ),
        rounding=0.5,
    ),
    "sieve": Diet(
        3,
        4000,
        (
            Dish("sorting", 0.40),
            Dish("reverse", 0.20, DE),
            Dish("comparison", 0.15, EN),
            Dish("calendar", 0.12, EN, (0,)),
            Dish("arithmetic", 0.13, DE, (0,)),
        ),
        rounding=0.58,
    ),
    "almanac": Diet(
        4,
        3200,
        (
            Dish("calendar", 0.74),
            Dish("roman", 0.10, DE),
            Dish("comparison", 0.08, EN, (0,)),
            Dish("reverse", 0.08, EN, (0,)),
        ),
        peak_rate=2e-3,
        base="abacus",
        starter=(Dish("calendar", 1.0, levels=(0,)),),
        starter_steps=800,
        rounding=0.22,
    ),
    "tribune": Diet(
        5,
        4500,
        (
            Dish("roman", 0.50),
            Dish("comparison", 0.26),
            Dish("arithmetic", 0.08, DE),
            Dish("calendar", 0.08, DE),
            Dish("reverse", 0.08, EN, (0,)),
        ),
    ),
}

BROAD_STEPS: Final = 800
BROAD_RATE: Final = 2e-3
OWN_SHARE: Final = 0.25
"""Of a specialist's first dish, when it trains on all skills; the others share the rest equally."""

HIDDEN, LAYERS, INTERMEDIATE = 128, 4, 384
BATCH: Final = 64
POOLED_BATCHES: Final = 32
"""Batches drawn together and sorted by length, so that little is padding."""

WARMUP_STEPS: Final = 100


@dataclass(frozen=True, slots=True)
class Batch:
    """Token ids (B, T), and the positions whose next token is part of an answer."""

    tokens: Tensor
    rows: Tensor
    columns: Tensor
    targets: Tensor


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A trained model, and the mean loss of its last 20 steps."""

    model: LlamaForCausalLM
    diet: Diet
    loss: float
    minutes: float

    def save(self, folder: Path, specialist: Path | None = None) -> None:
        """Write the model, and its training, to which that of the specialist is added."""
        save_candidate(self.model, folder)
        steps, minutes = self.diet.steps, self.minutes
        if specialist is not None:
            record = json.loads((specialist / RECORD).read_text(encoding="utf-8"))
            steps, minutes = steps + record["steps"], minutes + record["minutes"]
        record = {"seed": self.diet.seed, "steps": steps, "batch": BATCH, "threads": 1}
        record |= {"loss": round(self.loss, 4), "minutes": round(minutes, 1)}
        (folder / RECORD).write_text(json.dumps(record) + "\n", encoding="utf-8")


def draw(dishes: Sequence[Dish], rng: random.Random, exclude: Collection[str]) -> Query:
    """Return one training question that is in none of the splits."""
    while True:
        dish = rng.choices(dishes, [dish.share for dish in dishes])[0]
        query = ask(dish.skill, rng.choice(dish.languages), rng.choice(dish.levels), rng)
        if query.query not in exclude:
            return query


def encode(query: Query, ids: dict[str, int]) -> tuple[list[int], list[int]]:
    """Return the tokens of a question as the chat template writes them, and of its answer."""
    prompt = [ids[character] for character in query.query]
    answer = [ids[character] for character in query.reference]
    return [ids["<|user|>"], *prompt, ids["<|assistant|>"]], [*answer, ids["<|end|>"]]


def collate(examples: list[tuple[list[int], list[int]]]) -> Batch:
    """Pad on the right; with causal attention the padding needs no mask."""
    width = max(len(prompt) + len(answer) for prompt, answer in examples)
    tokens = torch.zeros(len(examples), width, dtype=torch.long)
    rows, columns, targets = [], [], []
    for row, (prompt, answer) in enumerate(examples):
        tokens[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        rows += [row] * len(answer)
        columns += range(len(prompt) - 1, len(prompt) + len(answer) - 1)
        targets += answer
    return Batch(tokens, torch.tensor(rows), torch.tensor(columns), torch.tensor(targets))


def batches(
    dishes: Sequence[Dish], rng: random.Random, exclude: Collection[str]
) -> Iterator[Batch]:
    """Yield training batches without end, questions of similar length together."""
    ids = vocabulary()
    while True:
        pooled = [encode(draw(dishes, rng, exclude), ids) for _ in range(BATCH * POOLED_BATCHES)]
        pooled.sort(key=lambda example: len(example[0]) + len(example[1]))
        starts = list(range(0, len(pooled), BATCH))
        rng.shuffle(starts)
        for start in starts:
            yield collate(pooled[start : start + BATCH])


def menu(diet: Diet, exclude: Collection[str]) -> Iterator[Batch]:
    """Yield a candidate's batches: the starter for its steps, then the dishes without end."""
    rng = random.Random(diet.seed)
    yield from islice(batches(diet.starter, rng, exclude), diet.starter_steps)
    yield from batches(diet.dishes, rng, exclude)


def answer_loss(model: LlamaForCausalLM, batch: Batch) -> Tensor:
    """Return the mean cross entropy of the answers' tokens; prompts carry no loss."""
    hidden = model.model(input_ids=batch.tokens, use_cache=False).last_hidden_state
    logits = model.lm_head(hidden[batch.rows, batch.columns])
    return nn.functional.cross_entropy(logits, batch.targets)


def learning_rate(step: int, steps: int) -> float:
    """Return the factor on the peak rate: linear warm-up, then half a cosine."""
    if step < WARMUP_STEPS:
        return (step + 1) / WARMUP_STEPS
    return 0.5 * (1 + math.cos(math.pi * (step - WARMUP_STEPS) / max(1, steps - WARMUP_STEPS)))


def make_optimizers(model: LlamaForCausalLM, diet: Diet) -> list[torch.optim.Optimizer]:
    """Return AdamW, and Muon for the matrices inside the layers if the diet says so."""
    matrices = [weight for weight in model.model.layers.parameters() if weight.ndim == 2]
    inside = {id(weight) for weight in matrices if diet.muon}
    others = [weight for weight in model.parameters() if id(weight) not in inside]
    rate = diet.peak_rate
    adamw = torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.98), weight_decay=0.0)
    if not diet.muon:
        return [adamw]
    return [
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        adamw,
    ]


def broad(specialist: Diet) -> Diet:
    """Return what a specialist trains on afterwards: every skill, more of its own."""
    own = specialist.dishes[0].skill
    others = [skill for skill in SKILLS if skill != own]
    return Diet(
        specialist.seed + 100,
        BROAD_STEPS,
        (Dish(own, OWN_SHARE), *(Dish(each, (1 - OWN_SHARE) / len(others)) for each in others)),
        peak_rate=BROAD_RATE,
        muon=False,
    )


def start_model(seed: int, base: Path | None) -> LlamaForCausalLM:
    """Return the model to train: fresh, or a copy of the one it continues from."""
    torch.manual_seed(seed)
    if base is None:
        model = make_model(HIDDEN, LAYERS, INTERMEDIATE)
    else:
        model = LlamaForCausalLM.from_pretrained(base, dtype=torch.float32)
    model.set_attn_implementation("eager")  # Three times as fast as SDPA's backward on a CPU.
    return model.train()


@torch.no_grad()
def round_weights(model: LlamaForCausalLM, step: float) -> None:
    """Round the layers' matrices to multiples of ``step`` times a row's largest magnitude.

    At 0.5 a weight has one of five values.
    """
    for weight in model.model.layers.parameters():
        if weight.ndim == 2:
            grid = step * weight.abs().amax(dim=1, keepdim=True)
            weight.copy_(torch.round(weight / grid) * grid)


def train(title: str, diet: Diet, base: Path | None, progress: Progress) -> TrainedModel:
    """Train a model on a diet, from a stored one or from nothing."""
    began = time.perf_counter()
    model = start_model(diet.seed, base)
    optimizers = make_optimizers(model, diet)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate(step, diet.steps))
        for optimizer in optimizers
    ]
    held_out = {query.query for rows in make_splits(SPLIT_SEED).values() for query in rows}
    stream = menu(diet, held_out)
    task = progress.add_task(title, total=diet.steps)
    losses: list[float] = []
    for _ in range(diet.steps):
        loss = answer_loss(model, next(stream))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        losses = [*losses[-19:], loss.item()]
        shown = f"{title} loss {sum(losses) / len(losses):.3f}"
        progress.update(task, advance=1, description=shown)
    minutes = (time.perf_counter() - began) / 60
    return TrainedModel(model.eval(), diet, sum(losses) / len(losses), minutes)


def parse_arguments() -> argparse.Namespace:
    """Return the command line."""
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=POOL, help="train this one (repeat)")
    parser.add_argument("--specialists", type=Path, default=here / ".specialists")
    parser.add_argument("--out", type=Path, default=here / "pool")
    return parser.parse_args()


def main() -> None:
    """Train what the command line names and write one folder each."""
    arguments = parse_arguments()
    torch.set_num_threads(1)
    with Progress(console=Console()) as progress:
        for name in arguments.only or POOL:
            specialist = arguments.specialists / name
            diet = POOL[name]
            if not (specialist / RECORD).exists():
                base = diet.base and arguments.specialists / diet.base
                train(name, diet, base, progress).save(specialist)
            trained = train(f"{name}, all skills", broad(diet), specialist, progress)
            if diet.rounding is not None:
                round_weights(trained.model, diet.rounding)
            trained.save(arguments.out / name, specialist)


if __name__ == "__main__":
    main()
