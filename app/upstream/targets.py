"""Who can be asked, from the configuration."""

from __future__ import annotations

import logging
from typing import Final

from pydantic import SecretStr

from app.settings import Candidate, EvaluatorModel, FleetSettings, Secrets, Settings
from app.upstream.replicas import Replicas, Target

log = logging.getLogger(__name__)

EVALUATOR_CALLS: Final = 64  # at once, at a server of its own
_USUAL: Final = {"content-type": "application/json", "accept-encoding": "identity"}


def open_targets(settings: Settings, secrets: Secrets) -> dict[str, Target]:
    """Candidates, and evaluators with a server of their own, by name."""
    keys, rules = secrets.candidate_keys, settings.fleet
    candidates = {
        each.name: _candidate(each, keys.get(each.name), rules) for each in settings.candidates
    }
    evaluators = {
        name: _evaluator(name, spec, spec.base_url, keys.get(name), rules)
        for name, spec in settings.aggregation.raters.items()
        if spec.base_url is not None
    }
    return candidates | evaluators


def _candidate(candidate: Candidate, key: SecretStr | None, rules: FleetSettings) -> Target:
    if not candidate.verify_tls:
        log.warning("the certificate of %s is not verified: verify_tls is off", candidate.name)
    return Target(
        name=candidate.name,
        replicas=Replicas(candidate.name, candidate.replicas, rules, candidate.concurrency),
        headers={**_USUAL, **candidate.headers, **_key(candidate.key_header, key)},
        timeout_s=candidate.timeout_s,
        verify_tls=candidate.verify_tls,
    )


def _evaluator(
    name: str, spec: EvaluatorModel, base_url: str, key: SecretStr | None, rules: FleetSettings
) -> Target:
    return Target(
        name=name,
        replicas=Replicas(name, (base_url,), rules, EVALUATOR_CALLS),
        headers={**_USUAL, **_key("authorization", key)},
        timeout_s=spec.timeout_s,
    )


def _key(header: str, key: SecretStr | None) -> dict[str, str]:
    if key is None:
        return {}
    value = key.get_secret_value()
    return {header: f"Bearer {value}" if header == "authorization" else value}
