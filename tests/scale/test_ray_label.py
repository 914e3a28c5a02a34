"""``racer label --ray``: labels over a cluster are those of one process, and asked for once."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import web

from tests.kit.gateway import ENVIRONMENT, POOL, candidates, configure
from tests.kit.upstream import FakePool, Script
from tests.kit.waiting import wait_while_running

from .conftest import RUNNING_S, Cluster, two_nodes

pytestmark = [pytest.mark.scale, pytest.mark.timeout(400)]

QUESTIONS: Final = [
    {"query": f"What is {n} plus {n}?", "reference": str(2 * n), "task": "sums"} for n in range(16)
]
TOGETHER: Final = 4
WORKER: Final = "MapWorker"  # in the title of a process of Ray Data that labels


class SlowToBegin(FakePool):
    """The first question takes longest, so that it is never the first to be labelled."""

    async def reply(
        self, request: web.Request, body: dict[str, Any], script: Script
    ) -> web.StreamResponse:
        """Answer the first question last."""
        if body["messages"][0]["content"] == QUESTIONS[0]["query"]:
            await asyncio.sleep(1.0)
        return await super().reply(request, body, script)


@pytest.fixture(scope="module")
def _slow() -> Iterator[FakePool]:
    with SlowToBegin() as fake:
        yield fake


def script(fake: FakePool) -> None:
    """What the three say."""
    fake.say("adder", "4", delay_s=0.3)
    fake.say("speller", "It is 6.")
    fake.say("poet", "a rose")


@pytest.fixture(scope="module")
def alone(_slow: FakePool, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What one process writes, one question after the other."""
    folder = tmp_path_factory.mktemp("alone")
    script(_slow)
    path = configure(folder, folder / "no-artifact-yet", _slow.url)
    code, _, stderr = label(path, folder / "rows.jsonl", "--concurrency", 1)
    assert code == 0, stderr
    return untimed(folder / "rows.jsonl")


@pytest.fixture
def pool(_slow: FakePool) -> FakePool:
    """Three candidates: one is right of a question, one of another, one of none."""
    _slow.reset()
    script(_slow)
    return _slow


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    """Two nodes of this module's own, of which the last test loses one."""
    with two_nodes(**ENVIRONMENT) as cluster:
        yield cluster


@pytest.fixture
def config(tmp_path: Path, pool: FakePool) -> Path:
    """A configuration of the three."""
    return configure(tmp_path, tmp_path / "no-artifact-yet", pool.url)


def command_of(config: Path, out: Path) -> list[str]:
    """What follows ``racer`` to label all questions."""
    questions = config.with_name("questions.jsonl")
    questions.write_text("".join(json.dumps(each) + "\n" for each in QUESTIONS), encoding="utf-8")
    given = ["label", questions, "--config", config, "--out", out, "--grade", "number", "--json"]
    return [*map(str, given), "--concurrency", str(TOGETHER)]


@contextmanager
def labelling(config: Path, out: Path, *options: object) -> Generator[subprocess.Popen[str]]:
    """``racer label`` of all questions, in a process of its own."""
    command = [sys.executable, "-m", "app", *command_of(config, out), *map(str, options)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def label(config: Path, out: Path, *options: object) -> tuple[int, str, str]:
    """The same to its end: exit code, what it printed and what it said."""
    with labelling(config, out, *options) as process:
        printed, stderr = process.communicate(timeout=300)
        return process.returncode, printed, stderr


def run(
    command: Sequence[str], environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A command to its end, with what it printed and said."""
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)


def lines(path: Path) -> list[dict[str, Any]]:
    """What a file of JSON lines holds; nothing where there is none."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def untimed(path: Path) -> list[Any]:
    """The rows with the order of their fields, without the seconds of calls."""
    rows = lines(path)
    for row in rows:
        for call in row["calls"].values():
            assert call.pop("seconds") >= 0
    return list(map(json.dumps, rows))


def everything(names: Sequence[str] = POOL) -> set[tuple[str, str]]:
    """Every question to each of these candidates."""
    return {(name, each["query"]) for name in names for each in QUESTIONS}


def test_rows_are_those_of_one_process(
    nodes: Cluster, config: Path, pool: FakePool, tmp_path: Path, alone: list[Any]
) -> None:
    """Rows are in the questions' order; the concurrency is that of all nodes together."""
    out = tmp_path / "rows.jsonl"
    code, printed, stderr = label(config, out, "--ray", nodes.address)
    assert code == 0, stderr
    report = json.loads(printed)
    assert report.pop("kinds")["plain"]["rows"] == len(QUESTIONS)
    found = {name: each["labelled"] for name, each in report.pop("candidates").items()}
    assert found == dict.fromkeys(POOL, len(QUESTIONS))
    assert report == {
        "out": str(out),
        "cut": {},
        "questions": len(QUESTIONS),
        "labelled": len(QUESTIONS),
        "calls": 3 * len(QUESTIONS),
    }
    assert pool.calls() == Counter(everything())
    assert pool.peak <= 3 * TOGETHER
    assert untimed(out) == alone
    pool.reset()
    assert label(config, out, "--ray", "127.0.0.1:1")[0] == 0  # nothing is left to be asked there
    assert not pool.requests


def test_a_failure_over_the_cluster_is_never_a_wrong_answer(
    nodes: Cluster, config: Path, pool: FakePool, tmp_path: Path, alone: list[Any]
) -> None:
    """It is told as by one process; what the others answered is kept and not asked again."""
    out = tmp_path / "rows.jsonl"
    pool.fail("poet", "401")
    code, printed, stderr = label(config, out, "--ray", nodes.address)
    assert (code, printed, lines(out)) == (1, "", [])
    # Ray itself may have said something before.
    assert stderr.splitlines()[-1:] == label(config, tmp_path / "here.jsonl")[2].splitlines()
    assert "16 of 16 questions are not labelled (poet failed 16 times: " in stderr
    pool.requests.clear()
    pool.say("poet", "a rose")
    code, printed, stderr = label(config, out, "--ray", nodes.address)
    assert (code, json.loads(printed)["calls"]) == (0, len(QUESTIONS)), stderr
    assert pool.calls() == Counter(everything(["poet"]))
    assert untimed(out) == alone


def test_a_candidate_that_keeps_failing_is_given_up_by_each_node(
    nodes: Cluster, config: Path, pool: FakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After as many failures as in one process."""
    many = [{"query": f"{n}?", "reference": "4"} for n in range(60)]
    monkeypatch.setattr(sys.modules[__name__], "QUESTIONS", many)
    pool.scripts.clear()
    pool.fail("poet", "401")
    code, _, stderr = label(config, tmp_path / "rows.jsonl", "--ray", nodes.address)
    assert (code, "poet was given up after 20 failures in a row" in stderr) == (1, True)
    assert Counter(pool.models_called())["adder"] == 60
    assert 20 <= Counter(pool.models_called())["poet"] <= 2 * 20 + TOGETHER


def test_a_judge_is_asked_from_the_cluster_and_what_it_said_is_kept(
    nodes: Cluster, config: Path, pool: FakePool, tmp_path: Path
) -> None:
    """A verdict for each different answer; one that is there already is not bought again."""
    out = tmp_path / "rows.jsonl"
    judge = ("--grade", "judge", "--judge", "speller", "--ray", nodes.address)
    pool.say("speller", "1")
    pool.say("adder", "1")
    code, _, stderr = label(config, out, *judge)
    assert code == 0, stderr
    assert [each["correct"] for each in lines(out)] == [dict.fromkeys(POOL, True)] * len(QUESTIONS)
    assert Counter(pool.models_called())["speller"] == (1 + 2) * len(
        QUESTIONS
    )  # answers "1", "a rose"
    last = lines(out)[-1]
    out.write_text("".join(json.dumps(each) + "\n" for each in lines(out)[:-1]), encoding="utf-8")
    known = tmp_path / "rows.jsonl.partial"
    digest = {text: hashlib.sha256(text.encode()).hexdigest() for text in (last["query"], "1")}
    expected = [{"query": digest[last["query"]], "judged": digest["1"], "correct": True}]
    answers = last["answers"].items()
    expected += [
        {
            "query": digest[last["query"]],
            "candidate": name,
            "answer": text,
            "call": last["calls"][name],
        }
        for name, text in answers
    ]
    known.write_text(known.read_text() + "".join(json.dumps(each) + "\n" for each in expected))
    pool.requests.clear()
    assert label(config, out, *judge)[0] == 0
    assert pool.models_called() == ["speller"]  # of "a rose" alone
    assert lines(out)[-1] == last


def test_an_unreachable_ray_address_is_a_one_line_error(config: Path, pool: FakePool) -> None:
    """No candidate is called."""
    out = config.with_name("rows.jsonl")
    code, _, stderr = label(config, out, "--ray", "127.0.0.1:1")
    assert code == 2
    assert stderr.splitlines() == ["racer: --ray 127.0.0.1:1: no Ray cluster is there (HOST:PORT)"]
    assert not pool.requests


OTHER_VERSION: Final = """
import ray
from app.cli import main as cli

def init(*args, **options):
    raise RuntimeError("Version mismatch: The cluster was started with:\\n    Ray: 2.40.0")

ray.init = init
cli.main()
"""


def test_a_cluster_of_another_version_is_one_sentence(nodes: Cluster, config: Path) -> None:
    """Ray's own words, on one line."""
    args = [*command_of(config, config.with_name("rows.jsonl")), "--ray", nodes.address]
    done = run([sys.executable, "-c", OTHER_VERSION, *args])
    assert done.returncode == 2
    words = "Version mismatch: The cluster was started with: Ray: 2.40.0"
    message = f"racer: --ray {nodes.address}: cannot be joined: {words}"
    assert done.stderr.splitlines()[-1:] == [message]


def test_keys_are_each_nodes_own(
    nodes: Cluster, tmp_path: Path, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that only the command knows does not travel: a node without it says so."""
    monkeypatch.setenv("KEY_OF_THE_POET", "a-key-that-only-the-command-knows")
    named = candidates(pool.url, poet={"api_key_env": "KEY_OF_THE_POET"})
    config = configure(tmp_path, tmp_path / "none", "", candidates=named)
    code, _, stderr = label(config, tmp_path / "rows.jsonl", "--ray", nodes.address)
    assert code == 2, stderr
    sentence = "racer: a node of the cluster cannot ask: $KEY_OF_THE_POET is not set"
    assert stderr.splitlines()[-1].startswith(sentence)
    assert "Traceback" not in stderr
    assert not pool.requests


LEAVING: Final = """
import json, sys, threading, ray
from app.cli import main as cli

def init(*args, **options):
    joined = join(*args, **options)
    first.update(threading.enumerate())
    return joined

def shutdown():
    still = [each.name for each in threading.enumerate() if each not in first]
    print(json.dumps(still), file=sys.stderr)
    leave()

first, join, leave = set(), ray.init, ray.shutdown
ray.init, ray.shutdown = init, shutdown
cli.main()
"""


def test_nothing_reads_on_when_a_cluster_is_left_early(
    nodes: Cluster, tmp_path: Path, pool: FakePool
) -> None:
    """A thread that did would end the process by Ray's hand, without its sentence."""
    named = candidates(pool.url, poet={"api_key_env": "KEY_OF_THE_POET"})
    config = configure(tmp_path, tmp_path / "none", "", candidates=named)
    args = [*command_of(config, tmp_path / "rows.jsonl"), "--ray", nodes.address]
    environment = os.environ | {"KEY_OF_THE_POET": "a-key-that-only-the-command-knows"}
    done = run([sys.executable, "-c", LEAVING, *args], environment)
    assert "cannot ask" in done.stderr
    assert "[]" in done.stderr.splitlines(), done.stderr


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_rows_written_before_a_stop_are_not_labelled_again(
    nodes: Cluster,
    config: Path,
    pool: FakePool,
    tmp_path: Path,
    how: signal.Signals,
    alone: list[Any],
) -> None:
    """What was under way is, once more. The rows are those of one process in the end."""
    out = tmp_path / "rows.jsonl"
    pool.say("adder", "4", delay_s=3.0)
    with labelling(config, out, "--ray", nodes.address) as process:
        wait_while_running(lambda: len(lines(out)) >= 4, process, RUNNING_S)
        pool.say("adder", "4", delay_s=90.0)  # it must not be done before it is stopped
        process.send_signal(how)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGKILL), stderr
    assert "Traceback" not in stderr
    assert how == signal.SIGKILL or "run the same command again to resume" in stderr
    written = {each["query"] for each in lines(out)}
    assert 4 <= len(written) < len(QUESTIONS)
    pool.say("adder", "4")
    code, _, stderr = label(config, out, "--ray", nodes.address)
    assert code == 0, stderr
    counts = pool.calls()
    assert counts.keys() == everything()
    assert {n for (_, query), n in counts.items() if query in written} == {1}
    assert max(counts.values()) <= 2
    assert untimed(out) == alone


def test_a_node_that_goes_costs_what_it_had_under_way(
    nodes: Cluster, config: Path, pool: FakePool, tmp_path: Path, alone: list[Any]
) -> None:
    """The others ask that again. Last in this file: the node is gone."""
    out = tmp_path / "rows.jsonl"
    pool.say("adder", "4", delay_s=1.5)
    with labelling(config, out, "--ray", nodes.address) as process:
        wait_while_running(lambda: len(lines(out)) >= 3, process, RUNNING_S)
        # Each node has its share of the questions under way, and time to lose it.
        wait_while_running(lambda: pool.running.count("adder") == TOGETHER, process, RUNNING_S)
        assert nodes.titled_on_second(WORKER)
        nodes.lose_second()
        printed, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    assert json.loads(printed)["labelled"] == len(QUESTIONS)
    counts = pool.calls()
    assert counts.keys() == everything()
    again = [pair for pair, n in counts.items() if n > 1]
    assert 0 < len({query for _, query in again}) <= TOGETHER
    assert max(counts.values()) == 2
    assert untimed(out) == alone
