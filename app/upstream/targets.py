"""Upstream targets from the configuration: candidates and evaluators with their keys."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from pydantic import SecretStr

from app.settings import Candidate, EvaluatorModel, FleetSettings, Secrets, Settings
from app.upstream.replicas import Replicas, Target

log = logging.getLogger(__name__)

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
        each.name: _candidate_target(each, keys.get(each.name), rules)
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


def _candidate_target(candidate: Candidate, key: SecretStr | None, rules: FleetSettings) -> Target:
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
    )


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
