"""deploy/kubernetes is valid for Kubernetes, and agrees with the code, the image and itself."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
import yaml

from app import settings
from app.api.routes import ROUTES
from app.errors import SettingsError
from app.server import GOODBYE_S
from app.settings import Settings
from app.store.engine import THREADS
from racer_core import __version__
from tests.deploy import bootstrap
from tests.deploy.plain import (
    ADMIN,
    CANDIDATES,
    CONFIG,
    DATA,
    DEPLOYMENTS,
    FOLDER,
    GATEWAY,
    KUSTOMIZATION,
    MANIFESTS,
    MIGRATION,
    PODS,
    PORT,
    README,
    RUNTIME,
    SECRETS,
    STORE,
    UPGRADE,
    VERSIONS,
    Manifest,
    commands,
    mounts,
    named,
    own_words,
    policy_ports,
    selected,
    start_arguments,
    title,
    variables,
)
from tests.kit.commands import command, group, parsed

from . import dockerfile
from .dockerfile import ROOT, seconds

IMAGE_VOLUMES = "1.35"  # the oldest that has them without being asked


PROBING = {kind: GATEWAY[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")}


def options(candidate: str) -> dict[str, str]:
    """A candidate's vLLM options: everything after its model."""
    return dict(word.split("=", 1) for word in PODS[candidate]["containers"][0]["args"][1:])


def quantity(text: str) -> float:
    """A quantity in cores or bytes."""
    number, unit = re.fullmatch(r"(\d+)(m|Mi|Gi|)", text).groups()
    return int(number) * {"m": 1e-3, "": 1, "Mi": 2**20, "Gi": 2**30}[unit]


@pytest.fixture(scope="module")
def build() -> Callable[[Path], list[Manifest]]:
    """`kubectl kustomize`: what `kubectl apply -k` sends."""
    tool = shutil.which("kubectl")
    if tool is None:
        pytest.skip("kubectl is not here")

    def run(folder: Path) -> list[Manifest]:
        done = subprocess.run(
            [tool, "kustomize", folder], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return list(yaml.safe_load_all(done.stdout))

    return run


@pytest.fixture(scope="module")
def built(build: Callable[[Path], list[Manifest]]) -> list[Manifest]:
    """What the folder becomes as it is."""
    return build(FOLDER)


def artifact_of(manifests: list[Manifest]) -> Manifest:
    """The volume that the gateways of a build mount as their artifact."""
    [pod] = [
        m["spec"]["template"]["spec"]
        for m in manifests
        if (m["kind"], m["metadata"]["name"]) == ("Deployment", "gateway")
    ]
    [found] = [each for each in pod["volumes"] if each["name"] == "artifact"]
    return found


def claims_of(manifests: list[Manifest]) -> set[str]:
    """The claims that a build makes."""
    return {m["metadata"]["name"] for m in manifests if m["kind"] == "PersistentVolumeClaim"}


def test_the_kustomize_build_is_valid_and_self_contained(built: list[Manifest]):
    """Red when kustomize finds a mistake, or a pod asks for a ConfigMap of another name."""
    for manifest in built:
        kubernetes_validate.validate(manifest, VERSIONS[-1], strict=True)
    found = {(m["kind"], m["metadata"]["name"]): m for m in built}
    [configuration] = [m for m in built if m["kind"] == "ConfigMap"]
    assert configuration["data"] == {"racer.yaml": (FOLDER / "racer.yaml").read_text("utf-8")}
    pod = found["Deployment", "gateway"]["spec"]["template"]["spec"]
    names = [v["configMap"]["name"] for v in pod["volumes"] if "configMap" in v]
    assert names == [configuration["metadata"]["name"]]
    assert re.fullmatch(r"gateway-\w{10}", names[0]), "a change would not be a rollout"
    [image] = KUSTOMIZATION["images"]
    job = found["Job", "migration"]["spec"]["template"]["spec"]
    images = {each["image"] for each in (*pod["containers"], *job["containers"])}
    assert images == {f"{image['newName']}:{image['newTag']}"}
    namespaces = {m["metadata"].get("namespace") for m in built if m["kind"] != "Namespace"}
    assert namespaces == {named("Namespace", "racer")["metadata"]["name"]}


DIFFERING = ("PersistentVolumeClaim-artifact", "Deployment-gateway")


def test_the_artifact_comes_from_an_image_by_the_line_of_the_readme(
    build: Callable[[Path], list[Manifest]], built: list[Manifest], tmp_path: Path
):
    """Red when the component changes another thing than the volume, or leaves the claim."""
    [line] = re.findall(r"^(grep -q artifact-image .+\|\|\s+echo .+)$", commands(), re.MULTILINE)
    folder = shutil.copytree(FOLDER, tmp_path / "deploy" / "kubernetes")
    for _ in range(2):
        subprocess.run(["bash", "-c", line], cwd=tmp_path, check=True)
    changed = build(folder)
    image = {"name": "artifact", "image": {"reference": "registry.example/racer-artifact:1"}}
    assert artifact_of(changed) == image
    assert claims_of(built) - claims_of(changed) == {"artifact"}
    for manifest in changed:
        kubernetes_validate.validate(manifest, IMAGE_VOLUMES, strict=True)
    others = [[each for each in m if title(each) not in DIFFERING] for m in (built, changed)]
    assert others[0] == others[1]


def test_the_folder_of_gateways_without_shared_storage(
    build: Callable[[Path], list[Manifest]], tmp_path: Path
):
    """Red when the README's patch leaves the claim beside an empty folder, which is refused."""
    [text] = re.findall(r"kubectl patch deployment gateway .*--patch '(.+)'", commands())
    patch = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "gateway"}}
    patch |= yaml.safe_load(text)
    folder = shutil.copytree(FOLDER, tmp_path / "kubernetes")
    with (folder / "kustomization.yaml").open("a", encoding="utf-8") as file:
        yaml.safe_dump({"patches": [{"patch": yaml.safe_dump(patch)}]}, file)
    assert artifact_of(build(folder)) == {"name": "artifact", "emptyDir": {}}


def test_the_registry_is_written_by_one_command(
    build: Callable[[Path], list[Manifest]], tmp_path: Path
):
    """Red when a manifest keeps the name of the example registry."""
    first, *_ = commands().splitlines()
    shutil.copytree(FOLDER, tmp_path / "deploy" / "kubernetes")
    subprocess.run(["bash", "-euc", first], cwd=tmp_path, check=True)
    texts = [path.read_text("utf-8") for path in (tmp_path / "deploy").rglob("*.yaml")]
    assert not [text for text in texts if "registry.example" in text]
    assert "YOUR-REGISTRY/racer-gateway:" in str(build(tmp_path / "deploy" / "kubernetes"))


def test_every_file_takes_part():
    """Red when a manifest lies here that nothing applies; the bootstrap is applied by itself."""
    [generator] = KUSTOMIZATION["configMapGenerator"]
    parts = {*KUSTOMIZATION["resources"], *generator["files"], "kustomization.yaml"}
    parts |= {"bootstrap.yaml"}
    assert {path.name for path in FOLDER.glob("*.y*ml")} == parts
    assert generator["name"] == "gateway"


def test_the_configuration_loads_with_what_the_secret_holds():
    """Fails when racer.yaml has an unknown field, or the pod lacks a variable that it needs."""
    held = {name: SECRETS[name] for name in variables(GATEWAY) if name in SECRETS}
    given = start_arguments()
    loaded, secrets = settings.load(
        FOLDER / "racer.yaml", held, host=given["host"], port=given["port"]
    )
    assert loaded.pool == tuple(CANDIDATES)
    assert secrets.store(loaded) == SECRETS[STORE]
    assert secrets.data_key is not None
    assert secrets.admin_key is not None, "no admin key: calibrating is off"
    assert set(variables(GATEWAY)) == {*SECRETS, "HF_HUB_OFFLINE", "OMP_NUM_THREADS"}
    assert set(variables(UPGRADE)) == {STORE}
    without = {name: value for name, value in SECRETS.items() if name != DATA}
    with pytest.raises(SettingsError, match=DATA):
        settings.load(FOLDER / "racer.yaml", without, host=given["host"])


def test_secrets_are_in_one_secret_that_must_be_there():
    """Red when a key is optional, or stands in another Secret than the one that is made."""
    [command] = re.findall(r"kubectl create secret generic (gateway .*?)\n *```", README, re.DOTALL)
    made = re.findall(r"--from-literal=(\w+)=", command)
    assert sorted(made) == sorted(SECRETS)
    for container in (GATEWAY, UPGRADE):
        for name, each in variables(container).items():
            if name in SECRETS:
                assert each["valueFrom"] == {"secretKeyRef": {"name": "gateway", "key": name}}
    assert "Secret" not in {manifest["kind"] for manifest in MANIFESTS}
    [made] = re.findall(
        r"kubectl create secret generic (candidates) .*--from-literal=(\w+)=", README
    )
    for name in CANDIDATES:
        reference = variables(PODS[name]["containers"][0])["HF_TOKEN"]["valueFrom"]["secretKeyRef"]
        assert reference == {"name": made[0], "key": made[1], "optional": True}


def test_a_job_brings_tables_up_to_date_and_no_pod_that_restarts():
    """Red when a gateway's pod does it, or the Job has another command or more than an address."""
    assert "initContainers" not in PODS["gateway"]
    assert UPGRADE["image"] == GATEWAY["image"]
    assert "command" not in UPGRADE
    assert RUNTIME.one("ENTRYPOINT").words == ["racer"]
    db, name, *words = UPGRADE["args"]
    given = command(db).commands[name].make_context(name, words, parent=group()).params
    assert given == {"config": None, "store": None, "as_json": False}
    assert "volumeMounts" not in UPGRADE
    assert MIGRATION["ttlSecondsAfterFinished"] <= 60, "the next version finds a Job in its place"


def test_mounts_are_where_the_command_and_the_configuration_look():
    """Red when a target is not what CMD or racer.yaml names, or others can be written."""
    found = mounts(GATEWAY)
    config = start_arguments()["config"]
    [volume] = RUNTIME.one("VOLUME").words
    assert set(found) == {str(config.parent), CONFIG["artifact"], volume, "/tmp"}
    configuration = found[str(config.parent)]
    assert configuration["configMap"]["name"] == "gateway"
    assert config.name == "racer.yaml"
    assert "subPath" not in configuration, "a running pod's copy would never change"
    assert not config.parent.is_relative_to(CONFIG["artifact"])
    assert not Path(CONFIG["artifact"]).is_relative_to(config.parent), "a folder in a read-only one"
    assert found[CONFIG["artifact"]]["readOnly"] is True
    assert {path for path, each in found.items() if "emptyDir" in each} == {volume, "/tmp"}


def test_one_port_from_the_image_to_the_network():
    """Red when image, settings, pod, Service and network policy do not agree on it."""
    assert Settings.model_fields["port"].default == start_arguments()["port"] == PORT
    assert GATEWAY["ports"] == [{"name": "http", "containerPort": PORT}]
    [port] = named("Service")["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (PORT, "http")
    assert policy_ports(named("NetworkPolicy")["spec"]["ingress"]) == [("TCP", PORT)]
    assert "host" not in CONFIG
    assert "port" not in CONFIG


def test_a_pod_has_time_to_finish_and_room_for_bodies():
    """Red when it is killed in the middle of answers, or buffers take half of the memory."""
    limits = settings.load(FOLDER / "racer.yaml", SECRETS)[0].limits
    assert limits.drain_delay_s > 0
    assert limits.drain_s >= limits.deadline_s
    grace = PODS["gateway"]["terminationGracePeriodSeconds"]
    assert grace > limits.drain_delay_s + limits.drain_s + GOODBYE_S
    memory = quantity(GATEWAY["resources"]["limits"]["memory"])
    assert limits.body_buffer_bytes + limits.buffered_bytes < 0.5 * memory


@pytest.mark.parametrize("entry", CONFIG["candidates"], ids=lambda each: each["name"])
def test_candidates_are_where_the_configuration_looks(entry: Manifest):
    """Red when a base URL names no Service, or its port is not the one vLLM listens on."""
    url = urlsplit(entry["base_url"])
    service = named("Service", url.hostname)["spec"]
    assert selected(service["selector"]) == {entry["name"]}
    [container] = PODS[entry["name"]]["containers"]
    [listens] = container["ports"]
    [port] = service["ports"]
    assert (port["port"], port["targetPort"]) == (url.port, listens["name"])
    given = options(entry["name"])
    assert given["--port"] == str(listens["containerPort"])
    assert given["--served-model-name"] == entry.get("model", entry["name"])
    assert url.path == "/v1"


@pytest.mark.parametrize("name", CANDIDATES)
def test_a_candidate_has_a_gpu_and_its_own_health(name: str):
    """Red when it is probed elsewhere, has no GPU, or is another vLLM than in the compose file."""
    [container] = PODS[name]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert container["command"] == ["vllm", "serve"]
    for kind in PROBING:
        probe = container[f"{kind}Probe"]["httpGet"]
        assert probe == {"path": "/health", "port": container["ports"][0]["name"]}
    compose = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    assert re.findall(r"\$\{VLLM_IMAGE:-(.+)\}", compose) == [container["image"]]
    volumes = {each["name"]: each for each in PODS[name]["volumes"]}
    [shared] = [m["name"] for m in container["volumeMounts"] if m["mountPath"] == "/dev/shm"]
    assert volumes[shared]["emptyDir"]["medium"] == "Memory"
    [claim] = [
        v["persistentVolumeClaim"]["claimName"]
        for v in volumes.values()
        if "persistentVolumeClaim" in v
    ]
    assert named("PersistentVolumeClaim", claim)["spec"]["accessModes"] == ["ReadWriteOnce"]


def test_candidates_are_the_same_but_for_their_names_and_models():
    """Red when one file is changed and its copy forgotten."""

    def generic(name: str) -> str:
        text = (FOLDER / f"{name}.yaml").read_text("utf-8")
        for word in own_words(name):
            text = text.replace(f"            - {word}\n", "")
        return text.replace(name, "candidate")

    assert len({generic(name) for name in CANDIDATES}) == 1


def test_the_autoscaler_alone_says_how_many():
    """Red when an apply would undo it, or a full event loop, which is one core, is not noticed."""
    assert "replicas" not in DEPLOYMENTS["gateway"]["spec"]
    scaling = named("HorizontalPodAutoscaler")["spec"]
    assert 3 <= scaling["minReplicas"] < scaling["maxReplicas"]
    [metric] = scaling["metrics"]
    assert metric["resource"]["name"] == "cpu"
    assert quantity(metric["resource"]["target"]["averageValue"]) < 1
    assert named("PodDisruptionBudget")["spec"]["maxUnavailable"] < scaling["minReplicas"]
    rollout = DEPLOYMENTS["gateway"]["spec"]["strategy"]["rollingUpdate"]
    assert rollout == {"maxUnavailable": 0, "maxSurge": 1}


def test_the_gateway_reaches_candidates_and_the_store_and_they_only_it():
    """Fails when a policy selects other pods or ports, or opens vLLM to other pods."""
    shut = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert named("NetworkPolicy", "default-deny")["spec"] == shut
    gateway, candidates = (named("NetworkPolicy", n)["spec"] for n in ("gateway", "candidates"))
    [clients] = [peer for rule in gateway["ingress"] for peer in rule["from"]]
    assert clients.keys() == {"namespaceSelector"}
    [(label, value)] = clients["namespaceSelector"]["matchLabels"].items()
    assert re.search(rf"kubectl label namespace \S+ {label}={value}$", README, re.MULTILINE)
    assert selected(gateway["podSelector"]["matchLabels"]) == {"gateway"}
    assert selected(candidates["podSelector"]["matchLabels"]) == set(CANDIDATES)
    request = {("TCP", urlsplit(each["base_url"]).port) for each in CONFIG["candidates"]}
    to_candidates, to_store, to_collector = gateway["egress"]
    [peer] = to_candidates["to"]
    assert selected(peer["podSelector"]["matchLabels"]) == set(CANDIDATES)
    assert set(policy_ports([to_candidates])) == request
    [url] = re.findall(rf"{STORE}='(.+)'", README)
    assert policy_ports([to_store]) == [("TCP", urlsplit(url).port)]
    assert all(peer.keys() == {"ipBlock"} for peer in to_store["to"])
    migration = named("NetworkPolicy", "migration")["spec"]
    assert migration["podSelector"]["matchLabels"] == MIGRATION["template"]["metadata"]["labels"]
    assert migration["egress"] == [to_store]
    assert policy_ports([to_collector]) == [("TCP", 4318)]
    [peer] = to_collector["to"]
    [(label, value)] = peer["namespaceSelector"]["matchLabels"].items()
    assert f"kubectl label namespace NAME {label}={value}" in README
    [rule] = candidates["ingress"]
    [peer] = rule["from"]
    assert peer.keys() == {"podSelector"}
    assert selected(peer["podSelector"]["matchLabels"]) == {"gateway"}
    assert set(policy_ports([rule])) == request


def test_images_are_the_ones_that_the_readme_builds():
    """Red when the Dockerfile builds another name, or a tag is not this version's."""
    [image] = KUSTOMIZATION["images"]
    assert image["name"] == GATEWAY["image"]
    first, *_ = re.findall(
        r"^#   docker build -t (\S+) \.$", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE
    )
    assert image["name"] == first
    assert image["newTag"] == __version__
    component = yaml.safe_load((FOLDER / "artifact-image/kustomization.yaml").read_text("utf-8"))
    [artifact] = re.findall(r"reference: (\S+)", component["patches"][1]["patch"])
    wanted = {f"{image['newName']}:{image['newTag']}", artifact}
    for verb in (r"docker build (?:\S+ )*?-t (\S+)", r"docker push (\S+)"):
        assert set(re.findall(verb, README)) == wanted


def test_a_job_recalibrates_from_live_traffic():
    """Red when its command is not one of ours, or it does not reach the gateway with its key."""
    template = named("CronJob", "recalibration")["spec"]["jobTemplate"]["spec"]["template"]
    pod, labels = template["spec"], template["metadata"]["labels"]
    [container] = pod["containers"]
    name, *words = container["args"]
    given = parsed(name, words)
    assert given["from_shadow"]
    url = urlsplit(given["url"])
    [port] = named("Service", url.hostname)["spec"]["ports"]
    assert url.port == port["port"] == PORT
    assert container["image"] == GATEWAY["image"]
    assert variables(container) == {ADMIN: variables(GATEWAY)[ADMIN]}
    assert pod["securityContext"] == PODS["gateway"]["securityContext"]
    assert container["securityContext"] == GATEWAY["securityContext"]
    assert pod["automountServiceAccountToken"] is False
    out = named("NetworkPolicy", "recalibration")["spec"]
    into = named("NetworkPolicy", "gateway-from-recalibration")["spec"]
    assert out["podSelector"]["matchLabels"] == labels
    [[to], [source]] = out["egress"][0]["to"], into["ingress"][0]["from"]
    assert selected(to["podSelector"]["matchLabels"]) == {"gateway"}
    assert selected(into["podSelector"]["matchLabels"]) == {"gateway"}
    assert source["podSelector"]["matchLabels"] == labels
    assert policy_ports([*out["egress"], *into["ingress"]]) == [("TCP", PORT)] * 2


@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_is_one_that_kubernetes_takes(version: str):
    """Red when a field does not exist, has another type or is missing."""
    for manifest in (*MANIFESTS, *bootstrap.MANIFESTS):
        kubernetes_validate.validate(manifest, version, strict=True)


def test_an_empty_cluster_needs_nothing_that_comes_later(built: list[Manifest]):
    """Red when a pod waits for an image or a claim that the same apply does not bring."""
    claim = {"claimName": "artifact", "readOnly": True}
    assert artifact_of(built) == {"name": "artifact", "persistentVolumeClaim": claim}
    wanted = {
        volume["persistentVolumeClaim"]["claimName"]
        for each in built
        if each["kind"] == "Deployment"
        for volume in each["spec"]["template"]["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert wanted == claims_of(built)
    [artifact] = [m for m in built if m["metadata"]["name"] == "artifact"]
    assert artifact["spec"]["accessModes"] == ["ReadWriteMany"]  # read on all nodes


def test_probes_ask_public_paths_and_restart_no_gateway_that_drains():
    """/readyz is 503 while it drains. Red for a path with a key, or less patience than Docker's."""
    paths = {kind: probe["httpGet"]["path"] for kind, probe in PROBING.items()}
    assert paths == {"startup": "/healthz", "readiness": "/readyz", "liveness": "/healthz"}
    assert set(paths.values()) <= ROUTES.probe_paths
    assert {each.role for each in ROUTES if each.path in paths.values()} == {"public"}
    ports = {probe["httpGet"]["port"] for probe in PROBING.values()}
    assert ports == {GATEWAY["ports"][0]["name"]}
    patience = PROBING["startup"]["periodSeconds"] * PROBING["startup"]["failureThreshold"]
    given, _ = dockerfile.health_command(RUNTIME)
    assert patience >= seconds(given["start-period"])


def test_objects_of_the_gateway_are_about_its_pods():
    """Red when a selector is about other pods, or about none, or too many pods may run."""
    for name, deployment in DEPLOYMENTS.items():
        assert selected(deployment["spec"]["selector"]["matchLabels"]) == {name}
    assert selected(named("Service")["spec"]["selector"]) == {"gateway"}
    assert selected(named("PodDisruptionBudget")["spec"]["selector"]["matchLabels"]) == {"gateway"}
    [spread] = PODS["gateway"]["topologySpreadConstraints"]
    assert selected(spread["labelSelector"]["matchLabels"]) == {"gateway"}
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    scaling = named("HorizontalPodAutoscaler")["spec"]
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "gateway"}
    assert scaling["scaleTargetRef"] == target
    surge = DEPLOYMENTS["gateway"]["spec"]["strategy"]["rollingUpdate"]["maxSurge"]
    # PostgreSQL's max_connections, less superusers'; one of a gateway listens
    assert (scaling["maxReplicas"] + surge) * (THREADS + 1) < 100 - 3


def test_pods_and_containers_have_no_rights():
    """Red when the namespace, which is `restricted`, would refuse one, or it has a token."""
    labels = named("Namespace", "racer")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    for pod in PODS.values():
        context = pod["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] > 0
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        kinds = {kind for volume in pod.get("volumes", ()) for kind in volume if kind != "name"}
        assert kinds <= {"configMap", "emptyDir", "image", "persistentVolumeClaim"}
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"]
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}
    context = PODS["gateway"]["securityContext"]
    assert f"{context['runAsUser']}:{context['runAsGroup']}" == RUNTIME.one("USER").text
    for container in (GATEWAY, UPGRADE):
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
