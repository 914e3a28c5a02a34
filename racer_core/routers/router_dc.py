"""RouterDC: the cosine between a query and one learned embedding per candidate.

Chen et al. 2024, "RouterDC: Query-Based Router by Dual Contrastive Learning" (NeurIPS). The
encoder is fine-tuned together with the embeddings (``racer_core.offline.router_dc``). The paper
takes the candidate with the highest softmax of the cosines; a softmax is a chance of being *the
best*, so here each candidate's cosine is mapped to its chance of being *right*, on validation rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from racer_core.encoder.base import unit_rows
from racer_core.errors import InputError
from racer_core.routers.base import Batch, RouterOutput
from racer_core.routers.logistic import fit_logistic, sigmoid
from racer_core.types import BoolArray, FloatArray


@dataclass(frozen=True, slots=True)
class RouterDcRouter:
    """sigmoid(slope_m cos(E(x), k_m) + offset_m); keys k (K, D) of length 1, slopes >= 0."""

    kind: ClassVar[str] = "routerdc"

    keys: NDArray[np.float32]
    slopes: FloatArray  # (K,)
    offsets: FloatArray  # (K,)

    @classmethod
    def fit(
        cls, keys: NDArray[np.float32], embeddings: NDArray[np.float32], labels: BoolArray
    ) -> Self:
        """Map the cosines with learned ``keys`` to chances.

        Args:
            keys: Candidate embeddings, shape (K, D), any length.
            embeddings: Validation rows, shape (n, D), by the fine-tuned encoder.
            labels: Their correctness, shape (n, K).

        Raises:
            InputError: No validation rows.
        """
        if not len(embeddings):
            raise InputError("no validation rows to map cosines to chances on")
        keys = unit_rows(keys)
        cosines = _cosines(embeddings, keys)
        maps = [fit_logistic(cosines[:, m], labels[:, m]) for m in range(len(keys))]
        slopes, offsets = np.array(maps, dtype=np.float64).T
        return cls(keys, slopes.copy(), offsets.copy())

    @property
    def columns(self) -> int:
        """K, the number of candidates."""
        return len(self.keys)

    def predict(self, batch: Batch) -> RouterOutput:
        """The chance that each candidate is right."""
        cosines = _cosines(batch.encoded.embeddings, self.keys)
        return RouterOutput(sigmoid(self.slopes * cosines + self.offsets))

    def tensors(self) -> Mapping[str, NDArray[np.generic]]:
        """Candidate embeddings and their maps."""
        return {"keys": self.keys, "slopes": self.slopes, "offsets": self.offsets}

    def settings(self) -> Mapping[str, Any]:
        """None: the shapes determine everything."""
        return {}

    @classmethod
    def load(cls, tensors: Mapping[str, NDArray[Any]], settings: Mapping[str, Any]) -> Self:
        """Rebuild from :meth:`tensors`; InputError when they do not fit."""
        del settings
        keys, slopes, offsets = (tensors[name] for name in ("keys", "slopes", "offsets"))
        if keys.ndim != 2 or not slopes.shape == offsets.shape == keys.shape[:1]:
            shapes = [each.shape for each in (keys, slopes, offsets)]
            raise InputError(f"keys, slopes and offsets {shapes} do not fit")
        return cls(keys, slopes, offsets)


def _cosines(embeddings: NDArray[np.float32], keys: NDArray[np.float32]) -> FloatArray:
    """Shape (B, K); both sides have length 1."""
    return embeddings.astype(np.float64) @ keys.T.astype(np.float64)
