"""Sessions: conversations keep their candidates, and rows of whole conversations certify them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from racer_core.calibration.kept_order import COMPUTED, TokenPrices
from racer_core.racer import Racer
from racer_core.types import LabelledRow, RiskTarget, Score
from tests.core.conversation_worlds import Talk, TurnRow, kept_by_hand, loss_by_hand
from tests.kit.case import Shared
from tests.kit.gateway import (
    ADMIN_KEY,
    ENVIRONMENT,
    ONE,
    TWO,
    Gateway,
    candidates,
    configure,
    error_message,
    running,
)
from tests.kit.upstream import FakePool
from tests.kit.waiting import wait_until
from tests.kit.whole_conversations import ALPHA, ROWS, after, chat, rows_of, stated, talks, upload

pytestmark = pytest.mark.usefixtures("pool")  # reset after the test of another module


def scored(racer: Racer, conversations: list[list[LabelledRow]]) -> list[Talk]:
    """The same as the oracle takes them."""
    found: list[Talk] = []
    for talk in conversations:
        turns: Talk = []
        for number, row in enumerate(talk):
            earlier = after([each.query for each in talk[: number + 1]])[:-1]
            answers = [len(turn["content"]) for turn in earlier if turn["role"] == "assistant"]
            sizes = (
                sum(len(turn["content"]) for turn in earlier),
                len(row.query),
                sum(answers) / len(answers) if answers else 0,
            )
            f = racer.score([row.query]).scores[0].tolist()
            right = [name in row.correct for name in racer.pool]
            turns.append(TurnRow(f, right, [0.0] * 3, sizes))  # pyright: ignore[reportArgumentType]
        found.append(turns)
    return found


@pytest.fixture
def calibrated(shared: Shared, noisy_artifact: Path) -> Gateway:
    """A gateway with rows of whole conversations."""
    routing = {"session_ttl_s": 600, "alpha": ALPHA}
    case = shared(artifact=noisy_artifact, calibrated=False, group="whole", routing=routing)
    return case.gateway.once(rows_of(ROWS), alpha=ALPHA)


@pytest.fixture(scope="module")
def racer(noisy_artifact: Path) -> Racer:
    """The router of that gateway."""
    return Racer.load(noisy_artifact)


def threshold(racer: Racer, conversations: list[list[LabelledRow]]) -> float:
    """The smallest score at which the mean loss is small enough, tried from below."""
    found = scored(racer, conversations)
    kept = [kept_by_hand(talk, Score.GAP, ALPHA) for talk in found]
    for level in sorted({s for of_talk in kept for each in of_talk for s in each}):
        pairs = zip(found, kept, strict=True)
        losses = [loss_by_hand(talk, each, level, RiskTarget.ANSWERABLE) for talk, each in pairs]
        counted = [each for each in losses if each is not None]
        if (sum(counted) + 1) / (len(counted) + 1) <= ALPHA:
            return level
    raise AssertionError("no threshold is valid")


def test_turns_of_a_session_are_certified_by_whole_conversations(
    calibrated: Gateway, racer: Racer
) -> None:
    """Each turn's set is that of the oracle at its threshold; some set is another than alone."""
    lambda_hat = threshold(racer, ROWS)
    moved = 0
    for place, talk in enumerate(talks(90_000, 12)):
        queries = [row.query for row in talk]
        kept = kept_by_hand(scored(racer, [talk])[0], Score.GAP, ALPHA)
        for number in range(3):
            answer = chat(calibrated, queries[: number + 1], f"session {place}")
            expected = {m for m, s in zip(racer.pool, kept[number], strict=True) if s <= lambda_hat}
            assert answer["certificate"]["lambda_hat"] == lambda_hat
            assert set(answer["selected"]) == expected
            # Rows say nothing of earlier answers that come from elsewhere.
            assumed = ["later_turn"] if number else []
            assert stated(answer) == (True, "conversation", assumed)
            assert answer["certificate"]["guarantee"]["law"] == "expectation"
            moved += alone(racer, queries[number], lambda_hat) != expected
    assert moved > 0


def alone(racer: Racer, query: str, lambda_hat: float) -> set[str]:
    """The set of a query alone."""
    f = racer.score([query]).scores[0].tolist()
    return {name for name, each in zip(racer.pool, f, strict=True) if max(f) - each <= lambda_hat}


def test_the_evidence_counts_conversations(calibrated: Gateway) -> None:
    """First turns and later turns count by themselves beside them."""
    made = upload(calibrated, rows_of(ROWS), dry_run=True)["evidence"]
    [whole] = made["conversations"]
    assert (whole["rows"], whole["feasible"], whole["in_clusters"]) == (360, True, False)
    assert 100 < whole["n"] <= 120
    assert whole["mean_loss"] <= ALPHA
    assert made["rows"] == 120
    assert (made["later_turns"]["rows"], made["later_turns"]["in_clusters"]) == (240, True)


def test_without_a_session_a_later_turn_is_no_part_of_a_conversation(calibrated: Gateway) -> None:
    """Its rows share conversations, and certify nothing; first turns have rows of their own."""
    assert stated(chat(calibrated, [ONE], None))[:2] == (True, "request")
    holds, unit, reasons = stated(chat(calibrated, [ONE, TWO], None))
    assert (holds, unit) == (False, "request")
    assert "rows_in_clusters" in reasons


def test_a_conversation_whose_terms_change_is_certified_no_more(calibrated: Gateway) -> None:
    """The rest is decided by rows of later turns; a request without earlier turns begins anew."""
    assert stated(chat(calibrated, [ONE], "changing"))[1] == "conversation"
    other = chat(calibrated, [ONE, TWO], "changing", {"alpha": 0.4})
    assert stated(other)[:2] == (False, "request")
    assert stated(chat(calibrated, [ONE, TWO, ONE], "changing"))[:2] == (False, "request")
    assert stated(chat(calibrated, [TWO], "changing")) == (True, "conversation", [])
    fixed = [chat(calibrated, [ONE, TWO][:n], "alpha", {"alpha": 0.4}) for n in (1, 2)]
    # Another alpha than the calibration's is assumed to depend on no query, as everywhere.
    assert [stated(each)[:2] for each in fixed] == [(True, "conversation")] * 2


@pytest.mark.parametrize(
    "turns",
    [
        pytest.param([ONE, ONE, TWO], id="a turn was served elsewhere"),
        pytest.param([TWO, ONE], id="the turns before are of another conversation"),
    ],
)
def test_what_does_not_follow_the_turn_before_ends_the_promise(
    calibrated: Gateway, turns: list[str], request: pytest.FixtureRequest
) -> None:
    """Its order would be that of other turns. The same turn sent again is no other one."""
    session = request.node.callspec.id
    for queries in ([ONE], [ONE]):
        assert stated(chat(calibrated, queries, session))[1] == "conversation"
    assert stated(chat(calibrated, turns, session))[:2] == (False, "request")
    assert stated(chat(calibrated, [*turns, ONE], session))[:2] == (False, "request")


def test_a_turn_that_is_sent_again_is_the_same_turn(calibrated: Gateway) -> None:
    """It keeps its candidates and its certificate, and the next turn follows it."""
    chat(calibrated, [ONE], "again")
    first, second = (chat(calibrated, [ONE, TWO], "again") for _ in range(2))
    assert first["selected"] == second["selected"]
    assert stated(second) == (True, "conversation", ["later_turn"])
    assert stated(chat(calibrated, [ONE, TWO, ONE], "again"))[:2] == (True, "conversation")


def test_a_turn_that_no_threshold_decides_ends_the_promise(
    tmp_path: Path, noisy_artifact: Path, shared_pool: FakePool
) -> None:
    """It is no turn of the rows, so the turns after it belong to no whole conversation."""
    path = configure(
        tmp_path / "fallback",
        noisy_artifact,
        shared_pool.url,
        routing={"session_ttl_s": 600, "on_uncovered": "whole_pool"},
    )
    with running(path, ENVIRONMENT) as gateway:
        upload(gateway, rows_of(ROWS))
        first = chat(gateway, [ONE], "other")
        body = {"model": "auto", "messages": after([ONE, TWO]), "temperature": 0.5}
        headers = {"x-session-id": "other"}
        answer = gateway.post("/v1/chat/completions", json=body, headers=headers)
        third = chat(gateway, [ONE, TWO, ONE], "other")
    assert answer.status_code == 200
    assert (stated(first)[1], stated(third)[1]) == ("conversation", "request")


def test_a_conversation_that_began_elsewhere_is_certified_by_no_conversation(
    calibrated: Gateway,
) -> None:
    """Its first turn was not served here, or is forgotten."""
    assert stated(chat(calibrated, [ONE, TWO], "unknown"))[:2] == (False, "request")
    answer = chat(calibrated, [ONE], "of me")
    assert stated(answer)[1] == "conversation"
    body = {"model": "auto", "messages": after([ONE, TWO]), "racer": {"explain": True}}
    headers = {"x-session-id": "of me"}
    other = calibrated.post("/v1/chat/completions", ADMIN_KEY, json=body, headers=headers)
    assert other.json()["racer"]["certificate"]["guarantee"]["unit"] == "request"


def test_decisions_of_conversations_can_be_verified(calibrated: Gateway) -> None:
    """Their threshold is recomputed, and their set where no earlier turn chose it."""
    chosen_by = set[str]()
    for place, talk in enumerate(talks(90_000, 12)):
        queries = [row.query for row in talk]
        for number in (1, 2, 3):
            answer = chat(calibrated, queries[:number], f"verified {place}")
            path = f"/decisions/{answer['decision_id']}/verify"
            wait_until(lambda path=path: calibrated.post(path, ADMIN_KEY).status_code == 200)
            found = calibrated.post(path, ADMIN_KEY).json()
            assert found["matches"] is True
            chosen_by.add(found["decision"]["chosen_by"])
    assert chosen_by == {"threshold", "overridden"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[1:], "'talk 0' lacks a turn"),
        (lambda rows: [rows[0], *rows[2:]], "'talk 0' lacks a turn"),
        (lambda rows: [rows[0], *rows], "has one twice"),
        (lambda rows: [*rows[:2], rows[5] | {"conversation": "talk 0"}], "do not continue"),
        (lambda rows: [rows[0] | {"weight": 2}, *rows[1:]], '"weight" stands beside'),
        (lambda rows: [rows[0] | {"group": "x"}, *rows[1:]], "differ in their group"),
    ],
)
def test_rows_that_are_no_whole_conversations_are_refused(
    calibrated: Gateway, change: Any, message: str
) -> None:
    """Instead of a bound on something else."""
    body = {"rows": change(rows_of(ROWS)), "alpha": ALPHA}
    response = calibrated.post("/calibrate", ADMIN_KEY, json=body)
    assert message in error_message(response, 422)


def test_conversations_may_be_in_any_order(calibrated: Gateway) -> None:
    """A log has them interleaved: the turns of all, then those of all."""
    rows = rows_of(ROWS)
    interleaved = [row for number in (2, 0, 1) for row in rows[number::3]]
    [expected] = upload(calibrated, rows, dry_run=True)["evidence"]["conversations"]
    [found] = upload(calibrated, interleaved, dry_run=True)["evidence"]["conversations"]
    assert found == expected


def test_prices_of_tokens_decide_who_stays(
    tmp_path: Path, noisy_artifact: Path, shared_pool: FakePool, racer: Racer
) -> None:
    """Those of the calibration: it is read again with them, and a change of prices waits."""
    prices = [{"input": 1.0, "cached_input": 0.02, "output": 0.1}, {"input": 1.0}, {"call": 2.0}]
    of_tokens = [(1.0, 0.02, 0.1), (1.0, 1.0, 0.0), COMPUTED]
    base = candidates(shared_pool.url)

    def configured(given: list[dict[str, float]]) -> Path:
        priced = [each | {"price": price} for each, price in zip(base, given, strict=True)]
        return configure(
            tmp_path / "priced",
            noisy_artifact,
            "",
            candidates=priced,
            routing={"session_ttl_s": 600, "alpha": ALPHA},
        )

    with running(configured(prices), ENVIRONMENT) as gateway:
        [made] = upload(gateway, rows_of(ROWS))["evidence"]["conversations"]
        by_prices = partial(sets_of, racer, made["lambda_hat"], of_tokens)
        without = partial(sets_of, racer, made["lambda_hat"], ())
        chosen = [talk for talk in talks(90_000, 400) if by_prices(talk) != without(talk)][:6]
        assert chosen
        expected = [by_prices(talk) for talk in chosen]
        assert [served(gateway, talk, f"before {n}") for n, talk in enumerate(chosen)] == expected
    with running(configured([{"call": 1.0}] * 3), ENVIRONMENT) as gateway:
        assert [served(gateway, talk, f"after {n}") for n, talk in enumerate(chosen)] == expected


def sets_of(
    racer: Racer, lambda_hat: float, prices: Sequence[TokenPrices], talk: list[LabelledRow]
) -> list[set[str]]:
    """The sets of the turns of a conversation by the oracle."""
    kept = kept_by_hand(scored(racer, [talk])[0], Score.GAP, ALPHA, prices)
    return [
        {name for name, s in zip(racer.pool, each, strict=True) if s <= lambda_hat} for each in kept
    ]


def served(gateway: Gateway, talk: list[LabelledRow], session: str) -> list[set[str]]:
    """The sets of the turns of a conversation in a session."""
    queries = [row.query for row in talk]
    return [
        set(chat(gateway, queries[: number + 1], session)["selected"])
        for number in range(len(queries))
    ]


def test_a_first_turn_of_the_rows_is_known_to_be_one(calibrated: Gateway) -> None:
    """Its sender may know its label: its answer says so, as for other rows."""
    queries = [row.query for row in ROWS[0]]
    answers = [chat(calibrated, queries[:count], "known") for count in (1, 2)]
    remarks = [each["certificate"]["remarks"] for each in answers]
    assert ["calibration_query" in each for each in remarks] == [True, False]


# Without rows of whole conversations ------------------------------------------------------------


def test_a_session_keeps_its_candidates_without_a_certificate(
    tmp_path: Path, noisy_artifact: Path, shared_pool: FakePool, racer: Racer
) -> None:
    """Certificates are void where these are others than the threshold of later turns chose."""
    path = configure(
        tmp_path / "plain",
        noisy_artifact,
        shared_pool.url,
        routing={"session_ttl_s": 600, "alpha": ALPHA},
    )
    rows = [
        {name: value for name, value in row.items() if name != "conversation"}
        for row in rows_of(ROWS)
    ]
    pinned = 0
    with running(path, ENVIRONMENT) as gateway:
        upload(gateway, rows, rows_kind="traffic")
        for place, talk in enumerate(talks(90_000, 12)):
            queries = [row.query for row in talk]
            kept = kept_by_hand(scored(racer, [talk])[0], Score.GAP, ALPHA)
            for number in range(3):
                answer = chat(gateway, queries[: number + 1], f"session {place}")
                lambda_hat = answer["certificate"]["lambda_hat"]
                pairs = zip(racer.pool, kept[number], strict=True)
                assert set(answer["selected"]) == {name for name, s in pairs if s <= lambda_hat}
                is_pinned = set(answer["selected"]) != alone(racer, queries[number], lambda_hat)
                reasons = [*(["later_turn"] if number else []), *(["pinned"] if is_pinned else [])]
                assert stated(answer) == (not is_pinned, "request", reasons)
                pinned += is_pinned
    assert pinned > 0


def test_a_session_is_forgotten_after_its_time(
    tmp_path: Path, noisy_artifact: Path, shared_pool: FakePool
) -> None:
    """From its last turn on; without the setting nothing is kept."""
    for ttl_s in (0.2, None):
        routing = {"session_ttl_s": ttl_s}
        path = configure(tmp_path / f"{ttl_s}", noisy_artifact, shared_pool.url, routing=routing)
        with running(path, ENVIRONMENT) as gateway:
            upload(gateway, rows_of(ROWS))
            chat(gateway, [ONE], "mine")
            time.sleep(0.3)
            assert stated(chat(gateway, [ONE, TWO], "mine"))[1] == "request"
