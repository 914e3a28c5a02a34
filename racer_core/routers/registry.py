"""Registry of routers: the built-in ones, and plug-ins of installed packages.

A package offers a router by an entry point of the group ``racer.routers``, name -> class. The class
has one method, ``predict(batch) -> RouterOutput``, and is constructed with keywords: ``pool``, the
candidates' names in the order of the score columns, and its options. The artifact stores the
options and the package's version; loading constructs the router again. What else decides its scores
is in :mod:`racer_core.routers.inputs`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from racer_core.errors import ArtifactError, InputError
from racer_core.routers.base import Batch, Router, RouterOutput
from racer_core.routers.inputs import NO_INPUTS, Inputs, RouterInputs
from racer_core.routers.knn import KnnRouter
from racer_core.routers.mlp import MlpRouter
from racer_core.routers.router_dc import RouterDcRouter

GROUP: Final = "racer.routers"
_LOADERS: Final[Mapping[str, Callable[..., Router]]] = {
    KnnRouter.kind: KnnRouter.load,
    MlpRouter.kind: MlpRouter.load,
    RouterDcRouter.kind: RouterDcRouter.load,
}
BUILT_IN: Final = tuple(_LOADERS)


class CustomRouter(Protocol):
    """Protocol of the class behind an entry point."""

    def predict(self, batch: Batch) -> RouterOutput:
        """Score every candidate of the pool for every text of the batch."""
        ...


@dataclass(frozen=True, slots=True)
class PluginRouter:
    """A router of another package, with everything needed to construct it again."""

    kind: ClassVar[str] = "custom"

    name: str  # of its entry point
    pool: tuple[str, ...]
    options: Mapping[str, Any]
    package: str  # name and version of the distribution that offers it
    router: CustomRouter
    inputs: RouterInputs  # where they are
    digests: Inputs  # of the inputs, before it was constructed

    @property
    def columns(self) -> int:
        """K, the number of candidates."""
        return len(self.pool)

    def predict(self, batch: Batch) -> RouterOutput:
        """The plug-in's scores. Only the shape is checked; the caller checks values.

        Raises:
            ArtifactError: It failed, or its scores are not of shape (B, K): queries would get the
                scores of other queries.
        """
        try:
            output = cast(object, self.router.predict(batch))
            if not isinstance(output, RouterOutput):
                raise TypeError(f"it gave {type(output).__name__}, not RouterOutput")
            scores = np.asarray(output.scores, dtype=np.float64)
            wanted = (len(batch.texts), self.columns)
            if scores.shape != wanted:
                raise ValueError(f"it gave scores of shape {scores.shape}, not {wanted}")
        except Exception as exc:  # plug-ins may raise anything
            raise ArtifactError(
                f"router {self.name!r} of {self.package} failed: {type(exc).__name__}: {exc}"
            ) from exc
        return RouterOutput(scores)

    def tensors(self) -> Mapping[str, NDArray[np.generic]]:
        """None: the plug-in stores its own state."""
        return {}

    def settings(self) -> Mapping[str, Any]:
        """The settings from which :func:`load` constructs it again."""
        return {"name": self.name, "package": self.package, "options": dict(self.options)}


def names() -> tuple[str, ...]:
    """All routers that can be trained or loaded."""
    offered = {entry.name for entry in entry_points(group=GROUP)}
    return BUILT_IN + tuple(sorted(offered.difference(BUILT_IN)))


def create(name: str, pool: Sequence[str], options: Mapping[str, Any]) -> PluginRouter:
    """Construct the router that a package offers under this name.

    Raises:
        ArtifactError: No package or several offer it, it cannot be imported, or it does not take
            these options.
    """
    entry = _entry(name)
    try:
        kind = entry.load()
        inputs = RouterInputs.of(options, (entry.module, kind.__module__))
        digests = inputs.digests()
        router = kind(pool=tuple(pool), **options)
    except Exception as exc:  # plug-ins may raise anything
        given = ", ".join(options) or "none"
        raise ArtifactError(
            f"router {name!r} of {_package(entry)} cannot be constructed (options: {given}): "
            f"{type(exc).__name__}: {exc}"
        ) from exc
    return PluginRouter(name, tuple(pool), dict(options), _package(entry), router, inputs, digests)


def inputs_of(router: Router) -> tuple[RouterInputs, Inputs]:
    """Where the inputs of a router are beside its artifact, and what they were when it was made."""
    if isinstance(router, PluginRouter):
        return router.inputs, router.digests
    return NO_INPUTS, {}


def load(
    tensors: Mapping[str, NDArray[Any]], settings: Mapping[str, Any], pool: Sequence[str]
) -> Router:
    """Rebuild a router from its tensors and its settings, ``kind`` among them.

    Raises:
        ArtifactError: A plug-in that is not installed, or of another version.
        InputError: An unknown kind, or tensors that do not fit each other.
    """
    kind = settings["kind"]
    if kind in _LOADERS:
        return _LOADERS[kind](tensors, settings)
    if kind != PluginRouter.kind:
        raise InputError(f"unknown router kind {kind!r}")
    router = create(settings["name"], pool, settings["options"])
    if router.package != settings["package"]:
        raise ArtifactError(
            f"router {router.name!r} was of {settings['package']}, here it is of "
            f"{router.package}, whose scores may be others: install that version, or train and "
            "calibrate again"
        )
    return router


def _entry(name: str) -> EntryPoint:
    found = {_package(entry): entry for entry in entry_points(group=GROUP, name=name)}
    if not found:
        raise ArtifactError(
            f"there is no router {name!r} here, only {', '.join(names())}: install the package "
            f"with the entry point {name!r} in the group {GROUP!r}"
        )
    if len(found) > 1:
        raise ArtifactError(
            f"{' and '.join(sorted(found))} both offer a router {name!r}: uninstall one"
        )
    return next(iter(found.values()))


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unnamed package"
