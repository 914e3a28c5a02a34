"""Check of the configuration file and of the secrets that it names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from app import settings
from app.errors import SettingsError
from app.settings import Secrets, Settings
from app.tools.doctor.finding import Finding, failed, ok

CHECK = "configuration"


def check(
    path: Path, environment: Mapping[str, str]
) -> tuple[Finding, tuple[Settings, Secrets] | None]:
    """Return the finding, and settings and secrets if they are valid."""
    if not path.exists():
        return failed(
            CHECK, f"{path} is not there", "give --config, or write one with `racer init`"
        ), None
    try:
        configured, secrets = settings.load(path, environment)
    except SettingsError as exc:
        return failed(CHECK, str(exc), "correct the setting that the message names"), None
    count = len(configured.pool)
    found = f"{path}: {count} candidate{'s' if count > 1 else ''}"
    return ok(CHECK, found), (configured, secrets)
