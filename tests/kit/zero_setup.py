"""A gateway with nothing but candidates: its configuration, its client, and the whole pool's votes.

The client sends questions, sees which answers were certified, and then asks every candidate the
same questions by name. So it knows what the whole pool would have answered, and what it would have
cost, without the gateway's word for it.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml

from racer_core.aggregation.answers import Equality, normalise
from racer_core.aggregation.vote import Method, aggregate
from racer_core.calibration.laws import beta_binomial_pmf
from racer_core.calibration.threshold import allowed_misses
from racer_core.types import CandidateAnswer
from tests.kit.gateway import ADMIN_KEY, Gateway, user
from tests.kit.lazy import LazyModule
from tests.kit.network import free_port

run = LazyModule("app.tools.demo.run")

GREEDY: Final = {"temperature": 0, "max_tokens": 16}  # as the demo's candidates answer
POOL: Final = ("abacus", "mirror", "sieve", "almanac", "tribune")
LETTERS: Final = ("comparison",)  # the skill whose answers are A, B or C


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRequest:
    """One request.

    Attributes:
        query: The question.
        text: The answer.
        calls: Candidates called for it.
        tokens: Tokens of these calls.
        calibration: The calibration that certified it; None: the certificate was void.
        decision: The id of its decision.
        is_sampled: Whether the other candidates were called in the background.
        pool_tokens: Tokens of calls of all candidates.
        differs: Whether the answer differs from the whole pool's vote; None: not known.
    """

    query: str
    text: str
    calls: int
    tokens: int
    calibration: str | None
    decision: str
    is_sampled: bool = False
    pool_tokens: int = 0
    differs: bool | None = None


def questions(seed: int, count: int, skills: Sequence[str] = LETTERS) -> list[str]:
    """Fresh questions of the demo, in random order."""
    if str(run.FOLDER) not in sys.path:
        sys.path.append(str(run.FOLDER))  # its files import each other by name
    make_queries = import_module("skills").make_queries
    rng = random.Random(seed)
    each = -(-count // len(skills))
    found = [query.query for skill in skills for query in make_queries(skill, each, rng)]
    rng.shuffle(found)
    return found[:count]


def configure(
    folder: Path,
    urls: Mapping[str, str],
    *,
    prefix: str = "",
    prices: Mapping[str, float] | None = None,
    **changes: Any,
) -> Path:
    """Write a configuration of candidates at these addresses.

    Args:
        folder: Where.
        urls: The address of each candidate.
        prefix: Of the models' names at their servers.
        prices: The price of each candidate; None: none is known.
        changes: Further sections.
    """
    candidates: list[dict[str, Any]] = [
        {"name": name, "base_url": url, "model": prefix + name, "parameters": GREEDY}
        for name, url in urls.items()
    ]
    for each in candidates if prices else ():
        each["price"] = prices[each["name"]]
    values = {"schema_version": 1, "port": 0, "candidates": candidates, **changes}
    path = folder / "racer.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


@contextmanager
def demo_pool(folder: Path) -> Generator[dict[str, str]]:
    """The demo's five models behind one server; yields their addresses by name."""
    port, log = free_port(), folder / "pool.log"
    with run.child_process(run.pool_command(port), log) as process:
        run.wait_until_ready(f"http://127.0.0.1:{port}/health", process, log)
        yield dict.fromkeys(POOL, f"http://127.0.0.1:{port}/v1")


def ask(gateway: Gateway, query: str) -> ServedRequest:
    """Ask as any client of OpenAI does."""
    answer: Any = gateway.openai().chat.completions.create(model="auto", messages=user(query))
    racer = answer.model_extra["racer"]
    certificate = racer["certificate"]
    return ServedRequest(
        query=query,
        text=answer.choices[0].message.content,
        calls=sum("ms" in each for each in racer["calls"]),
        tokens=answer.usage.total_tokens,
        calibration=certificate["calibration_id"] if certificate["holds"] else None,
        decision=racer["decision_id"],
    )


def until_certified(gateway: Gateway, asked: Iterator[str]) -> list[ServedRequest]:
    """The answers up to the first that is certified; StopIteration where none is.

    The client asks no faster than the pool answers its samples, be the machine slow or quick.
    """
    served = [ask(gateway, next(asked))]
    while served[-1].calibration is None:
        while any(each["pending"] for each in _progress(gateway)):
            time.sleep(0.05)
        served.append(ask(gateway, next(asked)))
    return served


def _progress(gateway: Gateway) -> list[dict[str, Any]]:
    report = gateway.get("/same-answer", ADMIN_KEY).json()
    return list(report["applications"].values())


def compared(gateway: Gateway, served: Sequence[ServedRequest]) -> list[ServedRequest]:
    """The same requests beside the whole pool, whose candidates are called by name.

    A void answer is compared with the vote of the first calibration.
    """
    report = gateway.get("/same-answer", ADMIN_KEY).json()["data"]
    votes = {each["id"]: each["evidence"]["reliabilities"] for each in report}
    first = next((each.calibration for each in served if each.calibration), None)
    if first is None:
        raise SystemExit(f"no certificate after {len(served)} requests: send more, or more slowly")

    def compare(each: ServedRequest) -> ServedRequest:
        create: Any = gateway.openai().chat.completions.create
        answers = {name: create(model=name, messages=user(each.query)) for name in votes[first]}
        texts = {name: answer.choices[0].message.content for name, answer in answers.items()}
        vote = full_vote(texts, votes[each.calibration or first])
        decision = gateway.get(f"/decisions/{each.decision}", ADMIN_KEY).json()
        return replace(
            each,
            is_sampled=decision["shadow_rate"] is not None,
            pool_tokens=sum(answer.usage.total_tokens for answer in answers.values()),
            differs=normalise(Equality.EXACT, each.text) != vote,
        )

    with ThreadPoolExecutor(4) as threads:
        return list(threads.map(compare, served))


def full_vote(texts: Mapping[str, str], reliabilities: Mapping[str, float]) -> str:
    """The normal form of the whole pool's answer."""
    answers = [
        CandidateAnswer(
            candidate=name,
            text=text,
            form=normalise(Equality.EXACT, text),
            score=reliabilities[name],
        )
        for name, text in texts.items()
    ]
    return normalise(Equality.EXACT, aggregate(answers, method=Method.LOG_ODDS).text) or ""


def most_differing(trials: int, n: int, alpha: float, false_alarm: float) -> int:
    """The quantile of the number of differing answers under one calibration, at its worst.

    Of n calibration rows l may lie above the threshold; its risk is then at most that of the law
    Beta(l + 1, n - l), and the number among further requests beta-binomial.
    """
    misses = allowed_misses(n, alpha)
    chances = np.cumsum(beta_binomial_pmf(trials, misses + 1, n - misses))
    return int(np.searchsorted(chances, 1.0 - false_alarm))
