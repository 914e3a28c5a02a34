"""Records of one decision: the requests share its part, and nothing else."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.json_output import dump_json
from app.monitoring.decisions.record import DecisionRecord, RequestEnd
from app.routing.decision import AnswerGuarantee, ChosenBy, RoutingRecord
from app.routing.reasons import Remark

names = st.text(max_size=8) | st.just("de\ud800\0\n'\"")
sets = st.lists(names, max_size=4).map(tuple)
numbers = st.floats(allow_nan=False, allow_infinity=False)
promise = AnswerGuarantee(
    reference="vote",
    equality="exact",
    max_rounds=2,
    order=("adder", "poet"),
    borders=(1, 2),
    expected_calls=1.5,
    trivial=True,
)


def optionally(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A value or none."""
    return st.none() | values


ROUTING: Mapping[str, st.SearchStrategy[Any]] = {
    "calibration_id": optionally(names),
    "group": optionally(names),
    "alpha": st.floats(0.0, 1.0),
    "score": names,
    "lambda_hat": numbers | st.just(math.inf),
    "pool": sets,
    "selected": sets,
    "null_selected": st.booleans(),
    "fingerprint": st.binary(min_size=16, max_size=16).map(bytes.hex),
    "scores": optionally(st.lists(numbers, max_size=4).map(tuple)),
    "neighbours": optionally(st.lists(st.integers(0, 2**32 - 1), max_size=4).map(tuple)),
    "projection": optionally(st.lists(numbers, max_size=4).map(tuple)),
    "chosen_by": st.sampled_from(ChosenBy),
    "repeated": st.booleans(),
    "population": optionally(st.integers(0, 9)),
    "remarks": optionally(st.lists(st.sampled_from(Remark), max_size=2).map(tuple)),
}
REQUEST: Mapping[str, st.SearchStrategy[Any]] = {
    "decision_id": names,
    "created_at": names,
    "key": names,
    "holds": st.booleans(),
    "reasons": sets,
    "served_by": optionally(names),
    "answered": sets,
    "sampling_rate": optionally(numbers),
    "shadow_rate": optionally(numbers),
    "sampled_under": optionally(names),
    "answer_setup": optionally(names),
    "conversation": optionally(names),
    "turn": optionally(st.integers(1, 9)),
    "outcome": st.sampled_from(RequestEnd),
    "query": optionally(names),
    "group_by": optionally(names),
    "sequence": optionally(st.just(promise)),
    "cost": optionally(st.dictionaries(names, numbers, max_size=2)),
}
routings, requests = st.fixed_dictionaries(dict(ROUTING)), st.fixed_dictionaries(dict(REQUEST))


def without_costs(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same; of candidates without prices there is no word of costs."""
    return {name: each for name, each in values.items() if name != "cost" or each is not None}


def document(values: Mapping[str, Any]) -> dict[str, Any]:
    """What is stored of these fields: all but the neighbours, which have a column."""
    shown = without_costs(values) | {"neighbours": None}
    if math.isinf(values["lambda_hat"]):
        shown["lambda_hat"] = None
    if values["sequence"] is not None:
        shown["sequence"] = values["sequence"].as_json()
    return json.loads(dump_json(shown))


@given(routing=routings, request=requests)
def test_a_record_of_a_decision_equals_one_made_field_by_field(
    routing: dict[str, Any], request: dict[str, Any]
) -> None:
    """In every field, in what is stored, in what is shown and as it is read again."""
    part = RoutingRecord(**routing)
    record = DecisionRecord.of(part, **request)
    plain = DecisionRecord(**routing, **request)
    assert record == plain
    assert part == RoutingRecord(**routing), "the request leaves no field of its own"
    assert vars(part).keys() == {*routing, "stored"}
    assert record.stored == plain.stored
    assert json.loads(record.document()) == document(routing | request)
    assert record.document() == plain.document()
    assert DecisionRecord.from_document(record.document(), record.neighbours) == plain
    assert record.as_json() == plain.as_json()
    assert record.as_json().keys() == (routing | without_costs(request)).keys()


@given(routing=routings, request=requests, other=routings)
def test_a_changed_record_is_stored_as_it_is_now(
    routing: dict[str, Any], request: dict[str, Any], other: dict[str, Any]
) -> None:
    """The stored form of the decision is not taken over by a record with other fields."""
    record = replace(DecisionRecord.of(RoutingRecord(**routing), **request), **other)
    assert json.loads(record.document()) == document(request | other)
    assert record.stored == RoutingRecord(**other).stored
