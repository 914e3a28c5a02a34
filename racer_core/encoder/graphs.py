"""The lean forward on a GPU: a batch is one launch, of a shape that was recorded at the start.

A pass is hundreds of kernels, and for a few short texts each takes less time to run than Python
takes to launch it. A CUDA graph launches all of them at once, but for one shape and at fixed
addresses: a batch is padded to the next shape and copied to where the graph reads. Large batches
keep the GPU busy for longer than their launches take, and run as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import product

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from racer_core.encoder.base import Pooling
from racer_core.encoder.deberta import LeanDeberta
from racer_core.encoder.pooling import pool

Shape = tuple[int, int]  # texts, tokens
Embed = Callable[[Tensor, Tensor], Tensor]
Recorder = Callable[[Callable[[], Tensor]], tuple[Callable[[], object], Tensor]]

_SHORTEST = 16  # tokens; a multiple of 8, as the kernels want rows of the attention's bias aligned
_LARGEST = 8_192  # tokens together; that launching takes no longer is supposed, not yet measured
_WARM_UP = 3  # runs before a recording: libraries choose kernels and take memory in the first
# One kernel for every shape, and with a bias. cuDNN, torch's first choice on Hopper, makes a plan
# for each new shape, which batches that run without a graph would wait for.
_ATTENTION = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def embedder(model: LeanDeberta, pooling: Pooling) -> Embed:
    """From ids and mask (B, T) to embeddings (B, D), looking at no value: it can be recorded."""

    def embed(ids: Tensor, mask: Tensor) -> Tensor:
        with sdpa_kernel(_ATTENTION):
            hidden = model(ids, mask, padded=True)
        return pool(hidden.float(), mask, pooling)

    return embed


def shapes(texts: int, tokens: int) -> list[Shape]:
    """What is recorded for batches of at most so many texts and tokens: powers of two, and those.

    Not beyond 8,192 tokens together.
    """
    every = product(_doubling(1, texts), _doubling(_SHORTEST, tokens))
    return [shape for shape in every if math.prod(shape) <= _LARGEST]


def _doubling(first: int, last: int) -> list[int]:
    return [first, *_doubling(2 * first, last)] if first < last else [last]


def fitting(batch: Shape, among: Iterable[Shape]) -> Shape | None:
    """The smallest shape that holds a batch; None where none does."""
    holding = (each for each in among if each[0] >= batch[0] and each[1] >= batch[1])
    return min(holding, key=math.prod, default=None)


class Graphs:
    """Embeddings by recorded graphs. One thread at a time: all calls share the graphs' buffers.

    Args:
        embed: What :func:`embedder` gives.
        shapes: Recorded now, the largest first, whose memory the others then share.
        device: Where ``embed`` computes.
        recorder: Gives what runs a recording again, and where its results then are; None is CUDA's.
    """

    def __init__(
        self,
        embed: Embed,
        shapes: Iterable[Shape],
        device: str,
        recorder: Recorder | None = None,
    ) -> None:
        self._embed = embed
        self._device = torch.device(device)
        record = recorder or CudaRecorder()
        with torch.inference_mode():
            self._graphs = {
                shape: _Graph(embed, shape, self._device, record)
                for shape in sorted(shapes, key=math.prod, reverse=True)
            }

    @torch.inference_mode()
    def __call__(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Embeddings (B, D) of ids and mask (B, T), all of them on the CPU."""
        batch, tokens = ids.shape
        shape = fitting((batch, tokens), self._graphs)
        if shape is None:
            return self._embed(ids.to(self._device), mask.to(self._device)).cpu()
        return self._graphs[shape](ids, mask)


class _Graph:
    """One shape: the buffers that its batches pass through, and what was recorded over them."""

    def __init__(self, embed: Embed, shape: Shape, device: torch.device, record: Recorder) -> None:
        # Ids and mask together are one copy, from memory that the GPU reads by itself.
        pinned = device.type == "cuda"
        self._staged = torch.ones((2, *shape), dtype=torch.int64, pin_memory=pinned)
        self._inputs = torch.ones((2, *shape), dtype=torch.int64, device=device)
        self._replay, self._results = record(lambda: embed(self._inputs[0], self._inputs[1]))

    def __call__(self, ids: Tensor, mask: Tensor) -> Tensor:
        batch, tokens = ids.shape
        self._staged.zero_()
        self._staged[1, batch:] = 1  # rows that nobody reads: one of padding alone has no softmax
        self._staged[0, :batch, :tokens] = ids
        self._staged[1, :batch, :tokens] = mask
        self._inputs.copy_(self._staged, non_blocking=True)
        self._replay()
        return self._results[:batch].to("cpu", copy=True)  # waits, so the buffers are free again


class CudaRecorder:
    """Records CUDA graphs that share their memory, for they run one after the other."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def __call__(self, run: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
        """What launches it all again, and where its results then are."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(_WARM_UP):
                run()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            results = run()
        return graph.replay, results
