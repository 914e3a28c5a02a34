"""The bootstrap in compose and on Kubernetes: one command, the gateway's folders, and no more."""

from __future__ import annotations

from pathlib import PurePosixPath
from urllib.parse import urlsplit

import yaml

from tests.deploy import compose, plain
from tests.deploy.bootstrap import CONTAINER, MANIFESTS, POD, SERVICE, TEXT, Manifest, given, named


def mounted() -> Manifest:
    """The Job's volumes by the path at which it sees them."""
    volumes = {each["name"]: each for each in POD["volumes"]}
    return {m["mountPath"]: {**volumes[m["name"]], **m} for m in CONTAINER["volumeMounts"]}


def test_compose_runs_the_command_before_its_own_gateway() -> None:
    """Red when a word is no option, or another gateway or configuration is meant."""
    program, *words = SERVICE["entrypoint"]
    assert [program] == compose.RUNTIME.one("ENTRYPOINT").words
    options = given(words)
    url = urlsplit(options["url"])
    assert (url.hostname, url.port) == ("gateway", compose.PORT)
    assert SERVICE["depends_on"] == {"gateway": {"condition": "service_healthy"}}
    assert "profiles" in SERVICE, "it would run at every `up`"
    own, gateway = compose.mounts(SERVICE), compose.mounts()
    folder = str(options["config"].parent)
    assert own[folder] == gateway[folder]
    (started,) = [each for each in compose.GATEWAY["command"] if each.startswith("--config=")]
    assert started == f"--config={options['config']}"
    assert own[str(options["queries"])]["source"] == "${RACER_QUESTIONS:-./questions.jsonl}"


def test_compose_gives_gateway_and_bootstrap_one_artifact() -> None:
    """Red when the router that is trained is not the one that the gateway watches."""
    own, gateway = compose.mounts(SERVICE), compose.mounts()
    place = compose.CONFIG["artifact"]
    assert own[place]["source"] == gateway[place]["source"] == "${RACER_ARTIFACT:-artifact}"
    assert (own[place]["read_only"], gateway[place]["read_only"]) == (False, True)
    volumes = yaml.safe_load(compose.TEXT)["volumes"]
    assert "artifact" in volumes
    # A new volume takes the owner of the image's folder.
    [setup] = [each.text for each in compose.RUNTIME.all("RUN")]
    assert f"mkdir -p {place} " in setup
    assert f"chown {compose.RUNTIME.one('USER').text} /var/lib/racer {place}" in setup


def test_compose_keeps_rows_and_state() -> None:
    """Red when another run would begin anew: the working directory is the volume."""
    [volume] = compose.RUNTIME.one("VOLUME").words
    assert compose.RUNTIME.one("WORKDIR").text == volume
    assert not given(SERVICE["entrypoint"][1:])["folder"].is_absolute()
    assert compose.mounts(SERVICE)[volume] == compose.mounts()[volume]


def test_compose_gives_it_no_more_rights_than_the_gateway() -> None:
    """Red when the root can be written, or a key is there that it does not read."""
    for name in ("image", "read_only", "tmpfs", "cap_drop", "security_opt"):
        assert SERVICE[name] == compose.GATEWAY[name]
    assert set(SERVICE["environment"]) == {"RACER_ADMIN_KEY", "RACER_JUDGE_KEY", "HF_TOKEN"}


def test_compose_trains_on_the_gateway_s_device() -> None:
    """The gateway refuses an artifact of another device. Red when the overlay forgets one."""
    services = yaml.safe_load(compose.CUDA)["services"]
    for name in ("image", "deploy"):
        assert services["bootstrap"][name] == services["gateway"][name]


def test_the_job_runs_the_command_before_the_service() -> None:
    """Red when a word is no option, or another port, key or image is meant."""
    namespaces = {each["metadata"]["namespace"] for each in MANIFESTS}
    assert namespaces == {plain.KUSTOMIZATION["namespace"]}
    options = given(CONTAINER["args"])
    url = urlsplit(options["url"])
    [port] = plain.named("Service", url.hostname)["spec"]["ports"]
    assert url.port == port["port"]
    [image] = plain.KUSTOMIZATION["images"]
    assert CONTAINER["image"] == f"{image['newName']}:{image['newTag']}"
    admin = plain.variables(plain.GATEWAY)[plain.ADMIN]
    offline = plain.variables(plain.GATEWAY)["HF_HUB_OFFLINE"]
    assert CONTAINER["env"] == [admin, offline]


def test_the_job_s_files_are_where_the_command_looks() -> None:
    """Red when a path of the command is on no volume, or what must outlast a pod is on none."""
    options, found = given(CONTAINER["args"]), mounted()
    for name in ("config", "queries"):
        path = PurePosixPath(options[name])
        assert found[str(path.parent)]["configMap"] == {"name": "bootstrap"}
        given_as = f"--from-file={'deploy/kubernetes/' * (name == 'config')}{path.name}"
        assert given_as in TEXT
        assert given_as in plain.README
    claims = {
        path: each["persistentVolumeClaim"]["claimName"]
        for path, each in found.items()
        if "persistentVolumeClaim" in each
    }
    assert claims == {
        plain.CONFIG["artifact"]: "artifact",
        str(options["folder"]): "bootstrap",
    }
    assert named("PersistentVolumeClaim")
    assert plain.mounts(plain.GATEWAY)[plain.CONFIG["artifact"]]["persistentVolumeClaim"] == {
        "claimName": "artifact",
        "readOnly": True,
    }


def test_the_job_has_no_rights_and_reaches_the_gateway_alone() -> None:
    """Red when the namespace would refuse it, or a policy opens more than the gateway's port."""
    context = dict(POD["securityContext"])
    assert context.pop("fsGroup") == context["runAsGroup"]
    assert context == plain.PODS["gateway"]["securityContext"]
    assert CONTAINER["securityContext"] == plain.GATEWAY["securityContext"]
    assert POD["automountServiceAccountToken"] is False
    assert CONTAINER["resources"]["limits"]["memory"]
    labels = named("Job")["spec"]["template"]["metadata"]["labels"]
    out = named("NetworkPolicy")["spec"]
    into = named("NetworkPolicy", "gateway-from-bootstrap")["spec"]
    assert out["podSelector"]["matchLabels"] == labels
    [[to], [source]] = out["egress"][0]["to"], into["ingress"][0]["from"]
    for selector in (to["podSelector"], into["podSelector"]):
        assert plain.selected(selector["matchLabels"]) == {"gateway"}
    assert source["podSelector"]["matchLabels"] == labels
    ports = plain.policy_ports([*out["egress"], *into["ingress"]])
    assert ports == [("TCP", plain.PORT)] * 2
