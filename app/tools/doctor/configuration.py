"""Whether the configuration can be read, with every key that it names."""

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
    """The finding, and what was read if it could be."""
    if not path.exists():
        return failed(CHECK, f"{path} is not there", "name it with --config, or `racer init`"), None
    try:
        configured, secrets = settings.load(path, environment)
    except SettingsError as exc:
        return failed(CHECK, str(exc), "change what the sentence names"), None
    count = len(configured.pool)
    found = f"{path}: {count} candidate{'s' if count > 1 else ''}"
    return ok(CHECK, found), (configured, secrets)
