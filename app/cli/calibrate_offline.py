"""``racer calibrate --artifact``: calibrates without a gateway, into an artifact's folder."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app import settings
from app.errors import SettingsError
from app.tools.gateway_client import Progress
from racer_core.errors import RacerError


def calibrate_offline(
    config: Path, artifact: Path, rows: Path, options: Mapping[str, Any], progress: Progress
) -> dict[str, Any]:
    """Let an artifact carry the calibration of some rows; returns what `POST /calibrate` answers.

    Args:
        config: The configuration of the gateways.
        artifact: The folder of the artifact, whichever the configuration names.
        rows: The labelled rows.
        options: As `POST /calibrate` takes them; None: not given.
        progress: Takes how far it is.

    Raises:
        RacerError: As :func:`app.tools.offline_calibration.calibrate_artifact`.
    """
    from app.tools.offline_calibration import calibrate_artifact
    from app.upstream import served_models

    if not artifact.is_dir():
        raise SettingsError(f"{artifact}: no such folder: `racer train --out` writes an artifact")
    configured = served_models.filled(settings.read(config), os.environ)
    configured = configured.model_copy(update={"artifact": artifact.resolve()})
    try:
        return calibrate_artifact(configured, rows, options, progress)
    except (OSError, EOFError, zlib.error) as exc:
        reason = getattr(exc, "strerror", None) or exc
        raise RacerError(f"{rows}: cannot be read ({reason})") from exc
