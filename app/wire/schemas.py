"""Wire models: what strangers may send. Pydantic checks them after the strict JSON reader."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.settings.validation import suggestion
from racer_core.types import RiskTarget, Score

Alpha = Annotated[
    float, Field(description="Risk level: how often the set may miss. A probability, not percent.")
]


class DecisionOptions(BaseModel):
    """How one request is decided: the fields of ``POST /route``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    alpha: Alpha | None = None
    score: Score | None = Field(default=None, strict=False)
    candidates: list[str] | None = Field(
        default=None, min_length=1, description="Route among these only."
    )
    on_abstain: Literal["refuse", "strongest", "error"] | None = None
    group: str | None = Field(
        default=None,
        max_length=128,
        description="Whose threshold applies, and whose evaluator weighs the answers.",
    )
    usage: Literal["sum", "winner"] = "sum"
    timeout: float | None = Field(
        default=None, gt=0, description="Seconds for the whole request; the gateway's at most."
    )
    explain: bool = Field(
        default=False,
        description="Wait for every answer, and tell them all: no call is spared.",
    )


class RacerOptions(DecisionOptions):
    """The ``racer`` block of a request."""

    stream: Literal["vote", "leader"] = Field(
        default="vote",
        description="`leader` streams the best candidate at once; nothing is certified then.",
    )


class Message(BaseModel):
    """One turn. Everything but ``role`` and ``content`` passes through untouched."""

    model_config = ConfigDict(extra="allow", strict=True)

    role: str
    content: str | list[dict[str, Any]] | None = None


class _Routed(BaseModel):
    """What every routed body has in common."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str = Field(min_length=1, description="`auto` routes; a candidate's name bypasses it.")
    stream: bool | None = None
    racer: RacerOptions | None = None

    @model_validator(mode="after")
    def _options_have_their_place(self) -> Self:
        """Beside the block they would be ignored, and the client believe in another risk."""
        lost = set(self.model_extra or {}) & set(RacerOptions.model_fields)
        if lost:
            raise ValueError(f"put {min(lost)!r} into the `racer` block")
        return self


class ChatRequest(_Routed):
    """The OpenAI chat shape: only what is read here is named, the rest passes through."""

    messages: list[Message] = Field(min_length=1)
    stream_options: dict[str, Any] | None = None


class CompletionRequest(_Routed):
    """A prompt to continue; several at once have no set in common."""

    prompt: str | list[Any] = Field(description="Routing needs one text.")
    stream_options: dict[str, Any] | None = None


class InputItem(BaseModel):
    """One item of a conversation; calls and their results pass through."""

    model_config = ConfigDict(extra="allow", strict=True)

    type: str = "message"
    role: str | None = None
    content: str | list[dict[str, Any]] | None = None


class ResponsesRequest(_Routed):
    """The Responses shape; what a server would have to remember is refused."""

    input: str | list[InputItem]
    instructions: str | None = None


class EmbeddingsRequest(BaseModel):
    """Passed to the candidate that serves embeddings."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str = Field(min_length=1)
    input: str | list[Any]


class RouteRequest(DecisionOptions):
    """A query, or a full chat body, and what the certificate should say."""

    model_config = ConfigDict(extra="allow", strict=True)

    query: str | None = Field(default=None, description="The text to route on.")
    messages: list[Message] | None = Field(default=None, min_length=1)
    racer: RacerOptions | None = Field(default=None, description="As in a chat body.")
    execute: bool = Field(default=False, description="Call the set too, and merge its answers.")

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
    """A question, and among whom it is decided."""

    model_config = ConfigDict(extra="forbid", strict=True)

    query: str = Field(description="The text to route on.")
    score: Score | None = Field(default=None, strict=False)
    candidates: list[str] | None = Field(default=None, min_length=1)
    group: str | None = Field(default=None, max_length=128)


class CalibrateOptions(BaseModel):
    """Options of ``POST /calibrate``: body fields, form fields or query parameters."""

    model_config = ConfigDict(extra="forbid")

    alpha: float | None = None
    delta: float | None = None
    # Enumerations are texts on the wire, in strict reading too.
    score: Score | None = Field(default=None, strict=False)
    risk_target: RiskTarget | None = Field(default=None, strict=False)
    r: int = Field(default=1, ge=1, le=1000)
    smoothing: Literal["none", "hash"] = "none"
    activate: bool = True
    expected_active_id: str | None = None
    dry_run: bool = False
    allow_overlap: bool = False
    max_shift: float | None = Field(
        default=None,
        gt=0,
        description="Change nothing if mean set size or lambda_hat move by more than this share.",
    )


class CalibrateFields(CalibrateOptions):
    """The same in a JSON body, where values have types: "0.1" is no number there."""

    model_config = ConfigDict(extra="forbid", strict=True)


class CalibrateQuery(BaseModel):
    """What only the query of ``POST /calibrate`` may say: it is needed before the rows are."""

    model_config = ConfigDict(extra="forbid")

    wait: bool | None = Field(
        default=None,
        description="Answer when it is done (true) or with a job (false); by size otherwise.",
    )


class ActivateRequest(BaseModel):
    """Body of ``POST /calibrations/{id}/activate``; may be absent."""

    model_config = ConfigDict(extra="forbid", strict=True)

    expected_active_id: str | None = None
