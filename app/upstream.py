"""Calls to candidates and evaluators; turns everything that can go wrong into UpstreamError.

aiohttp and not httpx: a call costs 57 us of CPU instead of 1,420, and httpx 0.28 wedges its pool
for good after cancelled fan-outs. Answers are asked for uncompressed and refused otherwise: half a
megabyte on the wire can be a gigabyte in memory. Redirects are not followed, and the environment's
proxies are not used: candidates are exactly where the configuration says.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, cast

import aiohttp

from app.errors import UpstreamError, UpstreamTimeout, UpstreamUnavailable
from app.offload import off_loop
from app.settings import Candidate, Limits, Secrets
from app.sse import EventReader
from app.telemetry import Telemetry
from racer_core import strict_json
from racer_core.errors import InputError

CONNECT_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a model is asked."""

    name: str  # in errors and metrics
    base_url: str
    timeout_s: float  # for a whole answer
    key_of: str  # under this name its key stands among the secrets, if it has one


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A candidate's whole answer, as it sent it."""

    candidate: str
    body: dict[str, Any]
    seconds: float

    @property
    def text(self) -> str | None:
        """The first choice's text; None when it holds none (a tool call, say)."""
        content = self.body["choices"][0]["message"].get("content")
        return content if isinstance(content, str) else None

    @property
    def usage(self) -> dict[str, int]:
        """Tokens as the candidate counted them; empty when it did not."""
        return _usage(self.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """How a model continued a prompt."""

    text: str
    # Log-probabilities of the first token's likeliest readings; None when the server sent none.
    top: Mapping[str, float] | None
    usage: dict[str, int]  # tokens as the server counted them


class Upstream:
    """One pooled session for all candidates."""

    def __init__(
        self,
        candidates: tuple[Candidate, ...],
        secrets: Secrets,
        limits: Limits,
        telemetry: Telemetry,
    ) -> None:
        self._endpoints = {
            each.name: Endpoint(
                name=each.name,
                base_url=each.replicas[0],
                timeout_s=each.timeout_s,
                key_of=each.name,
            )
            for each in candidates
        }
        self._secrets = secrets
        self._limits = limits
        self._telemetry = telemetry

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._limits.connections),
            auto_decompress=False,
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def ask(self, name: str, payload: Mapping[str, Any]) -> Reply:
        """Ask one candidate for a whole answer, within its own deadline.

        Raises:
            UpstreamError: No usable answer; its ``kind`` says why.
        """
        started = time.monotonic()
        async with self._chat(name, payload) as response:
            body = await off_loop(partial(_chat_body, name), await self._read(name, response))
        return Reply(candidate=name, body=body, seconds=time.monotonic() - started)

    async def complete(self, endpoint: Endpoint, payload: Mapping[str, Any]) -> Completion:
        """Have a prompt continued, within the endpoint's deadline.

        Raises:
            UpstreamError: As :meth:`ask`.
        """
        async with (
            self._counted(endpoint),
            self._post(endpoint, "completions", payload) as response,
        ):
            data = await self._read(endpoint.name, response)
            return await off_loop(partial(_completion, endpoint.name), data)

    @asynccontextmanager
    async def stream(
        self, name: str, payload: Mapping[str, Any]
    ) -> AsyncGenerator[AsyncGenerator[dict[str, Any]]]:
        """Ask one candidate for chunks. The context opens once the candidate has accepted.

        Iterating raises UpstreamError when the stream ends before the answer: a cut is not an end.
        """
        async with self._chat(name, payload) as response:
            kind = response.headers.get("content-type", "")
            if not kind.startswith("text/event-stream"):
                raise UpstreamError(f"{name} did not stream", kind="upstream_invalid_response")
            yield self._chunks(name, response)

    @asynccontextmanager
    async def _chat(
        self, name: str, payload: Mapping[str, Any]
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        endpoint = self._endpoints[name]
        async with (
            self._counted(endpoint),
            self._post(endpoint, "chat/completions", payload) as response,
        ):
            yield response

    @asynccontextmanager
    async def _counted(self, endpoint: Endpoint) -> AsyncGenerator[None]:
        """Enforce the deadline, count the call, and translate what the client library raises."""
        outcome = "cancelled"
        name = endpoint.name
        try:
            with self._telemetry.call_seconds.labels(name).time():
                async with asyncio.timeout(endpoint.timeout_s):
                    yield
            outcome = "ok"
        except UpstreamError as exc:
            outcome = exc.kind
            raise
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as exc:
            outcome = UpstreamUnavailable.default_kind
            raise UpstreamUnavailable(f"{name} cannot be reached") from exc
        except TimeoutError as exc:
            outcome = UpstreamTimeout.default_kind
            raise UpstreamTimeout(f"{name} did not answer in {endpoint.timeout_s:g} s") from exc
        except (aiohttp.ClientError, OSError) as exc:
            outcome = "upstream_disconnected"
            raise UpstreamError(f"{name} broke off", kind=outcome) from exc
        finally:
            self._telemetry.calls.labels(name, outcome).inc()

    @asynccontextmanager
    async def _post(
        self, endpoint: Endpoint, path: str, payload: Mapping[str, Any]
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        if (key := self._secrets.candidate_keys.get(endpoint.key_of)) is not None:
            headers["authorization"] = f"Bearer {key.get_secret_value()}"
        data = await asyncio.to_thread(_encoded, payload)  # megabytes would hold everybody up
        async with self._session.post(
            f"{endpoint.base_url}/{path}",
            data=data,
            headers=headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        ) as response:
            _check_head(endpoint.name, response)
            yield response

    async def _read(self, name: str, response: aiohttp.ClientResponse) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for part in response.content.iter_any():
            size += len(part)
            if size > self._limits.answer_bytes:
                raise UpstreamError(
                    f"{name} sent too large an answer", kind="upstream_response_too_large"
                )
            parts.append(part)
        return b"".join(parts)

    async def _chunks(
        self, name: str, response: aiohttp.ClientResponse
    ) -> AsyncGenerator[dict[str, Any]]:
        reader = EventReader()
        size, finished = 0, False
        async for part in response.content.iter_any():
            size += len(part)
            if size > self._limits.answer_bytes:
                raise UpstreamError(
                    f"{name} sent too large an answer", kind="upstream_response_too_large"
                )
            try:
                for data in reader.feed(part):
                    if data.strip() == "[DONE]":
                        return
                    chunk = _chunk(name, data)
                    finished = finished or finishes(chunk)
                    yield chunk
            except InputError as exc:
                raise UpstreamError(
                    f"{name} sent a broken stream", kind="upstream_invalid_response"
                ) from exc
        # Some servers send no [DONE]; an answer that finished is whole all the same.
        if not finished:
            raise UpstreamError(f"{name} cut its stream", kind="upstream_disconnected")


def _check_head(name: str, response: aiohttp.ClientResponse) -> None:
    """Refuse errors, redirects and encodings; upstream text is never repeated to clients."""
    status = response.status
    if status == 429:
        raise UpstreamError(f"{name} is rate limited", kind="upstream_rate_limited")
    if 300 <= status < 400:
        raise UpstreamError(f"{name} answered with a redirect", kind="upstream_redirect")
    if status in (401, 403):
        raise UpstreamError(f"{name} refused the gateway's key", kind="upstream_auth_error")
    if 400 <= status < 500:
        raise UpstreamError(f"{name} rejected the request ({status})", kind="upstream_rejected")
    if status != 200:
        raise UpstreamError(f"{name} failed with status {status}", kind="upstream_error")
    if response.headers.get("content-encoding", "identity") != "identity":
        raise UpstreamError(f"{name} compressed its answer", kind="upstream_encoding")


def _encoded(payload: Mapping[str, Any]) -> bytes:
    return json.dumps(payload, ensure_ascii=False, allow_nan=False).encode()


def _chat_body(name: str, data: bytes) -> dict[str, Any]:
    """Parse a chat completion, and refuse what is not shaped like one."""
    body = _object(name, data)
    messages = [_checked_object(name, each.get("message")) for each in _choices(name, body)]
    if not messages:
        raise UpstreamError(f"{name} sent no choice", kind="upstream_empty")
    for message in messages:
        content = message.get("content")
        calls: object = message.get("tool_calls") or []
        if not isinstance(content, str | list | None) or not isinstance(calls, list):
            raise _invalid(name)
        for call in cast("list[object]", calls):
            _checked_object(name, call)
        # "" is an answer, though no vote: rows label it as one. No text at all is none.
        if content is None and not calls and not message.get("refusal"):
            raise UpstreamError(f"{name} answered without a text", kind="upstream_empty")
    return body


def _completion(name: str, data: bytes) -> Completion:
    """Parse a text completion's first choice."""
    body = _object(name, data)
    choices = _choices(name, body)
    if not choices:
        raise UpstreamError(f"{name} sent no choice", kind="upstream_empty")
    text = choices[0].get("text")
    if not isinstance(text, str):
        raise _invalid(name)
    return Completion(text=text, top=_top_logprobs(name, choices[0]), usage=_usage(body))


def _top_logprobs(name: str, choice: Mapping[str, Any]) -> dict[str, float] | None:
    """``{"top_logprobs": [{token: logprob, ...}, ...]}``, of which only the first token's."""
    logprobs = choice.get("logprobs")
    top = _checked_object(name, logprobs).get("top_logprobs") if logprobs is not None else None
    if not isinstance(top, list) or not top:
        return None
    values = _checked_object(name, cast("list[object]", top)[0])
    if not all(isinstance(each, int | float) and -1e5 < each < 0.01 for each in values.values()):
        raise _invalid(name)  # 0 may be rounded up a little; -9999 is vLLM's minus infinity
    return values


def _usage(body: Mapping[str, Any]) -> dict[str, int]:
    """Token counts that are counts."""
    usage = body.get("usage")
    counts = cast("dict[str, Any]", usage) if isinstance(usage, dict) else {}
    return {
        name: value
        for name, value in counts.items()
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0
    }


def _object(name: str, data: bytes) -> dict[str, Any]:
    try:
        return strict_json.load_object(data)
    except InputError as exc:
        raise _invalid(name) from exc


def _chunk(name: str, data: str) -> dict[str, Any]:
    chunk = strict_json.load_object(data)
    if "error" in chunk:
        raise UpstreamError(f"{name} failed in mid-stream")
    for choice in _choices(name, chunk):
        _checked_object(name, choice.get("delta", {}))
    return chunk


def finishes(chunk: Mapping[str, Any]) -> bool:
    """Whether some choice of a chunk says why it ended."""
    return any(choice.get("finish_reason") for choice in chunk["choices"])


def _choices(name: str, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    choices = body.get("choices")
    if not isinstance(choices, list):
        raise _invalid(name)
    return [_checked_object(name, choice) for choice in cast("list[object]", choices)]


def _checked_object(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _invalid(name)
    return cast("dict[str, Any]", value)


def _invalid(name: str) -> UpstreamError:
    return UpstreamError(
        f"{name}'s answer is not an OpenAI completion", kind="upstream_invalid_response"
    )
