"""The Helm chart, as Helm's own engine renders it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from .dockerfile import ROOT

Manifest = dict[str, Any]

CHART = ROOT / "deploy" / "helm" / "racer"
# In a process of its own: the engine is a Go library, whose threads do not survive a fork.
_PROGRAM = """
import json, sys
import helm_python
folder, values = json.load(sys.stdin)
try:
    with helm_python.Chart.load(folder) as chart:
        json.dump(chart.render(values, name="demo", namespace="racer"), sys.stdout)
except helm_python.HelmError as exc:
    sys.exit(str(exc))
"""


class ChartRefused(Exception):
    """The engine does not render the chart with these values; its text is the engine's."""


def render(values: Mapping[str, Any]) -> list[Manifest]:
    """Return the manifests of a release `demo` in the namespace `racer`.

    Raises:
        ChartRefused: The chart refuses the values.
    """
    return [manifest for text in _rendered(json.dumps(values)) for manifest in _manifests(text)]


@cache
def _rendered(values: str) -> tuple[str, ...]:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        input=f"[{json.dumps(str(CHART))}, {values}]",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if done.returncode != 0:
        raise ChartRefused(done.stderr)
    files: dict[str, str] = json.loads(done.stdout)
    return tuple(text for name, text in files.items() if name.endswith(".yaml"))


def _manifests(text: str) -> list[Manifest]:
    return [each for each in yaml.safe_load_all(text) if each is not None]


def values_of(path: Path) -> dict[str, Any]:
    """A file of values."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def merged(first: Mapping[str, Any], *others: Mapping[str, Any]) -> dict[str, Any]:
    """Values as Helm merges them: of a map only the given keys change."""
    result = dict(first)
    for other in others:
        for name, value in other.items():
            before = result.get(name)
            inner = isinstance(before, dict) and isinstance(value, dict)
            result[name] = merged(before, value) if inner else value
    return result


FOLDER = CHART.parent

USUAL: dict[str, Any] = {
    "existingSecret": "gateway",
    "artifact": {"image": "registry.example/racer-artifact:1"},
}

ELSEWHERE = {"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}], "ports": [{"port": 443}]}

VARIANTS: dict[str, dict[str, Any]] = {
    "usual": USUAL,
    "gpu": merged(USUAL, {"gateway": {"gpus": 1, "nodeSelector": {"gpu": "small"}}}),
    "volume": {"existingSecret": "gateway", "artifact": {"existingClaim": "artifacts"}},
    "bootstrap": {
        "existingSecret": "gateway",
        "artifact": {"claim": {"create": True, "storageClass": "shared"}},
        "bootstrap": {"questions": "questions"},
        "imagePullSecrets": [{"name": "registry"}],
    },
    "candidates elsewhere": {
        "existingSecret": "gateway",
        "candidates": [{"name": "one", "settings": {"base_url": "https://models.example/v1"}}],
        "gateway": {"env": [{"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://c:4318"}]},
        "networkPolicy": {"egress": [ELSEWHERE]},
    },
    "prometheus": merged(USUAL, values_of(FOLDER / "prometheus.yaml")),
    "own": merged(
        USUAL,
        {
            "gateway": {
                "podLabels": {"team": "one"},
                "podAnnotations": {"sidecar.istio.io/inject": "false"},
                "rolloutOnChange": False,
                "extraVolumes": [
                    {"name": "cache", "persistentVolumeClaim": {"claimName": "cache"}}
                ],
                "extraVolumeMounts": [{"name": "cache", "mountPath": "/var/cache/racer"}],
                "serviceAccount": {"create": True, "annotations": {"role-arn": "arn:aws:iam::1"}},
            },
            "ingress": {
                "host": "racer.example",
                "className": "nginx",
                "tlsSecret": "tls",
                "annotations": {"nginx.ingress.kubernetes.io/proxy-read-timeout": "300"},
            },
            "recalibration": {"schedule": "0 3 * * *"},
            "candidates": [
                {"name": "small", "vllm": {"model": "small", "args": []}},
                {
                    "name": "large",
                    "vllm": {
                        "model": "large",
                        "args": ["--tensor-parallel-size=2"],
                        "replicas": 2,
                        "gpus": 2,
                        "resources": {"limits": {"memory": "96Gi"}},
                        "storage": "300Gi",
                        "nodeSelector": {"gpu": "h100"},
                        "tolerations": [],
                        "affinity": {"nodeAffinity": {}},
                    },
                },
            ],
        },
    ),
    "nothing optional": merged(
        USUAL,
        {"networkPolicy": {"enabled": False}, "autoscaling": {"enabled": False}},
        {"config": {"limits": {"body_bytes": 67_108_864}}},  # Helm writes it with an exponent
    ),
}


def found(manifests: list[Manifest], kind: str, name: str = "gateway") -> Manifest:
    """One manifest of the release."""
    [one] = [m for m in manifests if (m["kind"], m["metadata"]["name"]) == (kind, f"demo-{name}")]
    return one


def pod(manifests: list[Manifest], name: str = "gateway", kind: str = "Deployment") -> Manifest:
    """The pods of a deployment or a job."""
    return found(manifests, kind, name)["spec"]["template"]["spec"]
