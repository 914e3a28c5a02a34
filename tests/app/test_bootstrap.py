"""``racer bootstrap``: from questions to certified answers, and on after a stop in any step."""

from __future__ import annotations

import errno
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from app import artifact_watch, settings
from app.cli import bootstrap as command
from app.errors import GatewayUnreachable
from app.tools.bootstrap.gateway import wait_for_artifact
from app.tools.bootstrap.labels import Grading
from app.tools.bootstrap.run import take_over
from app.tools.bootstrap.state import BootstrapState, Step
from app.tools.bootstrap.steps import BootstrapOptions, Steps
from app.tools.gateway_client import GatewayClient
from racer_core import artifacts
from racer_core.errors import RowsError
from racer_core.records.split import TUNING_SHARES
from racer_core.types import RiskTarget
from tests.kit.gateway import (
    ADMIN_KEY,
    DATA_KEY,
    ENVIRONMENT,
    ONE,
    POOL,
    Command,
    Gateway,
    configure,
    labelled,
    running,
)
from tests.kit.upstream import FakePool
from tests.kit.waiting import wait_until, wait_while_running

STEPS = ("label", "split", "train", "tune", "evaluate", "calibrate")
COUNT = 60
PARTS = {"train": 24, "calibration": 36}
TUNED = 460  # with a validation part that `racer tune` takes
# Parts for all steps, whatever the number of rows.
TO_TUNE = ("--share=train=0.4", "--share=validation=0.3", "--share=calibration=0.3")
SKIPPED = "nothing has changed, skipped"


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for an artifact ten times a second."""
    monkeypatch.setattr(artifact_watch, "EVERY_S", 0.1)


@pytest.fixture
def pool(pool: FakePool) -> Iterator[FakePool]:
    """Candidates with skills: by the wording each is right, or not."""
    right = {row.query: row.correct for row in labelled(0, TUNED + 1).rows}

    def answer(body: dict[str, Any]) -> str:
        return "yes" if body["model"] in right.get(body["messages"][-1]["content"], ()) else "no"

    pool.answer = answer
    yield pool
    pool.answer = lambda _: "42"


def ask(path: Path, count: int = COUNT) -> Path:
    """Questions whose reference is `yes`."""
    lines = [{"query": row.query, "reference": "yes"} for row in labelled(0, count).rows]
    path.write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
    return path


@pytest.fixture
def queries(tmp_path: Path) -> Path:
    """Questions with references."""
    return ask(tmp_path / "questions.jsonl")


@pytest.fixture
def config(tmp_path: Path, pool: FakePool) -> Path:
    """A gateway's configuration, whose artifact does not exist yet."""
    return configure(tmp_path, tmp_path / "artifact", pool.url)


@pytest.fixture
def gateway(config: Path) -> Iterator[Gateway]:
    """A gateway that waits for an artifact."""
    with running(config, ENVIRONMENT) as gateway:
        yield gateway


Bootstrap = Callable[..., tuple[int, str, str]]


@pytest.fixture
def bootstrap(racer: Command, config: Path, queries: Path, tmp_path: Path) -> Bootstrap:
    """``racer bootstrap`` with the fixtures' files; other options by name."""

    def run(gateway: Gateway, *more: object, **options: object) -> tuple[int, str, str]:
        named = {"config": config, "queries": queries, "out": tmp_path / "work",
                 "url": gateway.url, "key": ADMIN_KEY, "encoder": "char-ngrams",
                 **options}  # fmt: skip
        given = [word for name, value in named.items() for word in (f"--{name}", value)]
        return racer("bootstrap", *given, *more)

    return run


def done(result: tuple[int, str, str]) -> dict[str, Any]:
    """The report of a run that succeeded."""
    code, out, stderr = result
    assert code == 0, stderr
    return json.loads(out)


def report_file(folder: Path) -> str:
    """The tables of the steps."""
    return (folder / "work" / "report.txt").read_text(encoding="utf-8")


def skipped(stderr: str) -> list[str]:
    """The steps that were skipped."""
    lines = [line for line in stderr.splitlines() if SKIPPED in line]
    return [line.partition("] ")[2].partition(":")[0] for line in lines]


def shown(stderr: str) -> list[str]:
    """The commands that were shown."""
    lines = [line.partition("] racer ")[2] for line in stderr.splitlines()]
    return [line for line in lines if line]


# The whole way -----------------------------------------------------------------------------------


def test_from_questions_to_a_certified_answer(
    bootstrap: Bootstrap, gateway: Gateway, pool: FakePool, tmp_path: Path
) -> None:
    """Fallback before, a certificate that holds after; then only what depends on a change runs."""
    assert gateway.chat(ONE)["racer"]["certificate"]["reasons"] == ["not_calibrated"]
    pool.reset()
    code, out, stderr = bootstrap(gateway)
    assert code == 0, stderr
    first, *later = (line for line in stderr.splitlines() if line.startswith("plan: "))
    assert first.startswith("plan: questions: 60: 24 train, 36 calibration; none is left")
    assert "plan: calls: known from 30 labelled rows on" in later
    labelled_plan = report_file(tmp_path).splitlines()
    assert any(
        line.endswith(" of 3 by a fixed order of the candidates on these rows")
        for line in labelled_plan
        if line.startswith("plan: calls: ")
    )
    done_here = [each for each in STEPS if each != "tune"]
    assert [each.partition(" ")[0] for each in shown(stderr)] == done_here
    assert ADMIN_KEY not in stderr
    for words in (
        *("50.0%", "answerable at alpha 0.1, score gap, vote majority"),
        *(
            "left out: ",
            "none are left to tune on",
            "accuracy",
            "best candidate",
            "of 3 calls",
            "saved",
        ),
        *("realised risk", "with probability 90 %", ", active", "next 1:"),
    ):
        assert words in f"{report_file(tmp_path)}{out}", words
    asked = {row.query for row in labelled(0, COUNT).rows}
    assert pool.calls() == {(name, query): 1 for name in POOL for query in asked}
    racer = gateway.chat(ONE)["racer"]
    assert racer["certificate"]["holds"], racer["certificate"]
    assert "adder" in racer["selected"]
    pool.reset()
    again = bootstrap(gateway, "--json")
    report = done(again)
    assert skipped(again[2]) == list(STEPS)
    assert report["candidates"] == {"adder": 0.5, "speller": 0.5, "poet": 0.0}
    assert report["rows"] == {"labelled": COUNT, **PARTS}
    assert report["calibration"]["active"] is True
    expected = {
        "status": "ready",
        "calibration": report["calibration"]["id"],
        "artifact": artifacts.digest(tmp_path / "artifact"),
        "level": {"alpha": 0.1, "bound": {"value": 0.1, "confidence": None}},
        "holds": True,
        "reasons": [],
    }
    assert gateway.ready().items() >= expected.items()
    larger = bootstrap(gateway, "--json", alpha=0.2)
    calibration = done(larger)["calibration"]
    assert skipped(larger[2]) == ["label", "split", "train", "tune"]
    assert (calibration["alpha"], calibration["active"]) == (0.2, True)
    assert gateway.ready()["calibration"] == calibration["id"] != report["calibration"]["id"]
    assert pool.requests == []


@pytest.mark.slow
def test_what_tuning_chooses_is_written_and_calibrated(
    bootstrap: Bootstrap, gateway: Gateway, queries: Path, config: Path
) -> None:
    """With `--write` the calibration has the new score and alpha; a second run stays quiet."""
    ask(queries, TUNED)
    before = config.read_text(encoding="utf-8")
    report = done(bootstrap(gateway, "--write", "--json"))
    assert report["tuning"]["written"] is True
    assert config.read_text(encoding="utf-8") != before
    chosen, calibration = report["tuning"]["chosen"], report["calibration"]
    assert (calibration["score"], calibration["alpha"]) == (chosen["score"], chosen["alpha"])
    # The gateway takes over what the report says, in the way that it says.
    advice, changed = report["next"][0], report["tuning"]["settings"]
    assert set(changed) == {"routing"}, "make this test's advice a restart"
    assert "reload the gateway" in advice
    assert all(f"routing.{name}" in advice for name in changed["routing"])
    answer = gateway.post("/admin/reload", ADMIN_KEY)
    assert set(answer.json()["changed"]) == {f"routing.{name}" for name in changed["routing"]}
    again = bootstrap(gateway, "--write", "--json")
    assert done(again) == report
    assert skipped(again[2]) == list(STEPS)


@pytest.mark.parametrize(
    ("changed", "starts", "ends"),
    [
        ({"routing": {"alpha": 0.2, "score": "gap"}},
         "reload the gateway (SIGHUP or POST /admin/reload)", "routing.alpha, routing.score"),
        ({"aggregation": {"method": "majority", "weight": None}},
         "restart the gateway", "aggregation.method, aggregation.weight at its start"),
        ({"routing": {"alpha": 0.2}, "aggregation": {"method": "majority"}},
         "restart the gateway: it reads aggregation.method",
         "routing.alpha alone would need a reload only"),
    ],
)  # fmt: skip
def test_a_restart_is_asked_for_only_where_a_reload_does_not_do(
    changed: dict[str, Any], starts: str, ends: str
) -> None:
    """By the table of what a reload takes over."""
    text = take_over(changed)
    assert text.startswith(starts)
    assert text.endswith(ends)


# Stops -------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process ends here."""


def test_a_stop_in_any_step_is_gone_on_from(
    bootstrap: Bootstrap, gateway: Gateway, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed when a step was begun, then when its command had ended; no call is made twice."""
    noted = {moment: getattr(BootstrapState, moment) for moment in ("begin", "finish")}

    def killing(moment: str, name: str) -> Callable[..., None]:
        def note(self: BootstrapState, step: Step, *given: Any, **more: Any) -> None:
            if moment == "begin":
                noted[moment](self, step, *given, **more)
            if step.name == name:
                raise Killed
            if moment == "finish":
                noted[moment](self, step, *given, **more)

        return note

    for name in STEPS:
        for moment in noted:
            if (name, moment) == ("tune", "begin"):  # the gateway has loaded what was trained
                wait_until(lambda: "artifact" in gateway.ready())
            with monkeypatch.context() as patch:
                patch.setattr(BootstrapState, moment, killing(moment, name))
                with pytest.raises(Killed):
                    bootstrap(gateway, *TO_TUNE)
    last = bootstrap(gateway, *TO_TUNE, "--json")
    report = done(last)
    assert report["calibration"]["active"] is True
    assert report["router"]["training_rows"] == PARTS["train"]
    assert skipped(last[2]) == list(STEPS[:-1])
    assert set(pool.calls().values()) == {1}
    assert len(pool.calls()) == COUNT * len(POOL)


def test_an_artifact_from_before_the_stop_is_not_taken_for_the_trained_one(
    bootstrap: Bootstrap, gateway: Gateway, queries: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Killed before the command wrote anything, on other rows: it is trained again."""
    begin = BootstrapState.begin

    def digest_after(killed_in: str) -> str:
        def note(self: BootstrapState, step: Step, **given: Any) -> None:
            begin(self, step, **given)
            if step.name == killed_in:
                raise Killed

        monkeypatch.setattr(BootstrapState, "begin", note)
        with pytest.raises(Killed):
            bootstrap(gateway, *TO_TUNE)
        return artifacts.digest(tmp_path / "artifact")

    first = digest_after("tune")
    ask(queries, COUNT + 1)
    assert digest_after("train") == first
    assert digest_after("tune") != first


def test_kill_9_and_a_candidate_that_fails_while_labelling(
    bootstrap: Bootstrap, gateway: Gateway, pool: FakePool, config: Path, queries: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    """The next run goes on with the answers that there are; a failure stops it with the cause."""
    pool.say("poet", "no", delay_s=60)
    process = subprocess.Popen(
        [sys.executable, "-m", "app", "bootstrap", "--config", config, "--queries", queries,
         "--out", tmp_path / "work", "--url", gateway.url, "--key", ADMIN_KEY,
         "--encoder", "char-ngrams"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        partial = tmp_path / "work" / "rows.jsonl.partial"
        wait_while_running(
            lambda: partial.exists() and partial.read_text().count('"answer"') == 16, process
        )
    finally:
        process.kill()
        process.communicate()
    pool.reset()
    pool.fail("poet", "500")
    code, _, stderr = bootstrap(gateway)
    assert code == 1
    assert "are not labelled (poet " in stderr
    assert "label failed; when that is mended, run the same command again" in stderr
    others = sum(name != "poet" for name in pool.models_called())
    assert others == 2 * COUNT - 16
    pool.reset()
    assert done(bootstrap(gateway, "--json"))["rows"]["labelled"] == COUNT
    assert set(pool.models_called()) == {"poet"}


# Steps -------------------------------------------------------------------------------------------


@pytest.fixture
def steps(config: Path, queries: Path, tmp_path: Path) -> Iterator[Callable[..., Steps]]:
    """Steps with other options by name; nothing answers at their gateway's URL unless given."""
    options = BootstrapOptions(
        config=config, queries=queries, references=None, grade=None, judge=None,
        judge_model=None, judge_calls=None, judge_cost=None, accepts_labels=False,
        concurrency=8, shares=None, router="knn", encoders=(), kind=None,
        alpha=None, write=False, folder=tmp_path / "work", url="http://127.0.0.1:1", data_url="http://127.0.0.1:1",
        wait_s=0.0,
    )  # fmt: skip
    with ExitStack() as stack:

        def make(**given: Any) -> Steps:
            own = replace(options, **given)
            kind = own.grade or ("judge" if own.judge else "exact")
            grading = Grading(kind=kind, choice=None, is_given=True)
            client = stack.enter_context(GatewayClient(own.url, ADMIN_KEY))
            return Steps(own, BootstrapState(own.folder / "bootstrap.json"), client, grading)

        yield make


def test_options_are_words_of_the_steps(
    steps: Callable[..., Steps], config: Path, tmp_path: Path
) -> None:
    """Each is one of the command that reads it."""
    own = settings.read(config)
    plain = " ".join(steps().label(own).command)
    assert "--grade exact --concurrency 8 --through-gateway" in plain
    judged = steps(
        judge="http://judge/v1", judge_model="j", judge_calls=9, references=tmp_path / "r.jsonl"
    )
    words = " ".join(judged.label(own).command)
    assert f"--grade judge --reference {tmp_path / 'r.jsonl'} --judge http://judge/v1" in words
    assert "--judge-model j --judge-calls 9 --concurrency" in words
    chosen = steps(encoders=("a", "b"), router="mlp", kind="traffic", alpha=0.2, write=True)
    assert {"--encoder=a", "--encoder=b", "mlp"} <= {*chosen.train(own).command}
    assert "--write" in chosen.tune(own).command
    promise = "--alpha 0.2 --score gap --risk-target answerable --rows traffic"
    assert promise in " ".join(chosen.calibrate(own).command)
    for make in (chosen.split, chosen.train, chosen.tune, chosen.evaluate):
        assert make(own).command[-2:] == ("--rows", "traffic")


def test_what_a_stop_left_does_not_stop_the_next_run(
    steps: Callable[..., Steps], config: Path, tmp_path: Path
) -> None:
    """`racer split` replaces no file, and `racer train` refuses a checkpoint without `--resume`."""
    own = settings.read(config)
    part = tmp_path / "work" / "parts" / "train.jsonl"
    part.parent.mkdir(parents=True)
    part.write_text("half a l")
    assert steps(shares=TUNING_SHARES).split(own).prepare() == ()
    assert not part.exists()
    assert steps().train(own).prepare() == ()
    (tmp_path / "artifact" / "checkpoint").mkdir(parents=True)
    assert steps().train(own).prepare() == ("--resume",)


@pytest.mark.parametrize(
    ("given", "target", "parts"),
    [
        ({}, "answerable", {"train", "calibration"}),
        ({}, "paper", {"train", "validation", "calibration"}),
        ({"shares": TUNING_SHARES}, "answerable", {"train", "validation", "calibration"}),
        ({"router": "routerdc"}, "answerable", {"train", "validation", "calibration"}),
        ({"encoders": ("auto", "one")}, "answerable", {"train", "validation", "calibration"}),
    ],
)
def test_validation_rows_calibrate_where_nothing_else_needs_them(
    steps: Callable[..., Steps], config: Path, tmp_path: Path,
    given: dict[str, Any], target: str, parts: set[str],
) -> None:  # fmt: skip
    """Of 400 rows 60 % are answerable: 72 of the validation part, where `paper` counts 120."""
    own = settings.read(config)
    routing = own.routing.model_copy(update={"risk_target": RiskTarget(target)})
    own = own.model_copy(update={"routing": routing})
    rows = tmp_path / "work" / "rows.jsonl"
    rows.parent.mkdir(parents=True)
    lines = (
        {"query": f"question {i}", "correct": dict.fromkeys(POOL, i % 10 < 6)} for i in range(400)
    )
    rows.write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
    made = steps(**given)
    assert {path.stem for path in made.split(own).writes} == parts
    idle = "validation" not in parts
    assert ("--validation" not in made.train(own).command) == idle
    assert not any("validation" in path.stem for path in made.train(own).reads) or not idle
    if idle:
        with pytest.raises(RowsError, match="none are left to tune on"):
            made.tune(own).prepare()


def test_a_step_whose_file_was_changed_is_run_again(tmp_path: Path) -> None:
    """It is skipped only while its files are as it left them."""
    written = tmp_path / "rows.jsonl"
    step = Step(name="label", command=("label",), reads=(), writes=(written,))
    state = BootstrapState(tmp_path / "bootstrap.json")
    written.write_text("as written")
    state.finish(step, None, inputs=step.inputs)
    assert state.is_done(step)
    written.write_text("edited")
    assert not state.is_done(step)
    written.unlink()
    assert not state.is_done(step)


def test_a_calibration_stands_while_the_gateway_has_it(
    steps: Callable[..., Steps], config: Path, shared_gateway: Gateway
) -> None:
    """With another store it is made again, whatever the state says."""
    step = steps(url=shared_gateway.url).calibrate(settings.read(config))
    assert step.stands({"id": shared_gateway.ready()["calibration"]})
    assert not step.stands({"id": "cal-of-another-store"})


# Gateways and artifacts ---------------------------------------------------------------------------


def test_a_gateway_that_does_not_see_the_folder_is_given_it_by_hand(
    bootstrap: Bootstrap, pool: FakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what to do, and goes on with the calibration once that is done."""
    monkeypatch.setattr(command, "WAIT_S", 0.3)
    there = tmp_path / "there"
    with running(configure(there, there / "artifact", pool.url), ENVIRONMENT) as gateway:
        code, _, stderr = bootstrap(gateway)
        assert code == 1
        assert "has not loaded the artifact" in stderr
        assert "copy it" in stderr
        shutil.copytree(tmp_path / "artifact", there / "artifact")
        monkeypatch.setattr(command, "WAIT_S", 30.0)
        again = bootstrap(gateway, "--json")
        assert done(again)["calibration"]["active"] is True
        assert skipped(again[2]) == list(STEPS[:-1])
        assert gateway.chat(ONE)["racer"]["certificate"]["holds"] is True


def test_changed_questions_need_a_restart_of_the_gateway_and_say_so(
    bootstrap: Bootstrap, config: Path, queries: Path, pool: FakePool
) -> None:
    """The new router is not the one that the gateway runs; a restarted one is calibrated."""
    with running(config, ENVIRONMENT) as gateway:
        done(bootstrap(gateway, "--json"))
        ask(queries, COUNT + 1)
        pool.reset()
        code, _, stderr = bootstrap(gateway)
        assert code == 1
        assert "it runs another one: restart it" in stderr
        assert len(pool.requests) == len(POOL)  # the new question alone
    with running(config, ENVIRONMENT) as gateway:
        report = done(bootstrap(gateway, "--json"))
        assert report["rows"]["labelled"] == COUNT + 1
        assert gateway.ready()["calibration"] == report["calibration"]["id"]


@pytest.mark.parametrize("otherwise", ["missing", "unreachable"])
def test_ten_answers_in_a_row_have_the_artifact(
    artifact: Path, monkeypatch: pytest.MonkeyPatch, otherwise: str
) -> None:
    """Two gateways take turns, and the second loads it last. Fails when one of them is enough."""
    digest, asked = artifacts.digest(artifact), list[str]()

    def readiness(_: GatewayClient) -> dict[str, Any]:
        asked.append("readyz")
        if len(asked) in (1, 3) or len(asked) > 4:
            return {"artifact": digest}
        if otherwise == "unreachable":
            raise GatewayUnreachable("it restarts")
        return {"artifact": None, "missing": [{"part": "artifact", "reason": "it is not there"}]}

    monkeypatch.setattr(GatewayClient, "readiness", readiness)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with GatewayClient("http://127.0.0.1:1") as client:
        wait_for_artifact(client, artifact, 120.0)
    assert len(asked) == 14  # ten after the last that had none


def test_an_artifact_that_it_did_not_make_is_kept(
    bootstrap: Bootstrap, config: Path, artifact: Path, tmp_path: Path
) -> None:
    """Refused with what to do."""
    shutil.copytree(artifact, tmp_path / "artifact")
    before = artifacts.digest(tmp_path / "artifact")
    with running(config, ENVIRONMENT) as gateway:
        code, _, stderr = bootstrap(gateway)
    assert code == 2
    assert "that this bootstrap did not make: move it away" in stderr
    assert artifacts.digest(tmp_path / "artifact") == before


def test_a_gateway_whose_admin_endpoints_have_a_port_of_their_own(
    racer: Command, queries: Path, pool: FakePool, tmp_path: Path
) -> None:
    """It is found by the configuration; clients are told the address of theirs."""
    with ExitStack() as stack:
        free = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        port, admin = (each.getsockname()[1] for each in free)
    path = configure(
        tmp_path, tmp_path / "artifact", pool.url, port=port, access={"admin": {"port": admin}}
    )
    with running(path, ENVIRONMENT):
        result = racer(
            "bootstrap", "--config", path, "--queries", queries, "--out", tmp_path / "work",
            "--key", ADMIN_KEY, "--encoder", "char-ngrams", "--json",
        )  # fmt: skip
    report = done(result)
    assert report["calibration"]["active"] is True
    assert any(f"http://127.0.0.1:{port}/v1" in each for each in report["next"])


# Refusals, before any candidate is called ---------------------------------------------------------


def refused(result: tuple[int, str, str], pool: FakePool, code: int, *words: str) -> None:
    """One sentence, the right exit code, and no call."""
    assert result[:2] == (code, ""), result
    for word in words:
        assert word in result[2]
    assert pool.requests == []


def test_without_references_and_judge_it_says_what_can_be_had(
    bootstrap: Bootstrap, gateway: Gateway, pool: FakePool, queries: Path
) -> None:
    """Answers alone do not say which are right; each way without labels is a command."""
    queries.write_text('{"query": "one?"}\n{"query": "two?"}\n')
    refused(
        bootstrap(gateway), pool, 1, "--reference FILE", "--judge CANDIDATE",
        "racer serve --calibrate-from-traffic", "racer label --from-shadow --grade judge",
        "racer calibrate --from-shadow --delta",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"artifact": None}, 2, "set `artifact` to the folder where the router will be"),
        ({"routing": {"risk_target": "quality"}}, 2, "needs graded rows"),
        (
            {"artifact": f"https://files.test/a.tar.gz#sha256={'0' * 64}"},
            2,
            "set `artifact` to a folder",
        ),
    ],
)
def test_configurations_without_a_way_to_the_end(
    racer: Command, pool: FakePool, queries: Path, tmp_path: Path, config: Path,
    change: dict[str, Any], code: int, words: str,
) -> None:  # fmt: skip
    """No gateway is asked."""
    values = yaml.safe_load(config.read_text(encoding="utf-8")) | change
    config.write_text(yaml.safe_dump(values), encoding="utf-8")
    found = racer("bootstrap", "--config", config, "--queries", queries, "--url",
                  "http://127.0.0.1:1", "--out", tmp_path / "work")  # fmt: skip
    refused(found, pool, code, words)


def test_a_configuration_that_cannot_be_written_is_refused_before_labels_are_paid_for(
    bootstrap: Bootstrap, gateway: Gateway, pool: FakePool, config: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A container mounts it read-only, which root notices, too; without `--write` it is read."""
    opened = Path.open

    def read_only(path: Path, mode: str = "r", *more: Any, **options: Any) -> Any:
        if path == config and mode != "r":
            raise OSError(errno.EROFS, "Read-only file system")
        return opened(path, mode, *more, **options)

    monkeypatch.setattr(Path, "open", read_only)
    before = config.stat().st_mtime_ns
    found = bootstrap(gateway, "--write")
    refused(found, pool, 2, "cannot be written (Read-only file system)", "leave out --write")
    assert config.stat().st_mtime_ns == before
    assert bootstrap(gateway)[0] == 0


def test_an_encoder_that_no_hub_has_is_named_before_anything_is_paid_for(
    bootstrap: Bootstrap, gateway: Gateway, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after the questions are labelled."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = bootstrap(gateway, encoder="somebody/an-encoder-that-is-nowhere")
    refused(found, pool, 2, "is not on this machine", "--encoder auto")


def test_gateways_that_could_not_be_calibrated(
    bootstrap: Bootstrap, config: Path, pool: FakePool, tmp_path: Path
) -> None:
    """Unreachable, without an admin key, with another key, or of another pool."""
    nobody = Gateway("http://127.0.0.1:1", settings.read(config))
    refused(bootstrap(nobody), pool, 3, "no gateway answers")
    with running(config, {"RACER_DATA_KEY": DATA_KEY}) as gateway:
        refused(bootstrap(gateway, key=DATA_KEY), pool, 1, "admin endpoints are off")
    with running(config, ENVIRONMENT) as gateway:
        refused(bootstrap(gateway, key=DATA_KEY), pool, 1, "needs the admin key")
    others = [{"name": "other", "base_url": pool.url}]
    path = configure(tmp_path / "other", tmp_path / "artifact", "", candidates=others)
    with running(path, ENVIRONMENT) as gateway:
        refused(bootstrap(gateway), pool, 2, "has no candidate 'adder'")


def test_shares_and_state_that_do_not_fit(
    bootstrap: Bootstrap, gateway: Gateway, pool: FakePool, tmp_path: Path
) -> None:
    """A share to train and one to calibrate; a state of another program is not overwritten."""
    refused(bootstrap(gateway, share="train=0.5"), pool, 2, "no share for calibration")
    state = tmp_path / "work" / "bootstrap.json"
    state.parent.mkdir()
    state.write_text('{"steps": 1}')
    refused(bootstrap(gateway), pool, 1, "not of `racer bootstrap`", "--out")
    assert state.read_text() == '{"steps": 1}'
