"""Remarks in a certificate: calibration queries and repeated queries."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from app.routing.conditions import ConditionReader
from tests.kit.case import Shared
from tests.kit.gateway import ADMIN_KEY, DATA_KEY, Gateway, Serve, as_json, labelled, user

ROWS, SYSTEM_ROWS, LATER_ROWS = (as_json(labelled(at, 100)) for at in (10_000, 20_000, 30_000))
SYSTEM = {"role": "system", "content": "Answer in French."}
BEFORE = [*user("Good morning"), {"role": "assistant", "content": "Good morning."}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
Send = Callable[[Gateway, str], dict[str, Any]]  # a query; returns its certificate

_new = (f"What is {number} plus {number + 1}?" for number in count(1))
_rows = (row["query"] for row in ROWS if row["correct"] == ROWS[0]["correct"])
_system_rows = (row["query"] for row in SYSTEM_ROWS)


def new_query() -> str:
    """A query that no test has sent."""
    return next(_new)


def row_query() -> str:
    """The query of a row that no test has sent; one candidate answers it."""
    return next(_rows)


def route(gateway: Gateway, text: str, key: str = DATA_KEY, **body: Any) -> dict[str, Any]:
    """The certificate of `POST /route`."""
    response = gateway.post("/route", key, json=body or {"query": text})
    assert response.status_code == 200, response.text
    return response.json()["certificate"]


def chat(gateway: Gateway, text: str) -> dict[str, Any]:
    """The certificate of a chat completion."""
    return gateway.chat(text)["racer"]["certificate"]


def stream(gateway: Gateway, text: str) -> dict[str, Any]:
    """The certificate in the last event of a stream."""
    lines = gateway.ask(text, stream=True).text.splitlines()
    events = [line for line in lines if line.startswith("data: {")]
    return json.loads(events[-1].removeprefix("data: "))["racer"]["certificate"]


def levels(gateway: Gateway, text: str) -> dict[str, Any]:
    """The certificate of `POST /route/levels`."""
    response = gateway.post("/route/levels", json={"query": text})
    assert response.status_code == 200, response.text
    return response.json()["certificate"]


@pytest.fixture
def mixed(shared: Shared) -> Gateway:
    """Rows of first turns, of first turns with a system prompt, and of later turns."""
    gateway = shared(calibrated=False, group="remarks").gateway
    reader = ConditionReader(gateway.settings.candidates)
    digests = dict(reader.read({"messages": [SYSTEM, *user("Hello")]}).digests)
    later = [
        {"messages": [*BEFORE, *user(row["query"])], "correct": row["correct"]}
        for row in LATER_ROWS
    ]
    return gateway.once([*ROWS, *(row | {"conditions": digests} for row in SYSTEM_ROWS), *later])


@pytest.mark.parametrize("send", [route, chat, stream])
def test_a_query_of_the_rows_and_a_repeated_one_are_remarked(mixed: Gateway, send: Send) -> None:
    """Both hold: rows are a sample of the traffic, to which repeats belong."""
    row = row_query()
    query = new_query()
    certificates = [send(mixed, text) for text in (row, row, query, query)]
    assert [each["remarks"] for each in certificates] == [
        ["calibration_query"],
        ["calibration_query", "repeated_query"],
        [],
        ["repeated_query"],
    ]
    assert all(each["holds"] and each["reasons"] == [] for each in certificates)


def test_case_and_white_space_make_no_other_query(mixed: Gateway) -> None:
    """As in the rows: the fingerprint is the same."""
    row, query = row_query(), new_query()
    assert route(mixed, f"  {row.upper()}\n")["remarks"] == ["calibration_query"]
    route(mixed, query)
    assert route(mixed, query.lower() + " ")["remarks"] == ["repeated_query"]


def test_a_void_certificate_has_the_same_remarks(mixed: Gateway) -> None:
    """They are about the query; a temperature changes what it is answered with."""
    row = row_query()
    certificates = [
        route(mixed, row, messages=user(row), temperature=temperature) for temperature in (1, 2)
    ]
    assert [each["holds"] for each in certificates] == [False, False]
    assert certificates[0]["remarks"] == ["calibration_query"]
    assert certificates[1]["remarks"] == ["calibration_query", "repeated_query"]
    assert route(mixed, row)["remarks"] == ["calibration_query", "repeated_query"]


def test_only_the_rows_that_decide_are_the_calibrations(mixed: Gateway) -> None:
    """A row with a system prompt decides no request without one, nor the other way round."""
    plain, french = row_query(), next(_system_rows)

    def with_system(text: str) -> dict[str, Any]:
        return route(mixed, text, messages=[SYSTEM, *user(text)])

    assert with_system(french)["remarks"] == ["calibration_query"]
    assert route(mixed, french)["remarks"][-1:] == ["repeated_query"]
    assert with_system(french)["reasons"] == ["labelled_conditions"]
    assert with_system(plain)["remarks"] == []


def test_a_later_turn_that_ends_in_the_same_words_is_another_query(mixed: Gateway) -> None:
    """The router reads its last message alone, so nothing says that the rest is the same."""
    for text in (LATER_ROWS[0]["query"], ROWS[0]["query"], "yes"):
        for _ in range(2):
            certificate = route(mixed, text, messages=[*BEFORE, *user(text)])
            assert certificate["reasons"] == ["later_turn"]
            assert certificate["remarks"] == []
    assert route(mixed, "yes")["remarks"] == ["unlike_rows"]


def test_a_later_turn_that_is_read_whole_is_remarked(serve: Serve) -> None:
    """`routing.text: conversation`; first turns of the same calibration are no rows of it."""
    gateway = serve(routing={"text": "conversation"})
    turns = [*BEFORE, *user(ROWS[0]["query"])]
    assert route(gateway, "", messages=turns)["remarks"] == []
    certificate = route(gateway, "", messages=turns)
    assert (certificate["holds"], certificate["remarks"]) == (False, ["repeated_query"])


def test_a_query_that_the_router_reads_in_part_has_no_remarks(serve: Serve) -> None:
    """Two images under the same text, or two queries with the same beginning."""
    gateway = serve(limits={"query_chars": 37})
    row = as_json(labelled(10_000, 2))[1]["query"]
    assert len(row) == 37
    assert route(gateway, row)["remarks"] == ["calibration_query"]
    image = [{"role": "user", "content": [{"type": "text", "text": row}, IMAGE]}]
    for messages, holds in ((image, False), (user(row + " and then 10003"), True)):
        for _ in range(2):
            certificate = route(gateway, "", messages=messages)
            assert (certificate["holds"], certificate["remarks"]) == (holds, [])


def test_a_key_learns_nothing_of_what_another_key_sent(mixed: Gateway) -> None:
    """A query of another caller is a secret; that it is a row is not."""
    row, query = row_query(), new_query()
    for text in (row, query):
        route(mixed, text, ADMIN_KEY)
    assert route(mixed, row)["remarks"] == ["calibration_query"]
    assert route(mixed, query)["remarks"] == []
    assert route(mixed, query, ADMIN_KEY)["remarks"] == ["repeated_query"]


def test_a_stored_decision_tells_its_key_of_its_own_queries_alone(mixed: Gateway) -> None:
    """An admin key reads the whole truth, which the drift alarms and the risk use."""

    def stored(number: str, key: str = DATA_KEY) -> dict[str, Any]:
        return mixed.get(f"/decisions/{number}", key).json()

    query = new_query()
    route(mixed, query, ADMIN_KEY)
    first, second = (mixed.chat(query)["id"] for _ in range(2))
    assert [stored(each)["repeated"] for each in (first, second)] == [False, True]
    assert [stored(each, ADMIN_KEY)["repeated"] for each in (first, second)] == [True, True]
    assert stored(second)["remarks"] == ["repeated_query"]
    assert stored(mixed.chat(row_query())["id"])["repeated"], "that it is a row is no secret"


def test_the_sets_of_all_levels_leave_no_trace(mixed: Gateway) -> None:
    """They remark what was sent before, and are not sent themselves."""
    row, query = row_query(), new_query()
    for _ in range(2):
        assert levels(mixed, row)["remarks"] == ["calibration_query"]
        assert levels(mixed, query)["remarks"] == []
    assert route(mixed, query)["remarks"] == []
    assert levels(mixed, query)["remarks"] == ["repeated_query"]


def test_the_remarks_are_those_of_the_calibration_that_decides(serve: Serve) -> None:
    """Another calibration has other rows; queries of the key stay recorded as seen."""
    gateway = serve()
    row, query = as_json(labelled(10_000, 1))[0]["query"], new_query()
    assert route(gateway, row)["remarks"] == ["calibration_query"]
    route(gateway, query)
    gateway.calibrate(rows=labelled(20_000, 60))
    assert route(gateway, row)["remarks"] == ["repeated_query"]
    assert route(gateway, query)["remarks"] == ["repeated_query"]
    assert route(gateway, as_json(labelled(20_000, 1))[0]["query"])["remarks"] == [
        "calibration_query"
    ]


ELSEWHERE = "Qu'est-ce qu'un zeugme ? Ô Muse, dis-le !"


def test_a_query_unlike_the_rows_is_remarked_and_its_certificate_still_holds(
    mixed: Gateway,
) -> None:
    """By every way to ask; a row is never unlike itself, nor is a question like the rows."""
    for send in (route, chat, stream, levels):
        certificate = send(mixed, ELSEWHERE)
        assert certificate["remarks"][:1] == ["unlike_rows"], send
        assert certificate["holds"] is True
        assert send(mixed, new_query())["remarks"] == []


def test_few_rows_tell_nothing_of_a_query(shared: Shared) -> None:
    """Below 99 rows none is rare enough."""
    gateway = shared(calibrated=False, group="few rows").gateway.once(ROWS[:98])
    assert route(gateway, ELSEWHERE)["remarks"] == []
