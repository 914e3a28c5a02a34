"""The manifests for Kubernetes, as the tests read them."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import kubernetes_validate
import yaml

from app.settings import Settings
from app.settings.access import Access
from tests.deploy import dockerfile
from tests.deploy.dockerfile import ROOT
from tests.kit.commands import parsed

Manifest = dict[str, Any]
FOLDER = ROOT / "deploy" / "kubernetes"
README = (FOLDER / "README.md").read_text(encoding="utf-8")
KUSTOMIZATION: Manifest = yaml.safe_load((FOLDER / "kustomization.yaml").read_text("utf-8"))

MANIFESTS: list[Manifest] = [
    each
    for name in KUSTOMIZATION["resources"]
    for each in yaml.safe_load_all((FOLDER / name).read_text("utf-8"))
]

CONFIG: Manifest = yaml.safe_load((FOLDER / "racer.yaml").read_text("utf-8"))
RUNTIME = dockerfile.read()["runtime"]
PORT = int(RUNTIME.one("EXPOSE").text)
DATA, ADMIN = (Access.model_fields[f"{role}_key_env"].default for role in ("data", "admin"))
STORE = Settings.model_fields["store_env"].default

SECRETS = {
    DATA: "data-key-of-the-tests",
    ADMIN: "admin-key-of-the-tests",
    STORE: "postgresql://racer:secret@postgres:5432/racer",
}

# The oldest that the README names, and the newest that is published.
VERSIONS = ("1.31", kubernetes_validate.latest_version())


def named(kind: str, name: str = "gateway") -> Manifest:
    """One manifest."""
    [found] = [m for m in MANIFESTS if (m["kind"], m["metadata"]["name"]) == (kind, name)]
    return found


def title(manifest: Manifest) -> str:
    """How a test calls a manifest."""
    return f"{manifest['kind']}-{manifest['metadata']['name']}"


DEPLOYMENTS = {m["metadata"]["name"]: m for m in MANIFESTS if m["kind"] == "Deployment"}
CANDIDATES = [name for name in DEPLOYMENTS if name != "gateway"]
MIGRATION = named("Job", "migration")["spec"]

PODS: dict[str, Manifest] = {
    "migration": MIGRATION["template"]["spec"],
    **{name: each["spec"]["template"]["spec"] for name, each in DEPLOYMENTS.items()},
}

GATEWAY: Manifest = PODS["gateway"]["containers"][0]
UPGRADE: Manifest = PODS["migration"]["containers"][0]


def selected(labels: dict[str, str]) -> set[str]:
    """The deployments whose pods have these labels; none select all."""
    found = {n: m["spec"]["template"]["metadata"]["labels"] for n, m in DEPLOYMENTS.items()}
    return {name for name, has in found.items() if labels.items() <= has.items()}


def variables(container: Manifest) -> dict[str, Manifest]:
    """What a container's environment holds, by name."""
    return {each["name"]: each for each in container["env"]}


def own_words(candidate: str) -> list[str]:
    """A candidate's model, and the flags that only it needs."""
    words = PODS[candidate]["containers"][0]["args"]
    return words[: words.index(f"--served-model-name={candidate}")]


def policy_ports(rules: list[Manifest]) -> list[tuple[str, int]]:
    """What some rules of a network policy let through."""
    return [(each["protocol"], each["port"]) for rule in rules for each in rule["ports"]]


def start_arguments() -> dict[str, Any]:
    """The container's command as click reads it: CMD with another configuration."""
    assert "command" not in GATEWAY
    name, *words = GATEWAY["args"]
    return parsed(name, words)


def mounts(container: Manifest) -> dict[str, Manifest]:
    """The volumes of a gateway's container by the path at which it sees them."""
    volumes = {each["name"]: each for each in PODS["gateway"]["volumes"]}
    return {m["mountPath"]: {**volumes[m["name"]], **m} for m in container["volumeMounts"]}


def commands() -> str:
    """The README's blocks of commands, their continued lines joined."""
    blocks = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    return re.sub(r"\\\n *", "", "".join(map(textwrap.dedent, blocks)))
