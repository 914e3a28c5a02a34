"""Client libraries that people point at a gateway, each called in its own way."""

from __future__ import annotations

import importlib
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from pydantic import SecretStr

from app.routing.reasons import breaks
from tests.kit.gateway import user
from tests.kit.lazy import LazyModule

anthropic, openai = LazyModule("anthropic"), LazyModule("openai")
langchain_anthropic = LazyModule("langchain_anthropic")
langchain_openai = LazyModule("langchain_openai")

MAX_TOKENS: Final = 16  # which Anthropic's API requires; as the demo's rows were labelled
TIMEOUT_S: Final = 60


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One question to a gateway.

    Attributes:
        url: The gateway's address, and whatever a user may have put behind it.
        retries: How often the library may ask again.
        fields: Of the body, beside the library's own.
    """

    url: str
    key: str
    text: str
    model: str = "auto"
    racer: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    retries: int = 0
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def more(self) -> dict[str, Any]:
        """Keyword arguments that every library hands on."""
        return {"extra_headers": self.headers, "extra_body": {"racer": self.racer, **self.fields}}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the library returned.

    Attributes:
        model: The candidate that served.
        reasons: Those that void the certificate, none where it holds; None where the library drops
            it.
    """

    text: str
    model: str
    reasons: list[str] | None


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What the library's exception tells."""

    kind: str  # its class, or the one above it that is not the library's secret
    status: int
    code: str | None  # None where the library drops it
    headers: Mapping[str, str]


class SdkClient(ABC):
    """A library; ``classes`` has the names of its exceptions by status, and by some codes."""

    classes: Mapping[int, str]
    classes_by_code: Mapping[str, str] = {}
    package: str  # where its exceptions are defined
    keeps_code = True

    @abstractmethod
    def ask(self, ask: Ask) -> Answer:
        """A whole answer."""

    @abstractmethod
    def stream(self, ask: Ask) -> Answer:
        """A streamed answer, put together."""

    def failure(self, exc: Any) -> Failure:
        """What an exception of the library says."""
        kinds = [kind for kind in type(exc).__mro__ if kind.__module__.startswith(self.package)]
        return Failure(
            kind=kinds[0].__name__,
            status=exc.status_code,
            code=self.code(exc),
            headers=exc.response.headers,
        )

    def code(self, exc: Any) -> str | None:
        """The gateway's code, where the library keeps it."""
        return exc.code


class OpenAI(SdkClient):
    """``openai``, chat completions."""

    package = "openai"
    classes: Mapping[int, str] = {
        400: "BadRequestError", 401: "AuthenticationError", 403: "PermissionDeniedError",
        404: "NotFoundError", 409: "ConflictError", 422: "UnprocessableEntityError",
        429: "RateLimitError", **dict.fromkeys((405, 413, 414, 415, 431), "APIStatusError"),
        **dict.fromkeys((500, 502, 503, 504), "InternalServerError"),
    }  # fmt: skip

    def ask(self, ask: Ask) -> Answer:
        """A whole answer."""
        completion = self.create(ask)
        return _answer(completion.choices[0].message.content, completion.racer, completion.model)

    def stream(self, ask: Ask) -> Answer:
        """A streamed answer, put together."""
        *chunks, last = self.create(ask, stream=True)
        text = "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)
        return _answer(text, last.racer, last.model)

    def create(self, ask: Ask, **more: Any) -> Any:
        """A request as the library's users write it."""
        client = _openai(ask.url, ask.key, ask.retries)
        return client.chat.completions.create(
            model=ask.model, messages=user(ask.text), **ask.more, **more
        )


class Responses(OpenAI):
    """``openai``, responses."""

    def ask(self, ask: Ask) -> Answer:
        """A whole answer."""
        response = self.create(ask)
        return _answer(response.output_text, response.racer, response.model)

    def stream(self, ask: Ask) -> Answer:
        """A streamed answer, put together."""
        *events, last = self.create(ask, stream=True)
        deltas = [each.delta for each in events if each.type == "response.output_text.delta"]
        return _answer("".join(deltas), last.response.racer, last.response.model)

    def create(self, ask: Ask, **more: Any) -> Any:
        """A request as the library's users write it."""
        client = _openai(ask.url, ask.key, ask.retries)
        return client.responses.create(model=ask.model, input=ask.text, **ask.more, **more)


class Anthropic(SdkClient):
    """``anthropic``, messages."""

    package = "anthropic"
    classes: Mapping[int, str] = {
        **OpenAI.classes,
        413: "ContentTooLargeError", 431: "RequestHeaderFieldsTooLargeError",
        503: "ServiceUnavailableError", 504: "GatewayTimeoutError",
    }  # fmt: skip

    def ask(self, ask: Ask) -> Answer:
        """A whole answer."""
        message = self.create(ask)
        return _answer(message.content[0].text, message.racer, message.model)

    def stream(self, ask: Ask) -> Answer:
        """A streamed answer, put together."""
        start, *events, last, _ = self.create(ask, stream=True)
        deltas = [each.delta.text for each in events if each.type == "content_block_delta"]
        return _answer("".join(deltas), last.racer, start.message.model)

    def create(self, ask: Ask, **more: Any) -> Any:
        """A request as the library's users write it."""
        return _anthropic(ask.url, ask.key, ask.retries).messages.create(
            model=ask.model, max_tokens=MAX_TOKENS, messages=user(ask.text), **ask.more, **more
        )

    def code(self, exc: Any) -> str | None:
        """The gateway's code."""
        # Paths that are not below /v1/messages have the other envelope.
        return exc.error_code or exc.body["error"]["code"]


class LangChain(OpenAI):
    """``langchain-openai``."""

    def ask(self, ask: Ask) -> Answer:
        """A whole answer."""
        return self.answer([self.model(ask).invoke(ask.text, **ask.more)])

    def stream(self, ask: Ask) -> Answer:
        """A streamed answer, put together."""
        return self.answer(list(self.model(ask).stream(ask.text, **ask.more)))

    def answer(self, messages: list[Any]) -> Answer:
        """Of the parts of a message; the library keeps headers, and drops ``racer`` of a stream."""
        known = _metadata(messages)
        guarantee = known["headers"]["x-racer-guarantee"]
        reasons = {"pending": None, "holds": []}
        found = reasons.get(guarantee, guarantee.removeprefix("void; reason=").split(","))
        return Answer(text=_text(messages), model=known["model_name"], reasons=found)

    def model(self, ask: Ask) -> Any:
        """LangChain's model."""
        return _langchain_openai(ask.url, ask.key, ask.retries, ask.model)


class LangChainAnthropic(Anthropic):
    """``langchain-anthropic``, which has one class for failures of servers."""

    classes: Mapping[int, str] = {
        **Anthropic.classes,
        **dict.fromkeys((503, 504), "InternalServerError"),
    }

    def ask(self, ask: Ask) -> Answer:
        """A whole answer."""
        message = self.model(ask).invoke(ask.text, **ask.more)
        known = message.response_metadata
        return _answer(message.text, known["racer"], known["model_name"])

    def stream(self, ask: Ask) -> Answer:
        """A streamed answer, put together; the library drops ``racer``."""
        messages = list(self.model(ask).stream(ask.text, **ask.more))
        model = _metadata(messages)["model_name"]
        return Answer(text=_text(messages), model=model, reasons=None)

    def model(self, ask: Ask) -> Any:
        """LangChain's model."""
        return _langchain_anthropic(ask.url, ask.key, ask.retries, ask.model)


class LiteLLM(SdkClient):
    """``litellm``, which names classes after statuses and drops codes; headers are kept."""

    package = "litellm"
    keeps_code = False
    classes: Mapping[int, str] = {
        400: "BadRequestError", 401: "AuthenticationError", 404: "NotFoundError",
        422: "BadRequestError", 429: "RateLimitError", 500: "InternalServerError",
        502: "BadGatewayError", 503: "ServiceUnavailableError", 504: "Timeout",
        **dict.fromkeys((403, 405, 409, 413, 414, 415, 431), "APIError"),
    }  # fmt: skip
    classes_by_code: Mapping[str, str] = {
        "context_length_exceeded": "ContextWindowExceededError"
    }  # it falls back

    def ask(self, ask: Ask) -> Answer:
        """A whole answer."""
        answer = self.create(ask)
        return _answer(answer.choices[0].message.content, answer.racer, answer.model)

    def stream(self, ask: Ask) -> Answer:
        """A streamed answer, put together; the library names the model that was asked for."""
        *chunks, last = self.create(ask, stream=True)
        text = "".join(each.choices[0].delta.content or "" for each in chunks)
        return _answer(text, last.racer, last.racer["served_by"])

    def create(self, ask: Ask, **more: Any) -> Any:
        """A request as the library's users write it."""
        return _litellm().completion(
            model=f"openai/{ask.model}",
            messages=user(ask.text),
            api_base=f"{ask.url}/v1",
            api_key=ask.key,
            max_retries=ask.retries,
            timeout=TIMEOUT_S,
            **ask.more,
            **more,
        )

    def failure(self, exc: Any) -> Failure:
        """What an exception of the library says."""
        return Failure(
            kind=type(exc).__name__,
            status=exc.status_code,
            code=None,
            headers=exc.litellm_response_headers or {},
        )


CLIENTS: Final[Mapping[str, SdkClient]] = {
    "openai": OpenAI(),
    "openai-responses": Responses(),
    "anthropic": Anthropic(),
    "langchain-openai": LangChain(),
    "langchain-anthropic": LangChainAnthropic(),
    "litellm": LiteLLM(),
}


# Answers ----------------------------------------------------------------------------------------


def _answer(text: str, racer: Mapping[str, Any], model: str) -> Answer:
    """Of a library that keeps the object ``racer``."""
    certificate = racer["certificate"]
    reasons = [each for each in certificate["reasons"] if breaks(each)]
    assert certificate["holds"] == (not reasons)
    return Answer(text=text, model=model, reasons=reasons)


def _text(messages: list[Any]) -> str:
    return "".join(each.text for each in messages)


def _metadata(messages: list[Any]) -> dict[str, Any]:
    """Of all parts of LangChain's message."""
    return {name: value for each in messages for name, value in each.response_metadata.items()}


# Made once for an address and a key: they are slow to make ----------------------------------------


@cache
def _openai(url: str, key: str, retries: int) -> Any:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=retries, timeout=TIMEOUT_S)


@cache
def _anthropic(url: str, key: str, retries: int) -> Any:
    return anthropic.Anthropic(base_url=url, api_key=key, max_retries=retries, timeout=TIMEOUT_S)


@cache
def _langchain_openai(url: str, key: str, retries: int, model: str) -> Any:
    return langchain_openai.ChatOpenAI(
        base_url=f"{url}/v1",
        api_key=SecretStr(key),
        model=model,
        max_retries=retries,
        timeout=TIMEOUT_S,
        include_response_headers=True,
    )


@cache
def _langchain_anthropic(url: str, key: str, retries: int, model: str) -> Any:
    return langchain_anthropic.ChatAnthropic(
        base_url=url,
        api_key=SecretStr(key),
        model=model,
        max_tokens=MAX_TOKENS,
        max_retries=retries,
        timeout=TIMEOUT_S,
    )


@cache
def _litellm() -> Any:
    """LiteLLM, which would fetch a list of prices when it is imported."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own use of pydantic
        return importlib.import_module("litellm")
