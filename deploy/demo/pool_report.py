"""The figures of the demo pool, the properties it must have, and the README that states both.

Pure: arrays in, text out. Runs no model and reads no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from charmodel import CONTEXT, MAX_TOKENS
from numpy.typing import NDArray
from skills import LEVEL_SHARES, PROBES_PER_SKILL, SPLIT_SIZES
from train_pool import BROAD_STEPS, OWN_SHARE, POOL

MOST_SINGLE: Final = 0.75
LEAST_ORACLE_GAIN: Final = 0.10
LEAST_SHARED: Final = 0.60
"""Share of questions that several candidates get right: without them a larger set finds nothing."""

UNANSWERABLE_SHARE: Final = (0.03, 0.15)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Properties of a candidate that need no query."""

    name: str
    parameters: int
    bytes: int
    seed: int
    steps: int
    minutes: float
    diet: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMeasurement:
    """Correctness by candidate: ``right`` on the four splits, ``probe_right`` on the probes."""

    names: tuple[str, ...]
    skills: tuple[str, ...]
    right: NDArray[np.bool_]
    probe_skills: tuple[str, ...]
    probe_right: NDArray[np.bool_]

    @property
    def overall(self) -> NDArray[np.float64]:
        """Accuracy of each candidate over the four splits, shape (K,)."""
        return self.right.mean(axis=0)

    @property
    def oracle(self) -> float:
        """Share of questions that some candidate gets right."""
        return float(self.right.any(axis=1).mean())

    def by_skill(self) -> dict[str, NDArray[np.float64]]:
        """Accuracy of each candidate on the probes of each skill."""
        skills = np.array(self.probe_skills)
        return {
            skill: self.probe_right[skills == skill].mean(axis=0)
            for skill in dict.fromkeys(self.probe_skills)
        }


def failures(measured: PoolMeasurement) -> list[str]:
    """Return a sentence for each property that the pool should have and has not."""
    found = []
    best = float(measured.overall.max())
    if best > MOST_SINGLE:
        found.append(f"a candidate is right on {best:.1%} overall; at most {MOST_SINGLE:.0%}")
    if measured.oracle - best < LEAST_ORACLE_GAIN:
        found.append(
            f"the oracle gains {measured.oracle - best:.1%}; at least {LEAST_ORACLE_GAIN:.0%}"
        )
    shared = float((measured.right.sum(axis=1) > 1).mean())
    if shared < LEAST_SHARED:
        found.append(f"several candidates are right on {shared:.1%}; at least {LEAST_SHARED:.0%}")
    if not UNANSWERABLE_SHARE[0] <= 1 - measured.oracle <= UNANSWERABLE_SHARE[1]:
        found.append(f"no candidate is right on {1 - measured.oracle:.1%}; 3 % to 15 % is wanted")
    return found


def candidate_table(candidates: Sequence[Candidate], measured: PoolMeasurement) -> str:
    """Return the Markdown table of the candidates."""
    lines = [
        "| candidate | trained on | parameters | bytes | seed | steps | minutes | overall |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for candidate, overall in zip(candidates, measured.overall, strict=True):
        lines.append(
            f"| `{candidate.name}` | {candidate.diet} | {candidate.parameters:,} | "
            f"{candidate.bytes:,} | {candidate.seed} | {candidate.steps:,} | "
            f"{candidate.minutes} | {overall:.1%} |"
        )
    return "\n".join(lines)


def skill_table(measured: PoolMeasurement) -> str:
    """Return the Markdown table of accuracies by skill; the best of a row is bold."""
    lines = [
        "| skill | " + " | ".join(f"`{name}`" for name in measured.names) + " |",
        "| --- |" + " --- |" * len(measured.names),
    ]
    for skill, row in measured.by_skill().items():
        cells = [f"**{x:.1%}**" if x == row.max() else f"{x:.1%}" for x in row]
        lines.append(f"| {skill} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def sizes_table(measured: PoolMeasurement) -> str:
    """Return the Markdown table of how many candidates are right at once."""
    counts = np.bincount(measured.right.sum(axis=1), minlength=len(measured.names) + 1)
    shares = counts / counts.sum()
    return "\n".join(
        [
            "| right at once | " + " | ".join(map(str, range(len(shares)))) + " |",
            "| --- |" + " --- |" * len(shares),
            "| share of questions | " + " | ".join(f"{share:.1%}" for share in shares) + " |",
        ]
    )


def render(candidates: Sequence[Candidate], measured: PoolMeasurement) -> str:
    """Return the README of the pool."""
    best = measured.overall.max()
    rows = ", ".join(f"{name} {size:,}" for name, size in SPLIT_SIZES.items())
    easy, medium, tail = LEVEL_SHARES
    rounded = sum(diet.rounding is not None for diet in POOL.values())
    return f"""# The demo pool

Written by `deploy/demo/label_pool.py`; do not edit. Five Llamas over characters that really
generate: each became a specialist by its training mixture, and then trained on all skills for
{BROAD_STEPS:,} steps, {OWN_SHARE:.0%} of it on its own.
The layers' matrices of {rounded} of them were rounded, as those of quantised models are, to
multiples of the step below times a row's largest magnitude: they are right less often, and wrong in
different ways, so that votes weighted by the router's scores help. They are toys: their use is
that every figure here can be measured again on a laptop.

{candidate_table(candidates, measured)}

"Minutes" are wall time of one thread on a CPU of two cores, two trainings side by side, while the
machine was doing other work too. "Overall" is over the {len(measured.skills):,} rows of the four
splits ({rows}).

- best single candidate: {best:.1%}
- some candidate right (oracle): {measured.oracle:.1%}
- no candidate right: {1 - measured.oracle:.1%}

{sizes_table(measured)}

Accuracy by skill, on {PROBES_PER_SKILL} further held-out questions each, all put to all five:

{skill_table(measured)}

## Conditions

- Weights are stored as bfloat16 and always run as float32 (`config.json` says so too), greedily,
  with at most {MAX_TOKENS} new tokens; context {CONTEXT:,} tokens.
- Right means: equal to the reference after removing outer blanks and folding case. A candidate
  that says nothing has the answer `null` and is wrong.
- No text of a question occurs in two splits or in training. The problem behind a text may:
  two small numbers have few sums.
- Questions are {easy:.0%} easy, {medium:.0%} medium and {tail:.0%} tail; no candidate is trained
  on the tail (longer words, larger numbers), so no candidate answers most of it.

## Again

```
python deploy/demo/train_pool.py --only abacus --only almanac    # in one terminal, in this order
python deploy/demo/train_pool.py --only mirror --only sieve --only tribune     # in another
python deploy/demo/label_pool.py
transformers serve --dtype float32 --device cpu
```

The last line serves a candidate under its folder's path as the model name. Training on another
processor or version of torch gives other weights: label again after it, labels are measurements.
"""
