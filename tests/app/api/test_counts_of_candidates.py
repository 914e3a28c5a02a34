"""Token counts of candidates: believed as far as a call can have used them, and no further."""

from __future__ import annotations

from typing import Any, Final, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.upstream.reply import completion
from app.wire import parsing
from app.wire.token_bounds import BelievedCounts, TokenBounds
from racer_core.numbers import log_probability, number_within
from tests.kit.accounts import UsageReport, configured_key, counted
from tests.kit.case import Shared
from tests.kit.gateway import ADMIN_KEY, ONE, TWO, Gateway, candidates
from tests.kit.upstream import FakePool
from tests.kit.waiting import wait_until

from .formats import EVERY_API, STREAMED, Api

HUGE: Final = {"6 digits": 10**6, "13 digits": 10**12, "310 digits": 10**310 - 1}
EVERY_HUGE: Final = pytest.mark.parametrize("number", HUGE.values(), ids=HUGE)
OWN: Final = {name: {"price": {"input": 1.0, "output": 1.0}} for name in ("adder", "speller")}
MAX_TOKENS: Final = 50
MOST: Final = 3 * 10_000 + 2_000  # of a short request: the slack, and what it can have used
REPLIES: Final = st.integers(0, 10**320) | st.integers(-5, 10**5) | st.floats(allow_nan=False)


@pytest.fixture
def priced(shared: Shared, pool: FakePool) -> Gateway:
    """A gateway with a budget that all honest requests of these tests fit in."""
    own = candidates(pool.url, **OWN, poet={"price": 1e-9})
    return shared(
        candidates=own, budget={"hard": 30.0}, applications={"again": {"answer_cache": {}}}
    ).gateway


def report(number: int, path: str) -> dict[str, Any]:
    """A usage object of this number."""
    return UsageReport(number, number, number).usage(path)


def counts(value: Any) -> list[int]:
    """All numbers of tokens in a document."""
    if isinstance(value, dict):
        given = cast("dict[str, Any]", value)
        own = [each for name, each in given.items() if name.endswith("_tokens")]
        return [
            *[each for each in own if isinstance(each, int)],
            *[found for each in given.values() for found in counts(each)],
        ]
    parts = cast("list[Any]", value) if isinstance(value, list) else []
    return [found for each in parts for found in counts(each)]


def left(gateway: Gateway) -> tuple[float, float]:
    """What is spent and reserved."""
    (budget,) = gateway.get("/budgets", ADMIN_KEY).json()["budgets"]
    return budget["spent"], budget["reserved"]


@EVERY_API
@STREAMED
@pytest.mark.parametrize("model", ["auto", "adder"])
@EVERY_HUGE
def test_an_impossible_count_is_its_bound_everywhere(
    priced: Gateway,
    pool: FakePool,
    api: Api,
    stream: bool,
    model: str,
    number: int,
) -> None:
    """For the client, in the cost and in the budget; marked, and counted. The answer is good.

    Red without the bound: an `OverflowError`, or a budget that one answer exhausts.
    """
    pool.say("adder", "42", fields={"usage": report(number, api.called)})
    limit = "max_output_tokens" if api.path == "responses" else "max_tokens"
    before = left(priced)[0]
    told = counted(priced, "racer_candidate_overstatements").get(("adder",), 0)
    reply = api.ask(priced, ONE, **{limit: MAX_TOKENS}, stream=stream, model=model)
    assert reply.text == "42"
    shown = [found for each in [reply.whole, *reply.events] for found in counts(each)]
    assert max(shown, default=0) <= MOST
    documents = [reply.whole, *reply.events, *map(api.inner, reply.events)]
    usages = [each["usage"] for each in documents if each.get("usage")]
    assert any(each.get("estimated") for each in usages) or (stream and api.ends)
    if model == "auto":
        (call,) = reply.racer["cost"]["calls"]
        assert call["estimated"] is True
        assert 10_000 < call["output_tokens"] <= MOST
    wait_until(lambda: left(priced)[1] == 0.0)
    assert 2e4 / 1e6 < left(priced)[0] - before <= 2 * MOST / 1e6
    assert counted(priced, "racer_candidate_overstatements")[("adder",)] == told + 1


@EVERY_HUGE
def test_the_other_candidates_answer(priced: Gateway, pool: FakePool, number: int) -> None:
    """A set is answered, whatever one of its members counts."""
    pool.say("adder", "7", fields={"usage": report(number, "chat")})
    pool.say("speller", "7")
    racer = priced.chat(TWO, {"explain": True}, max_tokens=MAX_TOKENS)["racer"]
    assert racer["votes"] == {"7": 2}
    by_name = {each["candidate"]: each for each in racer["cost"]["calls"]}
    assert [by_name[name]["estimated"] for name in ("adder", "speller")] == [True, False]
    assert left(priced)[1] == 0.0


@EVERY_API
@STREAMED
def test_a_cached_answer_repeats_the_bound(
    priced: Gateway, pool: FakePool, api: Api, stream: bool
) -> None:
    """Of the call whose answer it is."""
    pool.say("adder", "42", fields={"usage": report(10**310, api.called)})
    limit = "max_output_tokens" if api.path == "responses" else "max_tokens"
    asked: dict[str, Any] = {
        limit: MAX_TOKENS,
        "temperature": 0,
        "racer": {"application": "again", "usage": "winner"},
        "stream": stream,
    }
    replies = [api.ask(priced, ONE, **asked) for _ in range(2)]
    assert replies[1].headers["x-racer-cache"] == "hit"
    for reply in replies:
        shown = [found for each in [reply.whole, *reply.events] for found in counts(each)]
        assert max(shown, default=0) <= MOST
    assert len(pool.requests) == 1


def test_the_first_one_is_logged(
    shared: Shared, pool: FakePool, caplog: pytest.LogCaptureFixture
) -> None:
    """By the candidate's name; the next ones are only counted."""
    gateway = shared(calibrated=False, telemetry={"log": "text"}).gateway
    pool.say("poet", "42", fields={"usage": report(10**7, "chat")})
    for _ in range(3):
        assert gateway.ask(ONE, model="poet").status_code == 200
    warned = [each for each in caplog.messages if "more tokens than its call" in each]
    assert len(warned) == 1
    assert warned[0].startswith("poet reports more tokens than its call can have used")


@EVERY_HUGE
def test_a_key_is_in_debt_for_what_can_be(shared: Shared, pool: FakePool, number: int) -> None:
    """And the `retry-after` of the refusal is when it is paid off, not a minute."""
    key, entry = configured_key("own", tokens_per_minute=10_000)
    gateway = shared(access={"keys": [entry]}, calibrated=False).gateway
    pool.say("adder", "42", fields={"usage": report(number, "chat")})
    body = {"model": "adder", "messages": [{"role": "user", "content": ONE}], "max_tokens": 50}
    assert gateway.post("/v1/chat/completions", key, json=body).status_code == 200
    refused = gateway.post("/v1/chat/completions", key, json=body)
    assert refused.status_code == 429
    assert 60 < int(refused.headers["retry-after"]) <= 60 * MOST / 10_000
    assert refused.headers["x-should-retry"] == "false"


# The reader -------------------------------------------------------------------------------------

NAMES: Final = st.sampled_from(
    ["prompt_tokens", "completion_tokens", "total_tokens", "input_tokens", "output_tokens",
     "prompt_tokens_details", "completion_tokens_details", "cached_tokens", "reasoning_tokens",
     "audio_tokens", "cost", "text"]
)  # fmt: skip
VALUES: Final = st.recursive(
    REPLIES | st.booleans() | st.none() | st.text(max_size=3),
    lambda inner: st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=8,
)
USAGES: Final = st.dictionaries(NAMES, VALUES, max_size=6)
PAYLOAD: Final = {"messages": [{"role": "user", "content": "4"}], "max_tokens": 7, "n": 2}


def reader(told: list[int] | None = None) -> BelievedCounts:
    """Of the answer to a short request."""
    told = [] if told is None else told
    return BelievedCounts(PAYLOAD, "chat/completions", {}, 100, lambda: told.append(1))


@given(USAGES, st.booleans())
def test_any_usage_is_bounded(usage: dict[str, Any], is_nested: bool) -> None:
    """No count is above what is believed, no other one changes, and arithmetic raises nothing."""
    told = list[int]()
    document: dict[str, Any] = {"usage": usage, "id": "x"}
    if is_nested:
        document = {"type": "response.completed", "response": document, "usage": usage}
    found = reader(told).of(document)
    bounds = TokenBounds.of(PAYLOAD, "chat/completions", {}, 100).believed
    total = bounds.input + bounds.output
    assert bounds.output == 2 * 2 * 7 + 10_000
    assert all(each <= total for each in counts(found))
    assert bool(told) is (found is not document)
    assert reader().of(found) is found
    own = parsing.counts(found["usage"], parsing.CHAT_USAGE)
    assert own.get("prompt_tokens", 0) <= bounds.input
    assert own.get("completion_tokens", 0) <= bounds.output
    assert parsing.cached_tokens(found) <= total
    float(sum(own.values()))
    if found is not document:
        assert parsing.is_estimated(found) or parsing.is_estimated({"usage": found.get("usage")})


@pytest.mark.parametrize(
    ("payload", "path", "renames", "most"),
    [
        ({"max_tokens": 7}, "chat/completions", {}, 7),
        ({"max_completion_tokens": 9, "n": 3}, "chat/completions", {}, 27),
        ({"limit": 5}, "chat/completions", {"max_tokens": "limit"}, 5),
        ({"max_tokens": 5, "prompt": ["a", "b"]}, "completions", {}, 10),
        ({"max_output_tokens": 5}, "responses", {}, 5),
        ({}, "responses", {}, 100),
        ({"input": "a"}, "embeddings", {}, 0),
    ],
)
def test_an_answer_has_no_more_tokens_than_its_limit(
    payload: dict[str, Any], path: str, renames: dict[str, str], most: int
) -> None:
    """Of each choice and each prompt, under the name that the server knows."""
    assert TokenBounds.of(payload, path, renames, 100).output == most


@given(REPLIES | st.booleans() | st.text() | st.none())
def test_numbers_are_compared_before_they_are_used(value: object) -> None:
    """A number within its bounds has a float; nothing else is a number."""
    found = number_within(value, -1e5, 1e5)
    assert found is None or (-1e5 <= float(found) <= 1e5 and not isinstance(found, bool))
    log = log_probability(value)
    assert log is None or float(log) < 0.02


@pytest.mark.parametrize("logprob", [10**310, -(10**310), True, "0", 0.5, None])
def test_a_rating_of_no_log_probability_is_invalid(logprob: object) -> None:
    """Of any size; -9999 and the smallest number of 32 bits are minus infinity."""
    choice = {"text": "1", "logprobs": {"top_logprobs": [{"1": logprob}]}}
    with pytest.raises(Exception, match="not an OpenAI completion"):
        completion("judge", {"choices": [choice]})
    for value in (-9999, -3.4028234663852886e38, 0.0):
        choice["logprobs"] = {"top_logprobs": [{"1": value}]}
        assert completion("judge", {"choices": [choice]}).top == {"1": value}
