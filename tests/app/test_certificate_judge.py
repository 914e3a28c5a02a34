"""The judge of the model-based test: what it denies, and what it lets hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from tests.kit.certificate_judge import (
    KnownCalibration,
    LabelledPart,
    Observation,
    denial,
    read_body,
)

POOL: Final = ("a", "b", "c")
RIGHT: Final = frozenset({"a"})
PATH: Final = "/v1/chat/completions"


def sent(**fields: Any) -> dict[str, str]:
    """What each candidate is sent with these fields."""
    turns = [{"role": "user", "content": "Hello"}]
    return {
        name: read_body(PATH, {"model": name, "messages": turns, **fields}, ()) for name in POOL
    }


def rows(count: int, *, group: str | None = None, is_later: bool = False, **fields: Any) -> Any:
    """Rows that were labelled with these fields."""
    return LabelledPart(sent=sent(**fields), is_later=is_later, rows=[(group, RIGHT)] * count)


def known(*parts: LabelledPart) -> dict[str, KnownCalibration]:
    """A calibration of these rows at alpha 0.1."""
    calibration = KnownCalibration(
        parts=parts, alpha=0.1, group_by="request", text="last_user", query_chars=100
    )
    return {"cal": calibration}


def racer(
    *, n: int = 40, alpha: float = 0.1, group: str | None = None, selected: str = "a", **more: Any
) -> Any:
    """A certificate that holds, with the answer of its set."""
    guarantee = {"alpha": alpha, "group": group, "pool": POOL, "trivial": False}
    certificate = {
        "guarantee": guarantee,
        "calibration_id": "cal",
        "n": n,
        "lambda_hat": 0.2,
        "score": "gap",
    }
    scores = {"a": 0.8, "b": 0.5, "c": 0.4}
    return {
        "certificate": certificate,
        "selected": [*selected],
        "pool_scores": scores,
        "served_by": selected[:1],
    } | more


SEEN: Final = Observation(
    racer=racer(),
    header="holds",
    is_stream=False,
    executes=True,
    sent={name: {body} for name, body in sent().items()},
    called={"a"},
    answers=dict.fromkeys(POOL, "42"),
    allowed=POOL,
    failing=(),
    is_later=False,
    chars=10,
    query_chars=100,
    group=None,
    alpha=None,
    max_alpha=None,
    fan_out=16,
    group_by="request",
    text="last_user",
    active={"cal"},
    alarmed=(),
)
PLAIN: Final = rows(40)


@pytest.mark.parametrize(
    ("changes", "calibrations"),
    [
        ({}, known(PLAIN)),
        ({"racer": racer(n=80)}, known(PLAIN, PLAIN)),
        ({"chars": 101}, known(PLAIN)),  # rows of that length were read like this
        ({"chars": 100, "query_chars": 200}, known(PLAIN)),
        ({}, known(PLAIN, rows(40, seed=1), rows(40, is_later=True))),
        ({"racer": racer(n=30, group="x"), "group": "x"}, known(rows(30, group="x"), rows(9))),
        # Four rows allow the alpha of the request, and as the most first turns they are stored.
        ({"racer": racer(n=4, alpha=0.3), "alpha": 0.3}, known(rows(4), rows(40, is_later=True))),
        ({"answers": {"a": "42", "b": "42"}, "racer": racer(selected="ab"), "called": {"a", "b"}},
         known(PLAIN)),
    ],
)  # fmt: skip
def test_a_true_certificate_may_hold(changes: dict[str, Any], calibrations: Any) -> None:
    """Rows that were labelled like the request decide it, and its set answers."""
    assert denial(replace(SEEN, **changes), calibrations) is None


@pytest.mark.parametrize(
    ("changes", "calibrations", "why"),
    [
        ({"active": {"other"}}, known(PLAIN), "was not active"),
        ({"alarmed": {"cal"}}, known(PLAIN), "had an alarm"),
        ({"chars": 51, "query_chars": 50}, known(PLAIN), "another part of the query"),
        ({"chars": 101, "query_chars": 200}, known(PLAIN), "another part of the query"),
        ({"alpha": 0.2}, known(PLAIN), "alpha is 0.1"),
        ({"max_alpha": 0.05}, known(PLAIN), "alpha is 0.1"),
        ({"allowed": ("a", "b")}, known(PLAIN), "the pool has"),
        ({"allowed": (*POOL, "d")}, known(PLAIN), "the pool lacks"),
        ({}, known(rows(40, seed=1)), "no row was labelled with"),
        ({"is_later": True}, known(PLAIN), "no row was labelled with"),
        ({"is_later": True, "text": "conversation"}, known(rows(40, is_later=True)),
         "the router read last_user"),
        ({"racer": racer(n=80)}, known(PLAIN, rows(40, seed=1)), "80 rows of None decided"),
        ({}, known(PLAIN, PLAIN), "40 rows of None decided, not 80"),
        ({}, known(rows(40, group="x")), "no row belongs to the group None"),
        ({"racer": racer(n=14), "group": "y"}, known(rows(5, group="y"), rows(9)),
         "14 rows of None decided, not 5 of y"),
        ({"group": "y"}, known(PLAIN, rows(40, group="x")), "no row belongs to the group y"),
        ({"group": "x"}, known(rows(40, group="x")), "40 rows of None decided"),
        ({"group_by": "key", "group": "x"}, known(rows(40, group="x")), "grouped by request"),
        ({"racer": racer(selected="b")}, known(PLAIN), "the threshold selects"),
        ({"racer": racer(n=4)}, known(rows(4)), "rows allow no alpha"),
        ({"answers": {"a": " "}}, known(PLAIN), "no candidate of the set answered"),
        ({"racer": racer(selected="ab"), "called": {"a"}}, known(PLAIN), None),  # a wins ties
        ({"racer": racer(selected="ba", served_by="b"), "called": {"b"}}, known(PLAIN),
         "gave no answer"),
        ({"header": "pending"}, known(PLAIN), "the header says pending"),
        ({"is_stream": True}, known(PLAIN), "the header of a stream"),
        ({"racer": racer(levels=[{"alpha": 0.01, "lambda_hat": 0.9, "selected": ["a"]}])},
         known(PLAIN), "at alpha 0.01"),
    ],
)  # fmt: skip
def test_a_false_certificate_is_denied(
    changes: dict[str, Any], calibrations: Any, why: str | None
) -> None:
    """Each premise that fails is enough."""
    found = denial(replace(SEEN, **changes), calibrations)
    assert found is None if why is None else why in (found or "")


@pytest.mark.parametrize(
    ("field", "others", "renamed", "is_harmless"),
    [
        ({"n": 2}, {}, (), True),
        ({"n": 2}, {"use_beam_search": True}, (), False),
        ({"n": 2}, {"beam": True}, ("use_beam_search", "beam"), False),
        ({"n": 2}, {}, ("n", "choices"), False),
        ({"seed": 7}, {"temperature": 0}, (), True),
        ({"seed": 7}, {"temperature": 0}, ("heat", "temperature"), False),
        ({"seed": 7}, {"temperature": 1}, (), False),
        ({"parallel_tool_calls": False}, {}, (), True),
        ({"parallel_tool_calls": False}, {"tools": []}, (), False),
        ({"parallel_tool_calls": False}, {"skills": []}, ("tools", "skills"), False),
        ({"messages.system": []}, {}, (), False),
    ],
)
def test_a_field_is_harmless_beside_fields_whose_meaning_is_known(
    field: dict[str, Any], others: dict[str, Any], renamed: tuple[str, ...], is_harmless: bool
) -> None:
    """The server says what a renamed field means."""
    body = {"model": "a", "messages": [], **others}
    alike = read_body(PATH, body, renamed) == read_body(PATH, body | field, renamed)
    assert alike is is_harmless
