"""``racer label --like``: what the doctor prints certifies what was not certified before."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kit.gateway import (
    ADMIN_KEY,
    ENVIRONMENT,
    ONE,
    POOL,
    Command,
    Gateway,
    configure,
    labelled,
    running,
    user,
)
from tests.kit.network import free_port
from tests.kit.upstream import FakePool

PROMPT = "Speak like a pirate.\n"
TOOLS = [{"type": "function", "function": {"name": "sum", "parameters": {"type": "object"}}}]
LATER = [*user("Spell 7 and 8"), {"role": "assistant", "content": "seven, eight"}, *user(ONE)]
SYSTEM = {"role": "system", "content": PROMPT.rstrip("\n")}
FIVE: dict[str, dict[str, Any]] = {
    "plain": {},
    "temperature": {"temperature": 0.7},
    "max_tokens": {"max_tokens": 100},
    "system": {"messages": [SYSTEM, *user(ONE)]},
    "later": {"messages": LATER},
}
COUNT = 36  # questions; half of them are second turns


@pytest.fixture
def pool(pool: FakePool) -> Iterator[FakePool]:
    """Candidates with skills: by the wording each is right, or not."""
    right = {row.query: row.correct for row in labelled(0, 20_000).rows}

    def answer(body: dict[str, Any]) -> str:
        return "yes" if body["model"] in right.get(body["messages"][-1]["content"], ()) else "no"

    pool.answer = answer
    yield pool
    pool.answer = lambda _: "42"


@pytest.fixture
def config(
    tmp_path: Path, artifact: Path, pool: FakePool, racer: Command, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The configuration in the folder in which commands are typed."""
    path = configure(tmp_path, artifact, pool.url, port=free_port())
    monkeypatch.chdir(path.parent)
    assert racer  # which clears the keys
    monkeypatch.setenv("RACER_ADMIN_KEY", ADMIN_KEY)
    ask(path.parent / "questions.jsonl", 10_000)
    (path.parent / "prompt.txt").write_text(PROMPT)
    (path.parent / "tools.json").write_text(json.dumps(TOOLS))
    return path


@pytest.fixture
def gateway(config: Path) -> Iterator[Gateway]:
    """A gateway that is calibrated on plain questions."""
    with running(config, ENVIRONMENT) as gateway:
        gateway.calibrate(60)
        yield gateway


def ask(path: Path, start: int, count: int = COUNT) -> None:
    """Questions whose reference is `yes`."""
    lines = [{"query": row.query, "reference": "yes"} for row in labelled(start, count).rows]
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))


def holding(gateway: Gateway) -> set[str]:
    """Which of the five requests are certified."""
    return {
        name
        for name, fields in FIVE.items()
        if gateway.ask(ONE, **fields).headers["x-racer-guarantee"] == "holds"
    }


def typed(racer: Command, line: str, *more: str) -> str:
    """Type the commands of a line; returns what went wrong, or nothing."""
    for part in line.split(" && "):
        name, *words = shlex.split(part)
        assert name == "racer"
        extra = more if words[0] == "label" else ()
        code, _, err = racer(*words, *extra)
        if code:
            return err
    return ""


def doctors(racer: Command) -> dict[str, str]:
    """What `racer doctor` says of the coverage."""
    findings = json.loads(racer("doctor", "--json")[1])["findings"]
    return next(each for each in findings if each["check"] == "coverage")


@pytest.mark.slow
def test_the_doctors_command_certifies_the_five_ordinary_requests(
    racer: Command, gateway: Gateway, tmp_path: Path
) -> None:
    """One of five before, five of five after, and a request of another temperature is void."""
    assert holding(gateway) == {"plain"}
    found = doctors(racer)
    assert found["found"].startswith("1 of the last 5 requests are certified; not: ")
    assert typed(racer, found["cure"], "--grade", "exact") == ""
    assert holding(gateway) == set(FIVE)
    other = gateway.ask(ONE, temperature=0.9).headers["x-racer-guarantee"]
    assert other == "void; conditions_differ:temperature"
    rows = [json.loads(line) for line in (tmp_path / "certified.jsonl").read_text().splitlines()]
    assert len(rows) == 4 * COUNT + COUNT // 2
    later = [row["messages"] for row in rows if "messages" in row]
    assert len({turns[0]["content"] for turns in later}) == COUNT // 2
    assert not {turns[0]["content"] for turns in later} & {turns[2]["content"] for turns in later}


def test_the_same_command_goes_on(racer: Command, gateway: Gateway, pool: FakePool) -> None:
    """Nothing is asked twice, answers to first turns neither."""
    holding(gateway)
    command = doctors(racer)["cure"]
    assert typed(racer, command, "--grade", "exact") == ""
    pool.requests.clear()
    assert typed(racer, command, "--grade", "exact") == ""
    assert pool.requests == []


def test_shapes_are_certified_one_after_the_other(racer: Command, gateway: Gateway) -> None:
    """The command of the second still works once the first has made another calibration."""
    for name in ("temperature", "max_tokens"):
        gateway.ask(ONE, **FIVE[name])
    (own,) = gateway.get("/coverage", ADMIN_KEY).json()["applications"]
    for each in own["others"]:
        assert typed(racer, each["command"], "--grade", "exact") == ""
    assert holding(gateway) == {"plain", "temperature", "max_tokens"}
    assert doctors(racer)["found"].startswith("3 of the last 5 requests are certified; not: ")


def test_a_row_that_was_labelled_before_is_not_asked_again(
    racer: Command, gateway: Gateway, pool: FakePool
) -> None:
    """The plain rows come along without a call."""
    gateway.ask(ONE, temperature=0.7)
    Path("bootstrap").mkdir()
    out = ("--out", "bootstrap/rows.jsonl", "--grade", "exact")
    assert racer("label", "questions.jsonl", *out)[0] == 0
    command = doctors(racer)["cure"]
    assert command.startswith("racer label bootstrap/rows.jsonl --like ")
    pool.requests.clear()
    assert typed(racer, command, "--grade", "exact") == ""
    assert {each.get("temperature") for each in pool.requests} == {0.7}
    assert holding(gateway) == {"plain", "temperature"}


def test_questions_that_trained_the_router_are_left_out(racer: Command, gateway: Gateway) -> None:
    """They calibrate nothing; of all others is said how many they are."""
    gateway.ask(ONE, temperature=0.7)
    lines = Path("questions.jsonl").read_text()
    ask(Path("questions.jsonl"), 0, 20)  # rows of the artifact
    trained = Path("questions.jsonl").read_text()
    command = doctors(racer)["cure"]
    assert "trained on all of these" in typed(racer, command, "--grade", "exact")
    Path("questions.jsonl").write_text(trained + lines)
    label, calibrate = command.split(" && ")
    code, _, err = racer(*shlex.split(label)[1:], "--grade", "exact")
    assert code == 0, err
    assert f"20 of {COUNT + 20} questions trained the router" in err
    assert typed(racer, calibrate) == ""
    assert holding(gateway) == {"plain", "temperature"}


def test_conditions_without_a_shape(racer: Command, gateway: Gateway, tmp_path: Path) -> None:
    """The options alone make the rows, and these alone."""
    words = ["--temperature", 0.7, "--max-tokens", 100, "--system", "prompt.txt",
             "--tools", "tools.json", "--field", 'tool_choice="none"']  # fmt: skip
    out = ("--out", "rows.jsonl", "--grade", "exact")
    code, _, err = racer("label", "questions.jsonl", *words, *out)
    assert code == 0, err
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert len(rows) == COUNT
    query = rows[0]["request"]["messages"][-1]["content"]
    assert rows[0]["request"] == {
        "messages": [SYSTEM, *user(query)],
        "temperature": 0.7,
        "max_tokens": 100,
        "tools": TOOLS,
        "tool_choice": "none",
    }
    assert typed(racer, "racer calibrate rows.jsonl") == ""
    assert gateway.ask(ONE, **rows[0]["request"]).headers["x-racer-guarantee"] == "holds"


BOTH = [
    {"messages": [{**SYSTEM, "role": "developer", "content": [{"type": "text", "text": "A"}]},
                  *user(ONE)]},
    {"messages": [{**SYSTEM, "content": "B"}, *user(ONE)], "response_format": {"type": "text"}},
    {"tools": TOOLS, "tool_choice": "auto", "stop": ["\n"]},
]  # fmt: skip


def test_contents_are_found_by_their_digests(racer: Command, gateway: Gateway) -> None:
    """Of several files each goes to the requests whose content it is, in the form they send it."""
    for fields in BOTH:
        gateway.ask(ONE, **fields)
    Path("prompt1.txt").write_text("B\n")
    Path("prompt2.txt").write_text("A")
    Path("stop.json").write_text('["\\n"]')
    command = doctors(racer)["cure"]
    assert "--system prompt1.txt --system prompt2.txt" in command
    assert typed(racer, command, "--grade", "exact") == ""
    for fields in BOTH:
        assert gateway.ask(ONE, **fields).headers["x-racer-guarantee"] == "holds"


@pytest.mark.parametrize(
    ("fields", "change", "words"),
    [
        ({"temperature": 0.7}, ("--like ", "--like 0"), "none of the last requests has this"),
        (FIVE["system"], (" --system prompt.txt", ""), "give --system FILE"),
        (FIVE["system"], ("prompt.txt", "tools.json"), "its digest is another"),
        ({"stop": ["\n"]}, (" --field stop=@stop.json", ""), "give --field stop=@FILE"),
        ({"tools": TOOLS}, ("tools.json", "nowhere.json"), "nowhere.json: cannot be read"),
        ({"tools": TOOLS}, ("tools.json", "prompt.txt"), "prompt.txt: not JSON"),
    ],
)
def test_a_mistake_is_one_line_with_the_cure(
    racer: Command,
    gateway: Gateway,
    pool: FakePool,
    fields: dict[str, Any],
    change: Sequence[str],
    words: str,
) -> None:
    """Before any call, and without a file."""
    gateway.ask(ONE, **fields)
    pool.requests.clear()
    command = doctors(racer)["cure"]
    assert change[0] in command
    err = typed(racer, command.replace(*change), "--grade", "exact")
    assert words in err
    assert pool.requests == []
    assert not Path("certified.jsonl").exists()


def test_another_configuration_is_told_apart(
    racer: Command, gateway: Gateway, config: Path
) -> None:
    """Its candidates would be sent something else than by the gateway."""
    gateway.ask(ONE, temperature=0.7)
    command = doctors(racer)["cure"]
    values = yaml.safe_load(config.read_text())
    values["candidates"][0]["parameters"] = {"top_p": 0.5}
    config.write_text(yaml.safe_dump(values))
    assert "give the gateway's own --config" in typed(racer, command, "--grade", "exact")


def test_rows_of_an_application_calibrate_it_alone(
    racer: Command, tmp_path: Path, artifact: Path, pool: FakePool, config: Path
) -> None:
    """The rows name the application, and the command replaces its rows."""
    values = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump(values | {"applications": {"bot": {}}}))
    with running(config, ENVIRONMENT) as gateway:
        gateway.calibrate(60)
        racer_of = {"application": "bot"}
        gateway.ask(ONE, racer_of, temperature=0.7)
        findings = json.loads(racer("doctor", "--json")[1])["findings"]
        found = next(each for each in findings if each["check"] == "coverage bot")
        assert found["cure"].endswith("racer calibrate certified.jsonl --application bot")
        assert typed(racer, found["cure"], "--grade", "exact") == ""
        for fields in ({}, {"temperature": 0.7}):
            answer = gateway.ask(ONE, racer_of, **fields)
            assert answer.headers["x-racer-guarantee"] == "holds", fields
        assert gateway.ask(ONE).headers["x-racer-guarantee"] == "holds"


def test_the_default_grade_is_that_of_the_vote(
    racer: Command, config: Path, pool: FakePool
) -> None:
    """One decision: how answers of this gateway are compared."""
    values = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump(values | {"aggregation": {"equality": "choice"}}))
    pool.answer = lambda _: "B) because"
    Path("letters.jsonl").write_text('{"query": "Which?", "reference": "B"}\n')
    code, out, err = racer("label", "letters.jsonl", "--out", "rows.jsonl", "--json")
    assert code == 0, err
    assert all(each["right"] == 1 for each in json.loads(out)["candidates"].values())
    assert set(json.loads(out)["candidates"]) == set(POOL)


@pytest.mark.slow
def test_bootstrap_goes_on_with_the_shapes_of_requests(
    racer: Command, tmp_path: Path, config: Path, pool: FakePool
) -> None:
    """Nothing is trained or asked anew: the questions that calibrate are asked once more."""
    values = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump(values | {"artifact": str(tmp_path / "router")}))
    ask(tmp_path / "questions.jsonl", 10_000, 60)
    words = ("bootstrap", "--queries", "questions.jsonl", "--encoder", "char-ngrams",
             "--grade", "exact")  # fmt: skip
    with running(config, ENVIRONMENT) as gateway:
        code, _, err = racer(*words)
        assert code == 0, err
        assert holding(gateway) == {"plain"}
        likes = [word for word in doctors(racer)["cure"].split() if word != "&&"]
        options = likes[likes.index("--like") : likes.index("--out")]
        asked = len(pool.requests)
        code, _, err = racer(*words, *options)
        assert code == 0, err
        assert holding(gateway) == set(FIVE)
        for step in ("label", "split", "train"):
            assert f"{step}: nothing has changed, skipped" in err
        calibrating = (tmp_path / "bootstrap" / "parts" / "calibration.jsonl").read_text()
        rows = len(calibrating.splitlines())
        assert len(pool.requests) - asked >= 3 * rows * len(POOL)
