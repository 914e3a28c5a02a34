"""deploy/grafana asks for metrics that a gateway has, and its alerts fire when they should."""

from __future__ import annotations

import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.offline.train import train
from tests.docs.links import is_there
from tests.kit import same_answer
from tests.kit.gateway import (
    ADMIN_KEY,
    ENVIRONMENT,
    ONE,
    TWO,
    UNANSWERABLE,
    candidates,
    configure,
    labelled,
    running,
)
from tests.kit.upstream import FakePool
from tests.kit.waiting import until

from .dockerfile import ROOT
from .monitoring import ALERTS, DASHBOARD, FOLDER, PANELS, expressions, read, rules

OF_PROMETHEUS = {"up": {"job", "instance"}}  # made by the scrape itself
OF_RAY = {"racer_user_config_refused": {}, "racer_lost_replica_requests_total": {"outcome": "cut"}}
SCRAPED = {"job", "instance"}  # labels that the scrape adds
TESTS = [ROOT / "tests/deploy" / f"alerts_{name}.yml" for name in ("test", "slow_test")]
UNITS = {"percentunit", "s", "short", "reqps", "bytes"}

Samples = dict[str, list[dict[str, str]]]  # by the name of the series: the labels of each


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    """What ``/metrics`` has after a cancelled call, a failed one, and a request in rounds."""
    folder = tmp_path_factory.mktemp("monitoring")
    rows = labelled(0, 400), labelled(5_000, 200)
    train(*rows, folder / "artifact", encoder=CharNgramEncoder(), kind="knn")
    changes: dict[str, Any] = {"watching": {"false_alarm": 0.01}, "fleet": {"failures": 2}}
    with FakePool() as pool:
        changes |= {"candidates": candidates(pool.url, price=1), "budget": {"soft": 1000}}
        path = configure(folder, folder / "artifact", pool.url, **changes)
        with running(path, ENVIRONMENT) as gateway:
            gateway.calibrate()
            gateway.chat(TWO)
            pool.say("poet", "7", delay_s=30)
            gateway.chat(ONE, {"alpha": 0.001})  # decided without the poet
            assert until(lambda: 'outcome="cancelled"' in gateway.get("/metrics").text, 30)
            pool.fail("poet", "500")
            for question in (ONE, TWO, UNANSWERABLE):  # one that fails again and again counts once
                gateway.ask(question, model="poet")
            assert until(lambda: "candidate_ejections_total{" in gateway.get("/metrics").text, 30)
            text = gateway.get("/metrics").text
        rounds = same_answer.configured(pool)
        rounds.pop("calibrated")
        path = configure(folder / "rounds", rounds.pop("artifact"), pool.url, **rounds)
        with running(path, ENVIRONMENT) as gateway:
            same_answer.activate(gateway)
            gateway.get("/same-answer", ADMIN_KEY)
            gateway.chat(ONE)
            texts = text, gateway.get("/metrics").text
    found: Samples = {name: [labels] for name, labels in OF_RAY.items()}
    families = [each for text in texts for each in text_string_to_metric_families(text)]
    for family in families:
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


def test_metrics_of_ray_are_named_as_its_deployments_name_them() -> None:
    """Red when one of both is renamed. A regular expression of the alerts is checked here, too."""
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "app/ray_serve").glob("*.py"))
    for name in OF_RAY:
        assert f'"{name.removesuffix("_total")}"' in sources
    [outcomes] = re.findall(r"^Outcome = Literal\[(.+)\]$", sources, re.MULTILINE)
    named = set(re.findall(r'outcome=~"(refused\|cut)"', ALERTS.read_text(encoding="utf-8")))
    assert {each for text in named for each in text.split("|")} | {"repeated"} == {
        each.strip(' "') for each in outcomes.split(",")
    }


def unmet(expression: str, samples: Samples) -> list[str]:
    """What an expression asks for that is not there."""
    selected, joined = read(expression)
    missing: list[str] = []
    known = set[str]()
    for each in selected:
        if each.metric in OF_PROMETHEUS:
            known |= OF_PROMETHEUS[each.metric]
            continue
        if each.metric not in samples:
            missing.append(each.metric)
            continue
        labels = {name for one in samples[each.metric] for name in one} | SCRAPED
        known |= labels
        for name, operator, value in each.matchers:
            values = {one.get(name) for one in samples[each.metric]}
            if name not in labels or (operator in ("Equal", "NotEqual") and value not in values):
                missing.append(f"{each.metric}{{{name}={value}}}")
    return [*missing, *(f"by {name}" for name in joined - known)]


@pytest.mark.parametrize("where", expressions())
def test_every_metric_label_and_value_is_there(where: str, samples: Samples) -> None:
    """Red when an expression asks for what no gateway ever says, and so never fires or shows."""
    assert unmet(expressions()[where], samples) == []


def test_every_alert_says_what_to_do() -> None:
    """Red when a runbook's page or section is not there."""
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert {"summary", "description", "runbook"} == set(rule["annotations"])
        page, _, section = rule["annotations"]["runbook"].partition("#")
        assert is_there(ROOT / "README.md", page, section), rule["alert"]


def test_every_alert_is_tested_both_ways() -> None:
    """Red when one has no moment at which it fires, or none at which it is silent."""
    seen: dict[str, set[bool]] = {rule["alert"]: set() for rule in rules()}
    for path in TESTS:
        for test in yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]:
            for moment in test["alert_rule_test"]:
                seen[moment["alertname"]].add(bool(moment["exp_alerts"]))
    assert seen == {name: {True, False} for name in seen}


@pytest.fixture(scope="module")
def promtool() -> str:
    """Prometheus' own checker."""
    found = shutil.which("promtool") or shutil.which("promtool", path=ROOT / ".promtool/usr/bin")
    if found is None:
        pytest.skip("promtool is not here: make test-alerts")
    return found


@pytest.mark.promtool
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", ALERTS),
        ("check", "config", "--syntax-only", FOLDER / "prometheus/prometheus.yml"),
        *(("test", "rules", path) for path in TESTS),
    ],
    ids=["rules", "configuration", "alerts", "slow alerts"],
)
def test_prometheus_agrees(promtool: str, arguments: tuple[str | Path, ...]) -> None:
    """Red when it cannot read a file, or an alert fires at another moment or says otherwise."""
    done = subprocess.run(
        [promtool, *arguments], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


# The dashboard ----------------------------------------------------------------------------------


def test_the_dashboard_is_one_that_grafana_reads() -> None:
    """Red when two panels share an id or a place, or one stands outside of the 24 columns."""
    assert DASHBOARD["schemaVersion"] == 41
    ids = [panel["id"] for panel in PANELS]
    assert len(set(ids)) == len(ids)
    for panel in PANELS:
        place = panel["gridPos"]
        assert min(place["x"], place["y"]) >= 0 < min(place["w"], place["h"])
        assert place["x"] + place["w"] <= 24
    for one, other in combinations(PANELS, 2):
        assert not overlap(one["gridPos"], other["gridPos"]), (one["title"], other["title"])


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    """Whether two panels stand on the same cell."""
    return all(
        one[at] < other[at] + other[size] and other[at] < one[at] + one[size]
        for at, size in (("x", "w"), ("y", "h"))
    )


@pytest.mark.parametrize(
    "panel", [each for each in PANELS if each["type"] != "row"], ids=lambda each: each["title"]
)
def test_a_panel_says_what_it_shows(panel: dict[str, Any]) -> None:
    """Red without a description, a unit, a legend or our data source."""
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    assert panel["targets"]
    for target in panel["targets"]:
        assert target["legendFormat"]
        assert target["datasource"] == panel["datasource"] == source()
    references = [target["refId"] for target in panel["targets"]]
    assert len(set(references)) == len(references)


def source() -> dict[str, str]:
    """The data source as it is provisioned."""
    folder = FOLDER / "provisioning/datasources/prometheus.yml"
    (found,) = yaml.safe_load(folder.read_text(encoding="utf-8"))["datasources"]
    return {"type": found["type"], "uid": found["uid"]}


# The services of docker-compose.yml -------------------------------------------------------------


def test_the_services_find_each_other_and_their_files() -> None:
    """Red when a port, a folder or a file has another name on the other side."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))["services"]
    prometheus, grafana = services["prometheus"], services["grafana"]
    assert prometheus["profiles"] == grafana["profiles"] == ["monitoring"]
    config = yaml.safe_load((FOLDER / "prometheus/prometheus.yml").read_text("utf-8"))
    (job,) = config["scrape_configs"]
    assert job["job_name"] == "racer"
    assert job["static_configs"] == [{"targets": ["gateway:8080"]}]
    assert services["gateway"]["ports"][0].endswith(":8080")
    assert config["rule_files"] == [ALERTS.name]
    assert f">{job['authorization']['credentials_file']};" in prometheus["command"][0]
    mounted = {
        each["target"]: ROOT / each["source"]
        for service in (prometheus, grafana)
        for each in service["volumes"]
        if isinstance(each, dict)
    }
    assert mounted == {
        "/etc/prometheus": FOLDER / "prometheus",
        "/etc/grafana/provisioning": FOLDER / "provisioning",
        "/etc/racer/dashboards": FOLDER / "dashboards",
    }
    text = (FOLDER / "provisioning/dashboards/racer.yml").read_text(encoding="utf-8")
    (provider,) = yaml.safe_load(text)["providers"]
    assert provider["options"]["path"] == "/etc/racer/dashboards"
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (mounted["/etc/racer/dashboards"] / Path(home).name).is_file()
    assert grafana["ports"][0].startswith("127.0.0.1:")
    for service in (prometheus, grafana):
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
