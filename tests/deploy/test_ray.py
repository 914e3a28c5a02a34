"""deploy/ray: what Ray Serve reads, by its own schema, and what the program expects of it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from app import settings
from app.settings import reloading
from tests.kit.gateway import ENVIRONMENT
from tests.kit.lazy import LazyModule

from .dockerfile import ROOT

usage_constants = LazyModule("ray._common.usage.usage_constants")
serve = LazyModule("ray.serve")
schema = LazyModule("ray.serve.schema")
deployments = LazyModule("app.ray_serve.deployments")
proxy = LazyModule("app.ray_serve.proxy")

FOLDER = ROOT / "deploy/ray"
STORE = {"RACER_STORE_URL": "postgresql://racer@db.example/racer"}


def read(name: str) -> Any:
    """A YAML file of the folder."""
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


SERVICE = read("rayservice.yaml")["spec"]
CONFIGS = {
    "serve.yaml": read("serve.yaml"),
    "rayservice.yaml": yaml.safe_load(SERVICE["serveConfigV2"]),
    "one_cluster.yaml": read("one_cluster.yaml"),
}


def groups() -> list[dict[str, Any]]:
    """The head's and the workers'."""
    cluster = SERVICE["rayClusterConfig"]
    return [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]


def pods() -> list[dict[str, Any]]:
    """Their pods."""
    return [each["template"]["spec"] for each in groups()]


@pytest.mark.parametrize("name", CONFIGS)
def test_serve_takes_the_configuration(name: str) -> None:
    """Red when a field is misspelt: Ray's schema forbids what it does not know."""
    parsed = schema.ServeDeploySchema.model_validate(CONFIGS[name])
    assert parsed.applications[-1].route_prefix == "/"


def test_both_deploy_the_same() -> None:
    """All but where the configuration is."""
    one, other = (CONFIGS[name]["applications"][0] for name in ("serve.yaml", "rayservice.yaml"))
    assert one | {"args": None} == other | {"args": None}


def test_the_configuration_is_one_and_names_the_deployments(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Red when the application binds others than serve.yaml scales, or racer.yaml is wrong."""
    for name, value in (ENVIRONMENT | STORE).items():
        monkeypatch.setenv(name, value)
    application = CONFIGS["serve.yaml"]["applications"][0]
    module, _, function = application["import_path"].partition(":")
    assert getattr(deployments, function).__module__ == module
    configured, _ = settings.load(ROOT / application["args"]["config"])
    assert configured.artifact == FOLDER / "artifact"
    folder = shutil.copytree(FOLDER, tmp_path / "ray")
    shutil.copytree(ROOT / "deploy" / "demo" / "router", folder / "artifact")
    config = folder / Path(application["args"]["config"]).name
    built = getattr(deployments, function)({"config": str(config)})
    assert isinstance(built, serve.Application)
    gateway = built._bound_deployment
    _, router, _ = gateway.init_args
    names = {gateway.name, router._bound_deployment.name}
    assert names == {each["name"] for each in application["deployments"]}


def test_one_cluster_serves_what_serve_yaml_does_with_candidates_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Red when they drift apart, or the gateway asks candidates elsewhere, or without their key."""
    one, other = CONFIGS["one_cluster.yaml"], CONFIGS["serve.yaml"]
    candidates, racer = one["applications"]
    assert candidates["route_prefix"] == proxy.CANDIDATES
    gateway, router = racer["deployments"]
    callback = {"RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "app.ray_serve.proxy:middlewares"}
    given = ENVIRONMENT | STORE | callback | {proxy.CANDIDATES_KEY: "of-the-candidates"}
    for key, value in given.items():
        monkeypatch.setenv(key, value)
    configured, secrets = deployments.load(FOLDER / "racer.yaml", gateway["user_config"])
    port = one["http_options"]["port"]
    for each in configured.candidates:
        assert each.base_url == f"http://127.0.0.1:{port}{proxy.CANDIDATES}/v1"
        assert secrets.candidate_keys[each.name].get_secret_value() == "of-the-candidates"
    plain, _ = deployments.load(FOLDER / "racer.yaml", {})
    own = {place[2] for place in reloading.differences(plain, configured)}
    assert own == {"base_url", "api_key_env"}
    assert all(reloading.is_reloaded(place) for place in reloading.differences(plain, configured))
    assert router["ray_actor_options"].pop("num_gpus") == 0.1
    gateway["user_config"] = {}
    racer["args"]["calibrated"] = False
    same = dict(other["applications"][0])
    same["deployments"][1]["ray_actor_options"].pop("num_gpus")
    assert racer == same
    assert one | {"applications": []} == other | {"applications": []}


@pytest.mark.slow
def test_candidates_are_ones_that_ray_serves_and_called_what_the_gateway_calls_them() -> None:
    """Red when one is renamed in one file, or a field is misspelt, or the router has no room."""
    models = CONFIGS["one_cluster.yaml"]["applications"][0]["args"]["llm_configs"]
    # In a process of its own: this part of Ray changes the root logger when it is imported.
    program = (
        "import json, sys; "
        "from ray.llm._internal.serve.core.configs.llm_config import LLMConfig; "
        "[LLMConfig.model_validate(each) for each in json.load(sys.stdin)]"
    )
    subprocess.run([sys.executable, "-c", program], input=json.dumps(models), text=True, check=True)
    for each in models:
        schema.DeploymentSchema.model_validate({"name": "candidate"} | each["deployment_config"])
        (bundle,) = each["placement_group_config"]["bundles"]
        assert bundle["GPU"] + 0.1 <= 1.0
    names = [each["name"] for each in read("racer.yaml")["candidates"]]
    assert [each["model_loading_config"]["model_id"] for each in models] == names


def test_every_node_has_the_configuration_and_the_secrets() -> None:
    """Where Serve puts a replica is its own choice."""
    config = CONFIGS["rayservice.yaml"]["applications"][0]["args"]["config"]
    for pod in pods():
        (container,) = pod["containers"]
        (mount,) = container["volumeMounts"]
        assert mount["mountPath"] == str(Path(config).parent)
        assert "subPath" not in mount, "a running pod's copy would never change"
        assert [each["secretRef"]["name"] for each in container["envFrom"]] == ["gateway"]


def test_kuberay_finds_serve_where_it_listens() -> None:
    """Red when its Service and its probes ask another port, or Ray's metrics have this one."""
    port = CONFIGS["rayservice.yaml"]["http_options"]["port"]
    for group in groups():
        (container,) = group["template"]["spec"]["containers"]
        named = {each["name"]: each["containerPort"] for each in container.get("ports", ())}
        assert named.get("serve", 8000) == port
        assert int(group["rayStartParams"].get("metrics-export-port", 8080)) != port


def test_there_is_room_for_as_many_replicas_as_there_may_be() -> None:
    """Red when Ray takes the node's cores for the pod's, or replicas would wait for a place."""
    (workers,) = SERVICE["rayClusterConfig"]["workerGroupSpecs"]
    (container,) = workers["template"]["spec"]["containers"]
    assert workers["rayStartParams"]["num-cpus"] == container["resources"]["requests"]["cpu"]
    wanted = sum(
        each["ray_actor_options"]["num_cpus"] * each["autoscaling_config"]["max_replicas"]
        for each in CONFIGS["rayservice.yaml"]["applications"][0]["deployments"]
    )
    assert int(workers["rayStartParams"]["num-cpus"]) * workers["maxReplicas"] >= wanted


def test_rays_ports_are_for_ray_alone() -> None:
    """They run whatever is sent to them. Red when another than Ray and KubeRay reaches them."""
    policy = read("network.yaml")
    kubernetes_validate.validate(policy, kubernetes_validate.latest_version(), strict=True)
    spec = policy["spec"]
    assert spec["policyTypes"] == ["Ingress"]
    among, operator, clients = spec["ingress"]
    assert among == {"from": [{"podSelector": spec["podSelector"]}]}
    port = CONFIGS["rayservice.yaml"]["http_options"]["port"]
    assert [each["port"] for each in operator["ports"]] == [8265, port]
    assert [each["port"] for each in clients["ports"]] == [port]
    (peer,) = clients["from"]
    assert len(peer["namespaceSelector"]["matchLabels"]) == 1


@pytest.mark.parametrize("pod", pods(), ids=["head", "worker"])
def test_a_pod_is_one_that_kubernetes_takes_and_has_no_rights(pod: dict[str, Any]) -> None:
    """Red when a field is misspelt, one could gain rights, or answers under way are cut off."""
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": pod}
    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    autoscaler = SERVICE["rayClusterConfig"]["autoscalerOptions"]  # KubeRay adds its container
    for rights in (container["securityContext"], autoscaler["securityContext"]):
        assert rights == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    values = {each["name"]: each["value"] for each in container["env"]}
    assert values == {
        usage_constants.USAGE_STATS_ENABLED_ENV_VAR: "0",
        "HF_HUB_OFFLINE": "1",
        proxy.CALLBACK: "app.ray_serve.proxy:middlewares",
    }
    limits = settings.load(FOLDER / "racer.yaml", ENVIRONMENT | STORE)[0].limits
    assert pod["terminationGracePeriodSeconds"] > limits.drain_delay_s + limits.drain_s


def test_the_cluster_runs_the_version_that_is_pinned() -> None:
    """Red when constraints.txt moves alone."""
    from .constraints import pins

    assert SERVICE["rayClusterConfig"]["rayVersion"] == pins()["ray"]
