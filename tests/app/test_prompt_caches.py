"""Conversations in front of servers with prompt caches: what is cached, missed, and how loaded.

The world of the section "Conversations" in ``benchmarks/results/parts.md``, in small.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.offline.conversations import cached_characters
from racer_core.offline.train import train
from racer_core.records.writer import write_rows
from tests.kit.conversations import (
    POOL,
    cached_share,
    calibrate,
    conversation_rows,
    losses,
    questions,
    recorded_loads,
    serve,
    servers,
)
from tests.kit.gateway import ENVIRONMENT, Command, configure, running

ALPHA = 0.2


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A router of that world."""
    folder = tmp_path_factory.mktemp("world") / "artifact"
    rows, validation = questions(10_000, 400), questions(20_000, 200)
    train(rows, validation, folder, encoder=CharNgramEncoder(), kind="knn")
    return folder


@pytest.mark.slow
def test_sessions_are_cached_certified_and_spread(tmp_path: Path, trained: Path) -> None:
    """Three quarters of the prompts are cached, no replica is above its bound, and sets are right.

    48 conversations of a world whose risk is at most alpha on average: the mean loss is above
    alpha + 6 standard errors with a probability of about 1e-9.
    """
    with servers(3, seconds=0.01) as its, recorded_loads() as loads:
        candidates = [{"name": name, "base_urls": [each.url for each in its]} for name in POOL]
        path = configure(
            tmp_path / "gateway",
            trained,
            "",
            candidates=candidates,
            routing={"score": "cover", "session_ttl_s": 600, "alpha": ALPHA},
        )
        with running(path, ENVIRONMENT) as gateway:
            calibrate(gateway, conversation_rows(30_000, 150), ALPHA)
            served = serve(gateway, range(40_000, 40_048), at_once=8, sessions=True)
    units = Counter(
        (each.certificate["holds"], each.certificate["guarantee"]["unit"])
        for conversation in served
        for each in conversation
    )
    assert set(units) == {(True, "conversation")}
    assert cached_share(its) >= 0.75
    assert all(load.is_within(1.25) for load in loads)
    assert len(loads) > 400
    found = losses(served)
    assert np.mean(found) <= ALPHA + 6 * np.std(found) / math.sqrt(len(found))


@pytest.fixture(scope="module")
def rows_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labelled conversations."""
    path = tmp_path_factory.mktemp("rows") / "conversations.jsonl"
    write_rows(conversation_rows(50_000, 120), path)
    return path


def measures(racer: Command, *arguments: object) -> Iterator[dict[str, Any]]:
    """What `racer evaluate` measures of conversations."""
    code, out, err = racer("evaluate", *arguments, "--conversations", "last_user", "--json")
    assert code == 0, err
    yield from json.loads(out)["measures"]


def test_an_evaluation_compares_kept_candidates_with_those_of_each_turn(
    racer: Command, trained: Path, rows_file: Path
) -> None:
    """At equal risk, which alpha bounds on average; with more of the prompts cached."""
    given = ("--data", rows_file, "--artifact", trained, "--splits", 20, "--alpha", ALPHA)
    kept, alone = measures(racer, *given)
    assert (kept["kept"], alone["kept"]) == (True, False)
    # Of random halves of 120 conversations the expectation is at most alpha; 20 splits come near.
    assert max(kept["risk"], alone["risk"]) < ALPHA + 0.03
    assert kept["cached"] > alone["cached"]
    assert kept["infeasible"] == 0
    code, out, _ = racer("evaluate", *given, "--conversations", "last_user")
    assert code == 0
    assert "kept" in out


def test_what_conversations_cannot_have_is_refused(
    racer: Command, trained: Path, rows_file: Path, tmp_path: Path
) -> None:
    """Instead of being ignored: a router or a second score, and rows without a conversation."""
    alone = tmp_path / "rows.jsonl"
    write_rows(questions(60_000, 20), alone)
    for data, more, words in (
        (rows_file, ("--router", "mlp"), "--conversations and --router exclude each other"),
        (rows_file, ("--score", "gap", "--score", "prob"), "one --score"),
        (alone, (), 'has no "conversation"'),
    ):
        given = ("--data", data, "--artifact", trained, "--conversations", "last_user")
        code, _, err = racer("evaluate", *given, *more)
        assert code != 0
        assert words in " ".join(err.split())


def test_characters_are_cached_from_the_call_before() -> None:
    """Of the same candidate in the same conversation, and of its prompt then."""
    called = np.array([[1, 0], [0, 1], [1, 1], [1, 1]], dtype=bool)
    conversations = np.array([5, 5, 5, 6])
    seen = cached_characters(called, np.array([10.0, 30.0, 50.0, 10.0]), conversations)
    assert seen.tolist() == [[0, 0], [0, 0], [10, 30], [0, 0]]
