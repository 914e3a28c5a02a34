"""Embedding throughput of one process and of a Ray cluster, and equality of the results.

    python benchmarks/ray_embedding.py --json benchmarks/results/ray_embedding.json

Rows are embedded with the demo's encoder into two new files: by this process, and by a Ray cluster
of two nodes on this machine. The exit code is 1 if the files differ in any bit.
"""

import argparse
import itertools
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import queries
import rig

from racer_core.encoder.base import EncoderOutput
from racer_core.encoder.huggingface import HuggingFaceEncoder
from racer_core.offline.embeddings import CachedEncoder, Spread

ENCODER = rig.HERE.parent / "deploy/demo/encoder"
NODES = 2


def main() -> None:
    """Measure, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--json", type=Path, help="write the result file here")
    args = parser.parse_args()
    manifest = rig.manifest(rows=args.rows, nodes=NODES)
    encoder = HuggingFaceEncoder(str(ENCODER))
    texts = list(itertools.islice(queries.endless(0), args.rows))
    with tempfile.TemporaryDirectory() as folder:
        here, here_s = embedded(CachedEncoder(encoder, Path(folder) / "here.sqlite"), texts)
        with cluster() as address:
            from app.tools.ray_batch.embedding import over_cluster

            spread: Spread = over_cluster(address, encoder.spec)
            over = CachedEncoder(encoder, Path(folder) / "there.sqlite", spread)
            there, there_s = embedded(over, texts)
    document: dict[str, Any] = {
        "manifest": manifest,
        "rows": args.rows,
        "seconds": {"here": here_s, "cluster": there_s},
        "equal": np.array_equal(here.embeddings, there.embeddings)
        and np.array_equal(here.truncated, there.truncated),
    }
    rig.publish(document, markdown(document), args.json)
    if not document["equal"]:
        sys.exit(1)


def embedded(encoder: CachedEncoder, texts: list[str]) -> tuple[EncoderOutput, float]:
    """Embeddings, and the time they took, the start of the cluster's processes in it."""
    begun = time.perf_counter()
    found = encoder.encode(texts)
    return found, time.perf_counter() - begun


@contextmanager
def cluster() -> Generator[str]:
    """Two nodes that share the cores of this machine; where they are."""
    os.environ |= {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),  # or Ray writes one into the home folder
    }
    from ray.cluster_utils import Cluster  # reads them when it is imported

    node = {"num_cpus": max(1, len(rig.CORES) // NODES), "object_store_memory": 256 * 2**20}
    # Ray writes the cluster's address there, whatever `temp_dir` says, and makes no folder.
    Path(tempfile.gettempdir(), "ray").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="racer-ray-") as folder:
        head = node | {"temp_dir": folder, "include_dashboard": False}
        started = Cluster(initialize_head=True, head_node_args=head)
        try:
            for _ in range(1, NODES):
                started.add_node(**node)
            yield started.address
        finally:
            started.shutdown()


def markdown(document: dict[str, Any]) -> str:
    """The table."""
    rows, seconds = document["rows"], document["seconds"]
    labels = {"here": "this process", "cluster": f"a cluster of {NODES} nodes on the same cores"}
    lines = [f"| {labels[name]} | {s:,.1f} | {rows / s:,.0f} |" for name, s in seconds.items()]
    same = "bit for bit the same" if document["equal"] else "NOT the same"
    return "\n".join(
        [
            rig.taken(document["manifest"]),
            "",
            f"{rows:,} rows of the demo's encoder, {same}:",
            "",
            "| embedded by | seconds, starts included | rows/s |",
            "| --- | --- | --- |",
            *lines,
        ]
    )


if __name__ == "__main__":
    main()
