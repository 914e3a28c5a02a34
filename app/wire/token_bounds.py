"""Token bounds: the most tokens that a call can use, and that its candidate is believed.

Tokens of the input are bounded by the bytes of the request: no tokenizer of today's models makes
more tokens than bytes. A chat template adds at most ``TEMPLATE_TOKENS``, an image, a sound or a
file counts ``MEDIA_TOKENS`` in place of its data or URL. The answer is bounded by the limit that
the candidate is sent, else by `limits.max_tokens`, for each choice.

A candidate that reports more is believed up to ``SLACK`` times that and ``SLACK_TOKENS``. A larger
count is replaced by that in the document itself, with the mark ``ESTIMATED``, before anything else
reads it: costs, quotas, budgets, typical usage, rows, traces and clients all see the same number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, cast

from app.json_output import dump_json
from app.wire.candidate_payload import TOKEN_LIMITS_OF
from app.wire.parsing import ESTIMATED, is_media
from app.wire.request_limits import texts

TEMPLATE_TOKENS: Final = 256
MEDIA_TOKENS: Final = 16_384
SLACK: Final = 2  # times the bound, for tokenizers and templates that are not known,
SLACK_TOKENS: Final = 10_000  # and for what a server adds to a prompt, or thinks beyond a limit
_CONTENT: Final = ("data", "url")  # ends of the names of the fields that have a medium
_CHOICES: Final = ("n", "best_of")


@dataclass(frozen=True, slots=True)
class TokenBounds:
    """Bounds on the tokens of a call."""

    input: int
    output: int

    @classmethod
    def of(
        cls, payload: Mapping[str, Any], path: str, renames: Mapping[str, str], max_tokens: int
    ) -> Self:
        """The most that a call can use.

        Args:
            payload: What is sent.
            path: The endpoint.
            renames: Fields that the server knows by another name.
            max_tokens: Of an answer without a limit.
        """
        return cls(input_tokens(payload), output_tokens(payload, path, renames, max_tokens))

    @property
    def believed(self) -> Self:
        """The most that its candidate is believed."""
        return type(self)(SLACK * self.input + SLACK_TOKENS, SLACK * self.output + SLACK_TOKENS)


def input_tokens(fields: Mapping[str, Any]) -> int:
    """An upper bound on the input tokens of these fields."""
    media = list[object]()
    size = len(dump_json(_without_media(fields, media)))
    return size + TEMPLATE_TOKENS + len(media) * MEDIA_TOKENS


def output_tokens(
    payload: Mapping[str, Any], path: str, renames: Mapping[str, str], max_tokens: int
) -> int:
    """An upper bound on the output tokens of a call; see :meth:`TokenBounds.of`."""
    if path not in TOKEN_LIMITS_OF:
        return 0
    limit = _largest(payload, TOKEN_LIMITS_OF[path], renames) or max_tokens
    choices = _largest(payload, _CHOICES, renames)
    return limit * max(1, choices) * texts(payload.get("prompt"))


class BelievedCounts:
    """Bounds the token counts in the answer to one call.

    Args:
        payload: What was sent.
        path: The endpoint.
        renames: Fields that the server knows by another name.
        max_tokens: Of an answer without a limit.
        overstated: Called where a count was larger.
    """

    __slots__ = ("_bounds", "_overstated", "_sent")

    def __init__(
        self,
        payload: Mapping[str, Any],
        path: str,
        renames: Mapping[str, str],
        max_tokens: int,
        overstated: Callable[[], None],
    ) -> None:
        self._sent = payload, path, renames, max_tokens
        self._bounds: TokenBounds | None = None  # until a count is large enough to be compared
        self._overstated = overstated

    def of(self, document: dict[str, Any]) -> dict[str, Any]:
        """A body or a piece of any API format, with counts that can be."""
        changed: dict[str, Any] = {}
        usage, response = document.get("usage"), document.get("response")
        if isinstance(usage, dict):
            given = cast("dict[str, Any]", usage)
            if _has_large(given) and (cut := self._cut(given, "total")) is not given:
                changed["usage"] = {**cut, ESTIMATED: True}
                self._overstated()
        if isinstance(response, dict):
            inner = cast("dict[str, Any]", response)
            if (bounded := self.of(inner)) is not inner:
                changed["response"] = bounded
        return {**document, **changed} if changed else document

    def _cut(self, counts: dict[str, Any], kind: str) -> dict[str, Any]:
        """Counts within their bounds; the same object if they were before.

        Args:
            counts: A usage object, or the details of one of its counts.
            kind: What the numbers in it count if their names do not say it.
        """
        changed = dict[str, Any]()
        for name, value in counts.items():
            own = next((k for word, k in _KINDS.items() if name.startswith(word)), kind)
            if isinstance(value, dict):
                given = cast("dict[str, Any]", value)
                believed: object = self._cut(given, own)
            elif isinstance(value, int | float) and name.endswith("_tokens"):
                believed = self._believed(value, own)
            else:
                continue
            if believed is not value:
                changed[name] = believed
        return {**counts, **changed} if changed else counts

    def _believed(self, value: Any, kind: str) -> Any:
        if value <= SLACK_TOKENS:
            return value
        if self._bounds is None:
            self._bounds = TokenBounds.of(*self._sent).believed
        bounds = self._bounds
        most = {"input": bounds.input, "output": bounds.output}.get(
            kind, bounds.input + bounds.output
        )
        return value if value <= most else most


def _has_large(counts: Mapping[str, Any]) -> bool:
    """Whether a number in it is above the slack: in most answers none is, and no more is done."""
    for value in counts.values():
        if isinstance(value, _NUMBERS):
            if value > SLACK_TOKENS:
                return True
        elif isinstance(value, dict) and _has_large(cast("dict[str, Any]", value)):
            return True
    return False


_NUMBERS: Final = (int, float)  # a union would be made anew for each value
_KINDS: Final[Mapping[str, str]] = {
    "prompt": "input", "input": "input", "completion": "output", "output": "output",
}  # fmt: skip


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
