"""deploy/ray: what Ray Serve reads, by its own schema, and what the program expects of it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ray.serve import Application
from ray.serve.schema import ServeDeploySchema

from app import settings
from app.cluster import deployments
from tests.app.conftest import ENVIRONMENT

from .dockerfile import ROOT

FOLDER = ROOT / "deploy/ray"
STORE = {"RACER_STORE_URL": "postgresql://racer@db.example/racer"}


def read(name: str) -> Any:
    """A YAML file of the folder."""
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


SERVICE = read("rayservice.yaml")["spec"]
CONFIGS = {
    "serve.yaml": read("serve.yaml"),
    "rayservice.yaml": yaml.safe_load(SERVICE["serveConfigV2"]),
    "candidates.yaml": read("candidates.yaml"),
}


def groups() -> list[dict[str, Any]]:
    """The pods of the head and of the workers."""
    cluster = SERVICE["rayClusterConfig"]
    return [
        each["template"]["spec"]
        for each in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])
    ]


@pytest.mark.parametrize("name", CONFIGS)
def test_serve_takes_the_configuration(name: str) -> None:
    """Red when a field is misspelt: Ray's schema forbids what it does not know."""
    schema = ServeDeploySchema.model_validate(CONFIGS[name])
    assert [each.route_prefix for each in schema.applications] == ["/"]


def test_both_deploy_the_same() -> None:
    """All but where the configuration is."""
    one, other = (CONFIGS[name]["applications"][0] for name in ("serve.yaml", "rayservice.yaml"))
    assert one | {"args": None} == other | {"args": None}


def test_the_configuration_is_one_and_names_the_deployments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Red when the application binds others than serve.yaml scales, or racer.yaml is wrong."""
    for name, value in (ENVIRONMENT | STORE).items():
        monkeypatch.setenv(name, value)
    application = CONFIGS["serve.yaml"]["applications"][0]
    module, _, function = application["import_path"].partition(":")
    assert getattr(deployments, function).__module__ == module
    configured, _ = settings.load(ROOT / application["args"]["config"])
    assert configured.artifact == FOLDER / "artifact"
    built = getattr(deployments, function)({"config": str(ROOT / application["args"]["config"])})
    assert isinstance(built, Application)
    gateway = built._bound_deployment
    _, router = gateway.init_args
    names = {gateway.name, router._bound_deployment.name}
    assert names == {each["name"] for each in application["deployments"]}


def test_candidates_are_called_what_the_gateway_calls_them() -> None:
    """Red when one is renamed in one file."""
    models = CONFIGS["candidates.yaml"]["applications"][0]["args"]["llm_configs"]
    names = [each["name"] for each in read("racer.yaml")["candidates"]]
    assert [each["model_loading_config"]["model_id"] for each in models] == names


def test_every_node_has_the_configuration_and_the_secrets() -> None:
    """Where Serve puts a replica is its own choice."""
    config = CONFIGS["rayservice.yaml"]["applications"][0]["args"]["config"]
    for pod in groups():
        (container,) = pod["containers"]
        assert [each["mountPath"] for each in container["volumeMounts"]] == [config]
        assert [each["secretRef"]["name"] for each in container["envFrom"]] == ["gateway"]


def test_the_cluster_runs_the_version_that_is_pinned() -> None:
    """Red when constraints.txt moves alone."""
    from .constraints import pins

    assert SERVICE["rayClusterConfig"]["rayVersion"] == pins()["ray"]
    assert f"rayproject/ray:{pins()['ray']}" in (FOLDER / "README.md").read_text(encoding="utf-8")
