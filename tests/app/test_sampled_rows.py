"""Rows of a gateway's own sample, saved, divided, trained on and replayed by commands alone."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete

from app.store import Store
from app.store.tables import SampleRow
from racer_core import artifacts
from racer_core.records.conversation import fingerprint
from racer_core.records.reader import read_rows
from racer_core.types import RowsKind
from tests.kit.command_results import failed, parsed
from tests.kit.gateway import (
    ADMIN_KEY,
    ENVIRONMENT,
    ONE,
    POOL,
    SKILLS,
    TWO,
    Command,
    Gateway,
    Serve,
    as_json,
    candidates,
    configure,
    labelled,
    running,
    user,
)
from tests.kit.monitored import KEY, add_verdicts, sampled, shadow_rows
from tests.kit.upstream import FakePool

KEYED = {**ENVIRONMENT, "RACER_SAMPLES_KEY": KEY}
SAMPLING: dict[str, Any] = {"shadow_rate": 1.0, "store_requests": True, "feedback": "all"}


def sampled_row(number: int, query: str, right: tuple[str, ...] | None, **more: Any) -> Any:
    """A row as `GET /shadow/rows` gives it; without right candidates it has no label."""
    label: dict[str, Any] = {"unlabelled": True}
    if right is not None:
        label = {"correct": {name: name in right for name in POOL}}
    request = {"messages": user(query)}
    row = {"request": request, **label, "weight": 4.0, "decision_id": f"dec-{number:032x}"}
    return row | more


def rows_of_sample(start: int, count: int, **more: Any) -> list[Any]:
    """Labelled rows of a sample."""
    rows = labelled(start, count)
    return [
        sampled_row(start + place, row.query, tuple(row.correct), **more)
        for place, row in enumerate(rows.rows)
    ]


def write(path: Path, rows: list[Any]) -> Path:
    """JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read(path: Path) -> list[Any]:
    """JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_sample_is_saved_as_a_file(serve: Serve, racer: Command, tmp_path: Path) -> None:
    """Readable by its owner alone; replaced as a whole, or not at all."""
    gateway = serve(watching=SAMPLING, environment=KEYED)
    out = tmp_path / "rows.jsonl"
    out.write_text("before")
    at = ("--url", gateway.url, "--key", ADMIN_KEY)
    failed(racer("samples", out, *at), 1, "has no sampled rows")
    assert out.read_text() == "before"
    for row in labelled(20_000, 3).rows:
        gateway.chat(row.query)
    sampled(gateway, 3)
    report = parsed(racer("samples", out, *at, "--json"))
    assert (report["rows"], report["without_label"]) == (3, 3)
    assert read(out) == shadow_rows(gateway)
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert parsed(racer("samples", out, *at, "--pool", "any", "--json"))["rows"] == 3
    failed(racer("samples", out, *at, "--since", "2999-01-01"), 1, "has no sampled rows")
    failed(racer("samples", out, *at[:2], "--key", "no"), 1, "401")
    failed(racer("samples", tmp_path / "rows.csv", *at), 1, "name it .jsonl")
    failed(racer("samples", tmp_path / "none" / "rows.jsonl", *at), 1, "cannot be written")
    assert len(read(out)) == 3
    assert [each.name for each in tmp_path.glob("*rows*")] == ["rows.jsonl"]


def test_a_split_keeps_conversations_and_rows_without_a_label(
    racer: Command, tmp_path: Path
) -> None:
    """Every row stays as it is, in one part; queries that repeat are of the traffic."""
    rows = rows_of_sample(0, 60, application="bot")
    rows += [sampled_row(100 + n, "Again", None, application="bot") for n in range(20)]
    rows += [
        row | {"cluster": f"{number % 5}" * 32, "turn": 2 + number // 5}
        for number, row in enumerate(rows_of_sample(200, 20, application="bot"))
    ]
    path = write(tmp_path / "rows.jsonl", rows)
    path.chmod(0o600)  # and so are the parts
    code, out, err = racer("split", path, "--out", tmp_path / "parts", "--json")
    assert code == 0, err
    assert "traffic" in err
    parts = [read(Path(name)) for name in json.loads(out)]
    written = sorted((row for part in parts for row in part), key=lambda row: row["decision_id"])
    assert written == [
        {name: each for name, each in row.items() if name != "application"} | {"group": "bot"}
        for row in sorted(rows, key=lambda row: row["decision_id"])
    ]
    clusters = [{row["cluster"] for row in part if "cluster" in row} for part in parts]
    assert sum(map(len, clusters)) == len(set().union(*clusters)) == 5
    assert sum(any(row.get("unlabelled") for row in part) for part in parts) > 1
    assert {stat.S_IMODE(Path(name).stat().st_mode) for name in json.loads(out)} == {0o600}
    assert read_rows(path, text="last_user", takes_unlabelled=True).kind is RowsKind.TRAFFIC


def trained(racer: Command, folder: Path, train: Path, validation: Path, *more: Any) -> Any:
    """The report of a training on character n-grams."""
    files = ("--data", train, "--validation", validation, "--out", folder / "artifact")
    return racer("train", *files, "--encoder", "char-ngrams", *more)


def test_training_leaves_rows_without_a_label_out(racer: Command, tmp_path: Path) -> None:
    """It says how many, and the artifact knows their decisions all the same."""
    rows = rows_of_sample(0, 40, application="bot")
    rows += [sampled_row(100 + n, f"Unknown {n}", None, application="bot") for n in range(7)]
    judged = {"judged": dict.fromkeys(POOL, False) | {"poet": True}, "judge": "j"}
    rows += [sampled_row(200 + n, f"Judged {n}", None, **judged) for n in range(3)]
    rows += [sampled_row(300, "Hi", ("poet",), cluster="c" * 32)]
    rows[-1]["request"]["messages"] = [
        *user("Hi"), {"role": "assistant", "content": "Hello"}, *user("Hi"),
    ]  # fmt: skip
    rows[0]["weight"] = 8.0
    train = write(tmp_path / "t.jsonl", rows)
    validation = write(tmp_path / "v.jsonl", rows_of_sample(5_000, 40))
    config = configure(tmp_path, tmp_path / "artifact", "http://127.0.0.1:9/v1")
    report = parsed(trained(racer, tmp_path, train, validation, "--config", config, "--json"))
    assert report["training_rows"] == 44
    assert report["training_rows_of"] == {
        "bot": {"first_turns": 40, "later_turns": 0, "judged": 0, "without_label": 7},
        "default": {"first_turns": 3, "later_turns": 1, "judged": 3, "without_label": 0},
    }
    artifact = artifacts.load(tmp_path / "artifact")
    names = [row.get("cluster", row["decision_id"]) for row in (*rows, *read(validation))]
    prints = {fingerprint(artifact.salt, name) for name in names}
    assert artifact.sample_fingerprints == prints
    code, out, _ = trained(racer, tmp_path, train, validation, "--config", config)
    assert code == 0
    assert ["bot", "40", "0", "0", "7"] in [line.split() for line in out.splitlines()]
    # Half of a decision's conversation may not choose the router's settings.
    failed(trained(racer, tmp_path, train, train, "--config", config, "--json"), 1, "racer split")
    without = write(tmp_path / "w.jsonl", [row for row in rows if "unlabelled" in row][:7])
    message = "none of the 7 rows has a label"
    failed(trained(racer, tmp_path, without, validation, "--config", config, "--json"), 1, message)


def test_the_router_learns_what_it_reads_of_an_application(racer: Command, tmp_path: Path) -> None:
    """The router reads system prompts where `text` says so; only they decide which is right."""
    prompts = {"You add.": ("adder",), "You spell.": ("speller",)}

    def rows(start: int) -> list[Any]:
        found = []
        for number in range(start, start + 60):
            prompt, right = list(prompts.items())[number % 2]
            row = sampled_row(number, f"Do it, {number // 2}", right, application="bot")
            row["request"]["messages"].insert(0, {"role": "system", "content": prompt})
            found.append(row)
        return found

    train, validation = write(tmp_path / "t.jsonl", rows(0)), write(tmp_path / "v.jsonl", rows(900))
    config = configure(
        tmp_path,
        tmp_path / "artifact",
        "http://127.0.0.1:9/v1",
        applications={"bot": {"text": "with_system"}},
    )
    parsed(trained(racer, tmp_path, train, validation, "--config", config, "--json"))
    artifact = artifacts.load(tmp_path / "artifact")
    known = fingerprint(artifact.salt, "You add.\n\nDo it, 0")
    assert known in artifact.training_fingerprints


def test_a_sample_tunes_score_and_vote(racer: Command, tmp_path: Path, artifact: Path) -> None:
    """Rows without a label are left out, and rates do not matter."""
    answers = {"answers": dict.fromkeys(POOL, "42")}
    rows = [row | answers for row in rows_of_sample(70_000, 160)]
    rows[0]["weight"] = 8.0
    rows += [sampled_row(80_000 + n, f"Unknown {n}", None) for n in range(5)]
    config = configure(tmp_path, artifact, "http://127.0.0.1:9/v1")
    path = write(tmp_path / "validation.jsonl", rows)
    code, out, err = racer("tune", "--config", config, "--validation", path, "--json")
    assert code == 0, err
    assert json.loads(out)["kind"] == "traffic"
    assert "5 of 165 rows have no label" in " ".join(err.split())


def judged_by_skill(body: dict[str, Any]) -> str:
    """What candidates answer, and what the adder says of an answer as a judge."""
    text = str(body["messages"])
    if "candidate-" in text:
        name = text.split("candidate-")[1].split()[0]
        query = next(each for each in SKILLS if each.split("{}")[0] in text)
        return "1" if name in SKILLS[query] or name == "poet" else "0"
    return f"candidate-{body['model']} says so"


def test_a_new_candidate_is_certified_by_the_old_sample(
    racer: Command, tmp_path: Path, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stored requests are replayed to it alone while the old pool serves; nothing is edited."""
    monkeypatch.setattr(pool, "answer", judged_by_skill)
    bot = {"keys": ["data"], "premise": "drawn", "alpha": 0.3}
    common: Any = {
        "watching": SAMPLING,
        "applications": {"bot": bot},
        "store": "sqlite:///racer.db",
    }
    old_pool = [each for each in candidates(pool.url) if each["name"] != "poet"]
    old = configure(tmp_path, tmp_path / "none", pool.url, candidates=old_pool, **common)
    old = old.rename(tmp_path / "old.yaml")
    new = configure(tmp_path, tmp_path / "artifact", pool.url, **common)
    rows, labelled_rows = tmp_path / "rows.jsonl", tmp_path / "labelled.jsonl"
    with running(old, KEYED) as gateway:
        for row in labelled(20_000, 60).rows:
            answer = gateway.chat(row.query)
            correct = {name: name in row.correct for name in gateway.settings.pool}
            add_verdicts(gateway, answer["id"], correct)
        assert sampled(gateway, 60) == {"whole": 60}
        at = ("--url", gateway.url, "--key", ADMIN_KEY)
        assert parsed(racer("samples", rows, "--pool", "any", *at, "--json"))["rows"] == 60
        pool.requests.clear()
        arguments = ("--config", new, "--out", labelled_rows, "--grade", "judge", "--judge")
        report = parsed(racer("label", rows, *arguments, "adder", "--json"))
        assert (report["calls"], report["reused"]) == (60, 120)
        called = [each for each in pool.requests if "candidate-" not in str(each["messages"])]
        assert {each["model"] for each in called} == {"poet"}
        for before, after in zip(read(rows), read(labelled_rows), strict=True):
            assert after["correct"] == before["correct"] | {"poet": True}
            for name in ("request", "decision_id", "weight"):
                assert after[name] == before[name]
            assert after["group"] == "bot"
        parsed(racer("split", labelled_rows, "--out", tmp_path / "parts", "--json"))
        parts = [tmp_path / "parts" / f"{name}.jsonl" for name in ("train", "validation")]
        parsed(trained(racer, tmp_path, *parts, "--config", new, "--json"))
        assert gateway.chat("What is 50000 plus 1?")["racer"]["selected"]
    with running(new, KEYED) as gateway:
        at = ("--url", gateway.url, "--key", ADMIN_KEY, "--application", "bot", "--json")
        code, out, err = racer("calibrate", labelled_rows, *at)
        assert code == 0, err
        evidence = json.loads(out)["evidence"]["uploads"]["bot"]
        assert (evidence["rows"], evidence["source"]["trained_rows_left_out"]) == (30, 30)
        racer_of = gateway.chat("Spell the number 70001 and then 70002")["racer"]
        assert racer_of["certificate"]["holds"], racer_of["certificate"]["reasons"]
        assert "poet" in racer_of["selected"]


def test_a_lost_request_stays_a_row_without_a_label(
    serve: Serve, racer: Command, tmp_path: Path, pool: FakePool
) -> None:
    """Also for another pool: left out, the rows would be drawn by what the store could take."""
    drawn = {"bot": {"keys": ["data"], "premise": "drawn"}}
    cold = serve(calibrated=False, environment=KEYED, watching=SAMPLING, applications=drawn)
    for row in labelled(20_000, 3).rows:
        cold.chat(row.query)
    sampled(cold, 3)
    with Store(cold.settings.store) as store, store.transaction() as session:
        session.execute(delete(SampleRow).where(SampleRow.decision_id == min(
            row["decision_id"] for row in shadow_rows(cold)
        )))  # fmt: skip
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    at = ("--url", cold.url, "--key", ADMIN_KEY, "--json")
    report = parsed(racer("samples", rows, "--pool", "any", *at))
    assert (report["rows"], report["without_label"]) == (3, 3)
    pool.say("poet", "1")
    arguments = ("--config", cold.config, "--out", out, "--grade", "judge", "--judge")
    for _ in range(2):  # a second run finds everything done
        assert parsed(racer("label", rows, *arguments, "poet", "--json"))["labelled"] == 3
    lost, *others = read(out)
    assert lost["scores"] == dict.fromkeys(POOL, 0.0)
    for name in ("decision_id", "weight", "unlabelled"):
        assert lost[name] == read(rows)[0][name]
    assert all(set(row["correct"]) == set(POOL) for row in others)


def test_a_sampled_request_that_a_candidate_refuses_is_wrong(
    racer: Command, tmp_path: Path, pool: FakePool
) -> None:
    """As in the sample; a question of a list stays without a row."""
    pool.fail("poet", "400")
    pool.say("adder", "1")
    config = configure(tmp_path, tmp_path / "none", pool.url)
    row = sampled_row(1, "Hello?", None, cluster="c" * 32, turn=3)
    graded = ("--config", config, "--grade", "judge", "--judge", "adder", "--json", "--out")
    path, out = write(tmp_path / "in.jsonl", [row]), tmp_path / "out.jsonl"
    assert parsed(racer("label", path, *graded, out))["labelled"] == 1
    (found,) = read(out)
    assert found["correct"] == {"adder": True, "speller": True, "poet": False}
    for name in ("decision_id", "weight", "cluster", "turn"):
        assert found[name] == row[name]
    del row["decision_id"], row["turn"]
    code, _, err = racer("label", write(path, [row]), *graded, tmp_path / "other.jsonl")
    assert (code, "1 of 1 questions are not labelled" in " ".join(err.split())) == (1, True)


# Rows that outlive artifacts and configurations ---------------------------------------------------


def ask(gateway: Gateway, *queries: str) -> list[str]:
    """Ask and judge them: the adder is right, the others are wrong; returns the ids."""
    ids = [gateway.chat(query)["id"] for query in queries]
    for each in ids:
        add_verdicts(gateway, each, {name: name == "adder" for name in gateway.settings.pool})
    return ids


def ids_of(rows: list[dict[str, Any]]) -> list[str]:
    """The decisions of rows."""
    return [row["decision_id"] for row in rows]


def test_rows_outlive_artifact_and_pool_where_their_requests_are_stored(
    tmp_path: Path, artifact: Path, noisy_artifact: Path, pool: FakePool
) -> None:
    """Rows of another artifact are scored anew; those that lack a candidate can be labelled."""
    path = configure(tmp_path, artifact, pool.url, watching=SAMPLING)
    with running(path, KEYED) as gateway:
        upload = {"rows": as_json(labelled(20_000, 60))}
        gateway.post("/calibrate", ADMIN_KEY, json=upload).raise_for_status()
        asked = ask(gateway, ONE, TWO)
        assert sampled(gateway, 2) == {"whole": 2}
    routing = {"alpha": 0.4}
    path = configure(tmp_path, noisy_artifact, pool.url, watching=SAMPLING, routing=routing)
    with running(path, KEYED) as gateway:
        rows = shadow_rows(gateway)
        assert ids_of(rows) == asked
        assert all("correct" in row and "scores" not in row for row in rows)
        again = {"rows": rows, "rows_kind": "traffic"}
        response = gateway.post("/calibrate", ADMIN_KEY, json=again)
        assert response.status_code == 200, response.text
    # A candidate that is sent something else is another one.
    changed = candidates(pool.url)
    changed[0]["parameters"] = {"temperature": 0.5}
    path = configure(tmp_path, noisy_artifact, pool.url, watching=SAMPLING, candidates=changed)
    with running(path, KEYED) as gateway:
        assert shadow_rows(gateway) == []
        rows = shadow_rows(gateway, "?pool=any")
        assert ids_of(rows) == asked
        assert all(set(row["answers"]) == set(row["conditions"]) == set(POOL) for row in rows)
        assert gateway.get("/shadow/rows?pool=all", ADMIN_KEY).status_code in (400, 422)


def test_scores_of_another_artifact_are_no_rows(
    tmp_path: Path, artifact: Path, noisy_artifact: Path, pool: FakePool
) -> None:
    """Without stored requests nothing can be scored anew."""
    for trained, count in ((artifact, 1), (noisy_artifact, 0)):
        path = configure(tmp_path, trained, pool.url, watching={"shadow_rate": 1.0})
        with running(path, ENVIRONMENT) as gateway:
            if count:
                upload = {"rows": as_json(labelled(20_000, 60))}
                gateway.post("/calibrate", ADMIN_KEY, json=upload).raise_for_status()
                ask(gateway, ONE)
                sampled(gateway, 1)
            assert len(shadow_rows(gateway)) == count
