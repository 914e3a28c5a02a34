"""Labels of live traffic: a checker, a judge at the command line, and what waits for a label."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from app.monitoring.decisions.feedback import Feedback
from app.monitoring.decisions.store import DecisionStore
from app.monitoring.decisions.writer import DecisionWriter
from app.monitoring.metrics import MonitoringMetrics
from app.store import Store
from app.tools.gateway_client import GatewayClient
from app.tools.labelling.judge import judge_candidate, judge_version
from tests.kit.commands import recorded_bars
from tests.kit.gateway import (
    ADMIN_KEY,
    ENVIRONMENT,
    ONE,
    POOL,
    TWO,
    Command,
    Gateway,
    Serve,
    configure,
    error_message,
)
from tests.kit.monitored import (
    KEY,
    add_verdicts,
    calibration_record,
    decision_record,
    sampled,
    shadow_rows,
)
from tests.kit.upstream import FakePool
from tests.kit.waiting import until

KEYED = {**ENVIRONMENT, "RACER_SAMPLES_KEY": KEY}
WATCHING = {"shadow_rate": 1.0, "store_requests": True}
# The model, with a digest of the prompt and the sampling parameters.
JUDGE = judge_version(judge_candidate("http://judge/v1", "the-judge"))
SUPPORT = {"support": {"keys": ["data"]}}


@pytest.fixture
def sampling(serve: Serve, pool: FakePool) -> Gateway:
    """A gateway that samples everything; the poet answers otherwise, the speller as the adder."""
    pool.say("poet", "a rose")
    return serve(watching=WATCHING, environment=KEYED)


def waiting(gateway: Gateway, query: str = "") -> dict[str, Any]:
    """What waits for a label."""
    response = gateway.get(f"/shadow/waiting{query}", ADMIN_KEY)
    assert response.status_code == 200, response.text
    return response.json()


def judge(gateway: Gateway, name: str, **fields: Any) -> Any:
    """POST /shadow/judgements."""
    body = {"decision_id": name, "judge": "j", "correct": dict.fromkeys(POOL, True)}
    return gateway.post("/shadow/judgements", ADMIN_KEY, json=body | fields)


# What waits ---------------------------------------------------------------------------------------


def test_a_sample_waits_until_every_candidate_has_a_verdict(sampling: Gateway) -> None:
    """It is shown with request and answers; equal answers have one class."""
    answer = sampling.chat(ONE)
    sampled(sampling, 1)
    (sample,) = waiting(sampling)["data"]
    assert sample["decision_id"] == answer["id"]
    assert sample["request"]["messages"] == [{"role": "user", "content": ONE}]
    assert sample["answers"] == {"adder": "42", "speller": "42", "poet": "a rose"}
    assert sample["classes"]["adder"] == sample["classes"]["speller"] != sample["classes"]["poet"]
    second = sampling.chat(TWO)["id"]
    sampled(sampling, 2)
    judged = waiting(sampling, "?judge=j&limit=1")
    assert ([each["decision_id"] for each in judged["data"]], judged["waiting"]) == (
        [answer["id"]], 2,
    )  # fmt: skip
    since = waiting(sampling, "?judge=j")["data"][1]["created_at"].replace("+", "%2B")
    (later,) = waiting(sampling, f"?judge=j&since={since}")["data"]
    assert later["decision_id"] == second
    add_verdicts(sampling, second, dict.fromkeys(POOL, True))
    add_verdicts(sampling, answer["id"], {"adder": True, "speller": True})
    assert waiting(sampling)["data"][0]["correct"] == {"adder": True, "speller": True}
    add_verdicts(sampling, answer["id"], {"poet": False})
    found = waiting(sampling)
    assert (found["waiting"], found["data"]) == (0, [])


def test_what_waits_is_counted_by_application_beside_what_alpha_needs(serve: Serve) -> None:
    """Labelled samples, too; an application without samples has zeros."""
    applications = {"support": {"keys": ["data"], "alpha": 0.05}, "agent": {"prompts": ["0" * 32]}}
    gateway = serve(watching=WATCHING, environment=KEYED, applications=applications)
    first = gateway.chat(ONE)["id"]
    gateway.chat(TWO)
    sampled(gateway, 2)
    add_verdicts(gateway, first, dict.fromkeys(POOL, True))
    rows = {each["application"]: each for each in waiting(gateway)["applications"]}
    assert rows == {
        "support": {
            "application": "support", "waiting": 1, "labelled": 1, "alpha": 0.05, "needed": 19
        },
        "agent": {"application": "agent", "waiting": 0, "labelled": 0, "alpha": 0.1, "needed": 9},
        "default": {
            "application": "default", "waiting": 0, "labelled": 0, "alpha": 0.1, "needed": 9
        },
    }  # fmt: skip


def test_what_cannot_be_listed_says_why(gateway: Gateway) -> None:
    """Where no requests are stored, what to set; of a wrong limit, the allowed numbers."""
    message = error_message(gateway.get("/shadow/waiting", ADMIN_KEY), 409)
    assert "set `watching.store_requests` and $RACER_SAMPLES_KEY" in message
    for limit in ("0", "1001", "many", "-1", "1e2"):
        response = gateway.get(f"/shadow/waiting?limit={limit}", ADMIN_KEY)
        assert "from 1 to 1000" in error_message(response, 400)


# Judgements ---------------------------------------------------------------------------------------


def test_a_judges_verdicts_are_no_labels(sampling: Gateway) -> None:
    """They stand in the rows as `judged`; the sample waits for people, and not for this judge."""
    answer = sampling.chat(ONE)
    sampled(sampling, 1)
    assert judge(sampling, answer["id"]).json()["new"] == 3
    assert judge(sampling, answer["id"], correct=dict.fromkeys(POOL, False)).json()["new"] == 0
    assert (waiting(sampling)["waiting"], waiting(sampling, "?judge=j")["waiting"]) == (1, 0)
    assert waiting(sampling, "?judge=other")["waiting"] == 1
    (row,) = shadow_rows(sampling)
    assert (row["unlabelled"], row["judged"]) == (True, dict.fromkeys(POOL, True))


def test_judgements_are_about_the_answers_of_one_sample(sampling: Gateway) -> None:
    """Labels for other candidates are one clear error, and nothing is stored."""
    answer = sampling.chat(ONE)
    sampled(sampling, 1)
    for fields, status, words in (
        ({"correct": {"adder": True, "oracle": True}}, 400, "'oracle' is not in the decision's"),
        ({"correct": {"adder": True}}, 400, "no verdict on 'speller'"),
        ({"decision_id": "none"}, 404, "no decision 'none'"),
        ({"correct": {}}, 400, "correct"),
        ({"correct": {"adder": 1}}, 400, "correct.adder"),
        ({"judge": ""}, 400, "judge"),
    ):
        assert words in error_message(judge(sampling, answer["id"], **fields), status)
    assert waiting(sampling, "?judge=j")["waiting"] == 1


# racer label --from-shadow ------------------------------------------------------------------------

Label = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def label(racer: Command, tmp_path: Path, pool: FakePool, sampling: Gateway) -> Label:
    """``racer label --from-shadow`` with a judge at a URL."""
    config = configure(tmp_path, tmp_path / "none", pool.url)

    def run(**options: Any) -> tuple[int, Any, str]:
        given = {
            "config": config, "url": sampling.url, "key": ADMIN_KEY, "grade": "judge",
            "judge": pool.url, "judge-model": "the-judge",
        } | options  # fmt: skip
        words = [word for name, each in given.items() if each for word in (f"--{name}", str(each))]
        code, printed, stderr = racer("label", "--from-shadow", "--json", *words)
        return code, json.loads(printed or "{}"), stderr

    return run


def judged(pool: FakePool) -> list[str]:
    """What the judge was shown."""
    return [
        body["messages"][0]["content"] for body in pool.requests if body["model"] == "the-judge"
    ]


def verdict(body: dict[str, Any]) -> str:
    """The judge's: a rose is right."""
    return "1" if 'answer: "a rose"' in body["messages"][0]["content"] else "0"


def test_a_judge_labels_what_waits_once(label: Label, sampling: Gateway, pool: FakePool) -> None:
    """Equal answers are judged once; a second run has nothing to do."""
    for number in range(3):
        sampling.chat(f"{TWO} {number}")
    sampled(sampling, 3)
    pool.say("the-judge", "0")
    code, printed, stderr = label()
    assert code == 0, stderr
    assert printed == {"judge": JUDGE, "waiting": 3, "judged": 3}
    assert len(judged(pool)) == 6
    assert TWO in judged(pool)[0]
    assert [row["judged"] for row in shadow_rows(sampling)] == [dict.fromkeys(POOL, False)] * 3
    assert label()[1] == {"judge": JUDGE, "waiting": 0, "judged": 0}
    assert len(judged(pool)) == 6
    for name in ("adder", "poet"):
        pool.fail(name, "400")
    sampling.chat(TWO)
    sampled(sampling, 4)
    pool.say("the-judge", "1")
    assert label()[1] == {"judge": JUDGE, "waiting": 1, "judged": 1}
    refused = {"adder": False, "speller": True, "poet": False}
    assert shadow_rows(sampling)[-1]["judged"] == refused, "who refuses needs no verdict"


def test_a_sample_that_is_not_judged_is_left_for_the_next_run(
    label: Label, sampling: Gateway, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unreadable verdict, or a decision that retention deletes meanwhile: the others go on."""
    monkeypatch.setattr("app.tools.labelling.shadow_judging.PAGE", 2)
    ids = [sampling.chat(f"{TWO} {number}")["id"] for number in range(5)]
    sampled(sampling, 5)
    add = GatewayClient.add_judgements

    def gone(client: GatewayClient, name: str, *rest: Any) -> None:
        add(client, "gone" if name == ids[0] else name, *rest)

    monkeypatch.setattr(
        pool, "answer", lambda b: "maybe" if f"{TWO} 1" in str(b["messages"]) else "1"
    )
    with monkeypatch.context() as patched:
        patched.setattr(GatewayClient, "add_judgements", gone)
        code, _, stderr = label()
    assert (code, waiting(sampling, f"?judge={JUDGE}")["waiting"]) == (1, 2)
    assert "2 of 5 samples are not judged" in stderr
    assert "unreadable_verdict: 2" in stderr
    assert "refused_by_gateway: 1" in stderr
    pool.say("the-judge", "1")
    assert label()[1] == {"judge": JUDGE, "waiting": 2, "judged": 2}


def test_a_judge_that_keeps_failing_is_given_up(
    label: Label, sampling: Gateway, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a few samples in a row."""
    monkeypatch.setattr("app.tools.labelling.shadow_judging.MAX_FAILURES_IN_A_ROW", 2)
    for number in range(6):
        sampling.chat(f"{TWO} {number}")
    sampled(sampling, 6)
    pool.fail("the-judge", "400")
    shown = recorded_bars(monkeypatch)
    code, _, stderr = label(concurrency=1)
    assert (code, len(judged(pool))) == (1, 4)
    assert shown == [("judging, 1 failed", 0, 6), ("judging, 2 failed", 0, 6)]
    assert "6 of 6 samples are not judged (upstream_rejected: 4)" in stderr


def test_wrong_usage_says_what_to_leave_out(label: Label) -> None:
    """Before a call is made."""
    for options, words in (
        ({"grade": "exact", "judge": None, "judge-model": None}, "which live requests lack"),
        ({"out": "rows.jsonl"}, "leave out QUESTIONS, --reference, --out"),
        ({"evaluator": "adder"}, "leave out QUESTIONS, --reference, --out"),
    ):
        code, _, stderr = label(**options)
        assert code == 2
        assert words in " ".join(stderr.split())


def by_checker(gateway: Gateway, racer: Command, folder: Path, **checker: Any) -> Any:
    """``racer label --from-shadow --grade checker``."""
    own = SUPPORT["support"] | ({"checker": checker} if checker else {})
    watching = {"shadow_rate": 1.0}
    config = configure(
        folder, folder / "none", gateway.url, applications={"support": own}, watching=watching
    )
    at = ("--config", config, "--url", gateway.url, "--key", ADMIN_KEY)
    code, printed, stderr = racer("label", "--from-shadow", "--json", *at, "--grade", "checker")
    return code, json.loads(printed or "{}"), " ".join(stderr.split())


def test_a_checker_labels_stored_samples_that_wait(
    serve: Serve, pool: FakePool, racer: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those from before it was configured; verdicts that count stay. Again: nothing is left."""
    monkeypatch.setattr("app.tools.labelling.shadow_checking.PAGE", 2)
    gateway = serve(watching=WATCHING, environment=KEYED, applications=SUPPORT)
    pool.say("poet", "a rose")
    ids = [gateway.chat(f"{ONE} {number}")["id"] for number in range(5)]
    sampled(gateway, 5)
    add_verdicts(gateway, ids[0], {"poet": True})
    function = {"function": "tests.kit.checkers:right"}
    code, report, stderr = by_checker(gateway, racer, tmp_path, **function)
    assert (code, report) == (0, {"waiting": 5, "labelled": 5}), stderr
    correct = [feedback_of(gateway, each)["correct"] for each in ids]
    assert correct[0] == dict.fromkeys(POOL, True)
    assert correct[1:] == [{"adder": True, "speller": True, "poet": False}] * 4
    assert by_checker(gateway, racer, tmp_path, **function)[1] == {"waiting": 0, "labelled": 0}


def test_a_checker_that_fails_leaves_stored_samples_without_labels(
    serve: Serve, racer: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence with the cause; without a checker one that says what to set."""
    gateway = serve(watching=WATCHING, environment=KEYED, applications=SUPPORT)
    gateway.chat("raise")
    sampled(gateway, 1)
    function = {"function": "tests.kit.checkers:says"}
    shown = recorded_bars(monkeypatch)
    code, _, stderr = by_checker(gateway, racer, tmp_path, **function)
    assert code == 1
    assert shown == [("checking, 1 failed", 0, 1)]
    assert "1 of 1 samples are not labelled (" in stderr
    assert waiting(gateway)["waiting"] == 1
    code, _, stderr = by_checker(gateway, racer, tmp_path)
    assert (code, "set `applications.NAME.checker`" in stderr) == (2, True)


# A checker ----------------------------------------------------------------------------------------


def test_a_checkers_verdicts_count(serve: Serve, pool: FakePool) -> None:
    """Also where no request is stored; a sample that lacks an answer is not checked."""
    checker = {"function": "tests.kit.checkers:right"}
    applications = {"support": {**SUPPORT["support"], "checker": checker}}
    gateway = serve(watching={"shadow_rate": 1.0}, applications=applications)
    pool.fail("poet", "500")
    lacking = gateway.chat(TWO)["id"]
    assert sampled(gateway, 1) == {"incomplete": 1}
    pool.say("poet", "a rose")
    answer = gateway.chat(ONE)
    assert until(lambda: len(feedback_of(gateway, answer["id"])["correct"]) == 3, 30)
    feedback = feedback_of(gateway, answer["id"])
    assert feedback["correct"] == {"adder": True, "speller": True, "poet": False}
    assert {each["key"] for each in feedback["verdicts"].values()} == {"checker"}
    assert feedback["waiting"] == feedback_of(gateway, lacking)["waiting"] == []
    assert feedback_of(gateway, lacking)["correct"] == {}
    counted = 'racer_checks_total{application="support",outcome="ok"} 1.0'
    assert until(lambda: counted in gateway.get("/metrics", ADMIN_KEY).text, 30)


def test_a_checker_changes_no_verdict_that_counts(store: Store) -> None:
    """A person's verdict stays; one that waits for an admin gives way."""
    decision = decision_record(calibration_record(), [0.9, 0.5, 0.1], shadow_rate=1.0)
    decisions = DecisionStore(store)
    decisions.add([decision], [True])
    for name, counts in (("adder", True), ("poet", False)):
        decisions.add_verdicts(
            decision.decision_id, lambda _, name=name: {name: True}, key="person", counts=counts
        )
    feedback = Feedback(
        decision_store=decisions,
        decision_writer=DecisionWriter(lambda _: None, lambda _: None),
        counting="admin",
        on_verdicts=lambda _: None,
        metrics=MonitoringMetrics(CollectorRegistry()),
    )
    asyncio.run(feedback.add_checked(decision.decision_id, dict.fromkeys(POOL, False)))
    stored = decisions.get(decision.decision_id)
    assert stored.counted == {"adder": True, "speller": False, "poet": False}
    assert stored.verdicts["adder"].key == "person"
    assert stored.verdicts["poet"].key == "checker"


def feedback_of(gateway: Gateway, decision_id: str) -> Any:
    """The verdicts on a decision's answers."""
    return gateway.get(f"/decisions/{decision_id}", ADMIN_KEY).json()["feedback"]
