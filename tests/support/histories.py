"""Random requests, labels and settings of a gateway's history, for a model-based test."""

from __future__ import annotations

import json
from typing import Any, Final

import httpx2
from hypothesis import strategies as st

from tests.support.gateway import SKILLS
from tests.upstreams.scripted import Script

TEMPLATES: Final = [*SKILLS][:3]
TURNS: Final = ["plain", "part", "system", "last_system", "earlier", "refusal", "name", "image",
                "prefill"]  # fmt: skip
LATER: Final = ("earlier", "refusal", "prefill")
LABELLED_TURNS: Final = ["plain", "system", "earlier", "part"]
FIELDS: Final[list[dict[str, Any]]] = [
    {"temperature": 0},
    {"temperature": 0.0},
    {"temperature": 1.5},
    {"seed": 7},
    {"seed": 99},
    {"random_seed": 7},
    {"max_tokens": 16},
    {"max_completion_tokens": 16},
    {"max_output_tokens": 16},
    {"top_p": 0.9},
    {"user": "ann"},
    {"metadata": {"a": "b"}},
    {"n": 1},
    {"stop": ["."]},
    {"prompt": {"id": "pmpt_1"}},
    {"a_field_of_tomorrow": 1},
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "text"}},
    {"text": {"format": {"type": "text"}}},
    {"parallel_tool_calls": False},
    {"tools": [{"type": "function", "function": {"name": "add"}}]},
    {"instructions": "Be brief."},
]
# Each is a change of some settings; a restart adds changes to those of earlier restarts.
CHANGES: Final[list[dict[str, Any]]] = [
    {"parameters": {}},
    {"parameters": {"temperature": 0}},
    {"parameters": {"temperature": 0, "max_tokens": 160}},
    {"parameters": {"random_seed": 7}},
    {"own": {"temperature": 0.5, "seed": 1}},
    {"own": {}},
    {"renames": {"seed": "random_seed"}},
    {"renames": {"max_completion_tokens": "max_tokens"}},
    {"renames": {"a_field_of_tomorrow": "user"}},
    {"renames": {}},
    {"group_by": "key"},
    {"group_by": "request"},
    {"text": "conversation"},
    {"text": "last_user"},
    {"false_alarm": None},
    {"false_alarm": 0.01},
    {"gone": "adder"},
    {"gone": "speller"},
    {"gone": None},
    {"session_ttl_s": 60},
    {"fan_out": 1},
    {"fan_out": 16},
    {"query_chars": 200},
    {"query_chars": 32_000},
    {"observe": "poet"},
    {"observe": None},
    {"toolless": True},
    {"toolless": False},
    {"model": "another"},
    {"model": None},
]
USUAL: Final[dict[str, Any]] = {
    "parameters": {},
    "own": {},
    "renames": {},
    "group_by": "request",
    "text": "last_user",
    "false_alarm": 0.01,
    "gone": None,
    "session_ttl_s": None,
    "fan_out": 16,
    "query_chars": 32_000,
    "observe": None,
    "toolless": False,
    "model": None,
}
ALIASES: Final = {"speller": ("another",)}  # models that serve a candidate in some settings
SCRIPTS: Final = [
    Script(text="42"),
    Script(text="43"),
    Script(text=" "),
    Script(text=""),
    *(Script(fault=fault) for fault in ("500", "429", "cut", "reset", "half", "stream_no_end")),
]

fields_of_requests = st.lists(st.sampled_from(FIELDS), max_size=2).map(
    lambda some: {name: value for each in some for name, value in each.items()}
)
groups = st.sampled_from([None, None, "a", "b", "c"])
often_none = st.just({}) | st.just({})
labels = st.fixed_dictionaries(
    {
        "surface": st.sampled_from(["chat", "chat", "chat", "completions", "responses"]),
        "turns": st.sampled_from(LABELLED_TURNS),
        "fields": often_none | fields_of_requests,
    }
)
requests = st.fixed_dictionaries(
    {
        "surface": st.sampled_from(["chat"] * 4 + ["completions", "responses", "route", "execute"]),
        "turns": st.sampled_from(["plain"] * 14 + TURNS),
        "fields": often_none | fields_of_requests,
        "template": st.sampled_from(TEMPLATES),
        "stream": st.booleans(),
        "is_long": st.sampled_from([False] * 7 + [True]),
        "key": st.sampled_from([None, None, "a", "c"]),
        "session": st.sampled_from([None, None, "one"]),
        "pool": st.sampled_from(["auto", "auto", "auto/pair"]),
        "racer": st.just({})
        | st.sampled_from(
            [
                {"alpha": 0.3},
                {"alpha": 0.01},
                {"candidates": ["adder"]},
                {"candidates": ["speller", "poet"]},
                {"group": "a"},
                {"group": "b"},
                {"group": "c"},
                {"score": "prob"},
                {"stream": "leader"},
                {"explain": True},
                {"on_abstain": "strongest"},
            ]
        ),
    }
)

some_requests = st.lists(requests, min_size=2, max_size=6)


def messages(turns: str, text: str) -> list[dict[str, Any]]:
    """A conversation that ends with a text of the user, or nearly so."""
    question = {"role": "user", "content": text}
    system = {"role": "system", "content": "Answer in French."}
    hello = {"role": "user", "content": "Hello"}
    shapes: dict[str, list[dict[str, Any]]] = {
        "plain": [question],
        "part": [{"role": "user", "content": [{"type": "text", "text": text}]}],
        "system": [system, question],
        "last_system": [question, system],
        "earlier": [hello, {"role": "assistant", "content": "Hi"}, question],
        "refusal": [hello, {"role": "assistant", "content": "Hi", "refusal": None}, question],
        "name": [{**question, "name": "ann"}],
        "image": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": text},
                    {"type": "image_url", "image_url": {"url": "data:,"}},
                ],
            }
        ],
        "prefill": [question, {"role": "assistant", "content": "The answer is"}],
    }
    return shapes[turns]


def certified(response: httpx2.Response) -> dict[str, Any] | None:
    """The `racer` object of an answer, or of a stream's last event; None without one."""
    if "text/event-stream" not in response.headers.get("content-type", ""):
        answer = response.json()
        return answer.get("racer", answer if "certificate" in answer else None)
    lines = [line for line in response.text.split("\n") if line.startswith("data: {")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    found = [each.get("racer") or each.get("response", {}).get("racer") for each in events]
    return next((each for each in reversed(found) if each), None)
