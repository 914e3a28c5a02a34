"""Validation messages of settings and bodies: the field, allowed values, the nearest name."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel, ValidationError

from app import settings
from app.api.feedback import FeedbackRequest
from app.errors import SchemaError, SettingsError
from app.settings import Settings
from app.settings.validation import problems
from app.wire import bodies
from app.wire.schemas import (
    CalibrateFields,
    CalibrateOptions,
    ChatRequest,
    LevelsRequest,
    RouteRequest,
)
from tests.kit.gateway import ONE, candidates, configure, user

URL = "http://127.0.0.1:1/v1"
SECRET = "CANARY-7f3a91"


def rejection(folder: Path, **changes: Any) -> str:
    """The message about a configuration with these changes, without the file's name."""
    path = configure(folder, folder / "router", URL, **changes)
    with pytest.raises(SettingsError) as caught:
        settings.load(path, {})
    return str(caught.value).removeprefix(f"{path}: ")


def body_error(model: type[BaseModel], body: dict[str, Any]) -> SchemaError:
    """The error that a body of this shape is answered with."""
    with pytest.raises(SchemaError) as caught:
        bodies.checked(model, body)
    return caught.value


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"routing": {"alhpa": 0.2}}, "routing.alhpa: unknown setting; did you mean `alpha`?"),
        ({"candidates": candidates(URL, adder={"api_key": SECRET})},
         "candidates.0.api_key: unknown setting; did you mean `api_key_env`?"),
        ({"access": {"admin": {"port": 9, "adress": "::1"}}},
         "access.admin.adress: unknown setting; known here: `host`, `port`"),
        ({"limits": {"colour": 1}},
         "limits.colour: unknown setting; `racer schema` prints all settings"),
        ({"alpha": 0.2}, "alpha: unknown setting; did you mean `routing.alpha`?"),
        ({"shadow_rat": 0.2}, "shadow_rat: unknown setting; did you mean `watching.shadow_rate`?"),
    ],
)  # fmt: skip
def test_an_unknown_setting_names_the_nearest_known_one(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """In a section, a list, a table by name and at the top; never with the value."""
    assert rejection(tmp_path, **changes) == message


def settings_by_model(model: type[BaseModel], place: tuple[str | int, ...] = ()) -> Any:
    """Every setting that is in a section of one kind: its place, and the names beside it."""
    for name, field in model.model_fields.items():
        yield (*place, name), tuple(model.model_fields)
        for section, step in sections(field.annotation):
            yield from settings_by_model(section, (*place, name, *step))


def sections(annotation: Any, step: tuple[str | int, ...] = ()) -> Any:
    """The models that an annotation names, each with the steps of a list or a table to it."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, step
        return
    inside = {tuple: (0,), dict: ("some-name",)}.get(get_origin(annotation), ())
    for each in get_args(annotation):
        yield from sections(each, (*step, *inside))


def test_every_misspelt_setting_names_itself() -> None:
    """At every depth: sections, lists of candidates and of keys, tables by name.

    Red when the walk to the section of a setting ends above it.
    """
    found = list(settings_by_model(Settings))
    assert (("candidates", 0, "capabilities", "tools") in dict(found)) is True
    for place, names in found:
        wrong = f"{place[-1][:-1]}x{place[-1][-1]}"  # a letter before the last
        if get_close_matches(wrong, names, n=1) != [place[-1]]:
            continue  # a short name, or nearer to a neighbour
        value: Any = {wrong: 1}
        for step in reversed(place[:-1]):
            value = [value] if step == 0 else {step: value}
        with pytest.raises(ValidationError) as caught:
            Settings.model_validate(value)
        path = ".".join(map(str, (*place[:-1], wrong)))
        sentences = dict(problems(caught.value, Settings, noun="setting"))
        assert sentences[path] == f"{path}: unknown setting; did you mean `{place[-1]}`?"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"port": 70_000}, "port: must be at least 0 and at most 65535"),
        ({"port": "http"}, "port: must be a whole number"),
        ({"routing": {"alpha": 2}}, "routing.alpha: must be greater than 0 and less than 1"),
        ({"routing": {"alpha": "much"}}, "routing.alpha: must be a number"),
        ({"routing": {"alpha": float("nan")}},
         "routing.alpha: must be greater than 0 and less than 1"),
        ({"routing": {"score": "best"}},
         "routing.score: must be 'gap', 'prob', 'cover', 'cover_cost' or 'static'"),
        ({"limits": 3}, "limits: must be a mapping of names to values"),
        ({"watching": {"decisions": "perhaps"}}, "watching.decisions: must be true or false"),
        ({"limits": {"queue": 0}}, "limits.queue: must be greater than 0"),
        ({"candidates": []}, "candidates: must have at least 1 entry"),
        ({"candidates": "adder"}, "candidates: must be a list"),
        ({"candidates": [{"base_url": URL}]}, "candidates.0.name: missing, and required"),
        ({"candidates": candidates(URL, adder={"model": 7})},
         "candidates.0.model: must be a string"),
        ({"candidates": candidates(URL, adder={"price": float("inf")})},
         "candidates.0.price.call: must be a finite number"),
        ({"candidates": candidates(URL, adder={"price": 0})},
         "candidates.0.price: give a price above 0 for tokens, for calls or for `gpu_second`"),
        ({"candidates": candidates(URL, adder={"price": {"input": 1, "gpu_seconds": 1}})},
         "candidates.0.price.gpu_seconds: unknown setting; did you mean `gpu_second`?"),
        ({"schema_version": 2}, "schema_version: must be 1"),
        ({"candidates": [{"name": "a b", "base_url": URL}]},
         "candidates.0.name: must match the pattern ^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$"),
    ],
)  # fmt: skip
def test_the_error_of_a_wrong_value_states_what_is_allowed(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """Type, range and choices in plain English, none of pydantic's words."""
    assert rejection(tmp_path, **changes) == message


@pytest.mark.parametrize(
    ("model", "body", "param", "message"),
    [
        (ChatRequest, {"racer": {"alhpa": 0.1}}, "racer.alhpa",
         "racer.alhpa: unknown field; did you mean `alpha`?"),
        (ChatRequest, {"racer": {"colour": SECRET}}, "racer.colour",
         "racer.colour: unknown field; known here: `alpha`, `score`, `candidates`, `on_abstain`,"
         " `group`, `application`, `promise`, `reference`, `max_rounds`, `usage`, `timeout`,"
         " `explain`, `stream`"),
        (FeedbackRequest, {"decision": SECRET, "correct": {"a": True}}, "decision_id",
         "decision_id: missing, and required"),
        (CalibrateOptions, {"dryrun": SECRET}, "dryrun",
         "dryrun: unknown field; did you mean `dry_run`?"),
        (CalibrateOptions, {"colour": SECRET}, "colour",
         "colour: unknown field; known here: `alpha`, `delta`, `score`, `risk_target`, `r`,"
         " `max_weight`, `answer_risk_max`, `rows_kind`,"
         " `one_per_cluster`, `application`, `since`, `activate`, `expected_active_id`, `dry_run`,"
         " `allow_overlap`"),
        (CalibrateFields, {"alpha": SECRET}, "alpha", "alpha: must be a number"),
        (ChatRequest, {"stream": SECRET}, "stream", "stream: must be true or false"),
        (ChatRequest, {"racer": {"group": "g" * 129}}, "racer.group",
         "racer.group: must have at most 128 characters"),
    ],
)  # fmt: skip
def test_errors_of_bodies_have_the_same_words(
    model: type[BaseModel], body: dict[str, Any], param: str, message: str
) -> None:
    """``param`` stays the field as it was sent; values never come back."""
    whole = {"model": "auto", "messages": user(SECRET), "prompt": SECRET}
    error = body_error(model, {**whole, **body} if model is ChatRequest else body)
    assert (str(error), error.param) == (message, param)


def test_an_unknown_field_beside_a_query_names_the_nearest() -> None:
    """``POST /route`` takes a whole chat body, or a query alone: beside it a typo is no extra."""
    error = body_error(RouteRequest, {"query": ONE, "alhpa": 0.01})
    assert str(error) == "unknown field 'alhpa' beside `query`; did you mean `alpha`?"


def test_names_that_a_client_invents_are_cut(tmp_path: Path) -> None:
    """An unknown name of any length gives one short sentence."""
    error = body_error(LevelsRequest, {"query": ONE, "z" * 100_000: 1})
    assert len(str(error)) < 200
    assert len(rejection(tmp_path, **{"z" * 100_000: 1})) < 200
