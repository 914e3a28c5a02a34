"""Calls of candidates through a running gateway, by their names.

Only the gateway may reach them: candidates in a cluster, or behind keys that it alone has. It
adds each candidate's parameters, so what candidates are sent is the same as without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pydantic import SecretStr, ValidationError

from app.errors import SettingsError
from app.settings import Candidate, Secrets, Settings
from app.settings.secrets import read_secrets
from app.settings.validation import problems
from app.tools.gateway_client import GatewayClient


def through_gateway(
    settings: Settings, url: str, key: str | None, environment: Mapping[str, str]
) -> tuple[Settings, Secrets]:
    """The configuration and the keys with which candidates are called through a gateway.

    The candidates' own keys need not be set here.

    Args:
        settings: The gateway's own configuration.
        url: The gateway.
        key: A key of the gateway; None where it wants none.
        environment: Environment variables with the keys of evaluators that have their own servers.

    Raises:
        SettingsError: The URL is invalid, or such a key is not set.
    """
    try:
        candidates = tuple(
            Candidate(
                name=each.name,
                base_url=f"{url.rstrip('/')}/v1",
                # The gateway repeats a failed call by itself.
                timeout_s=min(3600.0, each.timeout_s * settings.fleet.attempts),
                concurrency=each.concurrency,
                capabilities=each.capabilities,
                price=each.price,
            )
            for each in settings.candidates
        )
    except ValidationError as exc:
        raise SettingsError(f"--url: {problems(exc, Candidate)[0][1]}") from exc
    calls = settings.model_copy(update={"candidates": candidates})
    secrets = read_secrets(calls, environment, serves=False)
    own = dict.fromkeys(settings.pool, SecretStr(key)) if key else {}
    return calls, replace(secrets, candidate_keys={**secrets.candidate_keys, **own})


def check_pool(gateway: GatewayClient, pool: Sequence[str]) -> None:
    """Refuse a gateway that serves other candidates, before anything is paid for.

    Raises:
        SettingsError: It lacks a candidate.
        GatewayUnreachable: It does not answer.
        GatewayRefused: It wants another key.
    """
    served = gateway.models()
    if missing := [name for name in pool if name not in served]:
        raise SettingsError(
            f"the gateway at {gateway.url} has no candidate {missing[0]!r}: start it with the "
            "configuration that `--config` names"
        )
