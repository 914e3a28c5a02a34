"""Grading of whole requests: tool calls by canonical JSON, structured output by schema and value.

Other answers are graded by the grader that the command line names.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final, Self

from app.tools.labelling.answer import Answer
from app.tools.labelling.graders import Grader
from app.tools.labelling.summary import answer_schema
from racer_core import strict_json
from racer_core.aggregation.json_forms import (
    is_call_list,
    json_document_form,
    json_form,
    tool_call_form,
)
from racer_core.errors import InputError, install_hint
from racer_core.records.questions import Question

UNCHECKED: Final = "schema_not_checked"  # the schema refers to a document that is not there


class RequestGrader:
    """Grades answers as their request demands; open it first.

    Args:
        base: Grades answers that are plain texts.
    """

    def __init__(self, base: Grader) -> None:
        self._base = base

    @property
    def paid(self) -> bool:
        """Whether a verdict costs a call, so that it is stored."""
        return self._base.paid

    @property
    def failures(self) -> Counter[str]:
        """Reason -> answers that could not be graded."""
        return self._base.failures

    async def __aenter__(self) -> Self:
        await self._base.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._base.__aexit__(*error)

    async def check(self, question: Question) -> None:
        """Raise InputError if no answer to the question could be graded."""
        if expected_calls(question) is not None:
            return
        is_json, schema = answer_schema(question.request or {})
        if is_json and schema is not None:
            _validator(schema)
        if not is_json or question.reference is None:
            await self._base.check(question)
        elif (form := json_form(question.reference)) is None:
            raise InputError("the reference cannot be read as JSON, which the request demands")
        elif not meets(json.loads(form), schema):
            raise InputError("the reference does not meet the schema of its request")

    async def correct(self, question: Question, answer: Answer) -> bool | None:
        """Whether the answer is correct; None if it could not be graded."""
        text = answer.text or ""
        expected = expected_calls(question)
        if expected is not None:
            return answer.is_tool_calls and _form_of_calls(text) == expected
        if answer.is_tool_calls:  # a judge may accept calls; no text equals them
            return await self._base.correct(question, text) if self.paid else False
        is_json, schema = answer_schema(question.request or {})
        if not is_json:
            return await self._base.correct(question, text)
        form = json_document_form(text)  # a client parses the whole text
        if form is None:
            return False
        try:
            if not meets(json.loads(form), schema):
                return False
        except InputError:
            self.failures[UNCHECKED] += 1
            return None
        if question.reference is None:
            return await self._base.correct(question, text)
        return form == json_form(question.reference)


def expected_calls(question: Question) -> str | None:
    """The canonical form of the tool calls that the reference names; None if it names none.

    The reference of a request with tools may be a JSON list of ``{"name", "arguments"}``.
    """
    request = question.request or {}
    if question.reference is None or not (request.get("tools") or request.get("functions")):
        return None
    return _form_of_calls(question.reference)


def _form_of_calls(text: str) -> str | None:
    try:
        calls = strict_json.loads(text)
    except InputError:
        return None
    return tool_call_form(calls) if is_call_list(calls) else None


def meets(value: object, schema: object) -> bool:
    """Whether a value meets a schema; None as the schema allows any value.

    Raises:
        InputError: It cannot be checked.
    """
    if schema is None:
        return True
    try:
        return bool(_validator(schema).is_valid(value))
    except Exception as exc:  # a reference to another document, which is not fetched
        raise InputError(f"the schema of the request cannot be checked ({exc})") from exc


def _validator(schema: object) -> Any:
    """The validator of a request's schema.

    Raises:
        InputError: The schema is invalid, or jsonschema is not installed.
    """
    try:
        jsonschema = import_module("jsonschema")
        registry = import_module("referencing").Registry()
    except ImportError as exc:
        raise InputError(
            f"grading structured output needs jsonschema: {install_hint('label')}"
        ) from exc
    if not isinstance(schema, Mapping | bool):
        raise InputError("the schema of the request must be an object")
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as exc:
        raise InputError(f"the schema of the request is invalid: {exc.message}") from exc
    # An empty registry fetches nothing from the network.
    return kind(schema, registry=registry)
