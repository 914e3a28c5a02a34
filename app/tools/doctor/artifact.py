"""Check of the artifact: complete, and trained for this configuration."""

from __future__ import annotations

from app.errors import SettingsError
from app.routing.artifact import is_there, open_trained
from app.settings import Settings
from app.tools.doctor.finding import Finding, failed, ok, warning
from racer_core.errors import ArtifactError
from racer_core.trained_router import TrainedRouter

CHECK = "artifact"


def check(settings: Settings) -> tuple[Finding, TrainedRouter | None]:
    """Return the finding and the opened artifact, if it opens; the encoder stays closed."""
    if settings.artifact is None:
        cure = "run `racer train`, then set `artifact`"
        found = f"no artifact is configured: {settings.fallback} answers `auto`"
        return warning(CHECK, found, cure), None
    if not is_there(settings.artifact):
        if settings.remote_artifact is not None:
            found = f"{settings.remote_artifact.shown} is fetched at the first start"
            return warning(CHECK, found, "try it: `racer validate` fetches it into `cache`"), None
        cure = "run `racer bootstrap` with questions; a running gateway loads the router it trains"
        found = f"none is at {settings.artifact} yet: {settings.fallback} answers `auto`"
        return warning(CHECK, found, cure), None
    try:
        trained = open_trained(settings)
    except (ArtifactError, SettingsError) as exc:
        cure = "undo the change of the configuration, or run `racer train` again"
        return failed(CHECK, str(exc), cure), None
    kind = trained.artifact.router.kind
    return ok(CHECK, f"{settings.artifact}: {kind}, {len(trained.pool)} candidates"), trained
