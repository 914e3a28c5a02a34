"""Training of one router of any kind, built-in or plug-in."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from racer_core.encoder.base import Encoder, EncoderSpec
from racer_core.errors import InputError
from racer_core.offline.one_thread import one_thread
from racer_core.offline.options import check_names, check_number
from racer_core.offline.reporting import Progress, ReportingEncoder, silent
from racer_core.offline.selection import NEIGHBOURS, most_neighbours
from racer_core.routers import registry
from racer_core.routers.base import Router
from racer_core.routers.checkpoint import Checkpoint
from racer_core.routers.knn import KnnRouter
from racer_core.routers.mlp import MlpRouter
from racer_core.routers.router_dc import RouterDcRouter
from racer_core.types import BoolArray, FloatArray, LabelledRows

_DEFAULTS: Final[Mapping[str, Mapping[str, float]]] = {
    KnnRouter.kind: {"k": 40},
    MlpRouter.kind: {"hidden": 256, "epochs": 100, "batch": 32, "learning_rate": 1e-4},
}
_STEPS: Final[Mapping[str, str]] = {RouterDcRouter.kind: "steps", MlpRouter.kind: "epochs"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterChoice:
    """The router to train, and its training options.

    Attributes:
        kind: A built-in router, or the name of a plug-in.
        options: Settings of the router; others keep their defaults.
        seed: Seed of all random numbers.
        steps: Steps of RouterDC or epochs of an MLP; None takes their default.
        resume: Continue an interrupted training.
        checkpoint_every: Steps or epochs between two saves of its state.
    """

    kind: str = KnnRouter.kind
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seed: int = 0
    steps: int | None = None
    resume: bool = False
    checkpoint_every: int = 50

    def __post_init__(self) -> None:
        """Refuse steps for a router without steps, and a seed below 0."""
        if self.seed < 0:
            raise InputError(f"the seed is {self.seed}; it must be 0 or more", param="seed")
        if self.steps is not None and self.kind not in _STEPS:
            raise InputError(f"router {self.kind} is not trained in steps", param="steps")

    def settings(self, defaults: Mapping[str, float]) -> dict[str, Any]:
        """The defaults, overridden by options and steps. Raises InputError."""
        check_names(self.kind, self.options, defaults)
        steps = {} if self.steps is None else {_STEPS[self.kind]: self.steps}
        return {**defaults, **self.options, **steps}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Queries, their labels, shape (n, K), and their grades, NaN for a row without."""

    texts: Sequence[str]
    labels: BoolArray
    quality: FloatArray | None = None

    @classmethod
    def of(cls, rows: LabelledRows, pool: Sequence[str]) -> Rows:
        """Labelled rows, with columns in the order of the pool."""
        return cls(texts=rows.queries, labels=rows.labels(pool), quality=rows.quality(pool))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """A trained router.

    Attributes:
        router: Scores queries that ``encoder`` embeds.
        encoder: The given encoder, or the fine-tuned one.
        losses: One a step or an epoch; empty for routers without such a training.
        settings: All settings, for the log.
        checkpoint: Remove it once the artifact is saved.
    """

    router: Router
    encoder: Encoder
    losses: Sequence[float] = ()
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    checkpoint: Checkpoint | None = None


def fit(
    choice: RouterChoice,
    rows: Rows,
    validation: Rows,
    *,
    pool: Sequence[str],
    encoder: Encoder,
    folder: Path,
    progress: Progress = silent,
) -> TrainingResult:
    """Train the chosen router.

    Args:
        choice: The router and its options.
        rows: Training rows.
        validation: For RouterDC, to map its cosines to probabilities.
        pool: The candidates' names, in the order of the labels.
        encoder: Embeds the rows; RouterDC fine-tunes a copy of it.
        folder: The artifact's folder, for a checkpoint and RouterDC's encoder.
        progress: Called at each stage.

    Raises:
        InputError: Unknown options, no rows, or a training that diverges.
        ArtifactError: A checkpoint that does not fit, or a plug-in that fails.
    """
    if choice.kind == RouterDcRouter.kind:
        return _fit_router_dc(choice, rows, validation, pool, encoder, folder, progress)
    if choice.kind not in registry.BUILT_IN:
        router = registry.create(choice.kind, pool, choice.options)
        return TrainingResult(router=router, encoder=encoder)
    settings = checked_settings(choice)
    checkpoint = None
    if choice.kind == MlpRouter.kind:
        checkpoint = _checkpoint(choice, rows, pool, encoder.spec, folder)
    losses: list[float] = []
    embeddings = encoder.encode(rows.texts).embeddings
    return TrainingResult(
        router=fit_embedded(
            choice,
            embeddings,
            rows.labels,
            checkpoint=checkpoint,
            losses=losses,
            progress=progress,
        ),
        encoder=encoder,
        losses=losses,
        settings=settings,
        checkpoint=checkpoint,
    )


def fit_embedded(
    choice: RouterChoice,
    embeddings: NDArray[np.float32],
    labels: BoolArray,
    *,
    checkpoint: Checkpoint | None = None,
    losses: list[float] | None = None,
    progress: Progress = silent,
) -> Router:
    """Train KNN or an MLP on embedded rows; ``losses`` receives one value an epoch."""
    settings = checked_settings(choice)
    if choice.kind == KnnRouter.kind:
        reach = min(max(NEIGHBOURS), most_neighbours(len(labels)))
        return KnnRouter.fit(embeddings, labels, reach=reach, seed=choice.seed, **settings)
    heard = [] if losses is None else losses
    return MlpRouter.fit(
        embeddings,
        labels,
        seed=choice.seed,
        checkpoint=checkpoint,
        progress=_listener("MLP", settings["epochs"], heard, progress),
        **settings,
    )


def checked_settings(choice: RouterChoice) -> dict[str, Any]:
    """All settings of a built-in router, defaults included. Raises InputError."""
    if choice.kind == RouterDcRouter.kind:
        from racer_core.offline.router_dc import RouterDcSettings  # needs torch

        settings = choice.settings(asdict(RouterDcSettings()))
        return asdict(RouterDcSettings(**settings))
    defaults = _DEFAULTS[choice.kind]
    settings = choice.settings(defaults)
    for name, default in defaults.items():
        check_number(name, settings[name], like=default)
    return settings


def _fit_router_dc(
    choice: RouterChoice,
    rows: Rows,
    validation: Rows,
    pool: Sequence[str],
    encoder: Encoder,
    folder: Path,
    progress: Progress,
) -> TrainingResult:
    from racer_core.offline.router_dc import RouterDcSettings, fine_tune  # needs torch

    settings = checked_settings(choice)
    checkpoint = _checkpoint(choice, rows, pool, encoder.spec, folder)
    losses: list[float] = []
    tuned = fine_tune(
        rows.texts,
        rows.labels,
        encoder=encoder,
        folder=folder / "encoder",
        settings=RouterDcSettings(**settings),
        quality=rows.quality,
        seed=choice.seed,
        checkpoint=checkpoint,
        progress=_listener("RouterDC", settings["steps"], losses, progress),
    )
    embeddings = ReportingEncoder(tuned.encoder, progress).encode(validation.texts).embeddings
    with one_thread():
        router = RouterDcRouter.fit(tuned.keys, embeddings, validation.labels)
    return TrainingResult(
        router=router,
        encoder=tuned.encoder,
        losses=losses,
        settings=settings,
        checkpoint=checkpoint,
    )


def _listener(
    stage: str, steps: int, losses: list[float], progress: Progress
) -> Callable[[int, float], None]:
    """Records the losses and reports the steps."""

    def heard(step: int, loss: float) -> None:
        losses.append(loss)
        progress(f"{stage}, loss {loss:.3f}", step, steps)

    return heard


def _checkpoint(
    choice: RouterChoice, rows: Rows, pool: Sequence[str], spec: EncoderSpec, folder: Path
) -> Checkpoint:
    """The checkpoint of a training."""
    return Checkpoint(
        folder=folder / "checkpoint",
        identity=identity(choice, rows, pool, spec),
        every=choice.checkpoint_every,
        resume=choice.resume,
    )


def identity(
    choice: RouterChoice, rows: Rows, pool: Sequence[str], spec: EncoderSpec
) -> dict[str, Any]:
    """JSON values that determine the result of a training: settings, seed, data and encoder."""
    encoder = {f"encoder_{name}": value for name, value in spec.identity().items()}
    return {
        "router": choice.kind,
        "seed": choice.seed,
        "pool": list(pool),
        "data": digest(rows),
        **checked_settings(choice),
        **encoder,
    }


def digest(rows: Rows) -> str:
    """sha256 of the rows in their order."""
    found = hashlib.sha256(f"{rows.labels.shape}".encode() + rows.labels.tobytes())
    if rows.quality is not None:
        found.update(rows.quality.tobytes())
    for text in rows.texts:
        found.update(hashlib.sha256(text.encode()).digest())
    return found.hexdigest()
