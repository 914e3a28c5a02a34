"""Embedding of many texts over a Ray cluster, with Ray Data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, cast

import ray
import ray.data
from ray.exceptions import RayError

from app.tools.ray_batch.connection import joined, rows_of
from racer_core import artifacts
from racer_core.encoder.base import EncoderOutput, EncoderSpec
from racer_core.errors import ArtifactError
from racer_core.offline.embeddings import Spread


def over_cluster(address: str, spec: EncoderSpec) -> Spread:
    """Pieces are embedded by as many processes as have room, on a GPU each where it needs one.

    Args:
        address: The cluster's.
        spec: The encoder, whose folder every node has at the same place; one that differs is
            refused.
    """

    def spread(pieces: Sequence[Sequence[str]]) -> Iterator[tuple[int, EncoderOutput]]:
        with joined(address):
            gpus = 1 if spec.backend == "cuda" else 0
            most = int(ray.cluster_resources().get("GPU" if gpus else "CPU", 1))
            batches = [
                {"number": number, "texts": list(texts)} for number, texts in enumerate(pieces)
            ]
            found = ray.data.from_items(batches, override_num_blocks=len(batches)).map(
                cast("Any", _Embedding),  # a class is made once for each process
                fn_constructor_args=(spec,),
                compute=ray.data.ActorPoolStrategy(min_size=1, max_size=max(1, most)),
                num_gpus=gpus,
            )
            try:
                with closing(rows_of(found)) as rows:
                    for row in rows:
                        yield row["number"], EncoderOutput(row["embeddings"], row["truncated"])
            except RayError as exc:
                raise ArtifactError(f"the cluster could not embed: {exc}") from exc

    return spread


class _Embedding:
    """The encoder in one process of the cluster."""

    def __init__(self, spec: EncoderSpec) -> None:
        self._encoder = artifacts.open_encoder(spec)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        encoded = self._encoder.encode(list(row["texts"]))
        return {
            "number": row["number"],
            "embeddings": encoded.embeddings,
            "truncated": encoded.truncated,
        }
