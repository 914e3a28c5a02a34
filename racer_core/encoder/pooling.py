"""Pooling: one embedding per text from the hidden states of its tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from racer_core.encoder.base import Pooling

if TYPE_CHECKING:
    import torch


def pool(hidden: torch.Tensor, mask: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    """One vector a text, shape (B, D), from its tokens' (B, T, D) and the mask of real ones."""
    if pooling == "cls":
        return hidden[:, 0]
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1).clamp_min(1.0)
