"""Replay of questions: the request that candidates are sent, by the code that serves requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.settings import Settings
from app.wire.candidate_payload import request_fields
from app.wire.chat import Chat
from app.wire.completions import Completions
from app.wire.format import ApiFormat
from app.wire.request_limits import check_fields
from app.wire.responses import Responses
from racer_core.records.questions import Question
from racer_core.records.request import conversation_of, request_path
from racer_core.records.writer import messages


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedRequest:
    """A question as a request.

    Attributes:
        api_format: The API of candidates to which it goes.
        fields: The fields of its body that every candidate is sent.
    """

    api_format: ApiFormat
    fields: Mapping[str, Any]


def replayed(question: Question, settings: Settings) -> ReplayedRequest:
    """The request of a question; of a query, a chat of plain turns and nothing else.

    Raises:
        InputError: The gateway would refuse the request.
    """
    request = question.request
    if request is None:
        fields = {"messages": messages(question.earlier, question.query)}
        return ReplayedRequest(api_format=Chat(), fields=fields)
    path = request_path(request)
    fields = request_fields(request, path, allowed=settings.limits.extra_fields)
    check_fields(fields, settings.limits)
    n = fields.get("n")
    choices = n if isinstance(n, int) and n > 0 else 1
    formats: Mapping[str, ApiFormat] = {
        Chat.path: Chat(n=choices),
        Completions.path: Completions(n=choices),
        Responses.path: Responses(),
    }
    return ReplayedRequest(api_format=formats[path], fields=fields)


def routed_question(question: Question, settings: Settings) -> str:
    """The text that the router reads, which an evaluator is shown when serving."""
    request = replayed(question, settings)
    conversation = conversation_of(request.fields, request.api_format.path)
    group = question.group
    text = conversation.text(settings.text_of(group), settings.leave_out_of(group))
    return text[: settings.limits.query_chars]
