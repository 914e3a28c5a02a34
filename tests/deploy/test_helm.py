"""deploy/helm: the chart renders, is valid, and says what the plain manifests and the code say."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
import yaml

from app import settings
from app.api.routes import ROUTES
from app.monitoring.metrics import MonitoringMetrics
from app.settings import Limits
from app.telemetry.metrics import Metrics
from racer_core import __version__
from tests.deploy import bootstrap, plain
from tests.deploy.chart import ELSEWHERE, FOLDER, USUAL, VARIANTS, found, pod
from tests.kit.commands import command
from tests.kit.lazy import LazyModule

from .chart import CHART, ChartRefused, Manifest, merged, render, values_of
from .monitoring import ALERTS

README = (FOLDER / "README.md").read_text(encoding="utf-8")
VALUES = values_of(CHART / "values.yaml")
operator = LazyModule("cloudcoil.models.prometheus_operator.v1")
OF_THE_OPERATOR = ("PodMonitor", "PrometheusRule")


def container(manifests: list[Manifest], name: str = "gateway") -> Manifest:
    """The only container of a deployment's pods."""
    [one] = pod(manifests, name)["containers"]
    return one


def selected(manifests: list[Manifest], labels: dict[str, str]) -> set[str]:
    """The deployments and jobs whose pods have these labels."""
    templates = {
        m["metadata"]["name"].removeprefix("demo-"): m["spec"].get("jobTemplate", m)["spec"][
            "template"
        ]["metadata"]["labels"]
        for m in manifests
        if m["kind"] in ("Deployment", "Job", "CronJob")
    }
    return {name for name, has in templates.items() if labels.items() <= has.items()}


@pytest.mark.parametrize("version", plain.VERSIONS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_is_valid_for_kubernetes(variant: str, version: str) -> None:
    """Red when a field does not exist, has another type or is missing."""
    manifests = render(VARIANTS[variant])
    assert len(manifests) > 5
    for manifest in manifests:
        if manifest["kind"] not in OF_THE_OPERATOR:
            kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("kind", OF_THE_OPERATOR)
def test_what_the_operator_reads_is_valid(kind: str) -> None:
    """By its published schemas, which drop what they do not know: nothing may be missing."""
    manifest = found(render(VARIANTS["prometheus"]), kind)
    known = getattr(operator, kind).model_validate(manifest)
    assert known.model_dump(mode="json", by_alias=True, exclude_unset=True) == manifest


def test_helm_finds_nothing_to_complain_about() -> None:
    """`helm lint`: only that there is no icon."""
    program = (
        "import json, sys, helm_python;"
        "print(json.dumps(helm_python.lint(sys.argv[1], {'existingSecret': 's'}, strict=True)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(CHART)], capture_output=True, text=True, check=True
    )
    report = yaml.safe_load(done.stdout)
    assert [each["error"] for each in report["messages"]] == ["icon is recommended"]
    assert report["errors"] == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "existingSecret: name the Secret with RACER_DATA_KEY"),
        (USUAL | {"candidates": []}, "candidates: name at least one"),
        (merged(USUAL, {"gateway": {"gpu": 1}}), "gpu"),
        (merged(USUAL, {"netwrokPolicy": {}}), "netwrokPolicy"),
        (USUAL | {"bootstrap": {"questions": "q"}}, "artifact.claim.create: true"),
        (merged(USUAL, {"vllm": {"model": "for all"}}), "model"),
        (
            USUAL | {"candidates": [{"name": "a", "vllm": {"model": "m", "args": [], "gpu": 2}}]},
            "gpu",
        ),
        (USUAL | {"candidates": [{"name": "a", "vllm": {"args": []}}]}, "model"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(values: dict[str, Any], message: str) -> None:
    """Red when a value is missing or misspelt and the release is made all the same."""
    with pytest.raises(ChartRefused, match=re.escape(message)):
        render(values)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_configuration_loads(variant: str) -> None:
    """Red when racer.yaml is not one that a gateway starts with, or a host is no Service."""
    manifests = render(VARIANTS[variant])
    text = found(manifests, "ConfigMap")["data"]["racer.yaml"]
    given = plain.start_arguments()
    loaded, secrets = settings.parse(
        text, Path("racer.yaml"), plain.SECRETS, host=given["host"], port=given["port"]
    )
    assert secrets.store(loaded) == plain.SECRETS[plain.STORE]
    limits = VARIANTS[variant].get("config", {}).get("limits", {})
    assert limits.items() <= loaded.limits.model_dump().items()
    wanted = VARIANTS[variant].get("candidates", VALUES["candidates"])
    assert loaded.pool == tuple(each["name"] for each in wanted)
    for name, candidate in zip(loaded.pool, loaded.candidates, strict=True):
        for number, replica in enumerate(candidate.replicas):
            if variant == "candidates elsewhere":
                continue
            url = urlsplit(replica)
            server = name if number == 0 else f"{name}-{number + 1}"
            service = found(manifests, "Service", server)["spec"]
            assert url.hostname == f"demo-{server}"
            assert selected(manifests, service["selector"]) == {server}
            assert [port["port"] for port in service["ports"]] == [url.port]


def test_a_changed_configuration_is_a_rollout() -> None:
    """Red when gateways go on with the old one."""
    others = merged(USUAL, {"config": {"routing": {"alpha": 0.2}}})
    annotations = [
        found(render(values), "Deployment")["spec"]["template"]["metadata"]["annotations"]
        for values in (USUAL, others)
    ]
    assert annotations[0] != annotations[1]


def test_a_changed_configuration_is_a_reload_where_that_is_chosen() -> None:
    """Red when pods change with it, or their copy of the file does not."""
    before = merged(USUAL, {"gateway": {"rolloutOnChange": False}})
    after = merged(before, {"config": {"routing": {"alpha": 0.2}}})
    deployments = [found(render(values), "Deployment") for values in (before, after)]
    assert deployments[0] == deployments[1]
    configs = [found(render(values), "ConfigMap") for values in (before, after)]
    assert configs[0] != configs[1]
    mounts = container(render(after))["volumeMounts"]
    [mounted] = [each for each in mounts if each["name"] == "configuration"]
    assert "subPath" not in mounted


# As the plain manifests -------------------------------------------------------------------------


def test_pods_are_those_of_the_plain() -> None:
    """But for names, labels and images. Red when one of both is changed and the other forgotten."""
    manifests = render(VARIANTS["volume"])
    theirs = plain.GATEWAY | {"image": None}
    assert container(manifests) | {"image": None} == theirs
    ours, other = pod(manifests), plain.PODS["gateway"]
    differing = {"containers", "volumes", "topologySpreadConstraints"}
    assert {k: v for k, v in ours.items() if k not in differing} == {
        k: v for k, v in other.items() if k not in differing
    }
    assert [next(k for k in v if k != "name") for v in ours["volumes"]] == [
        next(k for k in v if k != "name") for v in other["volumes"]
    ]
    [job], image = pod(manifests, "migration", "Job")["containers"], container(manifests)["image"]
    assert job == plain.UPGRADE | {"image": image}
    for name in plain.CANDIDATES:
        [theirs] = plain.PODS[name]["containers"]
        ours = container(manifests, name)
        assert sorted(ours["args"]) == sorted(theirs["args"])
        assert ours["args"][0] == theirs["args"][0]
        without = ("args", "env")
        assert {k: v for k, v in ours.items() if k not in without} == {
            k: v for k, v in theirs.items() if k not in without
        }


@pytest.mark.parametrize("kind", ["PodDisruptionBudget", "HorizontalPodAutoscaler", "Service"])
def test_objects_of_the_gateway_are_those_of_the_plain(kind: str) -> None:
    """But for names and labels."""
    ours, theirs = found(render(USUAL), kind)["spec"], plain.named(kind)["spec"]
    differing = {"selector", "scaleTargetRef"}
    assert {k: v for k, v in ours.items() if k not in differing} == {
        k: v for k, v in theirs.items() if k not in differing
    }


@pytest.mark.parametrize("name", ["gateway", "candidates", "migration"])
def test_policies_let_through_what_the_plain_ones_do(name: str) -> None:
    """Ports of all rules, and names, which the plain ones allow to every pod."""

    def ports(rules: list[Manifest]) -> list[tuple[str, int]]:
        return sorted(plain.policy_ports(rules))

    ours = found(render(USUAL), "NetworkPolicy", name)["spec"]
    theirs = plain.named("NetworkPolicy", name)["spec"]
    names = plain.named("NetworkPolicy", "names")["spec"]["egress"]
    assert ours["policyTypes"] == ["Ingress", "Egress"]
    assert ports(ours.get("ingress", [])) == ports(theirs.get("ingress", []))
    assert ports(ours["egress"]) == ports([*theirs["egress"], *names])
    assert all(rule in ours["egress"] for rule in names)
    if name == "gateway":
        for rule in (*theirs["ingress"], *theirs["egress"][1:]):  # the first is to candidates
            assert rule in (*ours["ingress"], *ours["egress"])


# Selectors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_selectors_find_their_own_pods(variant: str) -> None:
    """Red when a Service, a policy or a monitor is about other pods, or about none."""
    manifests = render(VARIANTS[variant])
    run = {each["name"] for each in VALUES["candidates"]}
    if variant == "everything of one's own":
        run = {"small", "large", "large-2"}
    run = set() if variant == "candidates elsewhere" else run
    for manifest in manifests:
        name = manifest["metadata"]["name"].removeprefix("demo-")
        spec = manifest.get("spec", {})
        labels = spec.get("podSelector") or spec.get("selector") or {}
        labels = labels.get("matchLabels", labels)
        match manifest["kind"]:
            case "Deployment" | "Service" | "PodDisruptionBudget" | "PodMonitor":
                assert selected(manifests, labels) == {name}
            case "NetworkPolicy":
                assert selected(manifests, labels) == (run if name == "candidates" else {name})
            case "HorizontalPodAutoscaler":
                assert spec["scaleTargetRef"]["name"] == manifest["metadata"]["name"]
            case _:
                assert not labels, manifest["kind"]
    [spread] = pod(manifests)["topologySpreadConstraints"]
    assert selected(manifests, spread["labelSelector"]["matchLabels"]) == {"gateway"}


# The migration ----------------------------------------------------------------------------------


def test_tables_are_brought_up_to_date_before_a_release() -> None:
    """A hook that the release waits for, whose policy is there first. Its Secret is not ours."""
    manifests = render(USUAL)
    job, policy = (found(manifests, kind, "migration") for kind in ("Job", "NetworkPolicy"))
    hooks = [each["metadata"]["annotations"] for each in (policy, job)]
    assert {each["helm.sh/hook"] for each in hooks} == {"pre-install,pre-upgrade"}
    assert int(hooks[0]["helm.sh/hook-weight"]) < int(hooks[1]["helm.sh/hook-weight"])
    assert {each["helm.sh/hook-delete-policy"] for each in hooks} == {
        "before-hook-creation,hook-succeeded"
    }
    assert "Secret" not in {each["kind"] for each in manifests}
    others = [m for m in manifests if "annotations" in m["metadata"] and m not in (job, policy)]
    assert others == [], "a hook is no part of the release"


# Jobs -------------------------------------------------------------------------------------------


def test_the_recalibration_is_that_of_the_plain() -> None:
    """But for names and labels; it reaches the gateway alone, which lets it in."""
    manifests = render(VARIANTS["everything of one's own"])
    ours, theirs = (
        each["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        for each in (
            found(manifests, "CronJob", "recalibration"),
            plain.named("CronJob", "recalibration"),
        )
    )
    [job], [other] = ours.pop("containers"), dict(theirs)["containers"]
    assert ours == {k: v for k, v in theirs.items() if k != "containers"}
    url = {"http://gateway:8080": "http://demo-gateway:8080"}
    changed = {"image": job["image"], "args": [url.get(each, each) for each in other["args"]]}
    assert job == other | changed
    rules = found(manifests, "NetworkPolicy", "recalibration")["spec"]["egress"]
    peers = [peer["podSelector"]["matchLabels"] for rule in rules[1:] for peer in rule["to"]]
    assert [selected(manifests, labels) for labels in peers] == [{"gateway"}]
    into = found(manifests, "NetworkPolicy")["spec"]["ingress"][0]["from"]
    assert {"recalibration"} in [
        selected(manifests, peer["podSelector"]["matchLabels"])
        for peer in into
        if "podSelector" in peer
    ]
    assert "recalibration" not in str(render(USUAL))


# The bootstrap ----------------------------------------------------------------------------------


def test_the_bootstrap_is_that_of_the_plain() -> None:
    """But for the places of configuration and questions. Both write where the gateway reads."""
    manifests = render(VARIANTS["bootstrap"])
    ours = pod(manifests, "bootstrap", "Job")
    theirs = bootstrap.named("Job")["spec"]["template"]["spec"]
    [job], [other] = ours["containers"], theirs["containers"]
    differing = {"image", "args", "volumeMounts"}
    assert {k: v for k, v in job.items() if k not in differing} == {
        k: v for k, v in other.items() if k not in differing
    }
    differing = {"containers", "volumes", "imagePullSecrets"}
    assert {k: v for k, v in ours.items() if k not in differing} == {
        k: v for k, v in theirs.items() if k not in differing
    }
    place = {"--config": "/bootstrap/racer.yaml", "--queries": "/questions/questions.jsonl"}
    place |= {"--url": "http://demo-gateway:8080"}
    assert dict(arg.split("=") for arg in job["args"][1:]) == (
        dict(arg.split("=") for arg in other["args"][1:]) | place
    )
    mounted = {
        each["mountPath"]: volume
        for each in job["volumeMounts"]
        for volume in ours["volumes"]
        if volume["name"] == each["name"]
    }
    claim = mounted[VALUES["config"]["artifact"]]["persistentVolumeClaim"]["claimName"]
    [read] = [each for each in pod(manifests)["volumes"] if each["name"] == "artifact"]
    assert claim == read["persistentVolumeClaim"]["claimName"] == "demo-artifact"
    made = found(manifests, "PersistentVolumeClaim", "artifact")
    assert made["spec"]["accessModes"] == ["ReadWriteMany"]
    assert made["spec"]["storageClassName"] == "shared"
    assert made["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert mounted["/bootstrap"]["configMap"] == {"name": "demo-gateway"}
    assert mounted["/questions"]["configMap"] == {"name": "questions"}


def test_the_bootstrap_reaches_the_gateway_alone() -> None:
    """And the gateway lets it in; without questions neither is there."""
    manifests = render(VARIANTS["bootstrap"])
    policy = found(manifests, "NetworkPolicy", "bootstrap")["spec"]
    peers = [peer for rule in policy["egress"] for peer in rule["to"] if len(peer) == 1]
    assert [selected(manifests, peer["podSelector"]["matchLabels"]) for peer in peers] == [
        {"gateway"}
    ]
    into = found(manifests, "NetworkPolicy")["spec"]["ingress"][0]["from"]
    assert {"bootstrap"} in [
        selected(manifests, peer["podSelector"]["matchLabels"])
        for peer in into
        if "podSelector" in peer
    ]
    assert "bootstrap" not in str(render(VARIANTS["volume"]))


def test_images_come_from_a_private_registry() -> None:
    """Every pod names the secret."""
    manifests = render(VARIANTS["bootstrap"])
    pods = [m["spec"]["template"]["spec"] for m in manifests if m["kind"] in ("Deployment", "Job")]
    assert len(pods) == 5
    assert all(each["imagePullSecrets"] == [{"name": "registry"}] for each in pods)


# Variants ---------------------------------------------------------------------------------------


def test_an_encoder_on_a_gpu() -> None:
    """The image's CUDA build, a GPU, and leave to use such a node."""
    manifests = render(VARIANTS["gpu"])
    ours, cpu = container(manifests), container(render(USUAL))
    assert ours["image"] == f"{cpu['image']}-cuda"
    assert ours["resources"]["limits"] == cpu["resources"]["limits"] | {"nvidia.com/gpu": 1}
    assert pod(manifests)["tolerations"] == pod(manifests, "candidate-a")["tolerations"]
    assert pod(manifests)["nodeSelector"] == {"gpu": "small"}
    assert "tolerations" not in pod(render(USUAL))


@pytest.mark.parametrize(
    ("image", "wanted"),
    [
        ({}, f"registry.example/racer-gateway:{__version__}"),
        ({"tag": "mine"}, "registry.example/racer-gateway:mine"),
        ({"tag": "mine", "digest": "sha256:1"}, "registry.example/racer-gateway@sha256:1"),
    ],
)
def test_the_image_is_named_by_tag_or_digest(image: dict[str, str], wanted: str) -> None:
    """Of gateways and migration alike."""
    manifests = render(merged(USUAL, {"gateway": {"image": image}}))
    [job] = pod(manifests, "migration", "Job")["containers"]
    assert container(manifests)["image"] == job["image"] == wanted


def test_an_artifact_comes_from_an_image_a_volume_or_elsewhere() -> None:
    """Read-only, where racer.yaml looks for it."""
    mounts = {}
    for variant in ("usual", "volume", "candidates elsewhere"):
        manifests = render(VARIANTS[variant])
        volumes = {each["name"]: each for each in pod(manifests)["volumes"]}
        mounts[variant] = [
            (each["mountPath"], each["readOnly"], volumes[each["name"]])
            for each in container(manifests)["volumeMounts"]
            if each["name"] == "artifact"
        ]
    path = VALUES["config"]["artifact"]
    image = {"name": "artifact", "image": {"reference": USUAL["artifact"]["image"]}}
    claim = {"claimName": "artifacts", "readOnly": True}
    assert mounts == {
        "usual": [(path, True, image)],
        "volume": [(path, True, {"name": "artifact", "persistentVolumeClaim": claim})],
        "candidates elsewhere": [],
    }


def test_candidates_are_optional() -> None:
    """None is run, and what reaches them elsewhere is the operator's rule and variable."""
    manifests = render(VARIANTS["candidates elsewhere"])
    assert {m["metadata"]["name"] for m in manifests if m["kind"] == "Deployment"} == {
        "demo-gateway"
    }
    assert ELSEWHERE in found(manifests, "NetworkPolicy")["spec"]["egress"]
    assert container(manifests)["env"][-1]["name"] == "OTEL_EXPORTER_OTLP_ENDPOINT"


OWN = VARIANTS["everything of one's own"]


def test_a_candidate_has_servers_of_its_own_size() -> None:
    """And the others those of all. Red when a value of one reaches another, or none."""
    manifests = render(OWN)
    small, large = (container(manifests, name)["resources"] for name in ("small", "large-2"))
    assert small["limits"] == {"memory": "24Gi", "nvidia.com/gpu": 1}
    assert large["limits"] == {"memory": "96Gi", "nvidia.com/gpu": 2}
    assert small["requests"] == large["requests"] == VALUES["vllm"]["resources"]["requests"]
    assert container(manifests, "large-2")["args"] == [
        "large", "--served-model-name=large", "--port=8000", *VALUES["vllm"]["args"],
        "--tensor-parallel-size=2",
    ]  # fmt: skip
    assert pod(manifests, "large")["nodeSelector"] == {"gpu": "h100"}
    assert pod(manifests, "large")["affinity"] == {"nodeAffinity": {}}
    assert "tolerations" not in pod(manifests, "large")
    assert pod(manifests, "small")["tolerations"] == VALUES["vllm"]["tolerations"]
    assert not {"nodeSelector", "affinity"} & set(pod(manifests, "small"))
    claims = {
        name: found(manifests, "PersistentVolumeClaim", name)["spec"]["resources"]["requests"]
        for name in ("small", "large", "large-2")
    }
    sizes = {name: each["storage"] for name, each in claims.items()}
    assert sizes == {"small": "100Gi", "large": "300Gi", "large-2": "300Gi"}
    [cache] = [v for v in pod(manifests, "large-2")["volumes"] if v["name"] == "cache"]
    assert cache["persistentVolumeClaim"]["claimName"] == "demo-large-2"


def test_pods_carry_what_a_cluster_asks_for() -> None:
    """Labels, annotations, volumes and a service account, which the usual pod has not."""
    manifests = render(OWN)
    template = found(manifests, "Deployment")["spec"]["template"]
    assert template["metadata"]["labels"]["team"] == "one"
    assert template["metadata"]["annotations"] == {"sidecar.istio.io/inject": "false"}
    assert template["spec"]["volumes"][-1] == OWN["gateway"]["extraVolumes"][0]
    mounts = template["spec"]["containers"][0]["volumeMounts"]
    assert mounts[-1] == OWN["gateway"]["extraVolumeMounts"][0]
    context = template["spec"]["securityContext"]
    assert context["fsGroup"] == context["runAsGroup"], "a new claim could not be written"
    account = found(manifests, "ServiceAccount")
    assert template["spec"]["serviceAccountName"] == account["metadata"]["name"]
    assert account["metadata"]["annotations"] == {"role-arn": "arn:aws:iam::1"}
    given = render(merged(USUAL, {"gateway": {"serviceAccount": {"name": "given"}}}))
    assert pod(given)["serviceAccountName"] == "given"
    assert "ServiceAccount" not in {each["kind"] for each in (*given, *render(USUAL))}
    assert "serviceAccountName" not in pod(render(USUAL))


def test_an_ingress_leads_clients_to_the_service() -> None:
    """Below /v1 alone, so to one admin endpoint; none without a host."""
    manifests = render(OWN)
    ingress = found(manifests, "Ingress")["spec"]
    [rule], [tls] = ingress["rules"], ingress["tls"]
    assert [rule["host"]] == tls["hosts"] == ["racer.example"]
    assert (ingress["ingressClassName"], tls["secretName"]) == ("nginx", "tls")
    [path] = rule["http"]["paths"]
    service = found(manifests, "Service")
    assert path["backend"]["service"]["name"] == service["metadata"]["name"]
    assert path["backend"]["service"]["port"]["name"] == service["spec"]["ports"][0]["name"]
    reached = [route for route in ROUTES if f"{route.path}/".startswith(f"{path['path']}/")]
    assert {route.path for route in reached if route.role != "data"} == {"/v1/calibrate"}
    assert "/v1/chat/completions" in {route.path for route in reached}
    assert "Ingress" not in {each["kind"] for each in render(USUAL)}


# Monitoring -------------------------------------------------------------------------------------


def test_the_rules_are_those_of_the_plain_file() -> None:
    """Every letter: Helm must not read Prometheus' own templates."""
    rule = found(render(VARIANTS["prometheus"]), "PrometheusRule")
    assert rule["spec"] == yaml.safe_load(ALERTS.read_text(encoding="utf-8"))


def test_a_packed_chart_has_the_rules(tmp_path: Path) -> None:
    """Red when a link is packed, which leads nowhere on another machine."""
    program = "import sys, helm_python; helm_python.package(sys.argv[1], destination=sys.argv[2])"
    subprocess.run([sys.executable, "-c", program, str(CHART), str(tmp_path)], check=True)
    [path] = tmp_path.glob("*.tgz")
    with tarfile.open(path) as archive:
        packed = archive.extractfile("racer/files/alerts.yml")
        assert packed is not None
        assert packed.read() == ALERTS.read_bytes()


def test_prometheus_scrapes_every_pod_with_the_data_key() -> None:
    """Under the job's name that the alerts use. Red when only one port or path is renamed."""
    manifests = render(VARIANTS["prometheus"])
    monitor = found(manifests, "PodMonitor")["spec"]
    labels = found(manifests, "Deployment")["spec"]["template"]["metadata"]["labels"]
    jobs = set(re.findall(r'up\{job="(\w+)"\}', ALERTS.read_text(encoding="utf-8")))
    assert jobs == {labels[monitor["jobLabel"]]}
    [endpoint] = monitor["podMetricsEndpoints"]
    assert endpoint["port"] in {port["name"] for port in container(manifests)["ports"]}
    assert endpoint["path"] in {route.path for route in ROUTES}
    assert endpoint["authorization"] == {"credentials": {"name": "gateway", "key": plain.DATA}}


def test_gateways_scale_by_metrics_that_they_have() -> None:
    """Gauges of a pod; their targets are shares of the limits that the comments name."""
    autoscaler = found(render(VARIANTS["prometheus"]), "HorizontalPodAutoscaler")["spec"]
    cpu, *others = autoscaler["metrics"]
    assert cpu["resource"]["name"] == "cpu"
    targets = {
        each["pods"]["metric"]["name"]: int(each["pods"]["target"]["averageValue"])
        for each in others
    }
    limits = Limits()
    assert targets == {
        "racer_requests_in_flight": limits.in_flight // 2,
        "racer_router_queue": limits.batch,
    }
    metrics = Metrics()
    MonitoringMetrics(metrics.registry)
    gauges = {each.name for each in metrics.registry.collect() if each.type == "gauge"}
    assert targets.keys() <= gauges
    [rule] = values_of(FOLDER / "adapter.yaml")["rules"]["custom"]
    [pattern] = re.findall(r'__name__=~"([^"]+)"', rule["seriesQuery"])
    assert {name for name in gauges if re.fullmatch(pattern, name)} == targets.keys()


# The documents ----------------------------------------------------------------------------------


def test_versions_are_those_of_the_program() -> None:
    """Red when a release leaves the chart behind."""
    chart = values_of(CHART / "Chart.yaml")
    assert chart["appVersion"] == __version__
    assert chart["version"] == __version__.replace(".dev", "-dev")  # SemVer, as Helm demands


def test_the_readme_names_values_and_labels_that_exist() -> None:
    """Red when a value is renamed, or the README labels something else than a policy selects."""
    named = set(re.findall(r"--set ([\w.]+)=", README))
    named |= set(
        re.findall(
            r"`((?:gateway|artifact|networkPolicy|autoscaling|ingress|recalibration)\.\w+)", README
        )
    )
    assert named
    for name in named:
        inner: Any = VALUES
        for part in name.split("."):
            assert part in inner, name
            inner = inner[part]
    policy = found(render(USUAL), "NetworkPolicy")["spec"]
    peers = [policy["ingress"][0]["from"][0], policy["egress"][-1]["to"][0]]
    labels = {f"{k}={v}" for p in peers for k, v in p["namespaceSelector"]["matchLabels"].items()}
    assert labels == set(re.findall(r"`(racer-\w+=true)`", README))


def test_the_notes_name_commands_that_exist() -> None:
    """What Helm prints after an installation."""
    notes = (CHART / "templates" / "NOTES.txt").read_text(encoding="utf-8")
    named = set(re.findall(r"--set ([\w.]+)=", notes))
    assert named == {"artifact.claim.create", "bootstrap.questions"}
    [line] = re.findall(r"^ *racer (\w+) (\S+) (--\w+)", notes, re.MULTILINE)
    known = {option for each in command(line[0]).params for option in each.opts}
    assert line[2] in known
