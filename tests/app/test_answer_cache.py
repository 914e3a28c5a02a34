"""The answer cache: keys that nothing else shares, entries that end, memory that is bounded."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections import OrderedDict
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from app.answering.answer_cache import ENTRY_BYTES, AnswerCache, CacheSlot
from app.answering.repeats import AnswerKey, StreamRecording
from app.settings.answer_cache import AnswerCacheSettings
from app.telemetry.metrics import Metrics
from app.wire.chat import Chat
from app.wire.completions import Completions
from app.wire.event_template import Piece
from app.wire.format import ApiFormat
from tests.kit.event_templates import SHAPES, TEXTS, template_of
from tests.kit.gateway import ONE, user

TTL_S = 60.0
MAX_BYTES = 2**16
KEY = AnswerKey(
    configuration="c",
    artifact="a",
    calibration="cal-1",
    called=("adder", "poet"),
    caller="data",
    application=None,
    api_format=repr(Chat()),
    is_stream=False,
    pool=None,
    options={"alpha": None},
    fields={"messages": user(ONE), "temperature": 0},
)
# Values that JSON tells apart, and Python partly does not.
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=4),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
BODIES = st.dictionaries(st.text(max_size=3), VALUES, max_size=4)
NAMES = st.text(max_size=4)
OTHERS: dict[str, st.SearchStrategy[Any]] = {
    "configuration": NAMES,
    "artifact": st.none() | NAMES,
    "calibration": st.none() | NAMES,
    "called": st.lists(NAMES, max_size=3).map(tuple),
    "caller": NAMES,
    "application": st.none() | NAMES,
    "api_format": st.one_of(
        [st.builds(each, st.integers(1, 3), st.booleans()) for each in (Chat, Completions)]
    ).map(repr),
    "is_stream": st.booleans(),
    "pool": st.none() | NAMES,
    "options": BODIES,
    "fields": BODIES,
}


def written(key: AnswerKey) -> str:
    """The key as the standard library writes it: texts of two keys differ if the keys do."""
    return json.dumps([getattr(key, each.name) for each in fields(key)])


@settings(max_examples=30)
@given(st.builds(AnswerKey, **OTHERS), st.builds(AnswerKey, **OTHERS))
@example(KEY, replace(KEY, fields={"temperature": 0, "messages": user(ONE)}))
def test_two_keys_share_a_digest_only_if_they_are_equal(one: AnswerKey, other: AnswerKey) -> None:
    """In all parts at once; the order of a body counts, because chat templates print it."""
    assert (one.digest() == other.digest()) == (written(one) == written(other))


@pytest.mark.parametrize("name", [each.name for each in fields(AnswerKey)])
@settings(max_examples=40)
@given(data=st.data())
def test_every_part_of_the_key_counts(name: str, data: st.DataObject) -> None:
    """One part differs, and by no more than 1 from 1.0: red if any is left out of the digest."""
    other = replace(KEY, **{name: data.draw(OTHERS[name])})
    assume(written(other) != written(KEY))
    assert other.digest() != KEY.digest()


@pytest.mark.parametrize("depth", range(3))
def test_values_that_python_equates_are_told_apart(depth: int) -> None:
    """At any depth of a body."""
    pairs: list[tuple[Any, Any]] = [
        (1, 1.0), (1, True), (0, False), (0.0, -0.0), ("1", 1), (None, "null"), ([], {}),
        ("é", "e"),
    ]  # fmt: skip
    for one, other in pairs:
        for _ in range(depth):
            one, other = {"a": [one]}, {"a": [other]}
        digests = {replace(KEY, fields={"seed": each}).digest() for each in (one, other)}
        assert len(digests) == 2, (one, other)


# The entries ------------------------------------------------------------------------------------


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        """The time."""
        return self.now


def cache_of(clock: Clock, metrics: Metrics) -> AnswerCache:
    """A small cache."""
    bounds = AnswerCacheSettings(ttl_s=TTL_S, max_bytes=MAX_BYTES)
    return AnswerCache(bounds, metrics, "bot", clock)


def value(metrics: Metrics, name: str) -> float:
    """One series of the application."""
    found = metrics.registry.get_sample_value(name, {"application": "bot"})
    assert found is not None
    return found


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("keep"), st.integers(0, 8), st.integers(0, MAX_BYTES)),
        st.tuples(st.just("find"), st.integers(0, 8), st.just(0)),
        st.tuples(st.just("wait"), st.integers(1, 40), st.just(0)),
    ),
    max_size=40,
)


@given(STEPS)
def test_entries_are_those_of_a_plain_model(steps: list[tuple[str, int, int]]) -> None:
    """The last used ones that fit, each for its time; bytes and evictions are the model's."""
    clock, metrics = Clock(), Metrics()
    cache = cache_of(clock, metrics)
    model: OrderedDict[bytes, tuple[int, float]] = OrderedDict()  # size, and when it ends
    evicted = 0
    for step, number, length in steps:
        key = b"%d" % number
        for each in [name for name, (_, ends) in model.items() if clock.now >= ends]:
            del model[each]
        if step == "wait":
            clock.now += number
        elif step == "find":
            found = cache.find(key)
            assert (found and found.stored_at + TTL_S) == (model[key][1] if key in model else None)
            if key in model:
                model.move_to_end(key)
        else:
            CacheSlot(cache, key).keep(b"x" * length, decision_id="d", served_by="adder")
            size = length + ENTRY_BYTES
            model.pop(key, None)
            if size <= MAX_BYTES:
                while sum(each for each, _ in model.values()) + size > MAX_BYTES:
                    model.popitem(last=False)
                    evicted += 1
                model[key] = (size, clock.now + TTL_S)
        live = sum(size for size, ends in model.values() if clock.now < ends)
        assert cache.bytes == value(metrics, "racer_answer_cache_bytes") == live <= MAX_BYTES
    assert value(metrics, "racer_answer_cache_evictions_total") == evicted


@pytest.mark.parametrize("length", [0, 10_000])
def test_a_full_cache_takes_no_more_memory_than_it_counts(length: int) -> None:
    """Of small answers the overhead is what is measured: red with half of ``ENTRY_BYTES``."""
    count = 1_000
    bounds = AnswerCacheSettings(max_bytes=count * (length + ENTRY_BYTES))
    cache = AnswerCache(bounds, Metrics())
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(2 * count):
            CacheSlot(cache, number.to_bytes(32)).keep(
                b"%*d" % (length, number), decision_id=f"chatcmpl-{number:032x}", served_by="adder"
            )
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert cache.bytes >= bounds.max_bytes - ENTRY_BYTES - length - 10
    assert 0.4 * cache.bytes < taken <= cache.bytes


# Recorded streams -------------------------------------------------------------------------------


def recorded(api_format: ApiFormat, events: list[dict[str, Any]], max_bytes: int) -> bytes | None:
    """The recording of events that are read as a candidate's are: by a template after the first."""
    recording = StreamRecording(max_bytes)
    template = None
    for event in events:
        data = json.dumps(event)
        piece: Piece | None = template and template.event(data)
        if piece is None:
            piece = api_format.piece("adder", data)
            template = template_of(api_format, data)
        recording.add(piece)
    return recording.content


@pytest.mark.parametrize(("api_format", "chunk"), SHAPES, ids=["chat", "completions"])
@given(texts=st.lists(TEXTS, min_size=1, max_size=12), others=st.sets(st.integers(0, 11)))
def test_a_recording_says_what_the_stream_said(
    api_format: ApiFormat, chunk: Any, texts: list[str], others: set[int]
) -> None:
    """The same text in the same order around events of other kinds, in fewer events."""
    events = [
        chunk(text, **({"a_field": {"kept": place}} if place in others else {}))
        for place, text in enumerate(texts)
    ]
    content = recorded(api_format, events, MAX_BYTES)
    assert content is not None
    found = json.loads(content)
    checked = [api_format.piece("adder", json.dumps(each)) for each in found]
    said = ["".join(map(str, api_format.texts(each).values())) for each in checked]
    assert "".join(said) == "".join(texts)
    kept = [each["a_field"] for each in found if "a_field" in each]
    assert kept == [each["a_field"] for each in events if "a_field" in each]
    assert len(found) <= len(events)


def test_a_long_stream_of_one_kind_is_a_few_events() -> None:
    """Its recording is not much longer than its text: red if each event is kept."""
    api_format, chunk = SHAPES[0]
    content = recorded(api_format, [chunk("letters ") for _ in range(1_000)], MAX_BYTES)
    assert content is not None
    assert len(content) < 8_000 + 500


@pytest.mark.parametrize("is_alike", [True, False])
def test_a_stream_that_is_too_long_is_not_recorded(is_alike: bool) -> None:
    """Whether its events are alike or not; what was recorded of it is let go at once."""
    api_format, chunk = SHAPES[0]
    events = [chunk("x" * 100, **({} if is_alike else {"n": place})) for place in range(100)]
    size = len(recorded(api_format, events, MAX_BYTES) or b"")
    assert recorded(api_format, events, size) is not None
    assert recorded(api_format, events, size - 2) is None
