"""Coverage: which requests were certified, what the others look like, and what would cure them."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from app.monitoring.coverage import KEPT, Coverage, is_cured_by_rows, label_command
from app.routing.conditions import ConditionReader
from app.routing.query import Query
from app.routing.shapes import shape_of, shown_value
from app.settings import Candidate
from app.telemetry import logs
from tests.kit.case import Metrics
from tests.kit.gateway import ADMIN_KEY, ONE, TWO, Gateway, Serve, user
from tests.kit.waiting import wait_until

SECRET = "Speak like CANARY-51c2"
SYSTEM = {"role": "system", "content": SECRET}
LATER = [*user(TWO), {"role": "assistant", "content": "same"}, *user(ONE)]
# What an application sends in its first hour: fields beside those of a plain question.
FIVE: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.7},
    {"max_tokens": 100},
    {"messages": [SYSTEM, *user(ONE)]},
    {"messages": LATER},
)


def covered(gateway: Gateway) -> dict[str, Any]:
    """What ``GET /coverage`` says."""
    response = gateway.get("/coverage", ADMIN_KEY)
    assert response.status_code == 200, response.text
    return response.json()


def test_shapes_are_counted_and_hold_no_content(serve: Serve) -> None:
    """Of five ordinary requests one is certified; the others are told apart by what they send."""
    gateway = serve()
    assert covered(gateway)["requests"] == 0
    for fields in (*FIVE, FIVE[1]):
        gateway.ask(ONE, **fields)
    found = covered(gateway)
    (own,) = found["applications"]
    assert (found["requests"], found["certified"], found["share"]) == (6, 1, 1 / 6)
    assert {(each["what"], each["requests"], *each["reasons"]) for each in own["others"]} == {
        ("temperature=0.7", 2, "conditions_differ:temperature"),
        ("max_tokens=100", 1, "conditions_differ:max_tokens"),
        ("a system prompt", 1, "conditions_differ:messages.system"),
        ("a later turn", 1, "multi_turn_uncalibrated"),
    }
    assert "CANARY" not in json.dumps(found)
    shapes = {each["what"]: each["shape"] for each in own["others"]}
    commands = {each["what"]: each["command"] for each in own["others"]}
    assert commands["a system prompt"] == (
        f"racer label questions.jsonl --like {shapes['a system prompt']} --system prompt.txt "
        "--out certified.jsonl && racer calibrate certified.jsonl"
    )
    assert all(f"--like {each}" in own["command"] for each in shapes.values())


def test_an_answer_of_no_calibration_names_the_way_to_one(serve: Serve) -> None:
    """Rows of a shape would not help where there is no calibration."""
    gateway = serve(calibrated=False)
    gateway.ask(ONE, temperature=0.7)
    ((only,),) = [each["others"] for each in covered(gateway)["applications"]]
    assert (only["shape"], only["what"]) == (None, "not_calibrated")
    assert "GET /readyz says what is missing" in only["command"]


def test_it_begins_anew_with_a_calibration(serve: Serve) -> None:
    """What was void before may be certified now; its shape stays known, so its command works."""
    gateway = serve()
    gateway.ask(ONE, temperature=0.7)
    (before,) = covered(gateway)["applications"]
    gateway.calibrate(80)
    gateway.ask(ONE)
    (after,) = covered(gateway)["applications"]
    assert (after["requests"], after["certified"], after["others"]) == (1, 1, [])
    assert [each["shape"] for each in after["earlier"]] == [before["others"][0]["shape"]]


def test_applications_are_counted_apart(serve: Serve) -> None:
    """Each has its own share, and its command names it."""
    gateway = serve(applications={"bot": {"prompts": []}}, calibrated=False)
    gateway.ask(ONE)
    gateway.ask(ONE, {"application": "bot"})
    found = {each["application"]: each["requests"] for each in covered(gateway)["applications"]}
    assert found == {"bot": 1, "default": 1}


def test_only_an_admin_sees_it(gateway: Gateway) -> None:
    """As the other endpoints that watch."""
    assert gateway.get("/coverage").status_code == 403


@pytest.mark.parametrize("stream", [False, True])
def test_the_access_log_and_the_metrics_say_why(serve: Serve, stream: bool) -> None:
    """A stream's too, whose header was `pending`; labels hold no name of a field."""
    gateway = serve()
    log = io.StringIO()
    with logs.logging_to(log, "json"):
        for fields in FIVE[:2]:
            assert gateway.ask(ONE, stream=stream, **fields).status_code == 200
        wait_until(lambda: log.getvalue().count('"app.access"') == 2)
    told = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [each["guarantee"] for each in told if each["logger"] == "app.access"] == [
        "holds",
        "void; conditions_differ:temperature",
    ]
    metrics = Metrics.parsed(gateway.get("/metrics", ADMIN_KEY).text)
    chat = {"route": "/v1/chat/completions", "application": ""}
    assert metrics.value("racer_requests_total", certified="true", reason="", **chat) == 1
    void = {"certified": "false", "reason": "conditions_differ"}
    assert metrics.value("racer_requests_total", **void, **chat) == 1


# Without a gateway ------------------------------------------------------------------------------

READER = ConditionReader([Candidate(name="a", base_url="http://127.0.0.1:9/v1")])


def add(coverage: Coverage, *reasons: str, **fields: Any) -> None:
    """A request with these fields."""
    body = {"messages": user(ONE), **fields}
    query = Query(text=ONE, conditions=READER.read(body))
    if reasons:
        coverage.add_void(None, query, body, "chat/completions", reasons)
    else:
        coverage.add_certified(None)


def test_the_memory_is_bounded() -> None:
    """Whatever clients send, the last thousand requests and their shapes are kept."""
    coverage = Coverage(READER)
    for number in range(3 * KEPT):
        add(coverage, "conditions_differ:seed", seed=number)
    add(coverage)
    (own,) = coverage.as_json()["applications"]
    assert (own["requests"], own["certified"], len(own["others"])) == (KEPT, 1, 20)
    assert len(coverage.memories[None].shapes) <= KEPT + 1


@pytest.mark.parametrize(
    ("reasons", "cured"),
    [
        (["conditions_differ:temperature"], True),
        (["conditions_differ:tools", "unlabelled_request_kind", "abstained_strongest"], True),
        (["conditions_differ:temperature", "stale:risk"], True),
        (["conditions_differ:rows"], False),
        (["conditions_differ:temperature", "pinned"], False),
        (["stale:risk"], False),
    ],
)
def test_rows_cure_what_they_can(reasons: list[str], cured: bool) -> None:
    """A new calibration also ends alarms, but nothing that the operator or the request chose."""
    assert is_cured_by_rows(reasons) is cured


@pytest.mark.parametrize(
    ("value", "is_shown"),
    [
        (0.7, True),
        (True, True),
        ("auto", True),
        ({"type": "json_object"}, True),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, False),
        ({"type": "CANARY"}, False),
        ("CANARY", False),
        (["CANARY"], False),
        ([1.0], False),
        (None, False),
    ],
)
def test_only_words_of_the_api_are_shown(value: object, is_shown: bool) -> None:
    """Nothing that a client may have written."""
    assert shown_value(value) == (value if is_shown else None)


def shape(**fields: Any) -> Any:
    """The shape of a request."""
    body = {"messages": user(ONE), **fields}
    parts = READER.parts(body)
    return shape_of(READER.read(body), parts, body, "chat/completions", later=False)


def test_every_content_has_a_file_of_its_own() -> None:
    """Two prompts are two files, and what is no prompt and no tools is any field."""
    prompts = [shape(messages=[{**SYSTEM, "content": text}, *user(ONE)]) for text in "ab"]
    stops = shape(stop=["\n"], tools=[{"type": "function"}], user="ann")
    command = label_command([*prompts, stops])
    assert "--system prompt1.txt --system prompt2.txt" in command
    assert "--tools tools.json" in command
    assert "--field stop=@stop.json" in command
    assert "user" not in command


def test_turns_that_no_option_makes_are_drawn() -> None:
    """Images and results of tools belong to their rows."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    body = {"messages": [{"role": "user", "content": [image]}]}
    assert not shape(**body).is_whole
    coverage = Coverage(READER)
    add(coverage, "conditions_differ:messages.user", **body)
    (own,) = coverage.as_json()["applications"]
    assert own["command"] is None
    assert "premise: drawn" in own["others"][0]["command"]
