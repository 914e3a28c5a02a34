"""Worst cases: upper bounds on what the calls of a request cost, known before the first one.

Tokens of the input are bounded by the bytes of the request: no tokenizer of today's models makes
more tokens than bytes. A chat template adds at most ``TEMPLATE_TOKENS``, an image, a sound or a
file counts ``MEDIA_TOKENS`` in place of its data or URL. The answer is bounded by the limit that
the candidate is sent, else by `limits.max_tokens`, for each choice. A call takes no
longer than its timeout, and may be made `fleet.attempts` times. A candidate that reports more is
believed up to twice the bound and 10,000 tokens: see :mod:`app.answering.cost_meter`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, cast

from app.json_output import dump_json
from app.settings import Settings
from app.wire.candidate_payload import TOKEN_LIMITS_OF, candidate_payload
from app.wire.parsing import is_media
from app.wire.request_limits import texts
from racer_core.prices import Usage, microseconds

TEMPLATE_TOKENS: Final = 256
MEDIA_TOKENS: Final = 16_384
BYTES_PER_CHARACTER: Final = 4  # of UTF-8, at most
_CONTENT: Final = ("data", "url")  # ends of the names of the fields that have a medium
_LATE_S: Final = 1.0  # a call ends so long after its timeout, at most


class WorstCase:
    """The bounds under one configuration; every candidate has a price."""

    def __init__(self, settings: Settings) -> None:
        self._prices = settings.exact_prices
        self._candidates = {each.name: each for each in settings.candidates}
        self._parameter_bytes = {
            each.name: len(dump_json(each.parameters)) for each in settings.candidates
        }
        self._longest_s = settings.limits.deadline_s
        self._max_tokens = settings.limits.max_tokens
        self._attempts = settings.fleet.attempts
        self._rating = max(map(self._of_rating, _raters(settings)), default=0)

    def usage_of_calls(
        self, names: Collection[str], fields: Mapping[str, Any], path: str
    ) -> dict[str, Usage]:
        """What one call to each of these candidates uses at most.

        Args:
            names: The candidates.
            fields: What they are sent.
            path: The endpoint.
        """
        tokens = input_tokens(fields)
        return {name: self._of_call(name, tokens, fields, path) for name in names}

    def amounts(self, usages: Mapping[str, Usage]) -> dict[str, int]:
        """What calls that use so much cost, with their retries."""
        return {name: self._amount(name, usage) for name, usage in usages.items()}

    def of_ratings(self, answers: int) -> int:
        """The bound of the evaluator's calls, if a candidate is the evaluator."""
        return answers * self._rating if answers > 1 else 0

    def _of_call(self, name: str, tokens: int, fields: Mapping[str, Any], path: str) -> Usage:
        candidate, written = self._candidates[name], 0
        if path in TOKEN_LIMITS_OF:
            sent = candidate_payload(fields, candidate, path)
            limit = _largest(sent, TOKEN_LIMITS_OF[path], candidate.renames) or self._max_tokens
            choices = _largest(sent, ("n", "best_of"), candidate.renames)
            written = limit * max(1, choices) * texts(fields.get("prompt"))
        return Usage(
            input_tokens=tokens + self._parameter_bytes[name],
            output_tokens=written,
            microseconds=microseconds(min(candidate.timeout_s, self._longest_s) + _LATE_S),
        )

    def _of_rating(self, rater: tuple[str, int, float]) -> int:
        name, chars, timeout_s = rater
        usage = Usage(
            input_tokens=chars * BYTES_PER_CHARACTER + TEMPLATE_TOKENS,
            output_tokens=1,
            microseconds=microseconds(timeout_s + _LATE_S),
        )
        return self._amount(name, usage)

    def _amount(self, name: str, usage: Usage) -> int:
        return self._attempts * self._prices[name].worst_case(
            usage.input_tokens, usage.output_tokens, seconds=usage.microseconds / 1e6
        )


def input_tokens(fields: Mapping[str, Any]) -> int:
    """An upper bound on the input tokens of these fields."""
    media = list[object]()
    size = len(dump_json(_without_media(fields, media)))
    return size + TEMPLATE_TOKENS + len(media) * MEDIA_TOKENS


def _raters(settings: Settings) -> list[tuple[str, int, float]]:
    """Evaluators that are candidates: name, longest prompt, time limit."""
    return [
        (each.candidate, each.prompt_chars, each.timeout_s)
        for each in settings.aggregation.raters.values()
        if each.candidate is not None
    ]


def _without_media(value: object, media: list[object], *, is_part: bool = False) -> Any:
    """A JSON value without the data and URLs of its media.

    Args:
        value: The value.
        media: Takes its images, sounds and files. A message, with a role, is none.
        is_part: It is a part of one.
    """
    if isinstance(value, Mapping):
        given = cast("Mapping[str, object]", value)
        if "role" in given:
            is_part = False
        elif is_media(given):
            media.append(given)
            is_part = True
        return {
            name: None
            if is_part and isinstance(each, str) and name.endswith(_CONTENT)
            else _without_media(each, media, is_part=is_part)
            for name, each in given.items()
        }
    if isinstance(value, list):
        found = cast("list[object]", value)
        return [_without_media(each, media, is_part=is_part) for each in found]
    return value


def _largest(sent: Mapping[str, Any], names: Sequence[str], renames: Mapping[str, str]) -> int:
    """The largest number of these fields, which the server may know by another name; else 0."""
    values = [sent.get(renames.get(name, name)) for name in names]
    return max([0, *(each for each in values if isinstance(each, int))])
