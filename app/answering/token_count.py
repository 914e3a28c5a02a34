"""Token counts of prompts, by the tokenizers of the candidates' servers (vLLM's `/tokenize`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.answering.merge import no_answer
from app.errors import NotFound, UpstreamError
from app.settings import Settings
from app.upstream.fleet import Fleet
from app.wire import parsing
from app.wire.candidate_payload import candidate_payload
from app.wire.token_bounds import TokenBounds

TOKENIZE: Final = "/tokenize"  # beside the `/v1` of a base URL
_WITHOUT: Final = (404, 405, 501)  # statuses of servers that have no such endpoint
_NO_TOKENIZER: Final = "no_tokenizer"
# Fields of a chat request of which the prompt is made.
_OF_PROMPT: Final = frozenset(
    {"model", "messages", "tools", "add_generation_prompt", "continue_final_message",
     "chat_template_kwargs"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Tokens of one prompt.

    Attributes:
        counted: Those of each candidate that counted them; at least one.
        failures: The other candidates, and why.
    """

    counted: Mapping[str, int]
    failures: Mapping[str, str]

    @property
    def largest(self) -> int:
        """The largest count: a prompt that fits it fits every candidate."""
        return max(self.counted.values())

    def as_json(self) -> dict[str, Any]:
        """The ``racer`` object."""
        return {"input_tokens": dict(self.counted), "failures": dict(self.failures)}


class TokenCounter:
    """Asks candidates' servers; no model runs."""

    def __init__(self, settings: Settings, fleet: Fleet) -> None:
        self._fleet = fleet
        self._limits = settings.limits
        self._candidates = {candidate.name: candidate for candidate in settings.candidates}

    async def count(
        self, names: Sequence[str], fields: Mapping[str, Any], caller: str
    ) -> TokenCounts:
        """The tokens of a chat request's prompt, at the first ``limits.fan_out`` candidates.

        Args:
            names: The candidates, at least one.
            fields: The fields of a chat request that candidates are sent.
            caller: The name of the API key.

        Raises:
            NotFound: No candidate's server has a tokenizer.
            UpstreamError: No candidate answered, for another reason.
        """
        called = names[: self._limits.fan_out]
        deadline = time.monotonic() + self._limits.deadline_s
        results = await asyncio.gather(
            *(self._count(name, fields, deadline, caller) for name in called)
        )
        found = dict(zip(called, results, strict=True))
        counted = {name: each for name, each in found.items() if isinstance(each, int)}
        failed = {name: each for name, each in found.items() if isinstance(each, UpstreamError)}
        if counted:
            return TokenCounts(counted, {name: _kind(exc) for name, exc in failed.items()})
        if all(_kind(exc) == _NO_TOKENIZER for exc in failed.values()):
            raise NotFound(
                f"no server of {', '.join(called)} counts tokens: it needs vLLM's {TOKENIZE}",
                code=_NO_TOKENIZER,
                param="model",
            )
        raise no_answer(failed)

    async def _count(
        self, name: str, fields: Mapping[str, Any], deadline: float, caller: str
    ) -> int | UpstreamError:
        sent = candidate_payload(fields, self._candidates[name])
        payload = {field: value for field, value in sent.items() if field in _OF_PROMPT}
        try:
            answer = await self._fleet.forward(
                name, TOKENIZE, payload, deadline=deadline, caller=caller
            )
        except UpstreamError as exc:
            return exc
        count = parsing.counts(answer, {"count": "count"}).get("count")
        most = TokenBounds.of(payload, TOKENIZE, {}, 0).believed.input
        return parsing.invalid(name) if count is None or count > most else count


def _kind(exc: UpstreamError) -> str:
    return _NO_TOKENIZER if exc.status in _WITHOUT else exc.kind
