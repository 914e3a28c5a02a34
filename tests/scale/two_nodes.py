"""A process that holds a Ray cluster of two nodes until its standard input ends.

Ray is kept out of the tests' own process, whose warnings are errors.
"""

import json
import sys
import tempfile
from pathlib import Path

from ray.cluster_utils import Cluster


def main(folder: str) -> None:
    """Start both, say where they are, and wait."""
    # Ray writes the cluster's address there, whatever `temp_dir` says, and makes no folder.
    Path(tempfile.gettempdir(), "ray").mkdir(exist_ok=True)
    node = {"num_cpus": 6, "object_store_memory": 100 * 2**20}
    head = node | {"temp_dir": folder, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    second = cluster.add_node(**node)
    (raylet,) = second.all_processes["raylet"]
    metrics = [
        f"http://{each.node_ip_address}:{each.metrics_export_port}/metrics"
        for each in (cluster.head_node, second)
    ]
    message = {"address": cluster.address, "second": raylet.process.pid, "metrics": metrics}
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
