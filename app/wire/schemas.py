"""Request schemas: Pydantic models of request bodies, checked after the strict JSON parser."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from app.settings.validation import suggestion
from racer_core.records.request import GATEWAY_FIELDS
from racer_core.types import RiskTarget, RowsKind, Score

# Timestamps of requests: ISO 8601, read as the store writes them.


def utc_time(value: str) -> str:
    """A time in UTC with microseconds, as decisions store it; without a zone it is UTC.

    Raises:
        ValueError: It is no time.
    """
    try:
        time = datetime.fromisoformat(value)
        time = time if time.tzinfo else time.replace(tzinfo=UTC)
        return time.astimezone(UTC).isoformat(timespec="microseconds")
    except (ValueError, OverflowError) as exc:
        raise ValueError("must be a time in ISO 8601, such as 2026-01-31T12:00:00Z") from exc


SCORE: Final = "Nonconformity score."
CANDIDATES: Final = "Route among these candidates only."
GROUP: Final = "Group whose threshold and evaluator apply."
APPLICATION: Final = "Application of the request; else the header `x-racer-application`."
EXPECTED: Final = "Answer 409 unless this calibration is active."

Alpha = Annotated[
    float, Field(description="Risk level: how often the set may miss. A probability, not percent.")
]


class DecisionOptions(BaseModel):
    """How one request is decided: the fields of ``POST /route``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    alpha: Alpha | None = Field(
        default=None, description="Risk level in (0, 1), at most the key's `max_alpha`."
    )
    score: Score | None = Field(default=None, strict=False, description=SCORE)
    candidates: list[str] | None = Field(default=None, min_length=1, description=CANDIDATES)
    on_abstain: Literal["refuse", "strongest", "error"] | None = Field(
        default=None,
        description="If the router abstains: a refusal, the best candidate, or an error (422).",
    )
    group: str | None = Field(default=None, max_length=128, description=GROUP)
    application: str | None = Field(default=None, max_length=128, description=APPLICATION)
    promise: Literal["same_answer", "set"] | None = Field(
        default=None,
        description="`same_answer`: calls in rounds until the answer is likely the reference's; "
        "`set`: the router's set. Default: the application's.",
    )
    reference: str | None = Field(
        default=None,
        max_length=256,
        description="With `same_answer`: `vote`, that of the whole pool, a candidate, or "
        "`answerable` where that is the application's.",
    )
    max_rounds: int | None = Field(
        default=None, ge=1, le=3, description="With `same_answer`: most rounds of calls."
    )
    usage: Literal["sum", "winner"] = Field(
        default="sum", description="Token usage of the answer: of all calls, or of the winner's."
    )
    timeout: float | None = Field(
        default=None,
        gt=0,
        description="Seconds for the whole request, at most `limits.deadline_s`.",
    )
    explain: bool = Field(
        default=False, description="Wait for the answers of all candidates and return them."
    )


class RacerOptions(DecisionOptions):
    """The ``racer`` block of a request."""

    stream: Literal["vote", "leader"] = Field(
        default="vote",
        description="`leader` streams the best candidate at once and voids the certificate.",
    )


class Message(BaseModel):
    """One turn. Everything but ``role`` and ``content`` passes through untouched."""

    model_config = ConfigDict(extra="allow", strict=True)

    role: str
    content: str | list[dict[str, Any]] | None = None


class _RoutedBody(BaseModel):
    """The fields of every body that may be routed."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str = Field(min_length=1, description="`auto` routes, a candidate's name does not.")
    stream: bool | None = None
    racer: RacerOptions | None = None

    @model_validator(mode="after")
    def _options_are_in_the_racer_block(self) -> Self:
        """Refuse options beside the block: they would have no effect on the decision."""
        options = RacerOptions.model_fields.keys() - GATEWAY_FIELDS
        if self.model_extra and (misplaced := self.model_extra.keys() & options):
            raise ValueError(f"put {min(misplaced)!r} into the `racer` block")
        return self


class ChatRequest(_RoutedBody):
    """A chat completion request. Fields that the gateway does not read pass through."""

    messages: list[Message] = Field(min_length=1)
    stream_options: dict[str, Any] | None = None


class DeploymentChatRequest(ChatRequest):
    """A chat completion request whose path names the model, as Azure's clients send it."""

    model: str = Field(default="", description="Not read: the path has the model.")


class CompletionRequest(_RoutedBody):
    """A text completion request. A request with several prompts is not routed."""

    prompt: str | list[Any] = Field(description="Routing needs one text.")
    stream_options: dict[str, Any] | None = None


class InputItem(BaseModel):
    """One item of a conversation. Tool calls and their results pass through."""

    model_config = ConfigDict(extra="allow", strict=True)

    type: str = "message"
    role: str | None = None
    content: str | list[dict[str, Any]] | None = None


class ResponsesRequest(_RoutedBody):
    """A Responses request. Fields that need stored conversations are refused."""

    input: str | list[InputItem]
    instructions: str | None = None


class MessagesTurn(BaseModel):
    """One turn of the Messages API."""

    model_config = ConfigDict(extra="allow", strict=True)

    role: Literal["user", "assistant", "system"]
    content: str | list[dict[str, Any]]


class _MessagesPrompt(_RoutedBody):
    """The fields of the Messages API that make a prompt."""

    messages: list[MessagesTurn] = Field(min_length=1)
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None


class CountTokensRequest(_MessagesPrompt):
    """A Messages request whose tokens are counted."""


class MessagesRequest(_MessagesPrompt):
    """A Messages request. A table says what candidates are sent for each of its fields."""

    max_tokens: int | None = Field(
        default=None, description="Default: the candidate's own; Anthropic demands it."
    )
    stop_sequences: list[str] | None = None
    thinking: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None


class EmbeddingsRequest(BaseModel):
    """An embeddings request, passed to the candidate that serves embeddings."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str = Field(min_length=1)
    input: str | list[Any]


class RouteRequest(DecisionOptions):
    """A query or a chat body, and the options of the decision."""

    model_config = ConfigDict(extra="allow", strict=True)

    query: str | None = Field(default=None, description="The text to route on.")
    messages: list[Message] | None = Field(default=None, min_length=1)
    racer: RacerOptions | None = Field(default=None, description="As in a chat body.")
    execute: bool = Field(default=False, description="Also call the set and merge its answers.")

    @model_validator(mode="after")
    def _one_of_query_and_messages(self) -> Self:
        if (self.query is None) == (self.messages is None):
            raise ValueError("give either `query` or `messages`")
        if self.query is not None and self.model_extra:
            raise ValueError(_unknown_beside_query(min(self.model_extra)))
        if self.racer is not None and self.model_fields_set & set(DecisionOptions.model_fields):
            raise ValueError("put all options into `racer`, or none of them")
        return self


def _unknown_beside_query(name: str) -> str:
    hint = suggestion(name, RouteRequest.model_fields)
    return f"unknown field {name[:40]!r} beside `query`" + (f"; {hint}" if hint else "")


class LevelsRequest(BaseModel):
    """A query, and the candidates among which its set is chosen."""

    model_config = ConfigDict(extra="forbid", strict=True)

    query: str = Field(description="The text to route on.")
    alpha: Alpha | None = Field(
        default=None, description="Risk level of the certificate, and of calls in rounds."
    )
    score: Score | None = Field(default=None, strict=False, description=SCORE)
    candidates: list[str] | None = Field(default=None, min_length=1, description=CANDIDATES)
    group: str | None = Field(default=None, max_length=128, description=GROUP)
    application: str | None = Field(default=None, max_length=128, description=APPLICATION)


class CalibrateOptions(BaseModel):
    """Options of ``POST /calibrate``: body fields, form fields or query parameters."""

    model_config = ConfigDict(extra="forbid")

    alpha: float | None = Field(
        default=None,
        description="Risk level of the evidence, fixed before these rows. The configuration serves"
        " its own, which is the default.",
    )
    delta: float | None = Field(
        default=None,
        description="Keep alpha with probability 1 - delta over calibration sets, not on average.",
    )
    # Enumerations are texts on the wire, in strict reading too.
    score: Score | None = Field(
        default=None, strict=False, description="Nonconformity score; default: the configuration's."
    )
    risk_target: RiskTarget | None = Field(
        default=None, strict=False, description="What alpha bounds; default: the configuration's."
    )
    r: int = Field(default=1, ge=1, le=1000, description="Right candidates wanted in a set.")
    max_weight: float | None = Field(
        default=None,
        gt=0,
        description="Largest weight of any served query; rows with weights need it.",
    )
    answer_risk_max: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="Largest P(final answer wrong | answered), with probability 0.95; half of the"
        " rows choose how it is kept, the others test and calibrate.",
    )
    rows_kind: RowsKind | None = Field(
        default=None,
        strict=False,
        description="A random sample of traffic, or a list of questions; default: guessed.",
    )
    one_per_cluster: bool = Field(
        default=False,
        description="Use one random row per `cluster`: a bound for random clusters.",
    )
    application: str | None = Field(
        default=None,
        max_length=128,
        description="The application of all rows: they replace its rows in the active calibration,"
        " and those of all others stay.",
    )
    since: Annotated[str, AfterValidator(utc_time)] | None = Field(
        default=None,
        description="Sampled rows stand for the requests from then on: they are thinned to the"
        " lowest sampling rate since. Default: since the first stored request.",
    )
    activate: bool = Field(default=True, description="False only stores the calibration.")
    expected_active_id: str | None = Field(default=None, description=EXPECTED)
    dry_run: bool = Field(
        default=False, description="Return evidence and a curve over alpha; store no calibration."
    )
    allow_overlap: bool = Field(
        default=False, description="Accept training rows; voids every certificate."
    )


class CalibrateFields(CalibrateOptions):
    """`CalibrateOptions` in a JSON body, where values have types: "0.1" is no number."""

    model_config = ConfigDict(extra="forbid", strict=True)


class CalibrateQuery(BaseModel):
    """The query parameter of ``POST /calibrate`` that is read before the rows."""

    model_config = ConfigDict(extra="forbid")

    wait: bool | None = Field(
        default=None,
        description="True waits for the end, false answers 202 with a job; default: by size.",
    )


class ActivateRequest(BaseModel):
    """Body of ``POST /calibrations/{id}/activate``; may be absent."""

    model_config = ConfigDict(extra="forbid", strict=True)

    expected_active_id: str | None = Field(default=None, description=EXPECTED)
    share: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="Share of the requests that it decides beside the active calibration, as a"
        " canary; null: it decides all, and a canary ends.",
    )
