"""CUDA graphs for our own forward: a batch is one launch of a shape recorded at the start.

A pass launches hundreds of kernels, and for a few short texts each kernel runs for less time than
Python needs to launch it. A CUDA graph launches all of them at once, for one shape and at fixed
addresses: a batch is padded to the next recorded shape and copied to the graph's input. A batch
that no recorded shape holds runs without a graph.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from racer_core.encoder.base import Pooling
from racer_core.encoder.batches import Shape, fitting
from racer_core.encoder.deberta import LeanDeberta
from racer_core.encoder.pooling import pool

log = logging.getLogger(__name__)

Embed = Callable[[Tensor, Tensor], Tensor]
Recorder = Callable[[Callable[[], Tensor]], tuple[Callable[[], object], Tensor]]

_WARM_UP = 3  # runs before a recording, in which libraries choose kernels and allocate memory
# A kernel that serves all shapes and takes a bias. cuDNN, torch's first choice on Hopper, makes a
# plan for each new shape, which would delay batches without a graph.
_ATTENTION = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def embedder(model: LeanDeberta, pooling: Pooling) -> Embed:
    """A function of ids and mask (B, T) to embeddings (B, D) that can be recorded.

    Its control flow depends on shapes only, never on values.
    """

    def embed(ids: Tensor, mask: Tensor) -> Tensor:
        with sdpa_kernel(_ATTENTION):
            hidden = model(ids, mask, padded=True)
        return pool(hidden.float(), mask, pooling)

    return embed


class Graphs:
    """Embeddings by recorded graphs. Not thread-safe: all calls share the graphs' buffers.

    Args:
        embed: The result of :func:`embedder`.
        shapes: Shapes to record now, largest first; smaller ones share the memory of larger ones.
            Those for which there is too little memory are left out.
        device: Device of ``embed``.
        recorder: Returns a function that replays a recording, and its output; None uses CUDA.
    """

    def __init__(
        self,
        embed: Embed,
        *,
        shapes: Iterable[Shape],
        device: str,
        recorder: Recorder | None = None,
    ) -> None:
        self._embed = embed
        self._device = torch.device(device)
        record = recorder or CudaRecorder()
        self._graphs: dict[Shape, _Graph] = {}
        without: list[Shape] = []
        with torch.inference_mode():
            for shape in sorted(shapes, key=math.prod, reverse=True):
                try:
                    self._graphs[shape] = _Graph(
                        embed, shape=shape, device=self._device, record=record
                    )
                except torch.OutOfMemoryError:
                    without.append(shape)
        if without:
            log.warning(
                "the memory of %s is too small for %d of %d CUDA graphs, the smallest for %d texts "
                "of %d tokens: the encoder takes smaller batches, and is slower",
                device,
                len(without),
                len(without) + len(self._graphs),
                *without[-1],
            )

    @property
    def shapes(self) -> list[Shape]:
        """The recorded shapes."""
        return list(self._graphs)

    @torch.inference_mode()
    def __call__(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Embeddings (B, D) of ids and mask (B, T), all of them on the CPU."""
        batch, tokens = ids.shape
        shape = fitting((batch, tokens), self._graphs)
        if shape is None:
            return self._embed(ids.to(self._device), mask.to(self._device)).cpu()
        return self._graphs[shape](ids, mask)


class _Graph:
    """One recorded shape with its input and output buffers."""

    def __init__(
        self, embed: Embed, *, shape: Shape, device: torch.device, record: Recorder
    ) -> None:
        # Ids and mask are one copy, from pinned memory.
        pinned = device.type == "cuda"
        self._staged = torch.ones((2, *shape), dtype=torch.int64, pin_memory=pinned)
        self._inputs = torch.ones((2, *shape), dtype=torch.int64, device=device)
        self._replay, self._results = record(lambda: embed(self._inputs[0], self._inputs[1]))

    def __call__(self, ids: Tensor, mask: Tensor) -> Tensor:
        batch, tokens = ids.shape
        self._staged.zero_()
        self._staged[1, batch:] = 1  # unused rows: the softmax of an all-padding row is undefined
        self._staged[0, :batch, :tokens] = ids
        self._staged[1, :batch, :tokens] = mask
        self._inputs.copy_(self._staged, non_blocking=True)
        self._replay()
        return self._results[:batch].to("cpu", copy=True)  # synchronises: buffers are free again


class CudaRecorder:
    """Records CUDA graphs in one memory pool; they must not run concurrently."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def __call__(self, run: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
        """A function that replays the recording, and the tensor that receives its results."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(_WARM_UP):
                run()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            results = run()
        return graph.replay, results
