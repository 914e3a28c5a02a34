"""Generated conversations, and servers with a prompt cache: a world with a seed.

A conversation stays with a topic for some turns. Candidates are right with a chance of their own on
each topic, which the wording of a question tells. Texts have the lengths of chats: questions of
some hundred characters, answers of about a thousand.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

import numpy as np
from aiohttp import web

from app.upstream.replicas import Replica, Replicas
from racer_core.records.writer import row_line
from racer_core.types import LabelledRow, LabelledRows, Turn
from tests.kit.gateway import ADMIN_KEY, Gateway
from tests.kit.upstream import FakePool, Script

POOL: Final = ("ash", "birch", "cedar", "elm")
# What each candidate can do, in the order of the pool.
SKILLS: Final = {
    "the refund of order": (0.93, 0.75, 0.35, 0.30),
    "the traceback of job": (0.30, 0.92, 0.80, 0.25),
    "the translation of page": (0.70, 0.35, 0.93, 0.40),
    "the shift plan of week": (0.35, 0.70, 0.45, 0.92),
    "the warranty of device": (0.90, 0.40, 0.60, 0.78),
}
STAYS: Final = 0.85  # chance that the next turn has the same topic
TURNS: Final = (4, 16)  # the fewest and the most
_FILLER: Final = "Please look at what was said before and go on from there. "


@dataclass(frozen=True)
class UserTurn:
    """A turn of the user, and the candidates that answer it right."""

    query: str
    right: frozenset[str]


def talk(seed: int) -> list[UserTurn]:
    """A conversation."""
    rng = np.random.default_rng(seed)
    topics = list(SKILLS)
    topic = topics[rng.integers(len(topics))]
    asked: list[UserTurn] = []
    for _ in range(int(rng.integers(TURNS[0], TURNS[1] + 1))):
        if rng.random() > STAYS:
            topic = topics[rng.integers(len(topics))]
        words = f"What about {topic} {rng.integers(10**6)}? " + _FILLER * int(rng.integers(1, 7))
        draws = zip(POOL, SKILLS[topic], strict=True)
        asked.append(UserTurn(words, frozenset(n for n, p in draws if rng.random() < p)))
    return asked


def answer(query: str, model: str) -> str:
    """What a candidate says: a text of its own, as long as those of others for the question."""
    count = 8 + blake2b(query.encode(), digest_size=1).digest()[0] % 20
    found = "The record of the case says so in detail. " * count
    return f"{model:>5} has found the following. {found}"


def earlier(asked: Sequence[UserTurn]) -> tuple[Turn, ...]:
    """The turns of a conversation whose first candidate answered."""
    pairs = [(Turn("user", each.query), Turn("assistant", answer(each.query, POOL[0])))
             for each in asked]  # fmt: skip
    return tuple(turn for pair in pairs for turn in pair)


def conversation_rows(first: int, count: int) -> LabelledRows:
    """All turns of some conversations as labelled rows."""
    rows = [
        LabelledRow(
            query=each.query,
            earlier=earlier(asked[:number]),
            correct=each.right,
            conversation=f"{seed}",
        )
        for seed in range(first, first + count)
        for asked in [talk(seed)]
        for number, each in enumerate(asked)
    ]
    return LabelledRows(pool=POOL, rows=tuple(rows))


def questions(first: int, count: int) -> LabelledRows:
    """First turns alone, for training."""
    rows = [talk(seed)[0] for seed in range(first, first + count)]
    return LabelledRows(
        pool=POOL, rows=tuple(LabelledRow(query=each.query, correct=each.right) for each in rows)
    )


@dataclass
class CachingPool(FakePool):
    """A server of all candidates that keeps the prompts of each; nothing is evicted.

    Attributes:
        prompt_chars: Characters of all prompts.
        cached_chars: Those of them that were cached.
    """

    prompt_chars: int = 0
    cached_chars: int = 0
    _prefixes: set[bytes] = field(default_factory=set[bytes])

    async def reply(
        self, request: web.Request, body: dict[str, Any], script: Script
    ) -> web.StreamResponse:
        """Answer, and keep the prompt with the answer."""
        turns: list[dict[str, str]] = body["messages"]
        lengths = [0]
        for turn in turns:
            lengths.append(lengths[-1] + len(turn["content"]))
        known = [
            n for n in range(len(turns) + 1) if _prefix(body["model"], turns[:n]) in self._prefixes
        ]
        self.prompt_chars += lengths[-1]
        self.cached_chars += lengths[max(known, default=0)]
        text = answer(turns[-1]["content"], body["model"])
        said = [*turns, {"role": "assistant", "content": text}]
        self._prefixes |= {_prefix(body["model"], said[:n]) for n in range(1, len(said) + 1)}
        return await super().reply(request, body, Script(text=text))


def _prefix(model: str, turns: Sequence[dict[str, str]]) -> bytes:
    said = json.dumps([model, [(turn["role"], turn["content"]) for turn in turns]])
    return blake2b(said.encode(), digest_size=16).digest()


def calibrate(gateway: Gateway, rows: LabelledRows, alpha: float) -> dict[str, Any]:
    """Upload rows, and wait for their evidence."""
    body = {"rows": [json.loads(row_line(row, POOL)) for row in rows], "alpha": alpha}
    found = gateway.post("/calibrate", ADMIN_KEY, json=body).json()
    while job := found.get("job"):
        assert job["error"] is None, job
        if job["result"] is not None:
            return job["result"]["evidence"]
        time.sleep(0.1)
        found = gateway.get(f"/calibrations/jobs/{job['id']}", ADMIN_KEY).json()
        found = found if "job" in found else {"job": found}
    return found["evidence"]


@contextmanager
def servers(count: int, seconds: float) -> Generator[list[CachingPool]]:
    """Running servers, each a replica of every candidate, whose answers take some seconds."""
    with ExitStack() as stack:
        its = [stack.enter_context(CachingPool()) for _ in range(count)]
        for each in its:
            for name in POOL:
                each.say(name, "", delay_s=seconds)
        yield its


def cached_share(its: Sequence[CachingPool]) -> float:
    """Share of the characters of all prompts that were cached."""
    return sum(each.cached_chars for each in its) / sum(each.prompt_chars for each in its)


@dataclass(frozen=True)
class Load:
    """The calls in flight of a candidate when one of its replicas was chosen, with that call."""

    replica: int
    all: int
    replicas: int

    def is_within(self, max_load: float) -> bool:
        """Whether the replica has at most this multiple of the mean, rounded up."""
        return self.replica <= math.ceil(max_load * self.all / self.replicas)


@contextmanager
def recorded_loads() -> Generator[list[Load]]:
    """The loads at every choice among several replicas in this process."""
    loads: list[Load] = []
    acquire = Replicas.acquire

    async def recorded(self: Replicas, *args: Any, **options: Any) -> Replica:
        chosen = await acquire(self, *args, **options)
        if len(self.all) > 1:
            total = sum(each.outstanding for each in self.all)
            loads.append(Load(chosen.outstanding, total, len(self.all)))
        return chosen

    Replicas.acquire = recorded
    try:
        yield loads
    finally:
        Replicas.acquire = acquire


@dataclass(frozen=True)
class ServedTurn:
    """A turn that was served."""

    asked: UserTurn
    selected: tuple[str, ...]
    certificate: dict[str, Any]


def serve(
    gateway: Gateway, seeds: Sequence[int], *, at_once: int, sessions: bool
) -> list[list[ServedTurn]]:
    """Lead conversations, some of them at once; each goes on with the answers that it got."""
    served: list[list[ServedTurn]] = [[] for _ in seeds]
    left = list(enumerate(seeds))
    errors: list[BaseException] = []

    def client() -> None:
        with gateway.http() as http:
            while left and not errors:
                place, seed = left.pop()
                turns: list[dict[str, str]] = []
                headers = {"x-session-id": f"{seed}"} if sessions else {}
                for asked in talk(seed):
                    turns.append({"role": "user", "content": asked.query})
                    body = {"model": "auto", "messages": turns, "racer": {"explain": True}}
                    response = http.post("/v1/chat/completions", json=body, headers=headers)
                    if response.status_code != 200:
                        errors.append(AssertionError(response.text))
                        return
                    found = response.json()
                    message = found["choices"][0]["message"]
                    turns.append({"role": "assistant", "content": message["content"]})
                    decided = found["racer"]
                    served[place].append(
                        ServedTurn(asked, tuple(decided["selected"]), decided["certificate"])
                    )

    threads = [threading.Thread(target=client) for _ in range(at_once)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    if errors:
        raise errors[0]
    return served


def losses(served: Sequence[Sequence[ServedTurn]]) -> list[float]:
    """The loss of each conversation: the share of its answerable turns whose set missed."""
    found: list[float] = []
    for conversation in served:
        counted = [each for each in conversation if each.asked.right]
        missed = [each.asked.right.isdisjoint(each.selected) for each in counted]
        if counted:
            found.append(sum(missed) / len(missed))
    return found
