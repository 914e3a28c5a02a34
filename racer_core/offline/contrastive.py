"""Contrastive loss of RouterDC, for query-candidate pairs and for query-query pairs.

Chen et al. 2024, Eq. (3) and (5).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from racer_core.types import BoolArray, FloatArray

_TIE = 1e-7  # below the grid of grades, 1e-6: luck orders equal grades only


def pick(
    eligible: BoolArray,
    most: int,
    rng: np.random.Generator,
    grades: FloatArray | None = None,
) -> BoolArray:
    """At most ``most`` eligible columns of each row of (B, C).

    Args:
        eligible: The columns to choose from.
        most: How many to choose of each row.
        rng: Draws the columns, of graded rows those among equal grades.
        grades: In [0, 1], shape (B, C); the largest are taken. A row of NaN has none.
    """
    priority = rng.random(eligible.shape)
    if grades is not None:
        priority = np.nan_to_num(grades, nan=0.0) + _TIE * priority
    priority = np.where(eligible, priority, -1.0)
    rank = np.argsort(np.argsort(-priority, axis=1), axis=1)
    return eligible & (rank < most)


def contrast(
    similarity: torch.Tensor, positive: BoolArray, negative: BoolArray
) -> torch.Tensor | None:
    """Mean over rows of the sum over positives t of -log(e^s_t / (e^s_t + sum_negatives e^s)).

    Args:
        similarity: Shape (B, C), cosines over the temperature.
        positive: Columns pulled to each row.
        negative: Columns that each positive is contrasted with.

    Returns:
        The loss; None if no row has both. A row without both adds nothing to the sum.
    """
    counted = positive.any(axis=1) & negative.any(axis=1)
    if not counted.any():
        return None
    device = similarity.device
    chosen = similarity[torch.from_numpy(counted).to(device)]
    pulled, pushed = (torch.from_numpy(mask[counted]).to(device) for mask in (positive, negative))
    against = torch.logsumexp(chosen.masked_fill(~pushed, -torch.inf), dim=1, keepdim=True)
    terms = nn.functional.softplus(against - chosen)
    return terms[pulled].sum() / len(similarity)
