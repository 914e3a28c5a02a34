"""Rows that are whole requests: a served body and the same body as a row are read alike."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.calibrations.columns import RowColumns
from app.calibrations.columns import load as load_columns
from app.calibrations.parsing import ReadInstructions, parse
from app.settings import Settings, load
from app.wire.candidate_payload import BodySettings
from racer_core.errors import RowsError
from racer_core.records.conversation import RoutedText
from tests.fuzz.bodies import BODIES, Door
from tests.kit.gateway import ENVIRONMENT, POOL, candidates, configure

MODES: tuple[RoutedText, ...] = ("last_user", "conversation")
SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "How many?"}
_texts = st.sampled_from(["How many?", " ", "", "z" * 9_000, "\u2028 A. one\nB. two"])
_kinds = st.sampled_from(["text", "text", "input_text", "output_text", "image_url", "input_image"])
_parts = st.lists(st.fixed_dictionaries({"type": _kinds, "text": _texts}), max_size=2)
_roles = st.sampled_from(
    ["user", "user", "user", "system", "developer", "assistant", "tool", "critic"]
)
_turns = st.lists(
    st.fixed_dictionaries(
        {"role": _roles, "content": st.one_of(_texts, _texts, _parts, st.none())},
        optional={"name": st.just("ann")},
    ),
    min_size=1,
    max_size=4,
)
_calls = st.fixed_dictionaries(
    {"type": st.sampled_from(["function_call", "function_call_output", "reasoning"])},
    optional={"content": st.none()},
)
_fields: dict[str, Any] = {
    "temperature": st.sampled_from([0, 0.0, 1.5, None]),
    "max_tokens": st.just(5),
    "max_output_tokens": st.just(5),
    "user": st.just("ann"),
    "name": st.just("ben"),
    "seed": st.just(1),
    "stream": st.booleans(),
    "racer": st.just({"alpha": 0.2}),
    "tools": st.just([{"type": "function"}]),
    "response_format": st.just({"type": "json_object"}),
}
APIS: dict[str, Any] = {
    "chat": {"messages": _turns},
    "responses": {
        "input": st.one_of(
            _texts,
            _turns,
            st.lists(_calls, max_size=2),
            st.tuples(st.just(QUESTION), _calls).map(list),
        )
    },
    "completions": {"prompt": st.one_of(_texts, _texts.map(lambda text: [text]))},
}
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory, artifact: Path) -> Iterator[dict[str, Any]]:
    """The endpoints under both settings of `routing.text`; two candidates have own parameters."""
    own = {"adder": {"parameters": {"temperature": 0}}, "poet": {"renames": {"user": "name"}}}
    with asyncio.Runner() as runner:
        found: dict[str, Any] = {}
        for mode in MODES:
            path = configure(
                tmp_path_factory.mktemp(mode),
                artifact,
                "http://127.0.0.1:9",
                candidates=candidates("http://127.0.0.1:9", **own),
                routing={"text": mode},
            )
            settings = load(path, ENVIRONMENT)[0]
            found[mode] = settings, Door(settings, runner)
        yield found


def as_row(body: dict[str, Any], settings: Settings) -> RowColumns:
    """The columns of a file of one row: this request."""
    order = ReadInstructions(
        name="rows.jsonl",
        source="rows",
        document=False,
        pool=settings.pool,
        query_chars=settings.limits.query_chars,
        equality=None,
        salt="salt",
        samples_key="00",
        text=settings.routing.text,
        candidates=tuple(map(BodySettings.of, settings.candidates)),
        extra_fields=settings.limits.extra_fields,
    )
    row = json.dumps({"request": body, "correct": dict.fromkeys(POOL, True)})
    texts, arrays = io.BytesIO(), io.BytesIO()
    parsed = parse(
        order,
        io.BytesIO(row.encode()),
        texts,
        arrays,
        fields=lambda _: None,
        progress=lambda *_: None,
    )
    return load_columns(
        parsed.pool,
        texts,
        arrays,
        duplicates=parsed.duplicates,
        near_duplicates=parsed.near_duplicates,
        assumed=parsed.assumed,
        guessed_kind=parsed.guessed_kind,
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("api", APIS)
def test_a_served_body_and_the_same_body_as_row_are_read_alike(
    doors: dict[str, Any], api: str, mode: RoutedText
) -> None:
    """The routed text, whether it is a later turn, and what every candidate is sent.

    A second rule of any of them is red: other roles, other parts, another order of the turns,
    another limit on the text.
    """
    endpoint, settings, door = BODIES[api][0], *doors[mode]
    bodies = st.fixed_dictionaries(APIS[api], optional=_fields)
    served, later, conditions = 0, set[bool](), set[str]()

    @given(drawn=bodies)
    @example(drawn={"messages": [SYSTEM, QUESTION], "tools": [{"type": "function"}]})
    @example(drawn={"messages": [QUESTION, {"role": "assistant", "content": "So"}]})
    @example(drawn={"messages": [QUESTION, {"role": "tool", "content": "5"}]})
    @example(drawn={"messages": [SYSTEM]})
    @example(drawn={"messages": [{"role": "critic", "content": "no"}, IMAGE]})
    @example(drawn={"input": [QUESTION], "instructions": "Be brief.", "store": False})
    @example(drawn={"prompt": ["once"], "suffix": "."})
    def check(drawn: dict[str, Any]) -> None:
        nonlocal served
        sent = {**drawn, "model": "auto"}
        arguments = door.ask(endpoint, json.dumps(sent).encode())
        query = next((each.query for each in arguments or () if hasattr(each, "query")), None)
        if query is None:
            return
        row = as_row(sent, settings)
        served += 1
        later.add(query.later)
        conditions.add(query.conditions.identity)
        vector = row.conditions[int(row.condition_ids[0])]
        assert row.queries[0] == query.text
        assert bool(row.later[0]) is query.later
        assert vector == query.conditions.of(row.pool)
        assert row.assumed == 1

    check()
    assert served > 20
    assert len(conditions) > 2
    assert len(later) == (1 if api == "completions" else 2)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("api", APIS)
def test_a_body_whose_text_is_refused_is_no_row(
    doors: dict[str, Any], api: str, mode: RoutedText
) -> None:
    """One error, which names the line and the row's request."""
    bad = {
        "chat": {"messages": [{"role": "user", "content": " "}]},
        "completions": {"prompt": ["one", "two"]},
        "responses": {
            "input": [{"role": "assistant", "content": "x"}],
            "previous_response_id": "a",
        },
    }[api]
    settings, door = doors[mode]
    assert door.ask(BODIES[api][0], json.dumps({**bad, "model": "auto"}).encode()) is None
    with pytest.raises(RowsError, match="rows: line 1: "):
        as_row(bad, settings)
