"""Repeated requests: which answers the cache holds, and how a request is answered from it.

The cache key covers everything that decides what candidates are sent and how their answers are
merged. A repeat is routed like any request. Its certificate is current, has the remark
`repeated_query`, and names the calibration under which the answer was made. The shadow sample is
drawn first, and a drawn request is answered anew.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Final, cast

from app.answering.answer_cache import AnswerCache, AnswerCaches, CachedAnswer, CacheSlot
from app.answering.outcome import EarlierAnswer, Outcome, summed
from app.answering.request import RequestState
from app.json_output import dump_json
from app.routing.reasons import Remark
from app.settings import Settings
from app.settings.answer_cache import Temperature
from app.wire.candidate_payload import candidate_payload
from app.wire.event_template import EventTemplate, Piece, TextEvent
from app.wire.format import AnswerKind
from racer_core.types import Aggregate

_TEMPERATURE: Final = "temperature"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerKey:
    """All that decides the answer to a request.

    Attributes:
        configuration: Digest of the configuration: candidates, their parameters, the vote.
        artifact: Digest of the router's artifact; None: the fallback decides.
        calibration: Id of the calibration that decides; None: none does.
        called: The candidates to call.
        caller: Name of the API key.
        application: Its application; None: none is configured.
        api_format: The endpoint with the number of choices, and whether a stream ends with usage.
        is_stream: The answer is a stream.
        pool: The named part of the pool; None: the model is `auto`.
        options: The ``racer`` field.
        fields: The fields that candidates are sent, in the order of the body.
    """

    configuration: str
    artifact: str | None
    calibration: str | None
    called: Sequence[str]
    caller: str
    application: str | None
    api_format: str
    is_stream: bool
    pool: str | None
    options: Mapping[str, Any]
    fields: Mapping[str, Any]

    def digest(self) -> bytes:
        """Digest of 32 bytes, a different one for every key."""
        parts = [getattr(self, name) for name in self.__slots__]
        return blake2b(dump_json(parts), digest_size=32).digest()


class Repeats:
    """Finds the cached answers of one configuration and artifact.

    Args:
        caches: The caches of the process.
        settings: The configuration.
        artifact: Digest of the router's artifact; None: the fallback decides.
    """

    def __init__(self, caches: AnswerCaches, settings: Settings, artifact: str | None) -> None:
        self._caches = caches
        self._artifact = artifact
        self._candidates = {candidate.name: candidate for candidate in settings.candidates}
        self._configuration = blake2b(settings.model_dump_json().encode()).hexdigest()

    def find(
        self, state: RequestState, *, is_stream: bool
    ) -> tuple[RequestState, CachedAnswer | None]:
        """The request, with a slot where its answer may be cached, and the answer if one is."""
        cache = self._caches.find(state.routed.application)
        if cache is None or not state.called:
            return state, None
        directives = _directives(state.request.cache_control)
        if "no-store" in directives or not self._may_repeat(state, cache):
            cache.count("bypass")
            return state, None
        slot = CacheSlot(cache, self._key(state, is_stream=is_stream).digest())
        found = None if "no-cache" in directives else cache.find(slot.key)
        cache.count("miss" if found is None else "hit")
        return replace(state, slot=slot), found

    def _may_repeat(self, state: RequestState, cache: AnswerCache) -> bool:
        """Whether another request's answer would do: not as a sample, nor for `explain`."""
        if state.shadow_rate is not None or state.request.options.explain:
            return False
        rule = cache.settings.temperature
        return rule == "any" or all(self._is_fixed(state, name, rule) for name in state.called)

    def _is_fixed(self, state: RequestState, name: str, rule: Temperature) -> bool:
        """Whether a candidate is sent a temperature at which its answers may be cached."""
        candidate, request = self._candidates[name], state.request
        sent = candidate_payload(request.fields, candidate, request.api_format.path)
        temperature = sent.get(candidate.renames.get(_TEMPERATURE, _TEMPERATURE))
        if temperature is None:
            return rule == "unset"
        return type(temperature) in (int, float) and temperature == 0

    def _key(self, state: RequestState, *, is_stream: bool) -> AnswerKey:
        request, routed = state.request, state.routed
        return AnswerKey(
            configuration=self._configuration,
            artifact=self._artifact,
            calibration=routed.calibration_id,
            called=state.called,
            caller=request.caller.name,
            application=routed.application,
            api_format=repr(request.api_format),
            is_stream=is_stream,
            pool=request.pool,
            options=request.options.model_dump(mode="json"),
            fields=request.fields,
        )


def keep(state: RequestState, outcome: Outcome, recording: StreamRecording | None = None) -> None:
    """Cache an answer that is whole, unless something failed on the way.

    Args:
        state: The request.
        outcome: Its outcome.
        recording: The answer where it passed through as a stream.
    """
    slot, merged = state.slot, outcome.merged
    if slot is None or merged is None or outcome.ratings.failures:
        return
    if outcome.certificate is not outcome.routed.certificate:  # its answers gave it a reason
        return
    reply = next(each for each in outcome.answers if each.candidate == merged.winner)
    content = dump_json(reply.body) if recording is None else recording.content
    if reply.kind is not AnswerKind.ANSWER or content is None:
        return
    api_format, body = state.request.api_format, reply.body
    if recording is not None:
        body = api_format.joined(json.loads(content))
    if all(choice.is_whole for choice in api_format.choices(body)):
        slot.keep(content, decision_id=state.decision_id, served_by=merged.winner)


def repeated(state: RequestState, cached: CachedAnswer) -> Outcome:
    """The outcome of a request that a cached answer answers: no call is made, nothing is paid."""
    assert state.slot is not None
    remarks = dict.fromkeys((*state.routed.remarks, Remark.REPEATED_QUERY))
    routed = state.routed.remarked(tuple(remarks), repeated=True)
    content = json.loads(cached.content)
    body: dict[str, Any] = {}
    if isinstance(content, dict):
        body = state.request.api_format.stamped(
            _unpaid(state, cast("dict[str, Any]", content)),
            decision_id=state.decision_id,
            model=cached.served_by,
            usage=_paid(state),
        )
    return Outcome(
        decision_id=state.decision_id,
        routed=routed,
        certificate=routed.certificate,
        body=body,
        merged=Aggregate(winner=cached.served_by, text="", votes={}),
        overhead_ms=(time.monotonic() - state.started) * 1e3,
        sampling_rate=state.sampling_rate,
        cost=None if state.meter is None else state.meter.cost(routed),
        repeats=EarlierAnswer(
            decision_id=cached.decision_id, age_s=state.slot.cache.clock() - cached.stored_at
        ),
    )


def repeated_events(state: RequestState, cached: CachedAnswer, outcome: Outcome) -> bytes:
    """All events of the same answer as a stream."""
    api_format = state.request.api_format
    content = json.loads(cached.content)
    if isinstance(content, dict):
        return b"".join(api_format.whole_stream(outcome.body, outcome.as_json()))
    writer = api_format.live(decision_id=state.decision_id, model=cached.served_by)
    events = [
        event
        for piece in cast("list[dict[str, Any]]", content)
        for event in writer.feed(_unpaid(state, piece))
    ]
    return b"".join([*events, *writer.close(outcome.as_json(), _paid(state))])


def _is_winners(state: RequestState) -> bool:
    """Whether the client wants the usage of the call whose answer it gets, made or not."""
    return state.request.options.usage == "winner"


def _paid(state: RequestState) -> Mapping[str, int] | None:
    """Tokens of the calls for a repeat: there are none. None: those of the answer are wanted."""
    return None if _is_winners(state) else summed([])


def _unpaid(state: RequestState, content: dict[str, Any]) -> dict[str, Any]:
    """A body or an event of the answer without its usage."""
    return content if _is_winners(state) else state.request.api_format.without_usage(content)


def _directives(cache_control: str | None) -> set[str]:
    """The directives of a request's ``cache-control``."""
    return {each.strip().lower() for each in (cache_control or "").split(",")}


class StreamRecording:
    """The events of a candidate's stream as JSON, to be sent again from the answer cache.

    Events that differ in their text alone become one with the whole text: a recording is about as
    long as the answer, and the events of a repeat are fewer and say the same.

    Args:
        max_bytes: A longer stream is not recorded.
    """

    def __init__(self, max_bytes: int) -> None:
        self._left = max_bytes
        self._events: list[bytes] = []
        self._template: EventTemplate | None = None  # of the texts that are not in an event yet
        self._texts: list[str] = []

    def add(self, piece: Piece) -> None:
        """Record an event."""
        if self._left < 0:
            return
        if isinstance(piece, TextEvent):
            if piece.template is not self._template:
                self._join()
                self._template = piece.template
            self._texts.append(piece.text)
            self._left -= len(piece.text)  # no text has fewer bytes
        else:
            self._join()
            self._write(piece)

    @property
    def content(self) -> bytes | None:
        """The array of all events; None of a stream that is too long."""
        self._join()
        return None if self._left < 0 else b"[%b]" % b",".join(self._events)

    def _join(self) -> None:
        if self._template is not None:
            self._left += sum(map(len, self._texts))
            self._write(self._template.with_text("".join(self._texts)))
            self._template, self._texts = None, []

    def _write(self, piece: dict[str, object]) -> None:
        event = dump_json(piece)
        self._left -= len(event) + 1
        if self._left < 0:
            self._events, self._texts = [], []
        else:
            self._events.append(event)
