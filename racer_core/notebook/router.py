"""Router on embedding arrays, with the habits of scikit-learn: ``fit`` returns the router."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from racer_core.calibration.patterns import PatternModel
from racer_core.encoder.base import Encoder, EncoderOutput, EncoderSpec, unit_rows
from racer_core.encoder.char_ngrams import SPEC
from racer_core.errors import InputError
from racer_core.notebook.calibrate import checked_labels
from racer_core.offline.fit import RouterChoice, fit_embedded
from racer_core.routers.base import Batch, Router, RouterOutput, on_grid

KINDS: Final = ("knn", "mlp")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayOutput(RouterOutput):
    """A router's output for a batch; numpy takes it for the array of its scores.

    Attributes:
        scores: f, shape (B, K), in [0, 1]: the predicted chance that each candidate is right.
        neighbours: Pattern ids of the nearest training rows, shape (B, J); None without neighbours.
        similarity: The cosine with the nearest training row, shape (B,); None without neighbours.
        patterns: The correctness patterns of the training rows, which ``cover`` needs.
    """

    patterns: PatternModel


class EmbeddingRouter:
    """A router that learns from embeddings which candidate answers right.

    Args:
        kind: ``knn`` (k = 40 neighbours by cosine) or ``mlp`` (one hidden layer; fitting it needs
            torch).
        encoder: Embeds texts; None: ``fit`` and ``predict`` take embeddings.
        options: Settings of the router, such as ``{"k": 40}``; others keep their defaults.
        seed: Seed of all random numbers.

    Attributes:
        patterns_: The correctness patterns of the training rows; after ``fit``.

    Raises:
        InputError: Another kind.
    """

    def __init__(
        self,
        kind: str = "knn",
        *,
        encoder: Encoder | None = None,
        options: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        _choice(kind, options, seed)
        self.kind = kind
        self.encoder = encoder
        self.options = options
        self.seed = seed
        self._router: Router | None = None
        self._fitted_encoder: Encoder | None = None

    def __repr__(self) -> str:
        """The kind, and the parameters that differ from their defaults; an encoder by its class."""
        shown = [repr(self.kind)]
        for name, value in self.get_params().items():
            if name != "kind" and value != _DEFAULTS[name]:
                text = type(value).__name__ if name == "encoder" else reprlib.repr(value)
                shown.append(f"{name}={text}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters of the constructor, as they were given.

        Args:
            deep: Has no effect: no parameter has parameters of its own.
        """
        return {name: getattr(self, name) for name in _DEFAULTS}

    def set_params(self, **params: Any) -> Self:
        """Change parameters of the constructor; the next :meth:`fit` reads them.

        Args:
            params: New values by name. Others keep theirs.

        Returns:
            The router itself.

        Raises:
            InputError: An unknown name, or a value that the constructor refuses. Nothing changes.
        """
        unknown = sorted(params.keys() - _DEFAULTS.keys())
        if unknown:
            raise InputError(
                f"unknown parameters {', '.join(unknown)}: a router of arrays has "
                f"{', '.join(_DEFAULTS)}"
            )
        values = self.get_params() | params
        _choice(values["kind"], values["options"], values["seed"])
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def fit(self, X: ArrayLike | Sequence[str], y: ArrayLike) -> Self:
        """Learn from training rows, none of which may calibrate.

        Args:
            X: Embeddings, shape (n, D), which are scaled to length 1; texts, if there is an
                encoder.
            y: Whether each candidate answers right, shape (n, K), of booleans or of 0 and 1.

        Returns:
            The router itself.

        Raises:
            InputError: Shapes or values do not fit, or the options are unknown.
        """
        choice = _choice(self.kind, self.options, self.seed)
        encoder = self.encoder
        embeddings = _embed(X, encoder)
        correct = np.asarray(y)
        if correct.ndim != 2 or len(correct) != len(embeddings):
            raise InputError(f"correctness {correct.shape} does not fit {len(embeddings)} rows")
        labels = checked_labels(correct, correct.shape)
        self._router = fit_embedded(choice, embeddings, labels)
        self._fitted_encoder = encoder
        self._width = embeddings.shape[1]
        self.patterns_ = PatternModel.of(labels)
        return self

    def predict(self, X: ArrayLike | Sequence[str]) -> ArrayOutput:
        """Score every candidate for every row, as the gateway does.

        Args:
            X: As for :meth:`fit`, shape (B, D).

        Returns:
            f in [0, 1], shape (B, K), as an array or with its neighbours and patterns.

        Raises:
            InputError: The router is not fitted, or X has another width.
        """
        if self._router is None:
            raise InputError("the router is not fitted: call fit(X, y) first")
        embeddings = _embed(X, self._fitted_encoder)
        if embeddings.shape[1] != self._width:
            raise InputError(f"X has {embeddings.shape[1]} columns, fitted on {self._width}")
        rows = [""] * len(embeddings)
        output = self._router.predict(Batch(rows, _GivenEmbeddings(embeddings)))
        return ArrayOutput(
            scores=on_grid(np.asarray(output.scores, dtype=np.float64)),
            neighbours=output.neighbours,
            similarity=output.similarity,
            patterns=self.patterns_,
        )


_DEFAULTS: Final[Mapping[str, Any]] = {
    name: each.default for name, each in inspect.signature(EmbeddingRouter).parameters.items()
}


def _choice(kind: str, options: Mapping[str, Any] | None, seed: int) -> RouterChoice:
    """The router to fit. Raises InputError."""
    if kind not in KINDS:
        raise InputError(
            f"a router of arrays is one of {', '.join(KINDS)}, not {kind!r}; "
            "`racer train` trains the others from texts"
        )
    return RouterChoice(kind=kind, options=options or {}, seed=seed)


def _embed(X: ArrayLike | Sequence[str], encoder: Encoder | None) -> NDArray[np.float32]:
    """Embeddings (B, D) of length 1."""
    if encoder is not None:
        texts = [str(text) for text in np.asarray(X, dtype=object).tolist()]
        return encoder.encode(texts).embeddings
    embeddings = np.asarray(X)
    if embeddings.ndim != 2 or not np.issubdtype(embeddings.dtype, np.number):
        raise InputError("X must be numbers of shape (n, D); texts need an encoder", param="X")
    if not np.isfinite(embeddings).all():
        raise InputError("X holds NaN or infinite numbers", param="X")
    return unit_rows(embeddings.astype(np.float32))


@dataclass(frozen=True, slots=True)
class _GivenEmbeddings:
    """An encoder of one batch, whose embeddings exist already."""

    embeddings: NDArray[np.float32]

    @property
    def spec(self) -> EncoderSpec:
        """That of no model."""
        return SPEC

    def encode(self, texts: Sequence[str]) -> EncoderOutput:
        """The embeddings."""
        return EncoderOutput(self.embeddings, np.zeros(len(texts), dtype=bool))
