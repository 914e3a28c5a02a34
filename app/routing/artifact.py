"""The artifact loader: opens the configured artifact and checks it against the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from app.errors import NoRouter, SettingsError
from app.routing.artifact_files import fetch
from app.routing.scorer import RouterBackend
from app.settings import Settings
from racer_core import artifacts
from racer_core.aggregation.vote import Method
from racer_core.racer import Racer
from racer_core.trained_router import TrainedRouter

Opened = TypeVar("Opened", bound=TrainedRouter)


@dataclass(frozen=True, slots=True, eq=False)
class LoadedRouter:
    """A trained router, and the open backend that computes its scores."""

    trained: TrainedRouter
    scoring: RouterBackend


def is_there(folder: Path) -> bool:
    """Whether the folder has some file of an artifact, whole or not."""
    return any((folder / name).is_file() for name in artifacts.FILES)


def has_artifact(settings: Settings) -> bool:
    """Whether an artifact can be opened now: one that is fetched, or one in a folder."""
    folder = settings.artifact
    return settings.remote_artifact is not None or (folder is not None and is_there(folder))


def open_racer(settings: Settings) -> Racer:
    """Load artifact and encoder, and check them against the configuration.

    Raises:
        ArtifactError: The artifact does not fit the configuration or this machine.
        SettingsError: The configuration names another model, backend or dtype than the artifact.
    """
    return _opened(Racer, settings)


def open_trained(settings: Settings) -> TrainedRouter:
    """Load the artifact without its encoder, which another process has."""
    return _opened(TrainedRouter, settings)


def _opened(kind: type[Opened], settings: Settings) -> Opened:
    if settings.artifact is None:
        raise SettingsError(NoRouter.sentence)
    fetch(settings)
    opened = kind.load(settings.artifact, settings.pool)
    spec, wanted = opened.artifact.encoder, settings.encoder
    for field in ("backend", "dtype"):
        configured, trained = getattr(wanted, field), getattr(spec, field)
        if configured is not None and configured != trained:
            raise SettingsError(
                f"encoder.{field} is {configured}, but the artifact was trained with {trained}: "
                "change the "
                "setting, or train again with `racer train`"
            )
    for candidate, labelled in zip(settings.candidates, opened.artifact.candidates, strict=True):
        if labelled.model is not None and labelled.model != (candidate.model or candidate.name):
            raise SettingsError(
                f"candidate {candidate.name} was labelled as the model {labelled.model!r}, the "
                f"configuration has {candidate.model or candidate.name!r}: change it back, or "
                "label and train again"
            )
        if labelled.parameters is not None and dict(labelled.parameters) != candidate.parameters:
            raise SettingsError(
                f"candidate {candidate.name} was labelled with the parameters "
                f"{dict(labelled.parameters)}, the configuration has {candidate.parameters}: "
                "change them back, or label and train again"
            )
    if settings.aggregation.method is Method.STACKED and opened.artifact.stacked is None:
        raise SettingsError(
            "aggregation.method is stacked, but the artifact has no stacked vote: train it on rows "
            "with answers, or choose another method"
        )
    return opened
