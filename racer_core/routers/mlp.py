"""MLP router: two linear layers on the embedding. Paper, Sec. 5.1, App. B.

Trained with torch (256 hidden units, binary cross-entropy with logits, batch 32, Adam at 1e-4,
100 epochs); predicts with numpy, so that serving it beside a numpy encoder needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from racer_core.errors import InputError
from racer_core.routers.base import Batch, RouterOutput
from racer_core.routers.logistic import sigmoid
from racer_core.types import BoolArray

if TYPE_CHECKING:
    from racer_core.routers.checkpoint import Checkpoint

_WEIGHTS = ("hidden_weight", "hidden_bias", "output_weight", "output_bias")


@dataclass(frozen=True, slots=True)
class MlpRouter:
    """sigmoid(relu(x W1' + b1) W2' + b2); W1 (H, D), W2 (K, H), all float32."""

    kind: ClassVar[str] = "mlp"

    hidden_weight: NDArray[np.float32]
    hidden_bias: NDArray[np.float32]
    output_weight: NDArray[np.float32]
    output_bias: NDArray[np.float32]

    @classmethod
    def fit(
        cls,
        embeddings: NDArray[np.float32],
        labels: BoolArray,
        *,
        seed: int = 0,
        hidden: int = 256,
        epochs: int = 100,
        batch: int = 32,
        learning_rate: float = 1e-4,
        checkpoint: Checkpoint | None = None,
        progress: Callable[[int, float], None] = lambda _epoch, _loss: None,
    ) -> Self:
        """Train on rows (n, D) with labels (n, K).

        The same seed gives the same weights, interrupted or not, as all sums are those of one
        thread on a CPU: a step of the ``checkpoint`` is an epoch. ``progress`` is called with the
        number and mean loss of each epoch, those of an earlier run included.

        Raises:
            InputError: No rows.
            ArtifactError: The checkpoint does not fit or cannot be written.
        """
        import torch
        from torch import nn

        if not len(embeddings):
            raise InputError("no training rows")
        generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            first = nn.Linear(embeddings.shape[1], hidden)
            second = nn.Linear(hidden, labels.shape[1])
        model = nn.Sequential(first, nn.ReLU(), second)
        optimiser = torch.optim.Adam(model.parameters(), lr=learning_rate, fused=True)
        x = torch.from_numpy(np.ascontiguousarray(embeddings))
        y = torch.from_numpy(labels.astype(np.float32))
        reached = checkpoint.restore(model, optimiser) if checkpoint else None
        losses = reached.losses if reached else []
        for epoch, loss in enumerate(losses):
            torch.randperm(len(x), generator=generator)  # advances the generator past this epoch
            progress(epoch + 1, loss)
        with _one_thread():
            for epoch in range(len(losses), epochs):
                total = 0.0
                order = torch.randperm(len(x), generator=generator)
                for start in range(0, len(x), batch):
                    rows = order[start : start + batch]
                    optimiser.zero_grad()
                    loss = nn.functional.binary_cross_entropy_with_logits(model(x[rows]), y[rows])
                    loss.backward()  # pyright: ignore[reportUnknownMemberType]
                    optimiser.step()  # pyright: ignore[reportUnknownMemberType]
                    total += float(loss.detach()) * len(rows)
                losses.append(total / len(x))
                if checkpoint and checkpoint.due(epoch + 1, epochs):
                    checkpoint.save(model, optimiser, losses)
                progress(epoch + 1, losses[-1])
        weights = (first.weight, first.bias, second.weight, second.bias)
        return cls(*(tensor.detach().numpy().copy() for tensor in weights))

    @property
    def columns(self) -> int:
        """K, the number of candidates."""
        return int(self.output_weight.shape[0])

    def predict(self, batch: Batch) -> RouterOutput:
        """The predicted chance that each candidate is right."""
        inside = batch.encoded.embeddings @ self.hidden_weight.T + self.hidden_bias
        logits = np.maximum(inside, 0.0) @ self.output_weight.T + self.output_bias
        return RouterOutput(sigmoid(logits.astype(np.float64)))

    def tensors(self) -> Mapping[str, NDArray[np.generic]]:
        """The four weights."""
        return {name: getattr(self, name) for name in _WEIGHTS}

    def settings(self) -> Mapping[str, Any]:
        """None: the shapes determine everything."""
        return {}

    @classmethod
    def load(cls, tensors: Mapping[str, NDArray[Any]], settings: Mapping[str, Any]) -> Self:
        """Rebuild from :meth:`tensors`; InputError when they do not fit."""
        del settings
        hidden, hidden_bias, output, output_bias = (tensors[name] for name in _WEIGHTS)
        shapes = [hidden.shape, hidden_bias.shape, output.shape, output_bias.shape]
        if [len(shape) for shape in shapes] != [2, 1, 2, 1] or not (
            hidden.shape[0] == len(hidden_bias) == output.shape[1]
            and output.shape[0] == len(output_bias)
        ):
            raise InputError(f"the weights {shapes} do not fit")
        return cls(hidden, hidden_bias, output, output_bias)


@contextmanager
def _one_thread() -> Generator[None]:
    """Torch computes in one thread: the last bits of a sum depend on how many share it."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
