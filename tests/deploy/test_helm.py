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
from tests.deploy import golden, plain
from tests.deploy.chart import FOLDER, USUAL, VARIANTS, found, pod
from tests.kit.commands import command
from tests.kit.lazy import LazyModule

from .chart import CHART, ChartRefused, Manifest, merged, render, values_of
from .monitoring import ALERTS

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


@pytest.mark.parametrize("rolls_out", [True, False])
def test_a_changed_configuration_is_a_rollout_unless_a_reload_is_chosen(rolls_out: bool) -> None:
    """Red when gateways go on with the old one, or pods change although a reload was chosen."""
    before = merged(USUAL, {"gateway": {"rolloutOnChange": rolls_out}})
    after = merged(before, {"config": {"routing": {"alpha": 0.2}}})
    one, other = (found(render(values), "Deployment") for values in (before, after))
    assert (one != other) is rolls_out
    configs = [found(render(values), "ConfigMap") for values in (before, after)]
    assert configs[0] != configs[1]


@pytest.mark.parametrize("name", ["plain", *(name for name in VARIANTS if name != "usual")])
def test_the_chart_differs_from_the_plain_manifests_and_variants_from_it_as_noted(
    name: str, differences: dict[str, str]
) -> None:
    """Red when one is changed and the other forgotten; `python -m tests.deploy.golden` rewrites."""
    assert differences[name] == golden.file_of(name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def differences() -> dict[str, str]:
    """What the golden files hold, of the chart as it is."""
    return golden.differences()


def test_policies_name_each_other() -> None:
    """Jobs and gateway reach what they need, and no other pod."""
    manifests = render(golden.JOBS)

    def peers(name: str, direction: str, side: str) -> list[set[str]]:
        rules = found(manifests, "NetworkPolicy", name)["spec"].get(direction, ())
        labels = [peer.get("podSelector", {}).get("matchLabels") for r in rules for peer in r[side]]
        return [each for each in (selected(manifests, one) for one in labels if one) if each]

    candidates = {each["name"] for each in VALUES["candidates"]}
    assert peers("gateway", "ingress", "from") == [{"bootstrap"}, {"recalibration"}]
    assert peers("gateway", "egress", "to") == [candidates]
    assert peers("candidates", "ingress", "from") == [{"gateway"}]
    assert peers("candidates", "egress", "to") == peers("migration", "egress", "to") == []
    for job in ("bootstrap", "recalibration"):
        assert peers(job, "egress", "to") == [{"gateway"}]


@pytest.mark.parametrize("variant", VARIANTS)
def test_selectors_find_their_own_pods(variant: str) -> None:
    """Red when a Service, a policy or a monitor is about other pods, or about none."""
    manifests = render(VARIANTS[variant])
    run = {each["name"] for each in VALUES["candidates"]}
    if variant == "own":
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


def test_an_ingress_leads_clients_to_the_service() -> None:
    """Below /v1 alone, so to one admin endpoint; none without a host."""
    manifests = render(VARIANTS["own"])
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


def test_versions_are_those_of_the_program() -> None:
    """Red when a release leaves the chart behind."""
    chart = values_of(CHART / "Chart.yaml")
    assert chart["appVersion"] == __version__
    assert chart["version"] == __version__.replace(".dev", "-dev")  # SemVer, as Helm demands


def test_the_notes_name_commands_that_exist() -> None:
    """What Helm prints after an installation."""
    notes = (CHART / "templates" / "NOTES.txt").read_text(encoding="utf-8")
    named = set(re.findall(r"--set ([\w.]+)=", notes))
    assert named == {"artifact.claim.create", "bootstrap.questions"}
    [line] = re.findall(r"^ *racer (\w+) (\S+) (--\w+)", notes, re.MULTILINE)
    known = {option for each in command(line[0]).params for option in each.opts}
    assert line[2] in known
