"""docker-compose.yml agrees with the code, and serves the models of the other deployments."""

import ast
import re
import shlex
import shutil
import subprocess
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import pytest
import yaml

from app import settings
from app.errors import SettingsError
from app.settings import Limits
from app.settings.access import Access
from app.store import Store
from tests.deploy import plain
from tests.deploy.compose import (
    CANDIDATES,
    CONFIG,
    CUDA,
    FOLDER,
    GATEWAY,
    PORT,
    RUNTIME,
    TEXT,
    flags,
    model,
    mounts,
    words,
)
from tests.kit.commands import parsed

from .chart import CHART, values_of
from .dockerfile import ROOT, seconds

KEYS = {"RACER_DATA_KEY": "data-key-of-the-tests", "RACER_ADMIN_KEY": "admin-key-of-the-tests"}


@pytest.fixture
def compose(tmp_path):
    """`docker-compose config` with the example's `.env`, some of its lines set to other values."""
    tool = shutil.which("docker-compose")
    if tool is None:
        pytest.skip("docker-compose is not here: apt-get install docker-compose")

    def run(*files, **values):
        names = [f"--file={name}" for name in ("docker-compose.yml", *files)]
        text = (FOLDER / ".env.example").read_text(encoding="utf-8")
        for name, value in values.items():
            text, count = re.subn(rf"^{name}=.*$", f"{name}={value}", text, flags=re.MULTILINE)
            assert count == 1, name
        (tmp_path / ".env").write_text(text, encoding="utf-8")
        return subprocess.run(
            [tool, f"--env-file={tmp_path / '.env'}", *names, "config"],
            cwd=ROOT,
            env={"PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def test_compose_accepts_the_file(compose):
    """Red when Debian's docker-compose finds it invalid, or fills a variable in wrongly."""
    image = "vllm/vllm-openai@sha256:" + "0" * 64
    changes = {"GPU_B": "7", "MODEL_B": "other/model", "VLLM_IMAGE": image}
    done = compose(**KEYS, RACER_PORT="127.0.0.1:9000", **changes)
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    assert services["gateway"]["environment"]["RACER_DATA_KEY"] == KEYS["RACER_DATA_KEY"]
    assert services["gateway"]["build"]["args"]["TORCH_INDEX"].endswith("/cpu")
    assert services["gateway"]["ports"] == ["127.0.0.1:9000:8080/tcp"]
    assert words(services["candidate-a"]["command"])[:3] == shlex.split(
        model(CANDIDATES["candidate-a"])[1]
    )
    assert words(services["candidate-b"]["command"])[0] == "other/model"
    assert services["candidate-b"]["image"] == image
    [device] = services["candidate-b"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["device_ids"] == ["7"]


def test_compose_accepts_the_overlay_for_cuda(compose):
    """Red when the overlay does not give the gateway a GPU and a CUDA torch, or drops the rest."""
    done = compose("deploy/compose/cuda.yml", **KEYS)
    assert done.returncode == 0, done.stderr
    gateway = yaml.safe_load(done.stdout)["services"]["gateway"]
    assert gateway["build"]["args"]["TORCH_INDEX"].endswith("/cu130")
    [device] = gateway["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
    assert gateway["read_only"] is True


def test_mounts_are_where_the_command_and_the_configuration_look():
    """Red when a source is missing, or a target is not what the command or racer.yaml names."""
    found = mounts()
    name, *rest = GATEWAY["command"]
    started = parsed(name, rest)
    assert (started["host"], started["port"]) == ("0.0.0.0", PORT)
    config, folder = started["config"], str(started["config"].parent)
    [volume] = RUNTIME.one("VOLUME").words
    assert set(found) == {folder, CONFIG["artifact"], volume}
    assert (ROOT / found[folder]["source"] / config.name).samefile(FOLDER / "racer.yaml")
    assert found[folder]["read_only"] is found[CONFIG["artifact"]]["read_only"] is True
    assert found[volume]["source"] in yaml.safe_load(TEXT)["volumes"]
    store = PurePosixPath(CONFIG["store"].removeprefix("sqlite:///"))
    assert store.parent == PurePosixPath(volume)


def test_the_gateway_has_few_rights_and_time_to_finish():
    """Red when it runs with more rights than it needs, or is killed in the middle of answers."""
    assert GATEWAY["read_only"] is True
    assert GATEWAY["cap_drop"] == ["ALL"]
    assert GATEWAY["security_opt"] == ["no-new-privileges:true"]
    assert seconds(GATEWAY["stop_grace_period"]) > Limits().drain_delay_s + Limits().drain_s


@pytest.mark.parametrize(
    ("given", "source"), [("artifact", "artifact"), ("./artifact", str(ROOT / "artifact"))]
)
def test_the_artifact_is_in_a_volume_or_in_a_folder(compose, given, source):
    """Red when a name is taken for a folder, which would have to be there before a start."""
    done = compose(**KEYS, RACER_ARTIFACT=given)
    assert done.returncode == 0, done.stderr
    volumes = yaml.safe_load(done.stdout)["services"]["gateway"]["volumes"]
    assert f"{source}:{CONFIG['artifact']}:ro" in volumes
    refused = compose(**KEYS | {"RACER_DATA_KEY": ""})
    assert refused.returncode != 0
    assert "${RACER_DATA_KEY:?" in refused.stderr


def test_the_example_has_every_variable_with_its_default_and_no_key():
    """Fails when a variable is in one of both alone, or a key is what all copies would share."""
    example = (FOLDER / ".env.example").read_text(encoding="utf-8")
    assert set(re.findall(r"\$\{(\w+)", TEXT + CUDA)) == set(
        re.findall(r"^#?(\w+)=", example, re.MULTILINE)
    )
    shown = dict(re.findall(r"^(\w+)=(.*)$", example, re.MULTILINE))
    defaults = dict(re.findall(r"\$\{(\w+):-([^}]+)\}", TEXT))
    defaults.pop("TORCH_INDEX")  # the example leaves it to each file
    assert {name: shown[name] for name in defaults} == defaults
    assert {shown[name] for name in (*KEYS, "HF_TOKEN")} == {""}
    names = {Access.model_fields[f"{role}_key_env"].default for role in ("data", "admin")}
    assert names == set(KEYS)
    assert set(GATEWAY["environment"]) == names | {"HF_TOKEN"}


@pytest.mark.parametrize("name", CANDIDATES)
def test_a_candidate_is_the_configuration_s_with_its_own_gpu_and_model(name):
    """Red when two share a GPU unasked, a model is fixed, or a server is open to the host."""
    letter = name[-1].upper()
    service, options = CANDIDATES[name], flags(CANDIDATES[name])
    [entry] = [each for each in CONFIG["candidates"] if each["name"] == name]
    url = urlsplit(entry["base_url"])
    assert (url.hostname, url.path) == (name, "/v1")
    assert options["--port"] == str(url.port)
    assert options["--served-model-name"] == entry.get("model", name)
    assert service["entrypoint"] == ["vllm", "serve"]
    assert model(service)[0] == f"MODEL_{letter}"
    [device] = service["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert device["device_ids"][0].startswith(f"${{GPU_{letter}:-")
    assert "ports" not in service
    default = r"\$\{VLLM_IMAGE:-vllm/vllm-openai:v\d+\.\d+\.\d+\}"
    assert re.fullmatch(default, service["image"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    kind, python, option, program = service["healthcheck"]["test"]
    assert (kind, python, option) == ("CMD", "python3", "-c")
    ast.parse(program)
    assert f"http://127.0.0.1:{options['--port']}/health'" in program
    assert GATEWAY["depends_on"][name] == {"condition": "service_healthy"}


def test_the_configuration_loads(tmp_path):
    """Red for an unknown field, a gateway that others reach without a key, or another store."""
    loaded, secrets = settings.load(FOLDER / "racer.yaml", KEYS, host="0.0.0.0", port=PORT)
    assert loaded.pool == tuple(CANDIDATES)
    assert loaded.artifact == Path(CONFIG["artifact"])
    assert loaded.store == CONFIG["store"]
    assert secrets.data_key is not None
    assert GATEWAY["ports"] == [f"${{RACER_PORT:-{PORT}}}:{PORT}"]
    with pytest.raises(SettingsError, match="RACER_DATA_KEY"):
        settings.load(FOLDER / "racer.yaml", {}, host="0.0.0.0")
    with Store(CONFIG["store"].replace("/var/lib/racer", str(tmp_path))):
        assert (tmp_path / "racer.db").is_file()


PAGE = (ROOT / "docs/operating.md").read_text(encoding="utf-8")
ROWS = re.findall(
    r"^\| `(\S+)` \| (?:`([^`|]+)`|none[^|]*) \| ([\d.]+) GB \| ([\d.]+) GB \|$", PAGE, re.MULTILINE
)
MODELS = {name: own.split() for name, own, _, _ in ROWS}


def test_compose_manifests_and_chart_serve_the_models_of_the_table() -> None:
    """With their own flags: another model's parser makes answers empty."""
    wanted = [[name, *own] for name, own in MODELS.items()]
    assert wanted
    assert [model(each)[1].split() for each in CANDIDATES.values()] == wanted
    assert [plain.own_words(name) for name in plain.CANDIDATES] == wanted
    values = values_of(CHART / "values.yaml")
    runs = [each["vllm"] for each in values["candidates"]]
    assert [[each["model"], *each["args"]] for each in runs] == wanted
    [image] = {plain.PODS[name]["containers"][0]["image"] for name in plain.CANDIDATES}
    assert values["vllm"]["image"] == image
    assert image.rpartition(":v")[2] in PAGE
