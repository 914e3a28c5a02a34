"""What the environment holds under the names that the configuration gives."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import SecretStr

from app.errors import SettingsError
from app.settings.model import Settings

MIN_KEY_CHARS = 16


@dataclass(frozen=True, slots=True)
class Secrets:
    """Keys; never printed."""

    data_key: SecretStr | None = None
    admin_key: SecretStr | None = None
    # By name: candidates, and evaluators with a server of their own.
    candidate_keys: Mapping[str, SecretStr] = field(default_factory=dict[str, SecretStr])


def read_secrets(settings: Settings, environment: Mapping[str, str]) -> Secrets:
    """Read the keys, refusing weak ones and a door left open."""
    data_key = _key(environment, settings.access.data_key_env)
    admin_key = _key(environment, settings.access.admin_key_env)
    if data_key is not None and data_key == admin_key:
        raise SettingsError("the admin key must differ from the data key")
    if data_key is None and not is_loopback(settings.host):
        raise SettingsError(
            f"host {settings.host} is reachable from outside, so a data key is required: "
            f"set ${settings.access.data_key_env}, or bind to 127.0.0.1"
        )
    callees = {candidate.name: candidate for candidate in settings.candidates}
    wanted = {
        name: callee.api_key_env
        for name, callee in (callees | settings.aggregation.raters).items()
        if callee.api_key_env is not None
    }
    for name, variable in wanted.items():
        if not environment.get(variable):
            raise SettingsError(f"${variable} is not set: the api_key_env of {name} names it")
    keys = {name: SecretStr(environment[variable]) for name, variable in wanted.items()}
    return Secrets(data_key, admin_key, keys)


def _key(environment: Mapping[str, str], variable: str) -> SecretStr | None:
    value = environment.get(variable, "")
    if not value:
        return None
    if not value.isascii() or not value.isprintable() or " " in value:
        raise SettingsError(
            f"${variable} must be printable ASCII without spaces or line ends: no client could "
            "send it in a header"
        )
    if len(value) < MIN_KEY_CHARS:
        raise SettingsError(
            f"${variable} has fewer than {MIN_KEY_CHARS} characters: take a random key, "
            "for example `openssl rand -hex 24`"
        )
    return SecretStr(value)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound to this address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
