"""Conditions: a certificate holds if candidates get the parameters of the labelled rows."""

from __future__ import annotations

import copy
import json
from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.routing.conditions import EXCLUSIONS, ConditionReader, canonical, turn_shapes
from app.settings import Candidate, key_format
from app.wire.candidate_payload import candidate_payload
from tests.kit.case import Shared
from tests.kit.gateway import (
    ADMIN_KEY,
    ONE,
    POOL,
    Gateway,
    Restart,
    as_json,
    candidates,
    labelled,
    user,
)
from tests.kit.upstream import FakePool
from tests.kit.waiting import wait_until

SYSTEM = {"role": "system", "content": "Answer in French."}
PATHS = {"chat/completions": "messages", "completions": "prompt", "responses": "input"}

names = st.sampled_from(
    ["temperature", "top_p", "seed", "random_seed", "user", "n", "tools", "parallel_tool_calls",
     "max_tokens", "max_completion_tokens", "max_output_tokens", "response_format", "a_new_field"]
)  # fmt: skip
values = st.sampled_from([None, 0, 0.0, 1, 1.5, "x", True, [], {"type": "text"}, {"b": 1, "a": 2}])
fields = st.dictionaries(names, values, max_size=4)
turns = st.sampled_from(
    [
        user(ONE),
        user("Another question"),
        [{"role": "user", "content": [{"type": "text", "text": "In one part"}]}],
        [*user("First"), {"role": "assistant", "content": "7", "refusal": None}, *user("Then")],
        [SYSTEM, *user(ONE)],
        [SYSTEM, *user("Another question")],
        [*user(ONE), SYSTEM],
        [{**user(ONE)[0], "name": "ann"}],
        [*user(ONE), {"role": "assistant", "content": "The answer is"}],
    ]
)


def candidate(parameters: dict[str, Any], renames: dict[str, str]) -> Candidate:
    """A candidate with these parameters."""
    return Candidate(
        name="a", base_url="http://127.0.0.1:9/v1", parameters=parameters, renames=renames
    )


pools = st.builds(
    candidate,
    st.sampled_from([{}, {"temperature": 0}, {"temperature": 0.0, "seed": 7, "max_tokens": 32},
                     {"random_seed": 7}]),
    st.sampled_from([{}, {"seed": "random_seed"}, {"max_completion_tokens": "max_tokens"},
                     {"temperature": "heat"}, {"top_p": "temperature"}, {"tools": "functions"}]),
)  # fmt: skip


def sent(each: Candidate, body: dict[str, Any], path: str) -> str:
    """What a candidate is sent but for plain turns and harmless fields, by other means."""
    payload = candidate_payload(body, each, path)
    renamed = {*each.renames, *each.renames.values()}
    harmless = {"user", "n", "stream"} - renamed
    heat = payload.get("temperature")
    if heat == 0 and heat is not False and "temperature" not in renamed:
        harmless |= {"seed"} - renamed
    if "tools" not in {*payload, *renamed}:
        harmless |= {"parallel_tool_calls"} - renamed
    rest = {name: value for name, value in payload.items() if name not in harmless}
    messages = rest.pop("messages", [])
    others = []
    for place, turn in enumerate(messages):
        present = {name for name, value in turn.items() if value is not None}
        plain = turn["role"] in ("user", "assistant") and present == {"role", "content"}
        if not plain or (place == len(messages) - 1 and turn["role"] != "user"):
            others.append([place, turn])
    # 0.0 and 0 are one number; true is none.
    numbers = {n: int(v) if isinstance(v, float) and v == int(v) else v for n, v in rest.items()}
    return json.dumps([path, others, sorted(numbers.items())])


@given(each=pools, first=fields, second=fields, one=turns, two=turns)
@settings(max_examples=400, deadline=None)
def test_digests_are_equal_where_the_bodies_are(
    each: Candidate, first: dict[str, Any], second: dict[str, Any], one: Any, two: Any
) -> None:
    """Equal bodies but for the query have equal digests; other bodies have others."""
    reader = ConditionReader([each])
    bodies = [{**first, "messages": one}, {**second, "messages": two}]
    digests = [reader.read(body).digests["a"] for body in bodies]
    rests = [sent(each, body, "chat/completions") for body in bodies]
    assert (digests[0] == digests[1]) == (rests[0] == rests[1])
    for body, digest in zip(bodies, digests, strict=True):
        conditions = reader.read(body)
        assert bool(conditions.differing) == (digest != reader.configured.digests["a"])


def test_the_endpoint_and_the_served_model_are_conditions() -> None:
    """The same text on another endpoint, or of another model, is other conditions."""
    reader = ConditionReader([candidate({}, {})])
    other = ConditionReader([candidate({}, {}).model_copy(update={"model": "b"})])
    bodies = {path: {field: ONE} for path, field in PATHS.items() if path != "chat/completions"}
    digests = {reader.read(body, path).digests["a"] for path, body in bodies.items()}
    digests |= {reader.configured.digests["a"], other.configured.digests["a"]}
    assert len(digests) == 4


# Fields that may change an answer: a request with one has conditions of its own.
CHANGING = frozenset(
    ["temperature", "top_p", "max_tokens", "max_completion_tokens", "max_output_tokens",
     "stop", "tools", "tool_choice", "functions", "function_call", "audio", "modalities",
     "prediction", "reasoning", "reasoning_effort", "verbosity", "instructions",
     "web_search_options", "truncation", "max_tool_calls", "best_of", "echo",
     "frequency_penalty", "logit_bias", "presence_penalty", "response_format", "suffix",
     "text", "prompt", "prompt_cache_options", "context_management", "moderation",
     "access_programs", "image"]
)  # fmt: skip
# Fields that the gateway reads or refuses itself.
OWN = frozenset(["model", "messages", "input", "stream", "previous_response_id", "conversation"])
# Fields that are no conditions and of no list of the official client: vLLM's, and that of streams.
OTHERS = frozenset(["stream", "priority", "cache_salt"])


def api_fields(path: str) -> set[str]:
    """All fields of an endpoint, as the official client knows them."""
    from openai.types import completion_create_params
    from openai.types.chat import completion_create_params as chat_create_params
    from openai.types.responses import response_create_params

    base = {
        "chat/completions": chat_create_params.CompletionCreateParamsBase,
        "completions": completion_create_params.CompletionCreateParamsBase,
        "responses": response_create_params.ResponseCreateParamsBase,
    }[path]
    return set(get_type_hints(base))


@pytest.mark.parametrize("path", PATHS)
def test_every_field_of_an_api_is_decided(path: str) -> None:
    """A field of a new version of the client turns this red until it is decided.

    A field that the API does not have means what its server says, so it is a condition.
    """
    excluded = {name for name, exclusion in EXCLUSIONS.items() if path in exclusion.paths}
    assert not api_fields(path) - excluded - CHANGING - OWN
    assert excluded - api_fields(path) == OTHERS
    assert not CHANGING & excluded


CHAT, LIMIT = "chat/completions", {"max_tokens": 160}
IMAGE = {"role": "user", "content": [{"type": "image_url"}]}
PART = {"role": "user", "content": [{"type": "input_text", "text": "A hard question"}]}


@pytest.mark.parametrize(
    ("parameters", "renames", "path", "body", "differing", "is_other_kind"),
    [
        # Servers have defaults of their own, and own meanings for the fields of another API.
        ({}, {}, CHAT, {"presence_penalty": 0}, "presence_penalty", False),
        ({}, {}, CHAT, {"frequency_penalty": 0.0}, "frequency_penalty", False),
        ({}, {}, "completions", {"logit_bias": {}}, "endpoint logit_bias", False),
        ({}, {}, CHAT, {"response_format": {"type": "text"}}, "response_format", False),
        ({}, {}, "responses", {"text": {"format": {"type": "text"}}}, "endpoint text", False),
        ({}, {}, CHAT, {"include": ["x"]}, "include", False),
        ({}, {}, CHAT, {"background": False}, "background", False),
        ({}, {}, "completions", {"top_logprobs": 3}, "endpoint top_logprobs", False),
        ({}, {}, "completions", {"parallel_tool_calls": False},
         "endpoint parallel_tool_calls", False),
        ({}, {}, "completions", {"metadata": {"a": "b"}}, "endpoint metadata", False),
        ({}, {}, "responses", {"logprobs": True}, "endpoint logprobs", False),
        ({}, {}, "responses", {"n": 2}, "endpoint n", False),
        ({}, {}, "responses", {"temperature": 0, "seed": 7}, "endpoint seed temperature", False),
        # Limits in the spelling of another API, and the labelled limit under another name.
        (LIMIT, {}, CHAT, {"max_output_tokens": 16}, "max_output_tokens", False),
        (LIMIT, {}, "responses", {"max_tokens": 16}, "endpoint max_tokens", False),
        (LIMIT, {}, "responses", {"input": ONE}, "endpoint", False),
        ({}, {}, "responses", {"input": ONE, "prompt": {"id": "p"}}, "endpoint prompt", False),
        # A seed where no token is drawn, and where one is; the width of a beam.
        ({"temperature": 0}, {}, CHAT, {"seed": 99}, "", False),
        ({"temperature": 0}, {}, CHAT, {"seed": 9, "temperature": 1}, "seed temperature", False),
        ({"use_beam_search": True}, {}, CHAT, {"n": 8}, "n", False),
        ({}, {}, CHAT, {"n": 8}, "", False),
        # A renamed field is the server's, and shows no other field to be harmless.
        ({"use_beam_search": True}, {"use_beam_search": "beam"}, CHAT, {"n": 8}, "n", False),
        ({}, {"width": "best_of"}, CHAT, {"n": 8}, "n", False),
        ({"tools": [1]}, {"tools": "skills"}, CHAT, {"parallel_tool_calls": False},
         "parallel_tool_calls", False),
        ({"temperature": 0}, {"heat": "temperature"}, CHAT, {"seed": 7}, "seed", False),
        # Tools, images and audio are another kind, unless the configuration sends them as well.
        ({"modalities": ["text"]}, {}, CHAT, {"modalities": ["text"], "temperature": 2},
         "temperature", False),
        ({"modalities": ["text"]}, {}, CHAT, {"modalities": ["audio"]}, "modalities", True),
        ({}, {}, CHAT, {"tools": [{"type": "function"}]}, "tools", True),
        ({}, {"skills": "tools"}, CHAT, {"skills": [{"type": "function"}]}, "skills", True),
        ({}, {}, CHAT, {"messages": [SYSTEM, *user(ONE)]}, "messages.system", False),
        ({}, {}, CHAT, {"messages": [IMAGE, *user(ONE)]}, "messages.user", True),
        ({}, {}, CHAT, {"messages": [PART]}, "messages.user", True),
    ],
)  # fmt: skip
def test_what_differs_from_the_labelled_rows(
    parameters: dict[str, Any],
    renames: dict[str, str],
    path: str,
    body: dict[str, Any],
    differing: str,
    is_other_kind: bool,
) -> None:
    """By name, and whether it makes the request another kind."""
    found = ConditionReader([candidate(parameters, renames)]).read(body, path)
    assert (sorted(found.differing), found.is_other_kind) == (differing.split(), is_other_kind)


def reasons(gateway: Gateway, path: str = "/v1/chat/completions", **body: Any) -> list[str]:
    """The reasons of a certificate that does not hold."""
    response = gateway.post(path, json={"model": "auto", **body})
    assert response.status_code == 200, response.text
    certificate = response.json()["racer"]["certificate"]
    assert certificate["holds"] is False
    assert response.headers["x-racer-guarantee"].startswith("void")
    return certificate["reasons"]


def test_a_renamed_field_is_compared_under_its_name_at_the_server(
    shared: Shared, pool: FakePool
) -> None:
    """The labelled `random_seed` is 7, and the client's `seed` replaces it."""
    own = {"random_seed": 7, "temperature": 0}
    gateway = shared(
        candidates=candidates(pool.url, parameters=own, renames={"seed": "random_seed"})
    ).gateway
    assert reasons(gateway, messages=user(ONE), seed=99) == ["conditions_differ:seed"]
    assert pool.requests[-1]["random_seed"] == 99
    assert gateway.ask(ONE, seed=7).headers["x-racer-guarantee"] == "holds"


def with_conditions(
    gateway: Gateway, rows: list[dict[str, Any]], **body: Any
) -> list[dict[str, Any]]:
    """Rows that say which conditions they were labelled under."""
    reader = ConditionReader(gateway.settings.candidates)
    digests = reader.read({"messages": user(ONE), **body}).digests
    return [row | {"conditions": dict(digests)} for row in rows]


def test_rows_decide_requests_of_their_own_conditions_alone(shared: Shared) -> None:
    """Thirty rows with a system prompt beside 200 without: each part has its own n."""
    gateway = shared(calibrated=False, group="uploads").gateway
    plain, french = as_json(labelled(10_000, 200)), as_json(labelled(20_000, 30))
    fields = {"messages": [SYSTEM, *user(ONE)]}
    evidence = gateway.upload([*plain, *with_conditions(gateway, french, **fields)])["evidence"]
    assert evidence["conditions"]["assumed"] == 200
    assert [part["rows"] for part in evidence["conditions"]["parts"]] == [30]
    own = gateway.chat(ONE, **fields)["racer"]["certificate"]
    assert (own["holds"], own["reasons"]) == (True, ["labelled_conditions"])
    usual = gateway.chat(ONE)["racer"]["certificate"]
    assert (usual["holds"], usual["reasons"]) == (True, [])
    assert own["n"] < 31 < usual["n"] < 201
    both = {"messages": [SYSTEM, *user(ONE)], "temperature": 2}
    found = reasons(gateway, **both)
    assert found == ["conditions_differ:messages.system", "conditions_differ:temperature"]
    decision = gateway.chat(ONE, **fields)["racer"]["decision_id"]
    path = f"/decisions/{decision}/verify"  # decisions are written behind
    wait_until(lambda: gateway.post(path, ADMIN_KEY).status_code == 200)
    assert gateway.post(path, ADMIN_KEY).json()["matches"]


def test_rows_of_other_parameters_certify_no_plain_request(shared: Shared) -> None:
    """A file that was labelled with another temperature says nothing of what is sent now."""
    gateway = shared(calibrated=False, group="uploads").gateway
    gateway.upload(with_conditions(gateway, as_json(labelled(10_000, 200)), temperature=1.5))
    assert reasons(gateway, messages=user(ONE)) == ["conditions_differ:rows"]
    own = gateway.chat(ONE, temperature=1.5)["racer"]["certificate"]
    assert (own["holds"], own["reasons"]) == (True, [])


@pytest.mark.parametrize(
    "conditions", [{"adder": "0" * 32}, dict.fromkeys(POOL, "x"), dict.fromkeys(POOL, 7), "none"]
)
def test_malformed_conditions_are_refused(shared: Shared, conditions: Any) -> None:
    """One digest for each candidate, as `racer label` writes them."""
    gateway = shared(calibrated=False).gateway
    rows = [row | {"conditions": conditions} for row in as_json(labelled(10_000, 20))]
    response = gateway.post("/calibrate", ADMIN_KEY, json={"rows": rows})
    assert response.status_code == 422
    assert '"conditions"' in response.json()["error"]["message"]


WATCHING = {"feedback": "all", "shadow_rate": 1.0, "store_queries": True}


def judge_sample(gateway: Gateway, key: str = ADMIN_KEY, **fields: Any) -> None:
    """Ask forty queries with these fields, and judge every answer."""
    for row in as_json(labelled(30_000, 40)):
        body = {"model": "auto", "messages": user(row["query"]), **fields}
        answer = gateway.post("/v1/chat/completions", key, json=body)
        verdicts = {"decision_id": answer.headers["x-racer-decision-id"], "correct": row["correct"]}
        gateway.post("/feedback", ADMIN_KEY, json=verdicts).raise_for_status()


def shadow_rows(gateway: Gateway) -> list[dict[str, Any]]:
    """The rows of the shadow sample."""
    return [json.loads(row) for row in gateway.get("/shadow/rows", ADMIN_KEY).text.splitlines()]


def test_shadow_rows_of_another_configuration_keep_its_conditions(
    restart: Restart, pool: FakePool
) -> None:
    """The sample was judged before `renames` changed."""
    own: dict[str, Any] = {"parameters": {"random_seed": 7}}
    for renames in ({}, {"random_seed": "seed"}):
        pools = candidates(pool.url, **own, renames=renames)
        with restart(candidates=pools, watching=WATCHING) as gateway:
            if not renames:
                gateway.calibrate()
                judge_sample(gateway)
            else:
                gateway.upload(shadow_rows(gateway))
                assert reasons(gateway, messages=user(ONE)) == ["conditions_differ:rows"]


def test_shadow_rows_have_groups_of_the_current_origin(restart: Restart) -> None:
    """A group of a key is no group of a request, whatever its name, and back again."""
    key = "key-of-a-123456"
    hashed = key_format.format_hash(key, key_format.new_salt())
    access = {"keys": [{"name": "of-a", "hash": hashed, "group": "a"}]}
    for group_by, found in (("key", 40), ("request", 0), ("key", 40)):
        with restart(watching=WATCHING, routing={"group_by": group_by}, access=access) as gateway:
            if gateway.ready()["calibration"] is None:
                gateway.calibrate()
                judge_sample(gateway, key)
            assert [row["group"] for row in shadow_rows(gateway)] == ["a"] * found


@pytest.mark.parametrize("is_later", [False, True])
def test_a_row_with_the_configured_digests_is_of_the_population_of_one_without(
    shared: Shared, *, is_later: bool
) -> None:
    """Both were labelled with what the configuration sends."""
    gateway = shared(calibrated=False, group="uploads").gateway
    plain = as_json(labelled(20_000, 5))
    if is_later:
        earlier = [*user("Hello"), {"role": "assistant", "content": "Hi."}]
        plain = [
            {"messages": [*earlier, *user(row["query"])], "correct": row["correct"]}
            for row in plain
        ]
    others = as_json(labelled(10_000, 40))
    evidence = gateway.upload([*others, *plain, *with_conditions(gateway, plain)])["evidence"]
    assert evidence["duplicates"] == 5
    found = evidence["later_turns"] if is_later else evidence
    assert found["rows"] == (10 if is_later else 50)


def test_a_field_with_the_name_of_a_turn_hides_no_turn(shared: Shared) -> None:
    """A client's field `messages.system` is a field, and the system turn is digested beside it."""
    gateway = shared(calibrated=False, group="uploads").gateway
    plain, french = as_json(labelled(10_000, 40)), as_json(labelled(20_000, 40))
    fields = {"messages": [SYSTEM, *user(ONE)]}
    gateway.upload([*plain, *with_conditions(gateway, french, **fields)])
    other = {"role": "system", "content": "Always answer 13."}
    forged = {"messages": [other, *user(ONE)], "messages.system": [[0, SYSTEM]]}
    assert reasons(gateway, **forged) == ["conditions_differ:messages.system"]
    reader = ConditionReader(gateway.settings.candidates)
    bodies = [fields, forged, {**forged, **fields}, {**forged, "messages": user(ONE)}]
    assert len({reader.read(body).identity for body in bodies}) == 4
    image = {"messages.user": [[0, {"role": "user", "content": [{"type": "image_url"}]}]]}
    assert not reader.read({"messages": user(ONE), **image}).is_other_kind


def test_the_last_of_two_names_of_one_field_counts() -> None:
    """Both orders of a body have the digest of what is sent."""
    reader = ConditionReader([candidate({}, {"seed": "random_seed"})])
    one, two = (
        reader.read({"seed": 1, "random_seed": 2}),
        reader.read({"random_seed": 2, "seed": 1}),
    )
    assert one.identity == reader.read({"random_seed": 2}).identity
    assert two.identity == reader.read({"random_seed": 1}).identity != one.identity


def test_every_candidate_may_make_a_request_another_kind() -> None:
    """One of two candidates is sent `skills` as tools, in either order."""
    pair = [candidate({}, {"skills": "tools"}), candidate({}, {})]
    for each in (pair, pair[::-1]):
        named = [one.model_copy(update={"name": str(i)}) for i, one in enumerate(each)]
        conditions = ConditionReader(named).read({"messages": user(ONE), "skills": [1]})
        assert (conditions.differing, conditions.is_other_kind) == (("skills",), True)


# Shapes of turns -------------------------------------------------------------------------------


PICTURE: dict[str, Any] = {"type": "image_url", "image_url": {"url": "data:,1", "detail": "low"}}
CALL: dict[str, Any] = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
USER: dict[str, Any] = {"role": "user", "content": [PICTURE, {"type": "text", "text": "What?"}]}
CALLS: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT: dict[str, Any] = {"role": "tool", "tool_call_id": "1", "content": "7"}
AUDIO: dict[str, Any] = {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}
# Paths to contents in TURNS.
CONTENTS: list[tuple[int | str, ...]] = [
    (0, "content", 0, "image_url", "url"),
    (0, "content", 1, "text"),
    (1, "tool_calls", 0, "id"),
    (1, "tool_calls", 0, "function", "name"),
    (1, "tool_calls", 0, "function", "arguments"),
    (2, "tool_call_id"),
    (2, "content"),
]
TURNS = [USER, CALLS, RESULT]


def shapes(turns: list[Any], field: str = "messages") -> dict[str, str]:
    """The shapes of some turns."""
    return turn_shapes(field, turns, canonical)


@given(texts=st.lists(st.text(), min_size=len(CONTENTS), max_size=len(CONTENTS)))
@settings(max_examples=50, deadline=None)
def test_contents_are_no_conditions(texts: list[str]) -> None:
    """Other texts, images, arguments and results have the same shapes."""
    changed: Any = copy.deepcopy(TURNS)
    for path, text in zip(CONTENTS, texts, strict=True):
        *above, last = path
        place = changed
        for each in above:
            place = place[each]
        place[last] = text
    assert shapes(changed) == shapes(TURNS) != {}


def test_how_often_a_turn_occurs_is_no_condition() -> None:
    """Two images in a turn, two calls, or another round of calls are of the same population."""
    twice = {"role": "user", "content": [PICTURE, PICTURE, {"type": "text", "text": "Which?"}]}
    calls = {**CALLS, "tool_calls": [CALL, {**CALL, "id": "2"}]}
    assert shapes([twice, calls, RESULT, CALLS, RESULT]) == shapes(TURNS)


@pytest.mark.parametrize(
    "turns",
    [
        [{"role": "user", "content": "What?"}, CALLS, RESULT],
        [{**USER, "content": USER["content"][:1]}, CALLS, RESULT],
        [{**USER, "content": [*USER["content"], AUDIO]}, CALLS, RESULT],
        [{**USER, "name": "ann"}, CALLS, RESULT],
        [{**USER, "cache_control": {"type": "ephemeral"}}, CALLS, RESULT],
        [USER, {**CALLS, "refusal": "No."}, RESULT],
        [USER, {**CALLS, "tool_calls": []}, RESULT],
        [USER, {**CALLS, "content": "I will."}, RESULT],
        [USER, CALLS],
        [USER, CALLS, {**RESULT, "content": [{"type": "text", "text": "7"}]}],
        [USER, CALLS, RESULT, {"role": "user", "content": "And then?"}],
        [{"role": "system", "content": "Be brief."}, *TURNS],
        [*TURNS, {"role": "assistant", "content": "The sum is"}],
        [
            {**USER, "content": [{**PICTURE, "image_url": {"url": "data:,1"}}, USER["content"][1]]},
            CALLS,
            RESULT,
        ],
    ],
)
def test_how_content_is_given_is_a_condition(turns: list[Any]) -> None:
    """Whether there are images, names, refusals, calls and results, and what else a turn holds."""
    assert shapes(turns) != shapes(TURNS)


@pytest.mark.parametrize("role", ["system", "developer", "critic"])
def test_other_turns_are_conditions_with_their_text_and_place(role: str) -> None:
    """So is a beginning of the answer, which decides how it goes on."""
    question = {"role": "user", "content": "What?"}
    turn = {"role": role, "content": "Be brief."}
    found = [
        shapes([turn, question]),
        shapes([{**turn, "content": "Be long."}, question]),
        shapes([question, turn, question]),
        shapes([question, {"role": "assistant", "content": "Seven"}]),
        shapes([question, {"role": "assistant", "content": "Eight"}]),
    ]
    assert len({str(each) for each in found}) == len(found)


def test_items_of_the_responses_api_have_shapes() -> None:
    """Calls and their results as items; an item of another type is a condition as it is."""

    def items(argument: str, **other: Any) -> list[Any]:
        call = {"type": "function_call", "call_id": argument, "name": "f", "arguments": argument}
        result = {"type": "function_call_output", "call_id": argument, "output": argument}
        return [{"role": "user", "content": argument}, call, result, *([other] if other else [])]

    assert shapes(items("1"), "input") == shapes(items("2"), "input") != {}
    one, two = ({"type": each, "id": "1"} for each in ("item_reference", ["function_call"]))
    assert shapes(items("1", **one), "input") != shapes(items("1", **two), "input")
