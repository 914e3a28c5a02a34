"""Ways in that clients of other servers use: headers of keys, paths, probes, lists of models."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from tests.kit.gateway import (
    DATA_KEY,
    ONE,
    POOL,
    UNANSWERABLE,
    Gateway,
    Serve,
    as_json,
    labelled,
    user,
)
from tests.kit.lazy import LazyModule
from tests.kit.upstream import FakePool

from .formats import EVERY_API, MESSAGES, Api

openai, anthropic = LazyModule("openai"), LazyModule("anthropic")

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def bare(gateway: Gateway) -> httpx2.Client:
    """A client without a key."""
    return httpx2.Client(base_url=gateway.url, trust_env=False)


@pytest.mark.parametrize("header", ["api-key", "x-api-key", "Api-Key"])
def test_a_key_stands_in_azures_header_too(gateway: Gateway, header: str) -> None:
    """Two headers with a key are one too many, whatever their names."""
    with bare(gateway) as client:
        assert client.get("/v1/models", headers={header: DATA_KEY}).status_code == 200
        both = {"api-key": DATA_KEY, "x-api-key": DATA_KEY}
        assert client.get("/v1/models", headers=both).status_code == 401
        assert client.get("/v1/models", headers={header: "wrong"}).status_code == 401


def test_azures_client_asks_a_model_by_its_path(gateway: Gateway, pool: FakePool) -> None:
    """The official client: deployment, ``api-version`` and ``api-key``; also ``auto``."""
    pool.say("adder", "7")
    with openai.AzureOpenAI(
        azure_endpoint=gateway.url, api_key=DATA_KEY, api_version="2024-10-21", max_retries=0
    ) as client:
        ask = client.chat.completions.create
        named = ask(model="adder", messages=user(ONE))
        routed = ask(model="auto", messages=user(ONE))
        streamed = [*ask(model="auto", messages=user(ONE), stream=True)]
    assert (named.model, named.choices[0].message.content) == ("adder", "7")
    assert routed.racer["certificate"]["holds"] is True
    assert "".join(each.choices[0].delta.content or "" for each in streamed) == "7"


@pytest.mark.parametrize("path", ["/healthz", "/health", "/readyz"])
def test_probes_may_send_head(gateway: Gateway, path: str) -> None:
    """Uptime monitors do, without a key; there is no body."""
    with bare(gateway) as client:
        head, get = client.head(path), client.get(path)
    assert (head.status_code, head.content, get.status_code) == (200, b"", 200)
    assert head.headers["content-length"] == get.headers["content-length"]


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/v1/model", "/v1/models"),
        ("/message", "/v1/messages"),
    ],
)
def test_an_unknown_path_names_the_nearest_one(gateway: Gateway, path: str, near: str) -> None:
    """Mostly the client's base URL lacks ``/v1``; admin paths are not offered."""
    response = gateway.post(path, json={})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (404, "not_found")
    assert error["message"] == f"no such path: did you mean {near}?"
    assert gateway.post("/quite/another", json={}).json()["error"]["message"] == "no such path"
    assert "calibrations" not in gateway.post("/calibration", json={}).text


@EVERY_API
def test_a_base_url_may_end_with_a_slash(gateway: Gateway, api: Api) -> None:
    """``http://gateway/v1/`` and a path that begins with a slash; a slash at the end, too."""
    body = {"model": "auto", **api.asks(ONE)}
    for path in (f"/v1//{api.path}", f"/v1/{api.path}/"):
        assert gateway.post(path, json=body).status_code == 200
    wrong = gateway.post(f"/v1//{api.path}", json={**body, "model": "unknown"}).json()
    assert ("type" in wrong) == (api is MESSAGES)  # errors, too, are those of the API


@EVERY_API
def test_no_proxy_holds_back_a_stream(gateway: Gateway, api: Api) -> None:
    """The proxy nginx gathers an answer unless its head says otherwise."""
    headers, _ = api.stream(gateway, ONE)
    assert (headers["x-accel-buffering"], headers["cache-control"]) == ("no", "no-cache")


def test_models_are_listed_in_the_form_of_the_client(gateway: Gateway) -> None:
    """OpenAI's, and Anthropic's for a client that names its version."""
    listed = gateway.openai().models.list().data
    assert [each.id for each in listed] == ["auto", *POOL]
    assert all(each.created > 1_600_000_000 for each in listed)
    with anthropic.Anthropic(base_url=gateway.url, api_key=DATA_KEY) as client:
        own, one = client.models.list().data, client.models.retrieve("adder")
    assert [(each.type, each.id) for each in own] == [("model", each.id) for each in listed]
    assert one.display_name == "adder"


@pytest.mark.parametrize("field", [{"usage": {"include": True}}, {"timeout": 30}])
@EVERY_API
def test_fields_for_other_gateways_are_ignored(
    gateway: Gateway, pool: FakePool, api: Api, field: dict[str, Any]
) -> None:
    """They mean the gateway that a client had before; candidates never see them."""
    answer = api.answer(gateway, ONE, **field)
    assert answer["racer"]["certificate"]["reasons"] == api.endpoint
    assert not field.keys() & pool.requests[-1].keys()


@EVERY_API
@pytest.mark.parametrize("stream", [False, True])
def test_an_abstention_is_said_once(gateway: Gateway, api: Api, stream: bool) -> None:
    """In the text, and as a whole answer: clients show a refusal, too, or blame their user."""
    reply = api.ask(gateway, UNANSWERABLE, stream=stream)
    assert reply.racer["abstained"]
    said = str(reply.whole or reply.events)
    assert "refusal': '" not in said
    assert "'refusal'" not in said.replace("'refusal': None", "")
    if api is MESSAGES:
        assert "end_turn" in said


def test_an_agent_gets_an_answer_where_the_router_abstains(serve: Serve, pool: FakePool) -> None:
    """A request with tools. What the client or the operator says comes first."""
    asked = {"messages": user(UNANSWERABLE), "tools": [TOOL]}
    rows = [
        {"request": {**asked, "messages": user(row["query"])}, "correct": row["correct"]}
        for row in as_json(labelled(300, 60))
    ]

    def answered(gateway: Gateway, racer: dict[str, Any]) -> dict[str, Any]:
        gateway.upload(rows)
        return gateway.post(
            "/v1/chat/completions", json={"model": "auto", **asked, "racer": racer}
        ).json()["racer"]

    gateway = serve(calibrated=False)
    usual = answered(gateway, {})
    assert (usual["abstained"], usual["certificate"]["reasons"]) == (False, ["abstained_strongest"])
    assert answered(gateway, {"on_abstain": "refuse"})["abstained"]
    refusing = serve(calibrated=False, routing={"on_abstain": "refuse"})
    assert answered(refusing, {})["abstained"]
    assert answered(refusing, {"on_abstain": "strongest"})["served_by"]
