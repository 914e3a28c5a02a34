"""Worst cases: upper bounds on what the calls of a request cost, known before the first one.

Tokens of the input are bounded by the bytes of the request: no tokenizer of today's models makes
more tokens than bytes. A chat template adds at most ``TEMPLATE_TOKENS``, an image, a sound or a
file counts ``MEDIA_TOKENS``. The answer is bounded by the limit that the request names, else by
that of the candidate's parameters, else by `limits.max_tokens`, for each choice. A call takes no
longer than its timeout, and may be made `fleet.attempts` times. A candidate that goes beyond this
is charged in full, as every call is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, cast

from app.json_output import dump_json
from app.settings import Settings
from app.wire.candidate_payload import TOKEN_LIMITS_OF
from app.wire.parsing import is_media
from app.wire.request_limits import texts
from racer_core.prices import Price

TEMPLATE_TOKENS: Final = 256
MEDIA_TOKENS: Final = 16_384
BYTES_PER_CHARACTER: Final = 4  # of UTF-8, at most
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

    def of_calls(
        self, names: Collection[str], fields: Mapping[str, Any], path: str
    ) -> dict[str, int]:
        """The bound of one call to each of these candidates, with its retries.

        Args:
            names: The candidates.
            fields: What they are sent.
            path: The endpoint.
        """
        tokens = input_tokens(fields)
        return {name: self._of_call(name, tokens, fields, path) for name in names}

    def of_ratings(self, answers: int) -> int:
        """The bound of the evaluator's calls, if a candidate is the evaluator."""
        return answers * self._rating if answers > 1 else 0

    def _of_call(self, name: str, tokens: int, fields: Mapping[str, Any], path: str) -> int:
        candidate = self._candidates[name]
        parameters, written = candidate.parameters, 0
        if path in TOKEN_LIMITS_OF:
            limit = _limit(fields, path) or _limit(parameters, path) or self._max_tokens
            written = limit * _choices(fields, parameters)
        return self._attempts * self._prices[name].worst_case(
            tokens + self._parameter_bytes[name],
            written,
            seconds=min(candidate.timeout_s, self._longest_s) + _LATE_S,
        )

    def _of_rating(self, rater: tuple[str, int, float]) -> int:
        name, chars, timeout_s = rater
        tokens = chars * BYTES_PER_CHARACTER + TEMPLATE_TOKENS
        price: Price = self._prices[name]
        return self._attempts * price.worst_case(tokens, 1, seconds=timeout_s + _LATE_S)


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


def _without_media(value: object, media: list[object]) -> Any:
    """A JSON value without its images, sounds and files, which are added to ``media``."""
    if isinstance(value, Mapping):
        given = cast("Mapping[str, object]", value)
        if is_media(given):
            media.append(given)
            return None
        return {name: _without_media(each, media) for name, each in given.items()}
    if isinstance(value, list):
        return [_without_media(each, media) for each in cast("list[object]", value)]
    return value


def _limit(fields: Mapping[str, Any], path: str) -> int | None:
    """The limit on output tokens of each choice, the largest if it is named twice."""
    named = [fields.get(name) for name in TOKEN_LIMITS_OF[path]]
    return max([each for each in named if isinstance(each, int)], default=None)


def _choices(fields: Mapping[str, Any], parameters: Mapping[str, Any]) -> int:
    """How many answers are written: for each prompt of a completion, returned or not."""
    sent = [fields.get(name) or parameters.get(name) for name in ("n", "best_of")]
    each = max([1, *(number for number in sent if isinstance(number, int))])
    return each * texts(fields.get("prompt"))
