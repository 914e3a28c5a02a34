"""Judge of the fault matrix: compares observed cells with the catalogue."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

from pydantic import ValidationError

from tests.kit.gateway import POOL
from tests.kit.hostile.exchange import WORDS
from tests.kit.lazy import LazyModule

from .catalogue import FailedAnswer, Outcome, UsableAnswer
from .cells import FAULTY, Cell, Seen, Width

chat = LazyModule("openai.types.chat")

CANDIDATE_KEY: Final = "candidate-key-that-must-stay-secret"
ANSWER_BYTES: Final = 2**20  # the gateway's limit in these tests
_SOCKET_BYTES: Final = 16 * 2**20  # what two kernels may hold of a body that was not read
_SECRETS: Final = (WORDS, CANDIDATE_KEY, "Traceback", "<html", "127.0.0.1", ".invalid")
# Said of the small alpha that selects three; the guarantee holds all the same.
_REMARKS: Final = ("alpha_assumed_independent_of_query", "alpha_infeasible_whole_pool")
_HEALTHY: Final = {"speller": "43", "poet": "44"}

Json = dict[str, Any]


def complaints(cell: Cell, seen: Seen) -> list[str]:
    """What is wrong with a cell; empty when nothing is."""
    if seen.broken is not None:
        return [f"the client's connection broke: {seen.broken}"]
    problems = [*_manners(cell, seen)]
    body, chunks, malformed = _read(cell, seen)
    if malformed:
        return [*problems, malformed]
    verdicts = [
        [*_compare(cell, seen, each, body, chunks)] for each in _likely(_outcomes(cell, seen), body)
    ]
    return [*problems, *min(verdicts, key=len)]


def streamed_text(chunks: Sequence[Json]) -> str:
    """The text of a stream."""
    deltas = [each["delta"] for chunk in chunks for each in chunk["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


def _outcomes(cell: Cell, seen: Seen) -> tuple[Outcome, ...]:
    """What may come: it counts whether the *upstream* was asked for a stream."""
    streamed = [each.stream for each in seen.log.entries if each.model == FAULTY]
    return cell.row.stream if any(streamed) else cell.row.plain


def _likely(outcomes: Sequence[Outcome], body: Json) -> Sequence[Outcome]:
    """Those that fit what the faulty candidate's call came to; all when none does."""
    calls: list[Json] = body.get("racer", {}).get("calls", [])
    failed = "error" in body or FAULTY in _failed(calls)
    return [each for each in outcomes if isinstance(each, FailedAnswer) is failed] or outcomes


def _failed(calls: Sequence[Json]) -> list[str]:
    return [each["candidate"] for each in calls if "error" in each]


def _manners(cell: Cell, seen: Seen) -> Iterator[str]:
    """What holds in every cell: time, secrets, connections, number of calls."""
    if seen.is_late(cell):
        yield f"took {seen.seconds:.2f} s, over {cell.limit_s:g} s"
    visible = seen.body + repr(dict(seen.headers)).encode()
    for secret in _SECRETS:
        if secret.encode() in visible and not (cell.row.speaks and secret == WORDS):
            yield f"the client could read {secret!r}"
    if seen.log.busy:
        yield f"connections were left open and busy: {', '.join(seen.log.busy)}"
    if seen.log.trapped:
        yield f"{seen.log.trapped} redirects were followed"
    for name in POOL:
        calls = sum(each.model == name for each in seen.log.entries)
        if calls > (cell.row.calls if name in cell.width.faulty else 1):
            yield f"{name} was called {calls} times"
    if any(each.sent > ANSWER_BYTES + _SOCKET_BYTES for each in seen.log.entries):
        yield f"{max(each.sent for each in seen.log.entries):,} bytes were taken from the upstream"


def _read(cell: Cell, seen: Seen) -> tuple[Json, list[Json], str | None]:
    """The final object, the chunks of a stream, and what is malformed.

    The object is an error envelope, a completion, or a stream's last chunk.
    """
    kind = seen.headers.get("content-type", "")
    if seen.status == 200 and cell.streaming:
        if not kind.startswith("text/event-stream"):
            return {}, [], f"a stream of type {kind!r}"
        return _read_stream(seen.body)
    if not kind.startswith("application/json"):
        return {}, [], f"{seen.status} with type {kind!r}"
    try:
        body = cast("Json", json.loads(seen.body))
        if seen.status == 200:
            chat.ChatCompletion.model_validate(body)
    except ValueError as exc:
        return {}, [], f"{seen.status} and no completion: {_brief(exc)}"
    return body, [], None if seen.status == 200 else _envelope_fault(body)


def _read_stream(data: bytes) -> tuple[Json, list[Json], str | None]:
    """A stream is whole or says so: ``[DONE]`` or one error event, at the end and nowhere else."""
    if not data.endswith(b"\n\n"):
        return {}, [], "a stream that ends inside an event"
    blocks = [each for each in data.decode().split("\n\n")[:-1] if not each.startswith(":")]
    if odd := [each for each in blocks if not each.startswith("data: ") or "\n" in each]:
        return {}, [], f"a stream with an odd line: {_brief(odd[0])}"
    events = [each.removeprefix("data: ") for each in blocks]
    if not events:
        return {}, [], "a stream without events"
    *before, last = events
    if "[DONE]" in before:
        return {}, [], "a stream that goes on after [DONE]"
    try:
        values: list[Json] = [json.loads(each) for each in before]
        end: Json = {} if last == "[DONE]" else json.loads(last)
        for value in values:
            if "error" in value:
                return {}, [], f"a stream that goes on after an error: {_brief(last)}"
            chat.ChatCompletionChunk.model_validate(value)
    except ValueError as exc:
        return {}, [], f"a stream with an odd event: {_brief(exc)}"
    if end:
        return end, values, _envelope_fault(end)
    if not values:
        return {}, [], "a stream of [DONE] alone"
    return values[-1], values, None


def _envelope_fault(body: Json) -> str | None:
    if set(body) != {"error"} or set(body["error"]) != {"message", "type", "param", "code"}:
        return f"no error envelope: {_brief(body)}"
    return None


def _compare(
    cell: Cell, seen: Seen, outcome: Outcome, body: Json, chunks: Sequence[Json]
) -> Iterator[str]:
    """Where what was read differs from one possible outcome."""
    alone = cell.width in (Width.ONE, Width.ALL)
    if isinstance(outcome, FailedAnswer) and alone:
        yield from _compare_error(cell, seen, outcome, body, chunks)
        return
    if "error" in body:
        yield f"expected an answer, saw {seen.status} {body['error']['code']}"
        return
    yield from _compare_certificate(cell, seen, outcome, body)
    if isinstance(outcome, UsableAnswer) and (outcome.votes or alone):
        text = outcome.text
    else:
        text = _HEALTHY.get(body["racer"]["served_by"])
    answered = streamed_text(chunks) if cell.streaming else body["choices"][0]["message"]["content"]
    if (answered or None) != (text or None):
        yield f"expected the text {text!r}, saw {_brief(answered)}"
    if len(body["choices"]) > 1:
        yield f"{len(body['choices'])} choices, one was asked for"


def _compare_error(
    cell: Cell, seen: Seen, outcome: FailedAnswer, body: Json, chunks: Sequence[Json]
) -> Iterator[str]:
    if "error" not in body:
        yield f"expected {outcome.status} {outcome.code}, saw an answer: {_brief(body)}"
        return
    error = body["error"]
    began = cell.streaming and seen.status == 200
    if not began and seen.status != outcome.status:
        yield f"expected {outcome.status} {outcome.code}, saw {seen.status} {error['code']}"
    elif error["code"] != outcome.code:
        yield f"expected the code {outcome.code}, saw {error['code']}"
    kind = _type_of(outcome.status)
    if error["type"] != kind:
        yield f"expected the type {kind}, saw {error['type']}"
    if not began and outcome.status == 429:
        wait = seen.headers.get("retry-after", "")
        if not re.fullmatch(r"[1-9]\d*", wait) or outcome.retry_after not in (None, int(wait)):
            yield f"expected retry-after {outcome.retry_after or 'some seconds'}, saw {wait!r}"
    if chunks and sum(each.model == FAULTY for each in seen.log.entries) > 1:
        yield "called again after the client had read a part"


def _type_of(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "upstream_error"


def _compare_certificate(cell: Cell, seen: Seen, outcome: Outcome, body: Json) -> Iterator[str]:
    racer = body.get("racer")
    if racer is None:
        yield "the answer carries no certificate"
        return
    if tuple(racer["selected"]) != cell.width.selected:
        yield f"selected {racer['selected']}"
    certificate = racer["certificate"]
    void = [each for each in certificate["reasons"] if each not in _REMARKS]
    wanted = [f"candidate_failed:{FAULTY}"] if isinstance(outcome, FailedAnswer) else []
    if isinstance(outcome, UsableAnswer) and outcome.blank and cell.width in (Width.ONE, Width.ALL):
        wanted = ["set_unanswered"]
    allowed = [wanted]
    if isinstance(outcome, UsableAnswer) and outcome.void is not None:
        allowed.append([outcome.void])
    if void not in allowed or certificate["holds"] is bool(void):
        yield f"expected void for {wanted}, saw holds={certificate['holds']} and {void}"
    header = seen.headers.get("x-racer-guarantee", "")
    if not cell.streaming and (header == "holds") is not certificate["holds"]:
        yield f"the header says {header!r}, the certificate holds={certificate['holds']}"
    failed = _failed(racer["calls"])
    if isinstance(outcome, FailedAnswer) is not (FAULTY in failed):
        yield f"racer.calls says that these failed: {failed}"
    if isinstance(outcome, UsableAnswer) and outcome.votes and racer["served_by"] != FAULTY:
        yield f"served by {racer['served_by']}"
    # The tokens of a call that was cancelled after the vote was decided are unknown.
    spared = any("cancelled" in each for each in racer["calls"])
    counted = isinstance(outcome, FailedAnswer) or outcome.counted
    if racer["usage_incomplete"] is not (spared or not counted):
        yield f"usage_incomplete is {racer['usage_incomplete']}"


def _brief(value: object) -> str:
    if isinstance(value, ValidationError):
        value = "; ".join(f"{each['loc']}: {each['msg']}" for each in value.errors())
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) < 160 else f"{text[:160]}..."
