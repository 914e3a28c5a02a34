"""Cached answers over HTTP: which requests get one, what it costs, and what it says of itself."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.monitoring.monitor import Monitor
from app.routing.applications import HEADER
from app.settings.answer_cache import AnswerCacheSettings
from tests.kit.accounts import configured_key, series
from tests.kit.case import Shared
from tests.kit.connections import opened
from tests.kit.evaluators import disagree, judged
from tests.kit.gateway import (
    ADMIN_KEY,
    DATA_KEY,
    ONE,
    POOL,
    TWO,
    UNANSWERABLE,
    Gateway,
    Serve,
    candidates,
    configure,
    labelled,
    user,
)
from tests.kit.same_answer import activate, configured
from tests.kit.upstream import FakePool, usage_of
from tests.kit.waiting import until, wait_until

CHAT = "/v1/chat/completions"
ON: dict[str, Any] = {"answer_cache": {}}
# The fallback answers: the first candidate. A gateway without a router starts sooner.
PLAIN: dict[str, Any] = {"artifact": Path("absent"), "calibrated": False}
COLD: dict[str, Any] = {"model": "auto", "messages": user(ONE), "temperature": 0}
RULES = ("zero", "unset", "any")
_tests = count()
ZERO = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


def send(
    gateway: Gateway,
    key: str = DATA_KEY,
    *,
    path: str = CHAT,
    headers: dict[str, str] | None = None,
    **changes: Any,
) -> httpx2.Response:
    """A request at temperature 0, with the status checked."""
    body = {name: value for name, value in (COLD | changes).items() if value is not ...}
    response = gateway.post(path, key, json=body, headers=headers or {})
    assert response.status_code == 200, response.text
    return response


def cached(response: httpx2.Response) -> str | None:
    """What the response says of the cache."""
    return response.headers.get("x-racer-cache")


def events(response: httpx2.Response) -> list[dict[str, Any]]:
    """The events of a stream."""
    data = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
    return [json.loads(each) for each in data]


def lookups(gateway: Gateway, application: str = "default") -> dict[str, float]:
    """How many requests of an application were answered from its cache, and how many not."""
    found = series(gateway.get("/metrics").text)
    name = "racer_answer_cache_requests_total[('application', '{}'), ('outcome', '{}')]"
    return {
        each: found[name.format(application, each)]
        for each in ("hit", "miss", "bypass")
        if name.format(application, each) in found
    }


@pytest.fixture(autouse=True)
def _users_of_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of each test name a user of its own, so that tests can share a gateway."""
    monkeypatch.setitem(COLD, "user", f"user {next(_tests)}")


@pytest.fixture
def caching(shared: Shared, pool: FakePool) -> Gateway:
    """A gateway that caches answers, calibrated on rows at temperature 0."""
    return shared(candidates=candidates(pool.url, parameters={"temperature": 0}), **ON).gateway


@pytest.fixture
def ruled(shared: Shared) -> Gateway:
    """A gateway with an application for each rule on temperatures, and one without a cache."""
    applications = {rule: {"answer_cache": {"temperature": rule}} for rule in RULES}
    return shared(
        applications=applications | {"zero": {"answer_cache": {}}, "none": {}}, **PLAIN
    ).gateway


# What a repeat is -------------------------------------------------------------------------------


def test_a_repeat_calls_nothing_and_costs_nothing(caching: Gateway, pool: FakePool) -> None:
    """The same answer with a decision of its own, without calls, votes and tokens."""
    pool.say("adder", "seven")
    first = send(caching)
    pool.say("adder", "eight")
    second = send(caching)
    assert [cached(each) for each in (first, second)] == ["miss", "hit"]
    assert pool.models_called() == ["adder"]
    one, two = first.json(), second.json()
    assert two["choices"] == one["choices"]
    assert two["model"] == two["racer"]["served_by"] == "adder"
    assert second.headers["x-racer-served-by"] == "adder"
    assert (one["usage"], two["usage"]) == (usage_of("seven"), ZERO)
    racer = two["racer"]
    assert (racer["calls"], racer["usage"], racer["votes"]) == ([], [], {})
    assert racer["usage_incomplete"] is False
    assert racer["selected"] == ["adder"]
    assert two["id"] == racer["decision_id"] == second.headers["x-racer-decision-id"] != one["id"]
    assert racer["repeats"]["decision_id"] == one["id"]
    assert 0.0 <= racer["repeats"]["age_s"] < 60.0
    assert two["a_field_of_tomorrow"] == {"kept": True}
    wanted = [send(caching, racer={"usage": "winner"}).json()["usage"] for _ in range(2)]
    assert wanted == [usage_of("eight")] * 2, "the call whose answer it is, whenever that was"


def test_a_repeat_books_no_tokens(serve: Serve, pool: FakePool) -> None:
    """A key with one token a minute is refused after one answer, and not for its repeats."""
    key, entry = configured_key("team", tokens_per_minute=100)
    gateway = serve(access={"keys": [entry]}, **PLAIN, **ON)
    pool.say("adder", "x" * 80)  # 90 tokens
    for number in range(5):
        assert cached(send(gateway, key)) == ("hit" if number else "miss")
    other = gateway.post(CHAT, key, json=COLD | {"messages": user("What is 5 plus 6?")})
    assert other.status_code == 200
    assert gateway.post(CHAT, key, json=COLD).status_code == 429  # 180 tokens now


def test_the_certificate_of_a_repeat_is_one_of_now_and_says_so(
    caching: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remark of every repeated query; what is known since voids it as it voids any other."""
    messages = user("What is 70 plus 71?")
    first, second = (send(caching, messages=messages).json() for _ in range(2))
    one, two = first["racer"]["certificate"], second["racer"]["certificate"]
    assert (one["remarks"], two["remarks"]) == ([], ["repeated_query"])
    assert one | {"remarks": []} == two | {"remarks": []}
    assert two["holds"]

    def alarmed(*_: object) -> tuple[str, ...]:
        return ("stale:risk",)

    monkeypatch.setattr(Monitor, "shared_reasons", alarmed)
    response = send(caching, messages=messages)
    assert cached(response) == "hit"
    assert response.headers["x-racer-guarantee"] == "void; stale:risk"


def test_a_stored_repeat_is_no_new_evidence(caching: Gateway) -> None:
    """It is a decision like others, of a repeated query, with a winner and no answers."""
    send(caching)
    path = f"/decisions/{send(caching).json()['id']}"
    wait_until(lambda: caching.get(path, ADMIN_KEY).status_code == 200)
    stored = caching.get(path, ADMIN_KEY).json()
    assert (stored["repeated"], stored["served_by"]) == (True, "adder")
    assert (stored["outcome"], stored["answered"]) == ("answered", [])
    verified = caching.post(f"{path}/verify", ADMIN_KEY)
    assert verified.json()["matches"], verified.text


# Which requests ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "rules"),
    [(0, RULES), (0.0, RULES), (..., ("unset", "any")), (None, ("unset", "any")), (0.7, ("any",))],
)
def test_the_temperature_decides_what_is_cached(
    ruled: Gateway, pool: FakePool, sent: Any, rules: tuple[str, ...]
) -> None:
    """By default only 0: an answer that is drawn anew each time is not kept for its client."""
    for rule in RULES:
        before, calls = lookups(ruled, rule), len(pool.requests)
        found = [cached(send(ruled, headers={HEADER: rule}, temperature=sent)) for _ in range(2)]
        more = {name: count - before[name] for name, count in lookups(ruled, rule).items()}
        if rule in rules:
            assert found == ["miss", "hit"], rule
            assert more == {"hit": 1, "miss": 1, "bypass": 0}
        else:
            assert found == [None, None], rule
            assert more == {"hit": 0, "miss": 0, "bypass": 2}
        assert len(pool.requests) - calls == 2 - more["hit"]


def test_zero_is_the_default_and_what_is_not_configured_is_off(
    ruled: Gateway, pool: FakePool
) -> None:
    """Without the section: no header, no field, no series, and every request calls candidates."""
    assert ruled.settings.applications["zero"].answer_cache == AnswerCacheSettings()
    answers = [send(ruled, headers=each) for each in ({HEADER: "none"}, {}) for _ in range(2)]
    assert [cached(each) for each in answers] == [None] * 4
    assert all("repeats" not in each.json()["racer"] for each in answers)
    assert pool.models_called() == ["adder"] * 4
    assert lookups(ruled, "none") == lookups(ruled, "default") == {}


@pytest.mark.parametrize(
    ("own", "sent", "fallback", "is_cached"),
    [
        ({"parameters": {"temperature": 0}}, {}, "adder", True),
        ({"parameters": {"temperature": 0}}, {"temperature": 0.7}, "adder", False),
        ({"adder": {"parameters": {"temperature": 0}}}, {}, "adder", True),
        ({"adder": {"parameters": {"temperature": 0}}}, {}, "whole_pool", False),
        ({"renames": {"temperature": "t"}, "parameters": {"temperature": 0}}, {}, "adder", True),
        ({"renames": {"temperature": "t"}}, {"t": 0}, "adder", True),
        ({"renames": {"temperature": "t"}}, {"t": 0.7}, "adder", False),
        ({"parameters": {"temperature": False}}, {}, "adder", False),
    ],
)
def test_the_temperature_is_that_which_candidates_are_sent(
    serve: Serve, pool: FakePool, own: Any, sent: Any, fallback: str, is_cached: bool
) -> None:
    """Parameters count where the client sets none, and all that are called; names do not matter."""
    gateway = serve(
        candidates=candidates(pool.url, **own), routing={"fallback": fallback}, **PLAIN, **ON
    )
    found = [cached(send(gateway, **{"temperature": ...} | sent)) for _ in range(2)]
    assert found == (["miss", "hit"] if is_cached else [None, None])


VARIANTS: dict[str, dict[str, Any]] = {
    "text": {"messages": user(f"{ONE} ")},
    "system": {"messages": [{"role": "system", "content": "Be brief."}, *user(ONE)]},
    "order": {"messages": [{"content": ONE, "role": "user"}]},
    "name": {"messages": [{"role": "user", "content": ONE, "name": "ann"}]},
    "model": {"model": "auto/both"},
    "temperature": {"temperature": 0.0},
    "max_tokens": {"max_tokens": 5},
    "seed": {"seed": 7},
    "other seed": {"seed": 8},
    "n": {"n": 2},
    "user": {"user": "ann"},
    "metadata": {"metadata": {"a": "b"}},
    "stop": {"stop": ["."]},
    "tools": {"tools": TOOLS},
    "format": {"response_format": {"type": "json_object"}},
    "null": {"seed": None},
    "unknown": {"field_of_tomorrow": [1]},
    "stream": {"stream": True},
    "usage of a stream": {"stream": True, "stream_options": {"include_usage": True}},
    "alpha": {"racer": {"alpha": 0.1}},
    "other alpha": {"racer": {"alpha": 0.2}},
    "score": {"racer": {"score": "prob"}},
    "candidates": {"racer": {"candidates": list(POOL)}},
    "on_abstain": {"racer": {"on_abstain": "strongest"}},
    "group": {"racer": {"group": "a"}},
    "timeout": {"racer": {"timeout": 50}},
    "usage": {"racer": {"usage": "winner"}},
    "leader": {"racer": {"stream": "leader"}},
}


def test_requests_that_differ_in_a_field_share_nothing(serve: Serve) -> None:
    """Each variant is a miss after all those before it, and a hit the second time."""
    gateway = serve(pools={"both": {"candidates": list(POOL)}}, **ON)
    assert cached(send(gateway)) == "miss"
    for name, changes in VARIANTS.items():
        assert cached(send(gateway, **changes)) == "miss", name
    for name, changes in VARIANTS.items():
        assert cached(send(gateway, **changes)) == "hit", name
    assert cached(send(gateway)) == "hit"


def test_endpoints_share_nothing(caching: Gateway) -> None:
    """The same fields at another endpoint are another request."""
    chat: dict[str, Any] = {"user": ..., "max_tokens": 50, "stop": [str(COLD["user"])]}
    assert cached(send(caching, **chat)) == "miss"
    stop = {"stop": ..., "stop_sequences": chat["stop"]}
    assert cached(send(caching, path="/v1/messages", **chat | stop)) == "miss"
    prompt: dict[str, Any] = {"messages": ..., "prompt": ONE, "input": ONE}
    found = [
        cached(send(caching, path=f"/v1/{name}", **prompt))
        for name in ("completions", "responses") * 2
    ]
    assert found == ["miss", "miss", "hit", "hit"]


def test_answers_reach_the_key_and_the_application_that_they_were_made_for(serve: Serve) -> None:
    """Two keys in two applications and none: of each pair the first request is a miss."""
    keys = dict(configured_key(name) for name in ("ann", "bob"))
    cache = {"answer_cache": {"temperature": "zero"}}
    gateway = serve(
        access={"keys": list(keys.values())},
        applications={"shop": cache, "bank": cache},
        **PLAIN,
        **ON,
    )

    def found(key: str, application: str | None) -> str | None:
        return cached(send(gateway, key, headers={HEADER: application} if application else {}))

    pairs = [(key, name) for key in (*keys, DATA_KEY) for name in (None, "shop", "bank")]
    assert [found(*pair) for pair in pairs] == ["miss"] * len(pairs)
    assert [found(*pair) for pair in pairs] == ["hit"] * len(pairs)
    counts = {"hit": 3, "miss": 3, "bypass": 0}
    assert [lookups(gateway, name) for name in ("default", "shop", "bank")] == [counts] * 3


def test_a_repeat_has_the_calibration_of_its_answer(serve: Serve) -> None:
    """A new calibration begins with no answers; the old ones return with it."""
    gateway = serve(**ON)
    old = send(gateway).json()["racer"]["certificate"]["calibration_id"]
    new = gateway.calibrate(rows=labelled(40_000, 60))["id"]
    response = send(gateway)
    assert cached(response) == "miss"
    assert response.json()["racer"]["certificate"]["calibration_id"] == new != old
    for calibration in (old, new):
        assert gateway.activate(calibration).status_code == 200
        response = send(gateway)
        assert cached(response) == "hit"
        assert response.json()["racer"]["certificate"]["calibration_id"] == calibration


def test_an_answer_of_the_fallback_ends_with_it(serve: Serve) -> None:
    """It is remarked as others are, and the first calibration begins with no answers."""
    gateway = serve(calibrated=False, **ON)
    answers = [send(gateway) for _ in range(2)]
    assert [cached(each) for each in answers] == ["miss", "hit"]
    remarks = [each.json()["racer"]["certificate"]["remarks"] for each in answers]
    assert remarks == [[], ["repeated_query"]]
    new = gateway.calibrate()["id"]
    response = send(gateway)
    assert cached(response) == "miss"
    assert response.json()["racer"]["certificate"]["calibration_id"] == new


def test_a_reload_begins_with_no_answers(serve: Serve, artifact: Path, pool: FakePool) -> None:
    """Another configuration may send or merge otherwise; the first one's answers come back."""
    gateway = serve(**ON)
    assert gateway.config is not None
    found = [cached(send(gateway))]
    for alpha in (0.2, 0.1, 0.2):
        pools = {"small": {"candidates": ["adder"], "alpha": alpha}}
        configure(gateway.config.parent, artifact, pool.url, **ON, pools=pools)
        assert gateway.post("/admin/reload", ADMIN_KEY).status_code == 200
        found.append(cached(send(gateway)))
    assert found == ["miss", "miss", "miss", "hit"]


# Around the cache -------------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", ["no-cache", "max-age=0, No-Cache"])
def test_a_client_may_want_a_new_answer(caching: Gateway, pool: FakePool, spelling: str) -> None:
    """`no-store` neither finds nor leaves one; that of `no-cache` replaces the cached one."""

    def said(control: str = "") -> tuple[str | None, str]:
        response = send(caching, headers={"cache-control": control})
        return cached(response), response.json()["choices"][0]["message"]["content"]

    for name, control, expected in (
        ("six", "no-store", (None, "six")),
        ("seven", "", ("miss", "seven")),
        ("eight", "no-store", (None, "eight")),
        ("eight", "", ("hit", "seven")),
        ("nine", spelling, ("miss", "nine")),
        ("ten", "", ("hit", "nine")),
    ):
        pool.say("adder", name)
        assert said(control) == expected


def test_what_is_never_cached(caching: Gateway, pool: FakePool) -> None:
    """Requests for every answer, named candidates, and abstentions, which are decided anew."""
    for _ in range(2):
        answer = send(caching, racer={"explain": True})
        assert cached(answer) is None
        assert answer.json()["racer"]["answers"] == {"adder": "42"}
        body = {"messages": user(ONE), "temperature": 0, "execute": True}
        assert caching.post("/route", json=body).json()["answers"] == {"adder": "42"}
        assert cached(send(caching, model="adder")) is None
        assert cached(send(caching, messages=user(UNANSWERABLE))) is None
    assert pool.models_called() == ["adder"] * 6


def test_the_sample_is_drawn_before_the_cache_is_read(serve: Serve) -> None:
    """At a rate of one half about half of equal requests bypass it, whatever is cached.

    Of 60 requests none or all would be drawn with a chance below 1e-17.
    """
    gateway = serve(watching={"shadow_rate": 0.5}, **PLAIN, **ON)
    found = [cached(send(gateway)) for _ in range(60)]
    assert set(found) == {None, "miss", "hit"}
    assert found.count("miss") == 1


def test_only_whole_answers_are_cached(caching: Gateway, pool: FakePool) -> None:
    """Not one that is cut, filtered, refused by the candidate, or blank."""
    message = {"role": "assistant", "content": "4"}
    cut: list[dict[str, Any]] = [
        {"fields": {"choices": [{"index": 0, "message": message, "finish_reason": reason}]}}
        for reason in ("length", "content_filter")
    ]
    refusal = {"message": {"role": "assistant", "content": None, "refusal": "No."}}
    for text, script in (("42", cut[0]), ("42", cut[1]), ("42", refusal), (" ", {})):
        for name in POOL:
            pool.say(name, text, **script)
        assert [cached(send(caching)) for _ in range(2)] == ["miss", "miss"], script


def test_failures_are_not_cached(caching: Gateway, pool: FakePool) -> None:
    """Neither an error nor an answer beside which a candidate of the set failed."""
    for name in POOL:
        pool.fail(name, "500")
    for _ in range(2):
        response = caching.post(CHAT, json=COLD)
        assert response.status_code >= 500
        assert cached(response) is None
    pool.reset()
    pool.say("adder", "42", delay_s=0.2)  # the failure comes first
    pool.fail("speller", "500")
    assert [cached(send(caching, messages=user(TWO))) for _ in range(2)] == ["miss", "miss"]
    pool.reset()
    assert [cached(send(caching, messages=user(TWO))) for _ in range(2)] == ["miss", "hit"]


def test_an_answer_of_another_vote_than_usual_is_not_cached(serve: Serve, pool: FakePool) -> None:
    """One from outside the set, or one that an evaluator failed to rate: the next may be usual."""
    gateway = serve(**PLAIN, **ON)
    pool.say("adder", " ")
    found = [send(gateway) for _ in range(2)]
    assert [each.json()["racer"]["served_by"] for each in found] == ["speller"] * 2
    assert [cached(each) for each in found] == ["miss", "miss"]
    pool.say("adder", "seven")
    assert [cached(send(gateway)) for _ in range(2)] == ["miss", "hit"]
    whole = {"fallback": "whole_pool"}
    rating = serve(aggregation=judged(pool.url), routing=whole, **PLAIN, **ON)
    disagree(pool)
    pool.rate("judge", {}, fault="500", only="seven")
    assert [cached(send(rating)) for _ in range(2)] == ["miss", "miss"]
    disagree(pool)
    assert [cached(send(rating)) for _ in range(2)] == ["miss", "hit"]


# Streams ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", [ONE, TWO])
@pytest.mark.parametrize("has_usage", [True, False])
def test_a_repeated_stream_is_a_stream(
    caching: Gateway, pool: FakePool, query: str, has_usage: bool
) -> None:
    """Passed through or merged: the same text, its finish, the `racer` object, no tokens."""
    wanted: dict[str, Any] = {"stream_options": {"include_usage": True}} if has_usage else {}
    decisions: list[str] = []
    for said, outcome in (("seven eight", "miss"), ("nine", "hit")):
        for name in POOL:
            pool.say(name, said)
        response = send(caching, messages=user(query), stream=True, **wanted)
        found = events(response)
        choices = [choice for each in found for choice in each["choices"]]
        text = "".join(choice["delta"].get("content") or "" for choice in choices)
        assert (cached(response), text) == (outcome, "seven eight")
        assert [each for choice in choices if (each := choice["finish_reason"])] == ["stop"]
        decisions.append(found[-1]["racer"]["decision_id"])
    racer = found[-1]["racer"]
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-racer-guarantee"] == "holds"
    assert response.text.endswith("data: [DONE]\n\n")
    assert racer["certificate"]["remarks"] == ["repeated_query"]
    assert (racer["calls"], racer["repeats"]["decision_id"]) == ([], decisions[0])
    assert {(each["id"], each["model"]) for each in found} == {(decisions[1], "adder")}
    usages = [each["usage"] for each in found if each.get("usage")]
    assert usages == ([ZERO] if has_usage else [])


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/responses"])
def test_streams_of_other_endpoints_are_repeated(
    caching: Gateway, pool: FakePool, path: str
) -> None:
    """With the events of their own API, the whole answer in them, and no tokens."""
    pool.say("adder", "seven")
    field = "prompt" if "comp" in path else "input"
    body: dict[str, Any] = {"messages": ..., "stream": True, field: ONE}
    answers = [send(caching, path=path, **body) for _ in range(2)]
    assert [cached(each) for each in answers] == ["miss", "hit"]
    assert len(pool.requests) == 1
    first, second = (events(each) for each in answers)
    if field == "prompt":
        texts = ["".join(c["text"] for e in each for c in e["choices"]) for each in (first, second)]
        assert texts == ["seven", "seven"]
        assert second[-1]["racer"]["calls"] == []
        return
    assert [each["type"] for each in second] == [each["type"] for each in first]
    one, two = first[-1]["response"], second[-1]["response"]
    assert two["output"] == one["output"]
    assert two["usage"] == {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
    assert two["racer"]["repeats"]["decision_id"] == one["id"] != two["id"]


@pytest.mark.parametrize("stream", [False, True])
def test_messages_are_repeated(caching: Gateway, pool: FakePool, stream: bool) -> None:
    """Anthropic's API: each request has an id of its own, which makes no other answer of it."""
    pool.say("adder", "seven")
    body: dict[str, Any] = {"max_tokens": 50, "stream": stream, "user": ...}
    body["metadata"] = {"user_id": COLD["user"]}
    answers = [send(caching, path="/v1/messages", **body) for _ in range(2)]
    assert [cached(each) for each in answers] == ["miss", "hit"]
    assert pool.models_called() == ["adder"]
    if not stream:
        one, two = (each.json() for each in answers)
        assert two["content"] == one["content"]
        assert (two["usage"]["input_tokens"], two["usage"]["output_tokens"]) == (0, 0)
        assert two["racer"]["repeats"]["decision_id"] == one["id"] != two["id"]
        return
    found = [[each.get("delta", {}).get("text", "") for each in events(one)] for one in answers]
    assert ["".join(each) for each in found] == ["seven", "seven"]
    racer = next(each["racer"] for each in events(answers[1]) if "racer" in each)
    assert racer["certificate"]["remarks"] == ["repeated_query"]


@pytest.mark.parametrize("fault", ["cut", "stream_error", "stream_no_end", "length"])
def test_a_broken_stream_is_not_cached(caching: Gateway, pool: FakePool, fault: str) -> None:
    """Nor one that ends at the token limit: what the client got is no whole answer."""
    if fault == "length":
        pool.say("adder", "x", choices=[{"index": 0, "delta": {}, "finish_reason": "length"}])
    else:
        pool.fail("adder", fault)
    assert ("error" in events(send(caching, stream=True))[-1]) == (fault != "length")
    pool.say("adder", "seven")
    assert cached(send(caching, stream=True)) == "miss"


def test_a_stream_whose_client_left_is_not_cached(caching: Gateway, pool: FakePool) -> None:
    """It ends with the connection."""
    pool.say("adder", "seven", pause_s=0.5)
    connection = opened(caching, CHAT, COLD | {"stream": True})
    assert until(lambda: pool.running == ["adder"], 30)
    connection.recv(10)
    connection.close()
    assert until(lambda: pool.running == [], 30)
    pool.say("adder", "seven")
    assert cached(send(caching, stream=True)) == "miss"


# Bounds, and calls in rounds --------------------------------------------------------------------


def test_the_memory_of_answers_is_bounded_and_shown(serve: Serve, pool: FakePool) -> None:
    """64 KiB hold three answers of 20 kB, and none of 70 kB."""
    gateway = serve(answer_cache={"max_bytes": 2**16}, **PLAIN)

    def ask(number: int, length: int = 18_500) -> str | None:
        pool.say("adder", "x" * length)
        return cached(send(gateway, messages=user(f"What is {number} plus {number + 1}?")))

    assert [ask(number) for number in (0, 1, 2, 0, 3, 1)] == [*["miss"] * 3, "hit", "miss", "miss"]
    assert [ask(9, 70_000) for _ in range(2)] == ["miss", "miss"]
    found = series(gateway.get("/metrics").text)
    of_default = "[('application', 'default')]"
    assert found[f"racer_answer_cache_evictions_total{of_default}"] == 2
    assert 3 * 18_500 < found[f"racer_answer_cache_bytes{of_default}"] <= 2**16


def test_an_answer_is_cached_for_its_time(serve: Serve, pool: FakePool) -> None:
    """Then it is asked for again."""
    gateway = serve(answer_cache={"ttl_s": 0.3}, **PLAIN)
    assert cached(send(gateway)) == "miss"
    assert until(lambda: cached(send(gateway)) == "miss", 30, every_s=0.05)
    assert len(pool.requests) == 2


def test_calls_in_rounds_are_not_made_again(serve: Serve, talking: FakePool) -> None:
    """Under the promise `same_answer`: the certificate is its own, and the record is verified."""
    gateway = serve(**configured(talking, **ON))
    activate(gateway)
    answers = [send(gateway, messages=user("question 1")) for _ in range(2)]
    calls = len(talking.requests)
    assert [cached(each) for each in answers] == ["miss", "hit"]
    one, two = (each.json() for each in answers)
    assert len(one["racer"]["calls"]) == calls > 0
    assert two["racer"]["calls"] == []
    assert two["choices"] == one["choices"]
    certificate = two["racer"]["certificate"]
    assert certificate["holds"]
    assert certificate["remarks"] == ["repeated_query"]
    assert certificate["rounds"]["calls"] is None, "none was made"
    verified = gateway.post(f"/decisions/{two['id']}/verify", ADMIN_KEY)
    assert verified.json()["matches"], verified.text
