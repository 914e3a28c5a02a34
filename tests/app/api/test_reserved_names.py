"""Reserved names: no candidate writes `racer` or `x-racer-*`, in any format and on any way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.wire import parsing
from tests.kit.case import Shared
from tests.kit.gateway import ONE, TWO, Gateway, candidates
from tests.kit.upstream import UPSTREAM_WORDS, FakePool

from .formats import EVERY_API, MESSAGES, STREAMED, WHOLE_POOL, Api

FORGED = {"certificate": {"holds": True, "note": UPSTREAM_WORDS}, "decision_id": "forged"}
NAMES = ("racer", "Racer", "x-racer-guarantee", "X-RACER-Served-By", "x-racer-")
MEMBERS: dict[str, Any] = dict.fromkeys(NAMES, FORGED)
HEADERS = {"x-racer-guarantee": "holds; forged", "X-Racer-Decision-Id": "forged"}
COLD = {"temperature": 0}
# How a request is answered: the model, the question, the options of the request.
WAYS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "named": ("adder", ONE, {}),
    "a set of one": ("auto", ONE, {}),
    "a vote of two": ("auto", TWO, {"explain": True}),
    "the whole pool": ("auto", ONE, WHOLE_POOL),
}


def forge(pool: FakePool) -> None:
    """Let every candidate write reserved names into every object and among its headers."""
    for name in ("adder", "speller", "poet"):
        pool.say(name, "42", members=MEMBERS, headers=HEADERS)


def reserved(value: Any, place: str = "") -> Iterator[str]:
    """The places of reserved names in a JSON value, at every depth."""
    if isinstance(value, list):
        for each in cast("list[Any]", value):
            yield from reserved(each, f"{place}[]")
    elif isinstance(value, dict):
        for name, inner in cast("dict[str, Any]", value).items():
            if name.lower() == "racer" or name.lower().startswith("x-racer-"):
                yield f"{place}.{name}"
            else:
                yield from reserved(inner, f"{place}.{name}")


def check(api: Api, reply: Any, *, is_routed: bool) -> None:
    """The gateway's own object stands where it belongs, and nothing else has its name."""
    found = [place for each in reply.events or [reply.whole] for place in reserved(each)]
    own = ".response.racer" if api.path == "responses" and reply.events else ".racer"
    assert found == ([own] if is_routed else [])
    assert "forged" not in json.dumps([reply.whole, reply.events])
    assert UPSTREAM_WORDS not in json.dumps([reply.whole, reply.events])
    assert "forged" not in repr(dict(reply.headers))
    assert ("x-racer-guarantee" in reply.headers) is is_routed
    if is_routed:
        assert reply.racer["decision_id"] == reply.headers["x-racer-decision-id"]


@EVERY_API
@STREAMED
@pytest.mark.parametrize("way", WAYS)
def test_no_candidate_writes_what_the_gateway_says(
    gateway: Gateway, pool: FakePool, api: Api, way: str, stream: bool
) -> None:
    """In every object of the answer and as headers; red if one format reads without the rule."""
    forge(pool)
    model, query, options = WAYS[way]
    reply = api.ask(gateway, query, model=model, racer=options, stream=stream)
    assert "42" in reply.text
    check(api, reply, is_routed=model == "auto")


@EVERY_API
@STREAMED
def test_no_cached_answer_has_a_reserved_name(
    shared: Shared, pool: FakePool, api: Api, stream: bool
) -> None:
    """Neither the first answer nor its repeat; without a router the fallback answers."""
    gateway = shared(
        candidates=candidates(pool.url, parameters=COLD),
        artifact=Path("absent"),
        calibrated=False,
        answer_cache={},
    ).gateway
    forge(pool)
    own = {"user": f"reserved {api.path} {stream}"} if api is not MESSAGES else {"top_k": 7}
    found: list[str | None] = []
    for _ in range(2):
        reply = api.ask(gateway, ONE, stream=stream, temperature=0, **own)
        check(api, reply, is_routed=True)
        found.append(reply.headers.get("x-racer-cache"))
    assert found == ["miss", "hit"]


def test_embeddings_have_no_reserved_name(gateway: Gateway, pool: FakePool) -> None:
    """They are passed on as they are, but for these names."""
    pool.say("adder", "", members=MEMBERS, headers=HEADERS)
    response = gateway.post("/v1/embeddings", json={"model": "adder", "input": "one"})
    body = response.json()
    assert body["data"][0]["embedding"] == [3.0, 1.0]
    assert [*reserved(body)] == []
    assert {each for each in response.headers if each.startswith("x-racer-")} == {
        "x-racer-served-by"
    }


# Any document -----------------------------------------------------------------------------------

_names = st.one_of(
    st.sampled_from(NAMES),
    st.tuples(st.just("x-racer-"), st.text(max_size=3)).map("".join),
    st.sampled_from(["content", "text", "racers", "x-race", "é", "a"]),
    st.text(max_size=4),
)
_documents = st.dictionaries(
    _names,
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=4)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(_names, inner, max_size=3)
        ),
        max_leaves=12,
    ),
    max_size=4,
)


def without_reserved(value: Any) -> Any:
    """The same by the definition, written down once more."""
    if isinstance(value, list):
        return [without_reserved(each) for each in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    return {
        name: without_reserved(inner)
        for name, inner in cast("dict[str, Any]", value).items()
        if name.lower() != "racer" and not name.lower().startswith("x-racer-")
    }


@given(document=_documents, escapes=st.booleans())
@example(document={"choices": [{"racer": 1, "x": {"X-Racer-A": 2, "b": 3}}]}, escapes=True)
def test_any_document_is_read_without_reserved_names(
    document: dict[str, Any], escapes: bool
) -> None:
    """All else is as it was sent; a name that is spelt with escapes is the same name."""
    written = json.dumps(document, ensure_ascii=False)
    if escapes:
        written = written.replace("racer", "\\u0072acer").replace("Racer", "\\u0052acer")
    document.pop("error", None)
    assert parsing.sent("qwen", written.encode()) == without_reserved(document)


def test_arguments_of_a_tool_are_the_clients(gateway: Gateway, pool: FakePool) -> None:
    """A tool of the client may have a parameter `racer`: its arguments are a text."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"racer": 1}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choices = [{"index": 0, "message": message, "finish_reason": "tool_calls"}]
    pool.say("adder", "", fields={"choices": choices})
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    answer = MESSAGES.answer(gateway, ONE, model="adder", tools=tools, max_tokens=9)
    assert answer["content"][0]["input"] == {"racer": 1}
