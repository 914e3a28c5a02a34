"""Votes of sentences: as a gateway counts them by default, and when they end early."""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import replace
from typing import Any

import pytest

from app.answering.answer_forms import AnswerReader
from app.answering.fan_out import FanOutResult
from app.answering.vote import Vote
from app.judging.evaluator import UNRATED
from app.same_answer.calibrations import answer_setup
from app.settings import Aggregation
from app.upstream.reply import Reply
from app.wire.chat import Chat
from racer_core import artifacts
from racer_core.aggregation.answers import Equality
from racer_core.aggregation.vote import Method
from racer_core.aggregation.wording import SHIPPED, TextRule
from tests.kit.case import Shared
from tests.kit.gateway import ONE, Gateway
from tests.kit.upstream import FakePool

NAMES = ("ada", "bob", "cyd", "dan", "eve")
TEXTS = ("Paris", "It is Paris.", "Paris or Lyon", "Lyon", "Lyon or Nice", "Nice or Paris", "Nice")
WHOLE_POOL = {"alpha": 0.001}
ENDED = 20  # of the drawn votes, at least


async def never(*_: object) -> Any:
    """No encoder and no library is asked."""
    raise AssertionError


def vote_of(scores: dict[str, float], method: Method) -> Vote:
    """The vote of a question about a capital."""
    reader = AnswerReader(None, never, similarity=0.9, text=SHIPPED, embed_chars=10)
    return Vote(
        rule=Aggregation(method=method),
        kind=Equality.TEXT,
        reader=reader,
        stacked=None,
        scores=scores,
        members=NAMES,
        deadline=math.inf,
        question="What is the capital of France?",
    )


def reply(name: str, text: str) -> Reply:
    """A candidate's whole answer."""
    body = {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]}
    return Reply.of(name, body, Chat())


async def arrives(vote: Vote, results: FanOutResult, name: str, text: str) -> None:
    """An answer arrives and is read."""
    results.replies[name] = reply(name, text)
    results.forms[name] = await vote.read(results.replies[name])


@pytest.mark.parametrize("method", [Method.MAJORITY, Method.LOG_ODDS])
def test_a_vote_of_sentences_that_ends_early_has_the_class_of_the_full_vote(method: Method) -> None:
    """Whatever arrives in whatever order: the early winner is of the class that wins in the end."""
    rng, ended = random.Random(11), 0

    async def run() -> None:
        nonlocal ended
        for _ in range(200):
            scores = {name: rng.choice((0.3, 0.5, 0.7, 0.9)) for name in NAMES}
            texts = {name: rng.choice(TEXTS[: rng.choice((2, 4, 7))]) for name in NAMES}
            order = rng.sample(NAMES, len(NAMES))
            if rng.random() < 0.5:
                order.sort(key=lambda name: -scores[name])
            vote, results, early = vote_of(scores, method), FanOutResult(), None
            for number, name in enumerate(order, 1):
                await arrives(vote, results, name, texts[name])
                if early is None and vote.decided(results, order[number:]):
                    early = vote.elect(results, order[:number], UNRATED).winner
            if early is not None:
                ended += 1
                forms = vote.forms(results, NAMES)
                assert forms[vote.elect(results, NAMES, UNRATED).winner] == forms[early]

    asyncio.run(run())
    assert ended >= ENDED


def test_one_text_of_most_ends_a_vote_before_better_scored_answers() -> None:
    """Three of five gave one text: it cannot be divided; two sentences that are equal can be."""

    async def ends(*texts: str) -> bool:
        vote, results = vote_of(dict(zip(NAMES, (0.9, 0.8, 0.7, 0.6, 0.5), strict=True)),
                                Method.MAJORITY), FanOutResult()  # fmt: skip
        for name, text in zip(("eve", "dan", "cyd"), texts, strict=True):
            await arrives(vote, results, name, text)
        return vote.decided(results, ("ada", "bob"))

    assert asyncio.run(ends("Paris", "paris.", "PARIS"))
    assert not asyncio.run(ends("Paris", "paris.", "It is Paris"))


def test_an_answer_without_an_encoder_has_no_meaning_and_no_vote() -> None:
    """It is no fault of a client, and nothing is logged for each answer."""

    async def read() -> str | None:
        vote = vote_of(dict.fromkeys(NAMES, 0.5), Method.MAJORITY)
        by_meaning = Vote(
            rule=vote.rule,
            kind=Equality.SEMANTIC,
            reader=vote.reader,
            stacked=None,
            scores=vote.scores,
            members=NAMES,
            deadline=math.inf,
        )
        return await by_meaning.read(reply("ada", "Paris"))

    assert asyncio.run(read()) is None


def test_sentences_vote_by_default(shared: Shared, pool: FakePool) -> None:
    """Two that say 7 in their own words outvote one that is scored better."""
    gateway = shared(aggregation={"equality": Aggregation().equality.value}).gateway
    best, *others = gateway.decided(ONE, **WHOLE_POOL)["selected"]
    for name, text in ((best, "8, I think."), (others[0], "The sum of 3 and 4 is **7**."),
                       (others[1], "3 + 4 = 7")):  # fmt: skip
        pool.say(name, text)
    answer = gateway.chat("What is 3 + 4?", WHOLE_POOL)
    assert sorted(answer["racer"]["votes"].values()) == [1, 2]
    assert answer["model"] in others
    assert "7" in answer["choices"][0]["message"]["content"]


def test_the_fitted_rule_is_part_of_the_setup(gateway: Gateway) -> None:
    """Another rule of sentences finds other answers equal: rows under the old one count no more."""
    settings = gateway.settings
    aggregation = settings.aggregation.model_copy(update={"equality": Equality.AUTO})
    settings = settings.model_copy(update={"aggregation": aggregation})
    assert settings.artifact is not None
    artifact = artifacts.load(settings.artifact)
    added = dict.fromkeys(settings.pool, "")

    def setup(rule: TextRule | None) -> str:
        return answer_setup(settings, added, {}, replace(artifact, text_rule=rule))

    assert setup(None) == setup(SHIPPED) == answer_setup(settings, added, {})
    assert setup(TextRule(longer=0.1)) != setup(None)
