"""Secrets from the environment: API keys and the database URL; checks of weak keys."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pydantic import SecretBytes, SecretStr

from app.errors import SettingsError
from app.settings import key_format
from app.settings.base import is_loopback
from app.settings.model import Settings

SAMPLES_KEY: Final = "RACER_SAMPLES_KEY"  # variable with the key of stored requests
SAMPLES_KEY_BYTES: Final = 32
CHECKER_KEY: Final = "RACER_CHECKER_KEY"  # variable with the token for the URLs of checkers
MIN_KEY_CHARS = 16
MIN_DIFFERENT_CHARS = 8  # hexadecimal keys of 16 characters have about 10
_UNSENDABLE = (
    "must be printable ASCII without spaces or line ends: no client could send it in a header"
)
# Examples in public documentation: such keys are no secret.
_PUBLISHED = ("sk-1234", "changeme", "change-me", "your-api-key", "my-secret-key", "0123456789")


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """Secrets of one configuration; never printed."""

    data_key: SecretStr | None = None
    admin_key: SecretStr | None = None
    # By name of the candidate, or of an evaluator with a server of its own.
    candidate_keys: Mapping[str, SecretStr] = field(default_factory=dict[str, SecretStr])
    store_url: SecretStr | None = None  # may hold a password
    samples_keys: tuple[SecretBytes, ...] = ()  # the first encrypts the shadow sample's requests
    checker_key: SecretStr | None = None  # bearer token for the checkers' URLs

    def store(self, settings: Settings) -> str:
        """URL of the store: from the environment, else from the configuration."""
        return settings.store if self.store_url is None else self.store_url.get_secret_value()


def read_secrets(
    settings: Settings, environment: Mapping[str, str], *, serves: bool = True
) -> Secrets:
    """Read the secrets; refuse weak keys, and an open address without a data key.

    Args:
        settings: The configuration.
        environment: Environment variables.
        serves: Whether the caller serves; else an open address and stored requests need no keys.

    Raises:
        SettingsError: The message names the variable and what to do.
    """
    access = settings.access
    data_key = _key(environment, access.data_key_env)
    admin_key = _key(environment, access.admin_key_env)
    if data_key is not None and data_key == admin_key:
        raise SettingsError("the admin key must differ from the data key")
    for variable, key in ((access.data_key_env, data_key), (access.admin_key_env, admin_key)):
        if key is not None and (name := _configured_name(key, settings)) is not None:
            raise SettingsError(
                f"${variable} holds the same key as {name!r} in access.keys: generate another one "
                "with `racer key new`, so that every key identifies one caller"
            )
    if serves and data_key is None and not any(key.role == "data" for key in access.keys):
        listeners = [settings.host] if access.admin is None else [settings.host, access.admin.host]
        for host in listeners:
            if not is_loopback(host):
                raise SettingsError(
                    f"host {host} is reachable from outside, so a data key is required: "
                    f"set ${access.data_key_env}, or bind to 127.0.0.1"
                )
    targets = {candidate.name: candidate for candidate in settings.candidates}
    variables = {
        name: target.api_key_env
        for name, target in (targets | settings.raters).items()
        if target.api_key_env is not None
    }
    for name, variable in variables.items():
        if not environment.get(variable):
            raise SettingsError(f"${variable} is not set: the api_key_env of {name} names it")
        if not _is_sendable(environment[variable]):
            raise SettingsError(f"${variable} {_UNSENDABLE}")
    keys = {name: SecretStr(environment[variable]) for name, variable in variables.items()}
    store_url = environment.get(settings.store_env)
    checker_key = environment.get(CHECKER_KEY)
    if checker_key and not _is_sendable(checker_key):
        raise SettingsError(f"${CHECKER_KEY} {_UNSENDABLE}")
    return Secrets(
        data_key=data_key,
        admin_key=admin_key,
        candidate_keys=keys,
        store_url=SecretStr(store_url) if store_url else None,
        samples_keys=_samples_keys(
            environment, is_required=serves and settings.watching.store_requests
        ),
        checker_key=SecretStr(checker_key) if checker_key else None,
    )


def _samples_keys(environment: Mapping[str, str], *, is_required: bool) -> tuple[SecretBytes, ...]:
    """The keys of stored requests, the newest first; none where no request is stored."""
    value, make_one = environment.get(SAMPLES_KEY, ""), "make one with `openssl rand -base64 32`"
    if not value:
        if is_required:
            raise SettingsError(
                f"watching.store_requests: ${SAMPLES_KEY} is not set, and requests are stored only "
                f"encrypted: {make_one}, and keep it as long as the stored requests"
            )
        return ()
    keys: list[SecretBytes] = []
    for place, each in enumerate(value.split(","), 1):
        try:
            key = base64.b64decode(each.strip(), validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if len(key) != SAMPLES_KEY_BYTES:
            which = f"key {place} of ${SAMPLES_KEY}" if "," in value else f"${SAMPLES_KEY}"
            raise SettingsError(
                f"{which} is no key of {SAMPLES_KEY_BYTES} bytes in base64: {make_one}"
            )
        keys.append(SecretBytes(key))
    return tuple(keys)


def _key(environment: Mapping[str, str], variable: str) -> SecretStr | None:
    value = environment.get(variable, "")
    if not value:
        return None
    if not _is_sendable(value):
        raise SettingsError(f"${variable} {_UNSENDABLE}")
    if (why := _weakness(value)) is not None:
        raise SettingsError(
            f"${variable} {why}: generate one with `racer key new` or `openssl rand -hex 24`"
        )
    return SecretStr(value)


def _is_sendable(value: str) -> bool:
    return value.isascii() and value.isprintable() and " " not in value


def _weakness(key: str) -> str | None:
    """Why a key can be guessed; None if it looks random."""
    if len(key) < MIN_KEY_CHARS:
        return f"has fewer than {MIN_KEY_CHARS} characters"
    if len(key) > key_format.MAX_KEY_BYTES:
        return f"has more than {key_format.MAX_KEY_BYTES} characters"
    if any(example in key.lower() for example in _PUBLISHED):
        return "is made from a published example"
    if len(set(key)) < MIN_DIFFERENT_CHARS:
        return f"has fewer than {MIN_DIFFERENT_CHARS} different characters"
    if key_format.is_damaged(key):
        return "was cut or mistyped: its checksum does not match"
    return None


def _configured_name(key: SecretStr, settings: Settings) -> str | None:
    presented = key.get_secret_value().encode()
    for each in settings.access.keys:
        if key_format.matches(presented, *key_format.parse_hash(each.hash)):
            return each.name
    return None
