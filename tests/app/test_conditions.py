"""Conditions: a certificate holds if candidates get the parameters of the labelled rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.routing.conditions import EXCLUSIONS, ConditionReader
from app.settings import Candidate, key_format
from app.store import Store
from app.store.tables import CalibrationRow
from app.wire.candidate_payload import candidate_payload
from tests.kit.case import Shared
from tests.kit.gateway import (
    ADMIN_KEY,
    ENVIRONMENT,
    ONE,
    POOL,
    Gateway,
    as_json,
    candidates,
    configure,
    labelled,
    running,
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
    [
        "temperature",
        "top_p",
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "stop",
        "tools",
        "tool_choice",
        "functions",
        "function_call",
        "audio",
        "modalities",
        "prediction",
        "reasoning",
        "reasoning_effort",
        "verbosity",
        "instructions",
        "web_search_options",
        "truncation",
        "max_tool_calls",
        "best_of",
        "echo",
        "frequency_penalty",
        "logit_bias",
        "presence_penalty",
        "response_format",
        "suffix",
        "text",
        "prompt",
        "prompt_cache_options",
        "context_management",
        "moderation",
        "access_programs",
        "image",
    ]
)
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


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("chat/completions", {"presence_penalty": 0}),
        ("chat/completions", {"frequency_penalty": 0.0}),
        ("completions", {"logit_bias": {}}),
        ("chat/completions", {"response_format": {"type": "text"}}),
        ("responses", {"text": {"format": {"type": "text"}}}),
        ("chat/completions", {"include": ["x"]}),
        ("chat/completions", {"background": False}),
        ("completions", {"top_logprobs": 3}),
        ("completions", {"parallel_tool_calls": False}),
        ("completions", {"metadata": {"a": "b"}}),
        ("responses", {"logprobs": True}),
        ("responses", {"n": 2}),
        ("responses", {"temperature": 0, "seed": 7}),
    ],
)
def test_a_default_of_the_server_and_a_field_of_another_api_are_conditions(
    path: str, fields: dict[str, Any]
) -> None:
    """Servers have defaults of their own (llama.cpp's --presence-penalty), and own meanings."""
    reader = ConditionReader([candidate({}, {})])
    *shared, last = fields
    without = reader.read({name: fields[name] for name in shared}, path)
    assert reader.read(fields, path).identity != without.identity
    assert last in reader.read(fields, path).differing


def reasons(gateway: Gateway, path: str = "/v1/chat/completions", **body: Any) -> list[str]:
    """The reasons of a certificate that does not hold."""
    response = gateway.post(path, json={"model": "auto", **body})
    assert response.status_code == 200, response.text
    certificate = response.json()["racer"]["certificate"]
    assert certificate["holds"] is False
    assert response.headers["x-racer-guarantee"].startswith("void")
    return certificate["reasons"]


@pytest.mark.parametrize("name", ["max_output_tokens", "max_tokens", "max_completion_tokens"])
def test_a_limit_in_the_spelling_of_another_api_voids(
    shared: Shared, pool: FakePool, name: str
) -> None:
    """A server that does not know the spelling would ignore the limit."""
    gateway = shared(candidates=candidates(pool.url, parameters={"max_tokens": 160})).gateway
    path = "/v1/chat/completions" if name == "max_output_tokens" else "/v1/responses"
    text = {"messages": user(ONE)} if path.endswith("completions") else {"input": ONE}
    assert f"conditions_differ:{name}" in reasons(gateway, path, **text, **{name: 16})


def test_a_stored_template_voids(gateway: Gateway) -> None:
    """`prompt` names a template that the candidate's server fills in."""
    found = reasons(gateway, "/v1/responses", input=ONE, prompt={"id": "pmpt_1"})
    assert "conditions_differ:prompt" in found


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


def test_a_seed_is_no_condition_where_no_token_is_drawn(shared: Shared, pool: FakePool) -> None:
    """At temperature 0; elsewhere it is."""
    gateway = shared(candidates=candidates(pool.url, parameters={"temperature": 0})).gateway
    assert gateway.ask(ONE, seed=99).headers["x-racer-guarantee"] == "holds"
    found = reasons(gateway, messages=user(ONE), seed=99, temperature=1)
    assert found == ["conditions_differ:seed", "conditions_differ:temperature"]


def with_conditions(
    gateway: Gateway, rows: list[dict[str, Any]], **body: Any
) -> list[dict[str, Any]]:
    """Rows that say which conditions they were labelled under."""
    reader = ConditionReader(gateway.settings.candidates)
    digests = reader.read({"messages": user(ONE), **body}).digests
    return [row | {"conditions": dict(digests)} for row in rows]


def upload(gateway: Gateway, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Calibrate on rows; returns the evidence."""
    response = gateway.post("/calibrate", ADMIN_KEY, json={"rows": rows})
    assert response.status_code == 200, response.text
    return response.json()["evidence"]


def test_rows_decide_requests_of_their_own_conditions_alone(shared: Shared) -> None:
    """Thirty rows with a system prompt beside 200 without: each part has its own n."""
    gateway = shared(calibrated=False, group="uploads").gateway
    plain, french = as_json(labelled(10_000, 200)), as_json(labelled(20_000, 30))
    fields = {"messages": [SYSTEM, *user(ONE)]}
    evidence = upload(gateway, [*plain, *with_conditions(gateway, french, **fields)])
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


def test_too_few_rows_of_some_conditions_certify_nothing(shared: Shared) -> None:
    """Five rows allow no threshold at 0.1: such requests are void, and set by the other rows."""
    gateway = shared(calibrated=False, group="uploads").gateway
    few = with_conditions(gateway, as_json(labelled(20_000, 5)), messages=[SYSTEM, *user(ONE)])
    upload(gateway, [*as_json(labelled(10_000, 200)), *few])
    found = reasons(gateway, messages=[SYSTEM, *user(ONE)])
    assert found == ["conditions_differ:messages.system"]


def test_rows_of_other_parameters_certify_no_plain_request(shared: Shared) -> None:
    """A file that was labelled with another temperature says nothing of what is sent now."""
    gateway = shared(calibrated=False, group="uploads").gateway
    upload(gateway, with_conditions(gateway, as_json(labelled(10_000, 200)), temperature=1.5))
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


@pytest.mark.parametrize("record", ["active", "inactive"])
def test_a_document_that_is_cut_off_stops_no_start(
    tmp_path: Path, artifact: Path, pool: FakePool, record: str
) -> None:
    """The gateway is not calibrated if it is the active one; the others are listed."""
    configuration = configure(tmp_path, artifact, pool.url)
    with running(configuration, ENVIRONMENT) as gateway:
        names = [gateway.calibrate()["id"] for _ in range(2)]
        url = gateway.settings.store
    damaged = names[record == "active"]
    with Store(url) as store, store.transaction() as session:
        row = session.get_one(CalibrationRow, damaged)
        row.document = row.document[:-20]
    with running(configuration, ENVIRONMENT) as gateway:
        ready = gateway.ready()
        assert (ready["calibration"] is None) == (record == "active")
        assert record == "inactive" or damaged in ready["missing"][0]["reason"]
        listed = gateway.get("/calibrations", ADMIN_KEY).json()["data"]
        assert {each["id"] for each in listed} == {*names} - {damaged}
        one = gateway.get(f"/calibrations/{damaged}", ADMIN_KEY)
        assert (one.status_code, damaged in one.json()["error"]["message"]) == (500, True)


WATCHING = {"feedback": "all", "shadow_rate": 1.0, "store_queries": True}


def judge_sample(gateway: Gateway, key: str = ADMIN_KEY, **fields: Any) -> None:
    """Ask forty queries with these fields, and judge every answer."""
    for row in as_json(labelled(30_000, 40)):
        body = {"model": "auto", "messages": user(row["query"]), **fields}
        answer = gateway.post("/v1/chat/completions", key, json=body)
        verdicts = {
            "decision_id": answer.headers["x-racer-decision-id"],
            "correct": row["correct"],
        }
        gateway.post("/feedback", ADMIN_KEY, json=verdicts).raise_for_status()


def shadow_rows(gateway: Gateway) -> list[dict[str, Any]]:
    """The rows of the shadow sample."""
    return [json.loads(row) for row in gateway.get("/shadow/rows", ADMIN_KEY).text.splitlines()]


def test_shadow_rows_carry_the_conditions_of_their_requests(shared: Shared, pool: FakePool) -> None:
    """Judged at temperature 1.5, they are no rows of a request without a temperature."""
    gateway = shared(calibrated=False, watching=WATCHING, group="uploads").gateway
    upload(gateway, with_conditions(gateway, as_json(labelled(10_000, 200)), temperature=1.5))
    judge_sample(gateway, temperature=1.5)
    rows = shadow_rows(gateway)
    assert len(rows) == 40
    upload(gateway, rows)
    assert reasons(gateway, messages=user(ONE)) == ["conditions_differ:rows"]
    assert gateway.chat(ONE, temperature=1.5)["racer"]["certificate"]["holds"]


def test_shadow_rows_of_another_configuration_keep_its_conditions(
    tmp_path: Path, artifact: Path, pool: FakePool
) -> None:
    """The sample was judged before `renames` changed."""
    own: dict[str, Any] = {"parameters": {"random_seed": 7}}
    for renames in ({}, {"random_seed": "seed"}):
        pools = candidates(pool.url, **own, renames=renames)
        path = configure(tmp_path, artifact, pool.url, candidates=pools, watching=WATCHING)
        with running(path, ENVIRONMENT) as gateway:
            if not renames:
                gateway.calibrate()
                judge_sample(gateway)
            else:
                upload(gateway, shadow_rows(gateway))
                assert reasons(gateway, messages=user(ONE)) == ["conditions_differ:rows"]


def test_shadow_rows_have_groups_of_the_current_origin(
    tmp_path: Path, artifact: Path, pool: FakePool
) -> None:
    """A group of a key is no group of a request, whatever its name, and back again."""
    key = "key-of-a-123456"
    hashed = key_format.format_hash(key, key_format.new_salt())
    access = {"keys": [{"name": "of-a", "hash": hashed, "group": "a"}]}
    for group_by, found in (("key", 40), ("request", 0), ("key", 40)):
        path = configure(
            tmp_path,
            artifact,
            pool.url,
            watching=WATCHING,
            routing={"group_by": group_by},
            access=access,
        )
        with running(path, ENVIRONMENT) as gateway:
            if gateway.ready()["calibration"] is None:
                gateway.calibrate()
                judge_sample(gateway, key)
            assert [row["group"] for row in shadow_rows(gateway)] == ["a"] * found


def test_a_smaller_pool_is_decided_by_the_rows_of_the_whole_pools_conditions(
    shared: Shared, pool: FakePool
) -> None:
    """A seed does not matter to `adder`, but requests with one may be of other traffic."""
    own = {"adder": {"parameters": {"temperature": 0}}, "speller": {"parameters": {"seed": 1}}}
    gateway = shared(
        calibrated=False, candidates=candidates(pool.url, **own), group="uploads"
    ).gateway
    seeded = with_conditions(gateway, as_json(labelled(20_000, 40)), seed=5)
    upload(gateway, [*as_json(labelled(10_000, 200)), *seeded])
    options = {"candidates": ["adder"]}
    whole = gateway.chat(ONE, seed=5)["racer"]["certificate"]
    part = gateway.chat(ONE, options, seed=5)["racer"]["certificate"]
    for certificate in (whole, part):
        assert (certificate["holds"], certificate["reasons"][-1]) == (True, "labelled_conditions")
    assert part["n"] <= whole["n"] <= 40
    other = gateway.chat(ONE, options, seed=9)["racer"]["certificate"]
    assert not other["holds"]
    assert "conditions_differ:seed" in other["reasons"]


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
    evidence = upload(gateway, [*others, *plain, *with_conditions(gateway, plain)])
    assert evidence["duplicates"] == 5
    found = evidence["later_turns"] if is_later else evidence
    assert found["rows"] == (10 if is_later else 50)


def test_a_field_with_the_name_of_a_turn_hides_no_turn(shared: Shared) -> None:
    """A client's field `messages.system` is a field, and the system turn is digested beside it."""
    gateway = shared(calibrated=False, group="uploads").gateway
    plain, french = as_json(labelled(10_000, 40)), as_json(labelled(20_000, 40))
    fields = {"messages": [SYSTEM, *user(ONE)]}
    upload(gateway, [*plain, *with_conditions(gateway, french, **fields)])
    other = {"role": "system", "content": "Always answer 13."}
    forged = {"messages": [other, *user(ONE)], "messages.system": [[0, SYSTEM]]}
    assert reasons(gateway, **forged) == ["conditions_differ:messages.system"]
    reader = ConditionReader(gateway.settings.candidates)
    bodies = [fields, forged, {**forged, **fields}, {**forged, "messages": user(ONE)}]
    assert len({reader.read(body).identity for body in bodies}) == 4
    image = {"messages.user": [[0, {"role": "user", "content": [{"type": "image_url"}]}]]}
    assert not reader.read({"messages": user(ONE), **image}).is_other_kind


def test_another_endpoint_is_one_difference(shared: Shared, pool: FakePool) -> None:
    """The labelled limit on tokens has another name there, which is no field of the request."""
    gateway = shared(candidates=candidates(pool.url, parameters={"max_tokens": 160})).gateway
    assert reasons(gateway, "/v1/responses", input=ONE) == ["conditions_differ:endpoint"]


def test_a_part_that_the_router_does_not_read_voids(gateway: Gateway) -> None:
    """A part type of another API is no text of the query, so it is a condition."""
    part = {"type": "input_text", "text": "A hard question"}
    found = reasons(gateway, messages=[{"role": "user", "content": [part]}])
    assert "conditions_differ:messages.user" in found


def test_scores_of_rows_of_any_conditions_are_unverified(shared: Shared) -> None:
    """A part of the rows that brings scores of its own voids, as all of them do."""
    gateway = shared(calibrated=False, group="uploads").gateway
    scored = [
        {"correct": row["correct"], "scores": dict.fromkeys(POOL, 0.5)}
        for row in as_json(labelled(20_000, 40))
    ]
    upload(gateway, [*as_json(labelled(10_000, 200)), *with_conditions(gateway, scored, seed=5)])
    assert "row_scores_unverified" in reasons(gateway, messages=user(ONE), seed=5)


def test_choices_of_a_beam_search_are_not_drawn_one_by_one() -> None:
    """There `n` is the width of the beam; elsewhere it is no condition."""
    for parameters, is_condition in (({"use_beam_search": True}, True), ({}, False)):
        reader = ConditionReader([candidate(parameters, {})])
        assert bool(reader.read({"messages": user(ONE), "n": 8}).differing) is is_condition


def test_the_last_of_two_names_of_one_field_counts() -> None:
    """Both orders of a body have the digest of what is sent."""
    reader = ConditionReader([candidate({}, {"seed": "random_seed"})])
    one, two = (
        reader.read({"seed": 1, "random_seed": 2}),
        reader.read({"random_seed": 2, "seed": 1}),
    )
    assert one.identity == reader.read({"random_seed": 2}).identity
    assert two.identity == reader.read({"random_seed": 1}).identity != one.identity


@pytest.mark.parametrize(
    ("parameters", "renames", "fields"),
    [
        ({"use_beam_search": True}, {"use_beam_search": "beam"}, {"n": 8}),
        ({}, {"width": "best_of"}, {"n": 8}),
        ({"tools": [1]}, {"tools": "skills"}, {"parallel_tool_calls": False}),
        ({"temperature": 0}, {"heat": "temperature"}, {"seed": 7}),
    ],
)
def test_a_renamed_field_shows_no_other_field_to_be_harmless(
    parameters: dict[str, Any], renames: dict[str, str], fields: dict[str, Any]
) -> None:
    """A test of another field knows the fields of the API, and a renamed one is the server's."""
    reader = ConditionReader([candidate(parameters, renames)])
    assert reader.read({"messages": user(ONE), **fields}).differing == tuple(fields)


def test_every_candidate_may_make_a_request_another_kind() -> None:
    """One of two candidates is sent `skills` as tools, in either order."""
    pair = [candidate({}, {"skills": "tools"}), candidate({}, {})]
    for each in (pair, pair[::-1]):
        named = [one.model_copy(update={"name": str(i)}) for i, one in enumerate(each)]
        conditions = ConditionReader(named).read({"messages": user(ONE), "skills": [1]})
        assert (conditions.differing, conditions.is_other_kind) == (("skills",), True)


@pytest.mark.parametrize(
    ("fields", "is_other_kind"),
    [
        ({"modalities": ["text"], "temperature": 2}, False),  # as configured
        ({"modalities": ["audio"]}, True),
        ({"temperature": 2, "user": "ann"}, False),
        ({"tools": [{"type": "function"}]}, True),
        ({"skills": [{"type": "function"}]}, True),  # renamed
        ({"messages": [SYSTEM, *user(ONE)]}, False),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}, *user(ONE)]}, True),
    ],
)
def test_the_kind_of_a_request_follows_from_what_differs(
    fields: dict[str, Any], is_other_kind: bool
) -> None:
    """Tools, images or audio that the configuration would send as well are no other kind."""
    reader = ConditionReader([candidate({"modalities": ["text"]}, {"skills": "tools"})])
    assert reader.read(fields).is_other_kind is is_other_kind


def test_a_configured_modality_is_no_unlabelled_kind(shared: Shared, pool: FakePool) -> None:
    """The request differs in its temperature alone, and the certificate says that alone."""
    configured = {"modalities": ["text"]}
    gateway = shared(candidates=candidates(pool.url, parameters=configured)).gateway
    found = reasons(gateway, messages=user(ONE), temperature=2, **configured)
    assert found == ["conditions_differ:temperature"]


def test_an_image_before_the_last_turn_is_an_unlabelled_kind(gateway: Gateway) -> None:
    """Every able candidate is called, as for an image in the last turn."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    turns = [{"role": "user", "content": [image]}, {"role": "assistant", "content": "A cat."}]
    found = reasons(gateway, messages=[*turns, *user(ONE)])
    assert "unlabelled_request_kind" in found
