"""``racer label --page``: people grade the answers to a file of questions, by a link alone."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.cli.label_page import LabelPage
from app.errors import SettingsError
from racer_core.records.reader import read_rows
from tests.kit.gateway import (
    ADMIN_KEY,
    ENVIRONMENT,
    ONE,
    POOL,
    TWO,
    Command,
    candidates,
    configure,
    labelled,
    running,
)
from tests.kit.network import free_port
from tests.kit.upstream import FakePool
from tests.kit.waiting import wait_until

QUESTIONS = [ONE, TWO, "What is 5 plus 6?", "What is 7 plus 8?"]


class Labeller:
    """Somebody with the link."""

    def __init__(self, link: str) -> None:
        url, key = re.fullmatch(r"(http://[^/]*)/ui#label&key=(\S+)", link).groups()  # type: ignore[union-attr]
        headers = {"authorization": f"Bearer {key}"}
        self.http = httpx2.Client(base_url=url, headers=headers, trust_env=False, verify=False)

    def waiting(self) -> list[dict[str, Any]]:
        """What waits for a label."""
        return self.http.get("/shadow/waiting").json()["data"]

    def label(self, item: dict[str, Any], right: str = "seven") -> httpx2.Response:
        """Call the answers with this text right, and all others wrong."""
        correct = {name: text == right for name, text in item["answers"].items()}
        return self.http.post(
            "/feedback", json={"decision_id": item["decision_id"], "correct": correct}
        )


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The links that commands print."""
    found: list[str] = []
    of = LabelPage.link.fget
    assert of is not None

    def link(page: LabelPage) -> str:
        found.append(of(page))
        return found[-1]

    monkeypatch.setattr(LabelPage, "link", property(link))
    return found  # type: ignore[return-value]


@pytest.fixture
def words(tmp_path: Path, pool: FakePool) -> Sequence[object]:
    """The command, whose candidates give two answers."""
    pool.say("adder", "seven")
    pool.say("speller", "seven")
    pool.say("poet", "eleven")
    config = configure(tmp_path, tmp_path / "none", "", candidates=candidates(pool.url))
    source = tmp_path / "questions.jsonl"
    source.write_text("".join(json.dumps({"query": each}) + "\n" for each in QUESTIONS))
    return ("label", "--page", source, "--config", config, "--out", tmp_path / "rows.jsonl")


@contextmanager
def people(links: list[str], work: Any) -> Iterator[list[Exception]]:
    """Somebody who works at the page while the command runs in this thread."""
    failed: list[Exception] = []

    def run() -> None:
        try:
            wait_until(lambda: links)
            labeller = Labeller(links[0])
            with labeller.http:
                work(labeller)
        except Exception as exc:  # noqa: BLE001 - raised below
            failed.append(exc)
            signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=run)
    thread.start()
    yield failed
    thread.join(30)
    assert failed == []


def test_labels_land_as_rows(
    racer: Command, links: list[str], words: Sequence[object], tmp_path: Path
) -> None:
    """Equal answers are shown once, nobody sees whose they are, and no key of a gateway is used."""
    seen: list[dict[str, Any]] = []

    def work(labeller: Labeller) -> None:
        for _ in QUESTIONS:
            wait_until(labeller.waiting)
            item = labeller.waiting()[0]
            seen.append(item)
            assert labeller.label(item).status_code == 200

    with people(links, work):
        code, _, err = racer(*words)
    assert code == 0, err
    assert f"racer: label in a browser at {links[0]}" in err.replace("\n", " ")
    assert all(set(each["answers"].values()) == {"seven", "eleven"} for each in seen)
    assert not any(name in json.dumps(seen) for name in POOL)
    rows = read_rows(tmp_path / "rows.jsonl", POOL).rows
    assert {row.query for row in rows} == set(QUESTIONS)
    assert all(row.correct == {"adder", "speller"} for row in rows)


def test_only_the_link_opens_it(racer: Command, links: list[str], words: Sequence[object]) -> None:
    """The files are public, what waits is not; a label names all answers, and each once."""

    def work(labeller: Labeller) -> None:
        wait_until(labeller.waiting)
        url = str(labeller.http.base_url)
        with httpx2.Client(base_url=url, trust_env=False, verify=False) as stranger:
            assert stranger.get("/ui").status_code == 200
            assert "content-security-policy" in stranger.get("/ui/main.js").headers
            assert stranger.get("/ui/nothing").status_code == 404
            assert stranger.get("/shadow/waiting").status_code == 401
            assert stranger.post("/feedback", json={}).status_code == 401
            assert stranger.get("/drift").status_code == 404
        item = labeller.waiting()[0]
        partial = {"decision_id": item["decision_id"], "correct": {"answer 1": True}}
        assert labeller.http.post("/feedback", json=partial).status_code == 400
        assert labeller.http.post("/feedback", json=[]).status_code == 400
        assert labeller.label(item).status_code == 200
        assert labeller.label(item).json()["error"]["code"] == "conflict"
        for each in labeller.waiting():
            labeller.label(each)

    with people(links, work):
        code, _, err = racer(*words)
    assert code == 0, err


def test_ctrl_c_stops_at_once_and_the_same_command_goes_on(
    racer: Command, links: list[str], words: Sequence[object], tmp_path: Path, pool: FakePool
) -> None:
    """What was labelled is a row, in random order; nothing is asked twice."""

    def first(labeller: Labeller) -> None:
        wait_until(lambda: len(labeller.waiting()) == len(QUESTIONS))
        labeller.label(labeller.waiting()[0])
        signal.raise_signal(signal.SIGINT)

    with people(links, first):
        code, _, err = racer(*words)
    assert code != 0
    assert "run the same command again" in err
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 1
    links.clear()
    pool.requests.clear()

    def rest(labeller: Labeller) -> None:
        wait_until(lambda: len(labeller.waiting()) == len(QUESTIONS) - 1)
        for each in labeller.waiting():
            labeller.label(each)

    with people(links, rest):
        code, _, err = racer(*words)
    assert code == 0, err
    assert pool.requests == []


def test_mistakes_have_a_cure(racer: Command, words: Sequence[object]) -> None:
    """Before any call."""
    code, _, err = racer(*words, "--grade", "exact")
    assert code == 2
    assert "--page has people grade" in err
    port = free_port()
    taken = LabelPage("127.0.0.1", port)
    with pytest.raises(SettingsError, match="choose another"):
        LabelPage("127.0.0.1", port)
    taken.close()


@pytest.mark.slow
def test_bootstrap_takes_peoples_labels(
    racer: Command, links: list[str], tmp_path: Path, pool: FakePool
) -> None:
    """From questions without references to a certificate that holds."""
    right = {row.query: row.correct for row in labelled(0, 60).rows}
    pool.answer = lambda body: (
        "seven" if body["model"] in right[body["messages"][-1]["content"]] else "eleven"
    )
    config = configure(tmp_path, tmp_path / "artifact", pool.url, port=free_port())
    source = tmp_path / "questions.jsonl"
    source.write_text("".join(json.dumps({"query": each}) + "\n" for each in right))
    words = ("bootstrap", "--page", "--queries", source, "--config", config,
             "--out", tmp_path, "--encoder", "char-ngrams", "--key", ADMIN_KEY)  # fmt: skip

    def work(labeller: Labeller) -> None:
        left = len(right)
        while left:
            wait_until(labeller.waiting)
            for item in labeller.waiting():
                left = labeller.label(item).json()["left"]

    with running(config, ENVIRONMENT) as gateway:
        with people(links, work):
            code, _, err = racer(*words)
        assert code == 0, err
        pool.answer = lambda _: "seven"
        assert gateway.ask(ONE).headers["x-racer-guarantee"] == "holds"
    pool.answer = lambda _: "42"
