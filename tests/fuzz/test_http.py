"""The running gateway answers as its own description says, whatever it is asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st

from app.api.routes import ROUTES
from app.same_answer import calibration as answer_calibration
from tests.kit.gateway import (
    ADMIN_KEY,
    ENVIRONMENT,
    ONE,
    POOL,
    TWO,
    UNDESCRIBED,
    Gateway,
    configure,
    running,
)
from tests.kit.lazy import LazyModule
from tests.kit.upstream import FakePool
from tests.kit.waiting import until

schemathesis = LazyModule("schemathesis")
checks = LazyModule("schemathesis.checks")

pytestmark = pytest.mark.slow

OPERATIONS = sorted({route.name for route in ROUTES} - UNDESCRIBED)
HEADERS = {"authorization": f"Bearer {ADMIN_KEY}"}
# What candidates get, the description leaves to them.
PASSED_ON = ("max_tokens", "n", "response_format", "tools")
# A request takes some milliseconds, where a parser takes some microseconds.
EXAMPLES = max(20, settings.default.max_examples // 100)


@pytest.fixture(scope="module")
def gateway(
    tmp_path_factory: pytest.TempPathFactory, artifact: Path, shared_pool: FakePool
) -> Iterator[Gateway]:
    """Everything that can be watched is watched; every candidate is well, and counts tokens."""
    shared_pool.tokens |= dict.fromkeys(POOL, 12)
    path = configure(
        tmp_path_factory.mktemp("fuzz"),
        artifact,
        shared_pool.url,
        watching={"shadow_rate": 0.3, "false_alarm": 0.01},
        embeddings=POOL[0],
    )
    with pytest.MonkeyPatch.context() as patch, running(path, ENVIRONMENT) as gateway:
        patch.setattr(answer_calibration, "MIN_FITTING", 20)  # fewer requests in these tests
        gateway.calibrate(60)
        yield gateway


@pytest.fixture(scope="module")
def description(gateway: Gateway) -> dict[str, Any]:
    """The gateway's own, where it allows anything with values that exist beside some that do not.

    By chance no text would name a model.
    """
    document = gateway.get("/openapi.json", None).json()
    asked = [gateway.chat(ONE)["racer"] for _ in range(60)]  # none of them is drawn: 5e-10
    decision = next(each["decision_id"] for each in asked if "shadow_rate" in each)
    for _ in range(300):  # fewer than 45 of them are drawn: 1e-9
        gateway.chat(ONE, racer={"promise": "same_answer"})
    assert until(lambda: _answer_rows(gateway) >= 45), gateway.get("/same-answer", ADMIN_KEY).text
    answers = gateway.post("/same-answer/calibrate", ADMIN_KEY).json()["id"]
    job = gateway.get("/calibrations/jobs", ADMIN_KEY).json()["data"][0]["id"]
    all_right = {name: True for name in POOL}
    rows = [{"query": query, "correct": all_right} for query in "abc"]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    known = {
        "alpha": [0.05, 0.1, 0.2, 0.5, None, 2],
        "calibration_id": [gateway.ready()["calibration"], "cal-1"],
        "candidates": [POOL, POOL[:2], POOL[1:], None, ["unknown"]],
        "correct": [all_right, {POOL[0]: False}, {"unknown": True}],
        "decision_id": [decision, "chatcmpl-1"],
        "decision_ids": [[decision], ["chatcmpl-1"]],
        "delta": [0.1, None],
        "expected_active_id": ["cal-1", None],
        "file": [lines, "query,adder\na,1\n"],
        "job_id": [job, "job-1"],
        "model": ["auto", *POOL, "unknown"],
        "model_id": ["auto", *POOL, "unknown"],
        "input": [ONE, TWO, [{"role": "user", "content": ONE}], []],
        "max_tokens": [1, 100, 100_000],
        "n": [1, 2, 100],
        "prompt": [ONE, [ONE], [1, 2]],
        "role": ["user", "assistant"],
        "response_format": [{"type": "json_object"}, {"type": "text"}, 1],
        "rows": [rows, [{"scores": {name: 0.5 for name in POOL}, "correct": all_right}]],
        "tools": [[{"type": "function", "function": {"name": "add"}}], [], {}],
    }
    activate = document["paths"]["/same-answer/{calibration_id}/activate"]["post"]
    (calibration_id,) = (each for each in activate["parameters"] if each["in"] == "path")
    calibration_id["schema"] = {"enum": [answers, "cal-1"]}
    for methods in document["paths"].values():
        for operation in methods.values():
            operation["responses"].pop("default", None)  # with it no status would be missing
            for parameter in operation.get("parameters", ()):
                if parameter["name"] in known and "enum" not in parameter["schema"]:
                    parameter["schema"] = {"enum": known[parameter["name"]]}
            for kind, body in operation.get("requestBody", {}).get("content", {}).items():
                body["schema"] = _narrowed(body["schema"], known)
                if kind == "application/x-ndjson":
                    body["schema"] = {"enum": [lines, ""]}
    route = document["paths"]["/route"]["post"]["requestBody"]["content"]["application/json"]
    route["schema"] = {"anyOf": [_with_one(route["schema"], one) for one in ("query", "messages")]}
    return document


def _answer_rows(gateway: Gateway) -> int:
    """Sampled requests of which every candidate's answer is known."""
    return gateway.get("/same-answer", ADMIN_KEY).json()["applications"][""]["rows"]


def _narrowed(schema: Any, known: dict[str, list[Any]]) -> Any:
    if isinstance(schema, list):
        return [_narrowed(each, known) for each in schema]
    if not isinstance(schema, dict):
        return schema
    narrowed = {name: _narrowed(each, known) for name, each in schema.items()}
    if "model" in schema.get("properties", {}):
        narrowed["properties"] |= {name: {"enum": known[name]} for name in PASSED_ON}
    if "properties" in schema:
        narrowed["properties"] |= {
            name: {"enum": known[name]} for name in schema["properties"] if name in known
        }
        # A timeout of a microsecond is a 504, as it should be.
        narrowed["properties"].pop("timeout", None)
    return narrowed


def _with_one(schema: dict[str, Any], needed: str) -> dict[str, Any]:
    """The schema of ``POST /route`` for one of its two forms."""
    properties = {
        name: each
        for name, each in schema["properties"].items()
        if name == needed or name not in ("query", "messages", "racer")
    }
    properties[needed] = properties[needed]["anyOf"][0]  # not null
    return {
        "type": "object",
        "properties": properties,
        "required": [needed],
        "additionalProperties": False,
    }


@pytest.mark.parametrize("door", OPERATIONS)
def test_every_answer_is_as_described(
    gateway: Gateway, description: dict[str, Any], door: str
) -> None:
    """Status, content type, headers and errors are those of the description; never a 5xx.

    With requests as they should be, and with such as they should not.
    """
    method, path = door.split()
    operation = schemathesis.openapi.from_dict(description)[path][method]
    good = operation.as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE)
    any_one = operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE)
    statuses: set[int] = set()
    conformance: Any = [
        checks.not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_headers_conformance,
        checks.response_schema_conformance,
    ]

    with requests.Session() as session:
        session.trust_env = False

        @settings(max_examples=EXAMPLES)
        @given(case=st.one_of(good, good, any_one))
        def check(case: schemathesis.Case) -> None:
            answer = case.call_and_validate(
                base_url=gateway.url,
                session=session,
                headers=HEADERS,
                checks=conformance,
                timeout=30,
            )
            statuses.add(answer.status_code)

        check()
    # Red when nothing got past the first checks. A job that is done cannot be cancelled.
    assert statuses & {200, 409}
