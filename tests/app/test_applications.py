"""Applications: which one a request belongs to, and the terms under which it is answered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from app.calibrations.parsing import MAX_LINE_BYTES
from app.errors import SettingsError
from app.json_output import dump_json
from app.routing.applications import HEADER
from app.routing.conditions import ConditionReader
from app.routing.prompt_digest import prompt_digest
from app.routing.query import MAX_DRAWN_BYTES
from tests.kit.applications import (
    ACCESS,
    BOT_KEY,
    KINDS,
    TOOLS,
    answered,
    drawn_rows,
    later,
    upload,
    whole,
)
from tests.kit.case import Shared
from tests.kit.gateway import (
    ADMIN_KEY,
    DATA_KEY,
    ONE,
    POOL,
    TWO,
    Gateway,
    Restart,
    Serve,
    as_json,
    candidates,
    error_message,
    labelled,
    noisy,
    user,
)
from tests.kit.lazy import LazyModule
from tests.kit.upstream import FakePool

stats = LazyModule("scipy.stats")

PROMPT = {"role": "system", "content": "You are an agent of the bank."}
AGENT: dict[str, Any] = {"messages": [PROMPT, *user(TWO)], "tools": TOOLS}
DIGEST = prompt_digest(AGENT) or ""
APPLICATIONS: dict[str, Any] = {
    "bot": {"keys": ["bot"], "alpha": 0.4},
    "agent": {"prompts": [DIGEST], "alpha": 0.3, "on_uncovered": "poet"},
    "search": {"on_uncovered": "whole_pool"},
}
CONFIGURED: dict[str, Any] = {
    "applications": APPLICATIONS,
    "access": ACCESS,
    "routing": {"alpha": 0.2, "levels": []},
}
COUNTS = {"bot": 60, "agent": 80, "search": 100, None: 120}


def rows_of(gateway: Gateway) -> list[dict[str, Any]]:
    """Rows of every application; those of the agent were sent its prompt and its tools."""
    digests = dict(ConditionReader(gateway.settings.candidates).read(AGENT).digests)
    return [
        row
        | ({} if name is None else {"application": name})
        | ({"conditions": digests} if name == "agent" else {})
        for start, (name, count) in enumerate(COUNTS.items(), 2)
        for row in as_json(noisy(start * 10_000, count))
    ]


@pytest.fixture
def apps(shared: Shared, noisy_artifact: Path) -> Gateway:
    """A gateway with three applications, calibrated on rows of each and of none."""
    gateway = shared(artifact=noisy_artifact, calibrated=False, group="apps", **CONFIGURED).gateway
    return gateway.once(rows_of(gateway), alpha=0.2)


def route(
    gateway: Gateway, key: str = DATA_KEY, header: str | None = None, **body: Any
) -> httpx2.Response:
    """POST /route."""
    headers = {} if header is None else {HEADER: header}
    return gateway.post("/route", key, json={"query": TWO} | body, headers=headers)


def decision(
    gateway: Gateway, key: str = DATA_KEY, header: str | None = None, **body: Any
) -> dict[str, Any]:
    """A decision, with the status checked."""
    response = route(gateway, key, header, **body)
    assert response.status_code == 200, response.text
    return response.json()


def agent(**changes: Any) -> dict[str, Any]:
    """A body of the agent."""
    return {"query": None, **AGENT, **changes}


# Membership -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "header", "body", "name", "is_assumed"),
    [
        (DATA_KEY, None, {}, "default", False),
        (DATA_KEY, None, {"application": "search"}, "search", True),
        (DATA_KEY, "search", {}, "search", True),
        (DATA_KEY, "search", {"application": "search"}, "search", True),
        (DATA_KEY, None, {"application": "default"}, "default", True),
        (BOT_KEY, None, {}, "bot", False),
        (BOT_KEY, None, {"application": "bot"}, "bot", False),
        (DATA_KEY, None, {"group": "search"}, "default", False),
    ],
    ids=["none", "body", "header", "both", "default", "key", "key_and_body", "group"],
)
def test_name_and_key_decide(
    apps: Gateway, key: str, header: str | None, body: dict[str, Any], name: str, is_assumed: bool
) -> None:
    """The first that applies; a name given by the request is a choice of the request."""
    found = decision(apps, key, header, **body)
    certificate = found["certificate"]
    assert found["application"] == certificate["guarantee"]["group"] == name
    assert certificate["n"] <= COUNTS.get(name, COUNTS[None])
    assert certificate["holds"]
    is_said = "group_assumed_independent_of_query" in certificate["reasons"]
    assert is_said == is_assumed
    stored = apps.get(f"/decisions/{found['decision_id']}", key).json()
    assert (stored["group"], stored["group_by"]) == (name, "application")


def test_prompt_and_tools_decide(apps: Gateway) -> None:
    """Their digest; the certificate holds, for the rows were sent the same."""
    found = decision(apps, **agent())
    certificate = found["certificate"]
    assert (found["application"], certificate["guarantee"]["group"]) == ("agent", "agent")
    assert (certificate["holds"], certificate["reasons"]) == (True, ["labelled_conditions"])
    assert decision(apps, BOT_KEY, **agent())["application"] == "bot"  # the key comes first
    assert decision(apps, header="search", **agent())["application"] == "search"


def test_an_unknown_prompt_shows_its_digest(apps: Gateway, pool: FakePool) -> None:
    """An operator copies it from a response; it belongs to no application.

    It is not stored: a reader of the store could test guesses of the prompt.
    """
    for text in ("Be brief.", "Be long."):  # the second is no cached decision of the first
        other = [{"role": "system", "content": text}, *user(TWO)]
        digest = prompt_digest({"messages": other}) or ""
        racer = apps.chat(TWO, messages=other)["racer"]
        assert (racer["application"], racer["prompt_digest"]) == ("default", digest)
        routed = apps.post("/route", json={"messages": other}).json()
        assert routed["prompt_digest"] == digest
        response = apps.get(f"/decisions/{racer['decision_id']}", ADMIN_KEY)
        assert response.json()["decision_id"] == racer["decision_id"]
        assert digest not in response.text
    for found in (decision(apps), decision(apps, **agent()), decision(apps, BOT_KEY)):
        assert "prompt_digest" not in found


def test_the_digest_is_of_system_prompt_and_tools_alone() -> None:
    """In both APIs, however the text is wrapped; not of queries, answers and parameters."""
    wrapped = {"role": "developer", "content": [{"type": "text", "text": PROMPT["content"]}]}
    answer = {"role": "assistant", "content": "7"}
    chat: list[dict[str, Any]] = [
        {"messages": [PROMPT, *user(ONE)], "tools": TOOLS, "temperature": 0},
        {"messages": [wrapped, *user(ONE), answer, *user(TWO)], "tools": TOOLS},
    ]
    responses: list[dict[str, Any]] = [
        {"input": ONE, "instructions": PROMPT["content"], "tools": TOOLS},
        {"tools": TOOLS, "input": [PROMPT, *user(ONE)]},
    ]
    assert {prompt_digest(each) for each in chat} == {DIGEST}
    assert {prompt_digest(each, "responses") for each in responses} == {DIGEST}
    # Servers ignore the fields of another API, and so no client can claim a prompt by one.
    assert DIGEST not in {prompt_digest(each) for each in responses}
    assert {prompt_digest(each, "completions") for each in (*chat, *responses)} == {None}
    others: list[dict[str, Any]] = [
        {"messages": [PROMPT, *user(ONE)]},
        {"messages": user(ONE), "tools": TOOLS},
        {"messages": [PROMPT, PROMPT, *user(ONE)], "tools": TOOLS},
        {"messages": [PROMPT, *user(ONE)], "functions": TOOLS},
        {"messages": [{"role": "system", "content": "You"}, *user(ONE)], "tools": TOOLS},
    ]
    assert len({DIGEST, *(prompt_digest(each) for each in others)}) == 6
    without: list[dict[str, Any]] = [
        {"messages": user(ONE)},
        {"prompt": ONE},
        {"input": ONE, "instructions": "", "tools": []},
    ]
    assert {prompt_digest(each) for each in without} == {None}


@pytest.mark.parametrize(
    ("key", "given", "status", "message"),
    [
        (DATA_KEY, {"header": "search", "application": "bot"}, 400, "name different applications"),
        (DATA_KEY, {"application": "chess"}, 404, "no application 'chess'"),
        (ADMIN_KEY, {"header": "chess"}, 404, "['agent', 'bot', 'search', 'default']"),
        (BOT_KEY, {"application": "search"}, 403, "belongs to the application 'bot'"),
        (BOT_KEY, {"application": "default"}, 403, "belongs to the application 'bot'"),
        (BOT_KEY, {"header": "agent"}, 403, "belongs to the application 'bot'"),
    ],
    ids=["both", "unknown", "of_an_admin", "of_a_key", "default", "header"],
)
def test_a_name_that_a_request_may_not_give_is_refused(
    apps: Gateway, key: str, given: dict[str, Any], status: int, message: str
) -> None:
    """The names of others are for operators alone, and a key's client chooses no population."""
    found = error_message(route(apps, key, **given), status)
    assert message in found
    assert key == ADMIN_KEY or "'agent'" not in found


def test_without_applications_none_can_be_named(gateway: Gateway) -> None:
    """The header of a client that another gateway serves, too, is no silent wish."""
    response = route(gateway, header="bot")
    assert "no application 'bot'" in error_message(response, 404)
    assert response.json()["error"]["code"] == "application_not_found"
    assert "application" not in decision(gateway)


def test_every_api_has_applications(apps: Gateway, pool: FakePool) -> None:
    """Chat, its stream, responses, completions and the levels."""
    racer = apps.chat(TWO, {"application": "search"})["racer"]
    assert racer["application"] == "search"
    bodies: dict[str, dict[str, Any]] = {
        "chat/completions": AGENT,
        "responses": {"input": TWO, "instructions": PROMPT["content"], "tools": TOOLS},
        "completions": {"prompt": TWO},
    }
    for path, body in bodies.items():
        name = "default" if path == "completions" else "agent"
        answer = apps.post(f"/v1/{path}", json={"model": "auto", **body})
        assert answer.json()["racer"]["application"] == name, path
    levels = apps.post("/route/levels", json={"query": TWO, "application": "bot"}).json()
    assert (levels["application"], levels["certificate"]["guarantee"]["alpha"]) == ("bot", 0.4)


# Terms ------------------------------------------------------------------------------------------


def test_alpha_is_the_applications(apps: Gateway) -> None:
    """Fixed beforehand like the calibration's own; that of the request comes first."""
    for key, body, alpha in (
        (BOT_KEY, {}, 0.4),
        (DATA_KEY, agent(), 0.3),
        (DATA_KEY, {"application": "search"}, 0.2),
        (DATA_KEY, {}, 0.2),
    ):
        certificate = decision(apps, key, **body)["certificate"]
        guarantee = certificate["guarantee"]
        assert (guarantee["alpha"], guarantee["alpha_basis"]) == (alpha, "fixed")
        assert "alpha_assumed_independent_of_query" not in certificate["reasons"]
    chosen = decision(apps, BOT_KEY, alpha=0.25)["certificate"]
    assert (chosen["guarantee"]["alpha"], chosen["guarantee"]["alpha_basis"]) == (0.25, "band")
    assert "alpha_assumed_independent_of_query" in chosen["reasons"]


def test_evidence_shows_each_application(apps: Gateway) -> None:
    """Its rows, and the threshold that serves it."""
    calibration = apps.ready()["calibration"]
    stored = apps.get(f"/calibrations/{calibration}", ADMIN_KEY).json()
    found = {each["application"]: each for each in stored["evidence"]["applications"]}
    assert {name: each["rows"] for name, each in found.items()} == {
        (name or "default"): count for name, count in COUNTS.items()
    }
    for name, each in found.items():
        body = agent() if name == "agent" else {"application": name}
        served = decision(apps, **body)["certificate"]
        assert (each["lambda_hat"], each["n"]) == (served["lambda_hat"], served["n"])
        assert (each["alpha"], each["feasible"]) == (served["guarantee"]["alpha"], True)


@pytest.mark.parametrize(
    ("body", "selected"),
    [
        (agent(seed=5), ["poet"]),
        ({"query": None, "messages": [PROMPT, *user(TWO)], "application": "search"}, [*POOL]),
    ],
    ids=["candidate", "whole_pool"],
)
def test_what_is_uncovered_is_answered_by_its_policy(
    apps: Gateway, body: dict[str, Any], selected: list[str]
) -> None:
    """`applications.NAME.on_uncovered`; a covered request has its set."""
    found = decision(apps, **body)
    assert (found["certificate"]["holds"], sorted(found["selected"])) == (False, sorted(selected))


def test_the_applications_own_rows_choose_where_none_is_alike(
    serve: Serve, noisy_artifact: Path
) -> None:
    """Not those of another, which may be more; the certificate is void."""
    applications = {**APPLICATIONS, "agent": {"prompts": [DIGEST], "alpha": 0.3}}
    gateway = serve(
        calibrated=False, artifact=noisy_artifact, **{**CONFIGURED, "applications": applications}
    )
    upload(gateway, rows_of(gateway))
    covered = decision(gateway, **agent())["certificate"]
    other = decision(gateway, **agent(seed=5))["certificate"]
    assert (other["holds"], "conditions_differ:seed" in other["reasons"]) == (False, True)
    assert "labelled_conditions" not in other["reasons"]
    assert (other["lambda_hat"], other["n"]) == (covered["lambda_hat"], covered["n"])
    earlier = [*user(ONE), {"role": "assistant", "content": "7"}]
    later = decision(gateway, **agent(messages=[PROMPT, *earlier, *user(TWO)]))["certificate"]
    assert (later["holds"], later["n"]) == (False, covered["n"])
    assert "multi_turn_uncalibrated" in later["reasons"]


def test_few_rows_suffice_for_a_large_alpha(serve: Serve) -> None:
    """Five rows of the agent's conditions are enough for its alpha, too few for the record's."""
    gateway = serve(calibrated=False, **CONFIGURED | {"routing": {"alpha": 0.1}})
    rows = rows_of(gateway)
    few = [
        row for row in rows if row.get("application") == "agent" and any(row["correct"].values())
    ]
    others = [row for row in rows if row.get("application") != "agent"]
    upload(gateway, [*others, *few[:5]], alpha=0.1)
    certificate = decision(gateway, **agent())["certificate"]
    assert (certificate["holds"], certificate["n"]) == (True, 5)
    assert certificate["guarantee"]["alpha"] == 0.3


def test_an_alpha_that_was_set_after_the_rows_were_shown_has_the_band(restart: Restart) -> None:
    """In a dry run, or by the calibration itself: it may have been picked by looking."""
    applications: dict[str, Any] = {"bot": {"keys": ["bot"], "alpha": 0.4}}

    def basis(alpha: float | None, *, uploads: bool) -> str:
        applications["bot"]["alpha"] = alpha
        routing: dict[str, Any] = {"levels": []}
        with restart(access=ACCESS, applications=applications, routing=routing) as gateway:
            if uploads:
                upload(gateway, rows)
            return decision(gateway, BOT_KEY)["certificate"]["guarantee"]["alpha_basis"]

    rows = [row | {"application": "bot"} for row in as_json(noisy(20_000, 60))]
    assert basis(0.4, uploads=True) == "fixed"
    assert basis(0.3, uploads=False) == "band"
    assert basis(None, uploads=False) == "band"  # that of `routing`: chosen by removing its own
    assert basis(0.3, uploads=True) == "band"
    assert basis(0.4, uploads=True) == "fixed"


# Rows -------------------------------------------------------------------------------------------


def test_rows_without_applications_certify_none(serve: Serve) -> None:
    """They are rows of ``default``; those of a record without applications are void."""
    gateway = serve(calibrated=False, **CONFIGURED)
    upload(gateway, as_json(labelled(10_000, 60)))
    assert decision(gateway)["certificate"]["holds"]
    certificate = decision(gateway, BOT_KEY)["certificate"]
    assert (certificate["holds"], "group_uncalibrated" in certificate["reasons"]) == (False, True)


def test_rows_of_other_members_are_void(restart: Restart) -> None:
    """A key or a prompt that moved changes the population of each application, and of the rest."""

    def certificate(**terms: Any) -> dict[str, Any]:
        applications = {"bot": {"keys": ["bot"]} | terms}
        with restart(access=ACCESS, applications=applications) as gateway:
            gateway.once(
                [row | {"application": "bot"} for row in as_json(labelled(10_000, 60))], alpha=0.2
            )
            return decision(gateway, BOT_KEY)["certificate"]

    assert certificate()["holds"]
    moved = certificate(prompts=[DIGEST])
    assert (moved["holds"], moved["reasons"]) == (False, ["grouping_changed"])
    assert certificate(on_uncovered="poet")["holds"]


def test_application_and_group_are_one_field(serve: Serve) -> None:
    """Either name; different values and an application that is not configured are errors."""
    gateway = serve(calibrated=False, **CONFIGURED)
    for field, status, message in (
        ({"application": "agnet"}, 400, "a row is of the application 'agnet'"),
        ({"application": "bot", "group": "search"}, 422, "two names of one field"),
    ):
        rows = as_json(labelled(10_000, 60))
        rows[7] |= field
        assert message in gateway.refused(rows, status)
    assert gateway.ready()["calibration"] is None
    rows = [row | {"group": "bot"} for row in as_json(labelled(10_000, 60))]
    upload(gateway, rows)
    assert decision(gateway, BOT_KEY)["certificate"]["holds"]


# Drawn rows -------------------------------------------------------------------------------------


DRAWN: dict[str, Any] = {"applications": {"bot": {"keys": ["bot"], "premise": "drawn"}}}


def test_drawn_rows_cover_every_request_of_their_application(serve: Serve, pool: FakePool) -> None:
    """Whatever its client put into it, of other kinds than any row, too; none of another's."""
    gateway = serve(calibrated=False, access=ACCESS, **DRAWN)
    drawn = drawn_rows(60)
    upload(gateway, [*drawn, *as_json(noisy(40_000, 80))])
    others: list[dict[str, Any]] = [
        {"system": "New."},
        {"tools": TOOLS, "system": "New.", "seed": 3, "top_p": 0.5},
    ]
    for kind in [*KINDS, *others]:
        certificate = answered(gateway, BOT_KEY, whole(TWO, **kind))
        assert (certificate["holds"], certificate["guarantee"]["premise"]) == (True, "drawn")
        assert certificate["n"] == sum(any(row["correct"].values()) for row in drawn)
        other = answered(gateway, DATA_KEY, whole(TWO, **kind))
        assert (other["holds"], other["guarantee"]["premise"]) == (not kind, "alike")
    long = answered(gateway, BOT_KEY, whole(TWO + " again" * 4_000))
    assert long["holds"]
    third = answered(gateway, BOT_KEY, later(whole(TWO, **KINDS[1])))
    assert (third["holds"], "multi_turn_uncalibrated" in third["reasons"]) == (False, True)


def test_no_client_names_an_application_whose_rows_are_drawn(serve: Serve) -> None:
    """They cover whatever belongs to it, so its keys and prompts alone decide."""
    terms = DRAWN["applications"]["bot"] | {"prompts": [DIGEST]}
    gateway = serve(calibrated=False, access=ACCESS, applications={"bot": terms})
    upload(gateway, drawn_rows(60))
    for given in ({"application": "bot"}, {"header": "bot"}):
        assert "keys and prompts alone" in error_message(route(gateway, **given), 403)
    assert decision(gateway, **agent(application="bot"))["application"] == "bot"
    assert decision(gateway, BOT_KEY, application="bot")["certificate"]["holds"]


def test_drawn_rows_cover_no_request_that_none_of_them_could_be(
    serve: Serve, pool: FakePool
) -> None:
    """A row has at most 1 MiB; the limit on requests leaves room for labels of 64 candidates."""

    def sized(count: int) -> dict[str, Any]:
        body = whole(TWO, system="")
        body["messages"][0]["content"] = "é" * ((count - len(dump_json(body))) // 2)
        return body

    gateway = serve(calibrated=False, access=ACCESS, **DRAWN)
    rows = drawn_rows(60)
    row = {"request": sized(MAX_DRAWN_BYTES), "correct": dict.fromkeys(POOL, True)}
    assert len(dump_json(row)) < MAX_LINE_BYTES - 64 * 1_000
    upload(gateway, [*rows, {**rows[0], "request": sized(MAX_DRAWN_BYTES)}])
    assert answered(gateway, BOT_KEY, sized(MAX_DRAWN_BYTES))["holds"]
    larger = answered(gateway, BOT_KEY, sized(MAX_DRAWN_BYTES + 2))
    assert (larger["holds"], larger["reasons"]) == (False, ["request_too_large"])
    refused = [rows[0], {**rows[0], "request": sized(MAX_DRAWN_BYTES + 2)}]
    assert "row 2: its request is larger than 917,504 bytes" in gateway.refused(refused)


def test_drawn_later_turns_are_a_population_of_their_own(serve: Serve, pool: FakePool) -> None:
    """The largest population comes first in a record; drawn rows alone calibrate, too."""
    gateway = serve(calibrated=False, access=ACCESS, **DRAWN)
    turns = [row | {"request": later(row["request"])} for row in drawn_rows(40, 30_000)]
    upload(gateway, [*drawn_rows(60), *turns])
    third = answered(gateway, BOT_KEY, later(whole(TWO, **KINDS[2])))
    assert (third["holds"], third["reasons"]) == (True, ["later_turn"])
    assert third["n"] == sum(any(row["correct"].values()) for row in turns)
    assert third["guarantee"]["premise"] == "drawn"
    first = answered(gateway, BOT_KEY, whole(TWO))
    assert (first["holds"], first["reasons"]) == (True, [])
    for body in (whole(TWO), later(whole(TWO)), whole(TWO, **KINDS[1])):
        assert not answered(gateway, DATA_KEY, body)["holds"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"request": None, "query": ONE}, "must be whole requests"),
        ({"conditions": dict.fromkeys(POOL, "0" * 32)}, "labelled under another configuration"),
    ],
    ids=["query", "conditions"],
)
def test_rows_that_cannot_be_drawn_are_refused(
    serve: Serve, change: dict[str, Any], message: str
) -> None:
    """One error names the row; nothing changes."""
    gateway = serve(calibrated=False, access=ACCESS, **DRAWN)
    rows = drawn_rows(40)
    rows[3] |= change
    rows[3] = {name: value for name, value in rows[3].items() if value is not None}
    found = gateway.refused(rows)
    assert "row 4: " in found
    assert message in found
    assert gateway.ready()["calibration"] is None


def test_drawn_rows_hold_while_the_gateway_does_the_same(restart: Restart, pool: FakePool) -> None:
    """A rename or a field that was refused before changes what is drawn, or what it is sent."""

    def certificate(premise: str = "drawn", *allowed: str, **own: Any) -> dict[str, Any]:
        with restart(
            access=ACCESS,
            applications={"bot": {"keys": ["bot"], "premise": premise}},
            candidates=candidates(pool.url, **own),
            limits={"extra_fields": [*allowed]},
        ) as gateway:
            gateway.once(drawn_rows(60), alpha=0.2)
            return answered(gateway, BOT_KEY, whole(TWO, **KINDS[1]))

    allowed = ("priority", "guided_*")
    assert certificate("drawn", *allowed)["holds"]
    assert certificate("drawn", *allowed[::-1])["holds"]
    renames = {"renames": {"max_tokens": "max_completion_tokens"}}
    for found in (
        certificate("drawn", *allowed, poet=renames),
        certificate("drawn", "priority"),
        certificate("drawn", *allowed, "chat_template_kwargs"),
    ):
        assert (found["holds"], found["reasons"]) == (False, ["conditions_differ:rows"])
    alike = certificate("alike", *allowed)
    assert (alike["holds"], alike["guarantee"]["premise"]) == (False, "alike")
    assert "conditions_differ:messages.system" in alike["reasons"]


def test_drawn_requests_have_their_exact_law(serve: Serve, noisy_artifact: Path) -> None:
    """System prompts, tools and lengths decide which candidate is right; the router reads none.

    The misses among N requests are BetaBinomial(N, m, n + 1 - m), m = floor(alpha (n + 1)), since
    critical scores are distinct. False alarm below 1e-6. Were the requests
    with tools alone served by these rows, three in four would be missed: outside the law but for a
    chance below 1e-6.
    """
    routing = {"alpha": ALPHA}
    gateway = serve(
        calibrated=False, artifact=noisy_artifact, access=ACCESS, routing=routing, **DRAWN
    )
    rng = np.random.default_rng(23)

    def draw(count: int, share: float) -> list[dict[str, Any]]:
        """Requests, of which a share has tools; those are mostly answered by the poet alone."""
        rows: list[dict[str, Any]] = []
        for query in law_rows("sums", count, rng):
            has_tools = rng.random() < share
            prompt: dict[str, Any] = {"system": "x" * int(rng.integers(1, 99))}
            kind: dict[str, Any] = {"tools": TOOLS} if has_tools else prompt
            is_poet = has_tools and rng.random() < 0.75
            right = {name: name == "poet" for name in POOL} if is_poet else query["correct"]
            text = query["query"] + " please" * int(rng.integers(3))
            rows.append(
                {"request": whole(text, seed=int(rng.integers(9)), **kind)}
                | {"correct": right, "application": "bot"}
            )
        return rows

    upload(gateway, draw(ROWS, 0.05), alpha=ALPHA)

    def misses(rows: list[dict[str, Any]]) -> int:
        count = 0
        for row in rows:
            found = decision(gateway, BOT_KEY, query=None, **row["request"])
            assert found["certificate"]["holds"]
            count += not any(row["correct"][name] for name in found["selected"])
        return count

    m = int(ALPHA * (ROWS + 1))
    low, high = stats.betabinom.interval(1.0 - 1e-6, REQUESTS, m, ROWS + 1 - m)
    assert low <= misses(draw(REQUESTS, 0.05)) <= high
    assert misses(draw(REQUESTS, 1.0)) > high


# Configuration ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("applications", "message"),
    [
        ({"a": {"keys": ["stranger"]}}, "no API key is called 'stranger'"),
        ({"default": {}}, "the name `default` is reserved"),
        ({"a": {"keys": ["data"]}, "b": {"keys": ["data"]}}, "'data' belongs to the application"),
        ({"a": {"prompts": [DIGEST]}, "b": {"prompts": [DIGEST]}}, "belongs to the application"),
        ({"a": {"prompts": ["abc"]}}, "must match the pattern"),
        ({"a": {"on_uncovered": "stranger"}}, "'stranger' is no candidate"),
        ({"a": {}}, "routing.group_by: applications are the groups"),
    ],
)
def test_a_wrong_application_stops_the_start(
    serve: Serve, applications: dict[str, Any], message: str
) -> None:
    """One sentence with the place."""
    routing = {"group_by": "key"} if "group_by" in message else {}
    with pytest.raises(SettingsError, match=message):
        serve(applications=applications, routing=routing)


# The law ----------------------------------------------------------------------------------------

POET = {"sums": 0.02, "poems": 0.75}  # how often the poet alone is right, by application
ROWS, REQUESTS, ALPHA = 200, 200, 0.1
FALSE_ALARM = 1e-6 / 2  # of each of two checks


def law_rows(name: str, count: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Random rows of an application: the query decides which candidate is right, or the poet is."""
    numbers: list[int] = rng.choice(90_000, count, replace=False).tolist()
    poet = {"correct": {each: each == "poet" for each in POOL}}
    return [
        as_json(labelled(10_000 + number // 4 * 4 + number % 3, 1))[0]  # no poems: none is right
        | {"application": name}
        | (poet if rng.random() < POET[name] else {})
        for number in numbers
    ]


def test_each_application_has_its_exact_law(serve: Serve, noisy_artifact: Path) -> None:
    """System prompts decide which candidate is right, and the router does not read them.

    The misses among N requests are BetaBinomial(N, m, n + 1 - m), m = floor(alpha (n + 1)), since
    critical scores are distinct. False alarm below 1e-6 for both checks. Of a
    mixture of both under the first one's prompt about 56 % are missed, which is outside the law but
    for a chance below 1e-6. The gateway sees no premise fail there; it voids a certificate where
    the prompt is another's.
    """
    prompts = {name: {"role": "system", "content": f"Only {name}!"} for name in POET}
    gateway = serve(
        calibrated=False,
        artifact=noisy_artifact,
        routing={"alpha": ALPHA},
        applications={
            name: {"prompts": [prompt_digest({"messages": [each]})]}
            for name, each in prompts.items()
        },
    )
    reader = ConditionReader(gateway.settings.candidates)
    rng = np.random.default_rng(17)
    upload(
        gateway,
        [
            row | {"conditions": dict(reader.read({"messages": [prompts[name]]}).digests)}
            for name in POET
            for row in law_rows(name, ROWS, rng)
        ],
        alpha=ALPHA,
    )

    def missed(row: dict[str, Any], name: str) -> bool:
        messages = [prompts[name], *user(row["query"])]
        found = decision(gateway, query=None, messages=messages)
        assert found["certificate"]["holds"]
        assert found["application"] == name
        return not any(row["correct"][name] for name in found["selected"])

    requests = {name: law_rows(name, REQUESTS, rng) for name in POET}
    m = int(ALPHA * (ROWS + 1))
    low, high = stats.betabinom.interval(1.0 - FALSE_ALARM, REQUESTS, m, ROWS + 1 - m)
    for name, rows in requests.items():
        misses = sum(missed(row, name) for row in rows)
        assert low <= misses <= high, (name, misses, low, high)
    wrong = [*requests["sums"][: REQUESTS // 4], *requests["poems"][REQUESTS // 4 :]]
    misses = sum(missed(row, "sums") for row in wrong)
    assert misses > high, (misses, high)
    messages = [prompts["poems"], *user(TWO)]
    wrong_name = decision(gateway, query=None, messages=messages, application="sums")
    assert not wrong_name["certificate"]["holds"]
