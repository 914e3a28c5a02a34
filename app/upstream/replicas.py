"""Replicas of one model: load balancing between them, and the limit of concurrent calls."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import urlsplit

from pydantic import SecretStr

from app.errors import UpstreamTimeout, UpstreamUnavailable
from app.settings import Candidate, EvaluatorModel, FleetSettings, Secrets, Settings
from app.upstream.affinity import nearest
from app.upstream.circuit_breaker import CircuitBreaker


class Replica:
    """One server."""

    def __init__(self, base_url: str, rules: FleetSettings) -> None:
        self.base_url = base_url
        self.breaker = CircuitBreaker(rules)
        self.outstanding = 0  # calls in flight

    @property
    def is_out(self) -> bool:
        """Whether it is ejected, for one caller at least."""
        return self.breaker.out_until is not None

    def is_out_for(self, caller: str) -> bool:
        """Whether it is ejected and gets no calls of this caller for now."""
        return self.breaker.is_open_for(caller)


class Replicas:
    """All servers of one model.

    Args:
        name: The model's, in messages.
        base_urls: At least one.
        rules: When a replica is ejected, and how far it keeps conversations.
        concurrency: Limit of calls in flight, over all replicas.
    """

    def __init__(
        self, name: str, base_urls: Collection[str], *, rules: FleetSettings, concurrency: int
    ) -> None:
        self._name = name
        self.all = tuple(Replica(base_url, rules) for base_url in base_urls)
        self._max_load = rules.max_load if len(self.all) > 1 else None
        self.keep_conversations = self._max_load is not None
        self._concurrency = concurrency
        self._slots = asyncio.Semaphore(concurrency)
        self._next_idle = 0

    def are_like(self, others: Replicas) -> bool:
        """Whether others are the same servers with the same limit."""
        mine, theirs = ([each.base_url for each in replicas.all] for replicas in (self, others))
        return mine == theirs and self._concurrency == others._concurrency

    @property
    def are_out(self) -> bool:
        """Whether all of them are ejected, for one caller at least."""
        return all(replica.is_out for replica in self.all)

    def are_out_for(self, caller: str) -> bool:
        """Whether all of them are ejected for this caller."""
        return all([replica.breaker.is_open_for(caller) for replica in self.all])

    def have_other_than(self, tried: Collection[Replica], caller: str) -> bool:
        """Whether a replica that was not tried yet gets calls of this caller."""
        return any(not each.is_out_for(caller) and each not in tried for each in self.all)

    def have_well_one(self, tried: Collection[Replica]) -> bool:
        """Whether a replica that was not tried yet is healthy: no recent call to it failed."""
        return any(each.breaker.is_well and each not in tried for each in self.all)

    async def acquire(
        self,
        tried: Collection[Replica],
        *,
        caller: str,
        deadline: float,
        even_if_out: Callable[[], bool],
        conversation: bytes | None = None,
    ) -> Replica:
        """Wait for a free slot and choose the replica to call. Call :meth:`release` afterwards.

        Args:
            tried: Other replicas are preferred to these.
            caller: The owner of the API key.
            deadline: Limit of the wait for a slot, a ``time.monotonic()``.
            even_if_out: Whether one is chosen where all replicas are ejected.
            conversation: Its key, whose calls go to one replica; None: a single turn.

        Raises:
            UpstreamTimeout: No slot became free in time.
            UpstreamUnavailable: All replicas are ejected.
        """
        if self._slots.locked():
            await self._wait_for_slot(deadline)
        else:
            await self._slots.acquire()
        try:
            replica = self._choose(tried, caller, conversation, even_if_out=even_if_out)
        except UpstreamUnavailable:
            self._slots.release()
            raise
        replica.outstanding += 1
        return replica

    def release(self, replica: Replica) -> None:
        """Free the slot of a call that has ended."""
        replica.outstanding -= 1
        self._slots.release()

    async def _wait_for_slot(self, deadline: float) -> None:
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                await self._slots.acquire()
        except TimeoutError as exc:
            raise UpstreamTimeout(f"{self._name} has too many calls to take one more") from exc

    def _choose(
        self,
        tried: Collection[Replica],
        caller: str,
        conversation: bytes | None,
        *,
        even_if_out: Callable[[], bool],
    ) -> Replica:
        """The untried replica of the conversation, or else that with the fewest calls in flight.

        Ties are broken in rotation.
        """
        usable = [each for each in self.all if not each.is_out_for(caller)] or (
            list(self.all) if even_if_out() else []
        )
        if len(usable) == 1:
            return usable[0]
        if not usable:
            next_check = min(each.breaker.out_until or 0.0 for each in self.all)
            raise UpstreamUnavailable(
                f"{self._name} is down", retry_after_s=max(0.0, next_check - time.monotonic())
            )
        untried = [each for each in usable if each not in tried] or usable
        if tried:
            untried = [each for each in untried if each.breaker.is_well] or untried
        if conversation is not None and self._max_load is not None:
            return nearest(untried, conversation, self._max_load)
        least = min(each.outstanding for each in untried)
        idle = [each for each in untried if each.outstanding == least]
        self._next_idle += 1
        return idle[self._next_idle % len(idle)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A model and how it is called: a candidate, or an evaluator with a server of its own."""

    name: str
    replicas: Replicas
    headers: Mapping[str, str]  # with its key
    timeout_s: float  # of one call
    verify_tls: bool = True
    renames: Mapping[str, str] = field(default_factory=dict[str, str])  # of a candidate's fields
    # Words that are not shown, and what stands for each: names of other models, its server's own.
    hidden_names: Mapping[str, str] = field(default_factory=dict[str, str])


# Upstream targets from the configuration: candidates and evaluators with their keys.

log = logging.getLogger(__name__)

_KEY_CHARS: Final = 8  # a configured header of fewer is no secret: "1", "true"
EVALUATOR_CALLS: Final = 64  # in flight, at a server of its own
_HEADERS: Final = {"content-type": "application/json", "accept-encoding": "identity"}


def open_targets(
    settings: Settings, secrets: Secrets, before: Mapping[str, Target] | None = None
) -> dict[str, Target]:
    """Return candidates, and evaluators with a server of their own, by name.

    Args:
        settings: The configuration.
        secrets: Their API keys.
        before: Targets of another configuration, whose replicas are kept where they are the same.
    """
    keys, rules = secrets.candidate_keys, settings.fleet
    candidates = {
        each.name: _candidate_target(each, keys.get(each.name), rules, settings.candidates)
        for each in settings.candidates
    }
    evaluators = {
        name: _evaluator_target(name, spec, spec.base_url, keys.get(name), rules)
        for name, spec in settings.raters.items()
        if spec.base_url is not None
    }
    opened = candidates | evaluators
    return {name: _kept(target, (before or {}).get(name)) for name, target in opened.items()}


def _kept(target: Target, before: Target | None) -> Target:
    """The target, with the replicas of the one before where they are called in the same way."""
    if before is None or not before.replicas.are_like(target.replicas):
        return target
    if (before.headers, before.verify_tls) != (target.headers, target.verify_tls):
        return target
    return replace(target, replicas=before.replicas)


def _candidate_target(
    candidate: Candidate, key: SecretStr | None, rules: FleetSettings, pool: Sequence[Candidate]
) -> Target:
    if not candidate.verify_tls:
        log.warning("the certificate of %s is not verified: verify_tls is off", candidate.name)
    return Target(
        name=candidate.name,
        replicas=Replicas(
            candidate.name, candidate.replicas, rules=rules, concurrency=candidate.concurrency
        ),
        headers={**_HEADERS, **candidate.headers, **_key_header(candidate.key_header, key)},
        timeout_s=candidate.timeout_s,
        verify_tls=candidate.verify_tls,
        renames=candidate.renames,
        hidden_names=_hidden_names(candidate, key, pool),
    )


def _hidden_names(
    candidate: Candidate, key: SecretStr | None, pool: Sequence[Candidate]
) -> dict[str, str]:
    """Words of a candidate's server that no client may read, and what stands for each."""
    hosts = [urlsplit(url).hostname or "" for each in pool for url in each.replicas]
    keys = [each for each in candidate.headers.values() if len(each) >= _KEY_CHARS]
    if key is not None:
        keys.append(key.get_secret_value())
    hidden = {
        **dict.fromkeys(hosts, "[address]"),
        **{name: "[model]" for each in pool for name in (each.name, each.served_as)},
        **dict.fromkeys(keys, "[key]"),
        candidate.served_as: candidate.name,
    }
    return {word: shown for word, shown in hidden.items() if word and word != candidate.name}


def _evaluator_target(
    name: str, spec: EvaluatorModel, base_url: str, key: SecretStr | None, rules: FleetSettings
) -> Target:
    return Target(
        name=name,
        replicas=Replicas(name, (base_url,), rules=rules, concurrency=EVALUATOR_CALLS),
        headers={**_HEADERS, **_key_header("authorization", key)},
        timeout_s=spec.timeout_s,
    )


def _key_header(header: str, key: SecretStr | None) -> dict[str, str]:
    if key is None:
        return {}
    value = key.get_secret_value()
    return {header: f"Bearer {value}" if header == "authorization" else value}
