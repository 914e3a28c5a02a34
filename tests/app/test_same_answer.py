"""The promise `same_answer` from traffic: sampled without labels, calibrated, certified."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from app import settings
from app.same_answer import calibrator
from app.same_answer import rows as answer_rows
from app.same_answer.calibration import UNPRICED
from racer_core.aggregation.vote import Method, aggregate
from racer_core.types import CandidateAnswer
from tests.kit.gateway import (
    ADMIN_KEY,
    Command,
    Gateway,
    Serve,
    error_message,
)
from tests.kit.lazy import LazyModule
from tests.kit.monitored import sampled
from tests.kit.same_answer import NAMES, answer, calibrate, collect, configured
from tests.kit.upstream import FakePool
from tests.kit.waiting import until

if TYPE_CHECKING:
    from scipy import stats
else:
    stats = LazyModule("scipy.stats")

pytestmark = pytest.mark.usefixtures("few_fitting_rows")

FALSE_ALARM = 1e-4
TENTH = {"alpha": 0.1}
WATCHING = {"shadow_rate": 1.0, "false_alarm": 0.01}


@pytest.fixture
def sampling(serve: Serve, talking: FakePool) -> Gateway:
    """A gateway with nothing but candidates that draws every request."""
    return serve(**configured(talking, same_answer=TENTH, watching={"shadow_rate": 1.0}))


def full_vote(question: str, reliabilities: dict[str, float]) -> str:
    """The answer of the whole pool."""
    answers = [
        CandidateAnswer(candidate=name, text=(text := answer(name, question)), form=text, score=p)
        for name, p in reliabilities.items()
    ]
    return aggregate(answers, method=Method.LOG_ODDS).text


def test_from_nothing_but_candidates_to_certified_answers(
    sampling: Gateway, racer: Command
) -> None:
    """Before: void, `not_calibrated`. After: calls are saved, and the differences obey their law.

    The differing answers of m requests are at most beta-binomial; false alarm 1e-4.
    """
    before = sampling.chat("question 0")["racer"]["certificate"]
    assert (before["holds"], before["reasons"]) == (False, ["not_calibrated"])
    collect(sampling, 119, 1)
    sampled(sampling, 120)
    code, out, _ = racer("calibrate", "--same-answer", "--url", sampling.url, "--key", ADMIN_KEY)
    assert code == 0
    assert "expected calls" in out
    text = " ".join(out.split())
    assert "of the answers differ from the whole pool's vote" in text
    assert "Means over the calibration rows themselves" in text
    assert "Against what answers without it: calls per request 1.0 → " in text
    report = sampling.get("/same-answer", ADMIN_KEY).json()
    evidence = report["data"][0]["evidence"]
    assert (evidence["rows"], evidence["fitting"], evidence["n"]) == (120, 30, 90)
    assert evidence["lost"] == evidence["pending"] == evidence["thinned"] == 0
    frontier = {each["alpha"]: each["expected_calls"] for each in evidence["frontier"]}
    assert (min(frontier), max(frontier)) == (1 / 91, 0.5)
    assert frontier[0.1] == evidence["expected_calls"] >= frontier[0.5]
    progress = report["applications"][""]
    assert (progress["active"], progress["rows"], progress["watch"]["alarm_at"]) == (
        report["data"][0]["id"], 120, None,
    )  # fmt: skip
    differing = calls = 0
    certificate: dict[str, Any] = {}
    for number in range(1_000, 1_100):
        response = sampling.chat(f"question {number}")
        certificate = response["racer"]["certificate"]
        assert certificate["holds"], certificate
        made = [each for each in response["racer"]["calls"] if "ms" in each]
        assert len(made) == certificate["rounds"]["calls"]
        calls += len(made)
        text = response["choices"][0]["message"]["content"]
        differing += text != full_vote(f"question {number}", evidence["reliabilities"])
    assert calls < 4.0 * 100
    misses = int(0.1 * 91) - 1
    assert differing <= stats.betabinom.ppf(1.0 - FALSE_ALARM, 100, misses + 1, 90 - misses)
    guarantee = certificate["guarantee"]
    assert (guarantee["risk_target"], guarantee["reference"]) == ("same_answer", "vote")
    assert (guarantee["equality"], guarantee["premise"], guarantee["max_rounds"]) == (
        "exact", "drawn", 2,
    )  # fmt: skip
    assert (certificate["n"], certificate["calibration_id"]) == (90, report["data"][0]["id"])


def test_its_calibrations_are_listed_and_rolled_back(sampling: Gateway, racer: Command) -> None:
    """By the same commands as calibrations of labelled rows: an id says which it is."""
    at = ["--url", sampling.url, "--key", ADMIN_KEY]
    collect(sampling, 60)
    first = calibrate(sampling)["id"]
    collect(sampling, 60, 60)
    second = calibrate(sampling)["id"]
    code, out, _ = racer("calibrations", "list", *at)
    assert code == 0
    (line,) = [each for each in out.splitlines() if " active " in each]
    assert second in line
    code, out, _ = racer("calibrations", "show", *at)
    assert (code, second in out, "the whole pool's vote" in out) == (0, True, True)
    code, out, _ = racer("calibrations", "rollback", *at)
    assert (code, out.startswith(f"{first} is active. At alpha 0.1: ")) == (0, True)
    assert sampling.ready()["calibration"] == first
    code, out, _ = racer("calibrations", "activate", second, *at, "--json")
    assert (code, json.loads(out)["active"]) == (0, True)
    assert sampling.ready()["calibration"] == second


def test_lost_and_pending_requests(serve: Serve, talking: FakePool, tmp_path: Path) -> None:
    """A row without all answers counts as lost; the setup of another configuration is no row's."""
    folder = tmp_path / "gateway"
    given = configured(talking, same_answer=TENTH, watching={"shadow_rate": 1.0})
    gateway = serve(folder=folder, **given)
    collect(gateway, 30)
    talking.fail("eve", "500")
    collect(gateway, 20, 30)
    result = calibrate(gateway, dry_run=True)
    assert (result["active"], result["evidence"]["lost"], result["evidence"]["n"]) == (
        False, 20, 30,
    )  # fmt: skip
    assert "20 of 30 rows lack answers" in result["refusal"]
    assert gateway.get("/same-answer", ADMIN_KEY).json()["data"] == []
    other = serve(folder=folder, **given | {"aggregation": {"equality": "number"}})
    assert other.get("/same-answer", ADMIN_KEY).json()["applications"][""]["rows"] == 0


def test_answers_that_are_never_equal_are_refused(
    serve: Serve, talking: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so, by itself and where it is told to; the fallback goes on serving."""
    monkeypatch.setattr(calibrator, "EVERY_S", 0.2)
    talking.answer = lambda body: f"{body['model']} says {body['messages'][-1]['content']}"
    section = {"alpha": 0.1, "calibrate": "from_traffic"}
    gateway = serve(**configured(talking, same_answer=section, watching={"shadow_rate": 1.0}))

    def progress() -> dict[str, Any]:
        return gateway.get("/same-answer", ADMIN_KEY).json()["applications"][""]

    collect(gateway, 15)
    early = progress()
    assert (early["rows"], early["needed"], early["refusal"]) == (15, 29, None)
    assert early["configured"]
    collect(gateway, 25, 15)
    # An attempt that came before the last samples is refused for too few rows.
    assert until(lambda: "not certifiable cheaply" in (progress()["refusal"] or ""), 30)
    assert gateway.get("/same-answer", ADMIN_KEY).json()["data"] == []
    result = calibrate(gateway)
    assert not result["active"]
    assert result["refusal"] == result["evidence"]["refused"]
    certificate = gateway.chat("question 41")["racer"]["certificate"]
    assert certificate["reasons"] == ["not_calibrated"]


def test_a_reference_without_prices_is_not_calibrated(
    serve: Serve, talking: FakePool, caplog: pytest.LogCaptureFixture
) -> None:
    """A notice at start says why; by command the refused calibration is stored, to be looked at."""
    section = {"alpha": 0.1, "reference": "eve"}
    gateway = serve(**configured(talking, same_answer=section, watching={"shadow_rate": 1.0}))
    assert f"same_answer.reference: {UNPRICED}" in caplog.text
    collect(gateway, 40)
    result = calibrate(gateway)
    assert (result["active"], result["refusal"]) == (False, UNPRICED)
    (stored,) = gateway.get("/same-answer", ADMIN_KEY).json()["data"]
    assert (stored["id"], stored["active"]) == (result["id"], False)
    refused = gateway.post(f"/same-answer/{result['id']}/activate", ADMIN_KEY)
    assert f"{result['id']} decides nothing: {UNPRICED}" in error_message(refused, 409)


def test_what_is_missing_is_one_clear_error(
    sampling: Gateway, serve: Serve, tmp_path: Path
) -> None:
    """Too few rows, an unknown application, answers that cannot be compared."""
    few = sampling.post("/same-answer/calibrate", ADMIN_KEY)
    assert "there are 0 sampled requests" in error_message(few, 400)
    unknown = sampling.post("/same-answer/calibrate", ADMIN_KEY, json={"application": "bot"})
    assert "no application 'bot'" in error_message(unknown, 404)
    vague = serve(
        calibrated=False, artifact=tmp_path / "none", aggregation={"equality": "semantic"}
    )
    refused = vague.post("/same-answer/calibrate", ADMIN_KEY)
    assert "not certifiable cheaply" in error_message(refused, 400)
    refusal = vague.get("/same-answer", ADMIN_KEY).json()["applications"][""]["refusal"]
    assert "not certifiable cheaply" in refusal
    assert NAMES


def test_rows_are_the_requests_that_the_promise_serves(
    serve: Serve, talking: FakePool, tmp_path: Path
) -> None:
    """At the usual terms, named or not; where it is no default, those that ask for it."""
    given = configured(talking, same_answer=TENTH, watching={"shadow_rate": 1.0})
    gateway = serve(folder=tmp_path / "gateway", **given)
    served: list[dict[str, Any]] = [{}, {"promise": "same_answer", "alpha": 0.1, "max_rounds": 2}]
    others: list[dict[str, Any]] = [
        {"promise": "set"}, {"reference": "eve"}, {"max_rounds": 3}, {"alpha": 0.2},
        {"candidates": ["ada", "bob"]},
    ]  # fmt: skip

    def rows(gateway: Gateway) -> int:
        return gateway.get("/same-answer", ADMIN_KEY).json()["applications"][""]["rows"]

    for number, asked in enumerate([*served, *others]):
        gateway.chat(f"question {number}", asked)
    gateway.ask("question 8", {"stream": "leader"}, stream=True)
    sampled(gateway, 8)
    assert rows(gateway) == len(served)
    plain = serve(folder=tmp_path / "gateway", **given | {"same_answer": None})
    assert rows(plain) == 0  # they are requests of another population
    plain.chat("question 1")
    plain.chat("question 2", {"promise": "same_answer"})
    sampled(plain, 2)
    assert rows(plain) == 1
    few = plain.post("/same-answer/calibrate", ADMIN_KEY)
    assert "`promise: same_answer`" in error_message(few, 400)


def sure_ada(body: dict[str, Any]) -> str:
    """Ada is always right, the others mostly."""
    return "0" if body["model"] == "ada" else answer("bob", str(body["messages"]) + body["model"])


def lost_ada(body: dict[str, Any]) -> str:
    """Ada is alone with her answer; the others go on as before."""
    return "x" if body["model"] == "ada" else sure_ada(body)


def test_traffic_that_changes_is_noticed_without_labels(
    serve: Serve, talking: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By itself: calibrated, again on twice the rows, alarm within the stated number of requests.

    Void `stale` from the alarm until the calibration on requests after it. All answers differ, so
    the alarm comes for certain, long before the number that is stated for half of them.
    """
    monkeypatch.setattr(calibrator, "EVERY_S", 0.1)
    talking.answer = sure_ada
    section = {"alpha": 0.1, "calibrate": "from_traffic"}
    watching = WATCHING | {"false_alarm": 0.1}
    gateway = serve(**configured(talking, same_answer=section, watching=watching))

    def certificate() -> dict[str, Any]:
        return gateway.route("question 0")["certificate"]

    def report() -> dict[str, Any]:
        return gateway.get("/same-answer", ADMIN_KEY).json()

    (missing,) = gateway.ready()["missing"]
    assert missing["part"] == "calibration"
    assert "from 29 sampled requests" in missing["next"]
    collect(gateway, 34)
    assert until(lambda: certificate()["holds"], 60), report()
    assert "missing" not in gateway.ready()
    assert certificate()["rounds"]["first_round"] == ["ada"]
    rows = report()["data"][0]["evidence"]["rows"]
    total = 2 * rows  # as many after its rows as it had, however many of the 34 there were
    collect(gateway, total - 35, 34)
    collect(gateway, 1, total - 1)  # alone, for no row is read beyond one that has no answers yet
    # A calibrator that looks before the last decision is stored leaves its row out.
    assert until(lambda: report()["data"][0]["evidence"]["rows"] >= total - 2, 60), [
        (each["evidence"]["rows"], each["evidence"]["refused"]) for each in report()["data"]
    ]
    latest = report()["data"][0]
    assert until(lambda: certificate()["calibration_id"] == latest["id"], 60)
    first, again = certificate(), latest["evidence"]["rows"]
    talking.answer = lost_ada
    stated = report()["applications"][""]["watch"]["alarm_within"]
    assert 20 < stated < again  # no calibration comes before
    collect(gateway, 20, total)
    assert until(lambda: certificate()["reasons"] == ["stale:same_answer"], 60), report()
    watch = report()["applications"][""]["watch"]
    assert 5 <= watch["differing"] <= 20 <= watch["sampled"] == 20 + total - again
    assert watch["evidence"] >= watch["alarms_at"] == pytest.approx(60.0)  # 0.1 over 2 x 3
    metrics = gateway.get("/metrics", ADMIN_KEY).text
    assert 'racer_same_answer_alarm{application=""} 1.0' in metrics
    assert 'racer_same_answer_differing{application=""} ' in metrics
    served = [gateway.chat(f"question {number}") for number in range(200, 240)]
    certificates = [each["racer"]["certificate"] for each in served]
    old = [each for each in certificates if each["calibration_id"] == first["calibration_id"]]
    assert {(each["holds"], *each["reasons"]) for each in old} == {(False, "stale:same_answer")}
    assert until(lambda: certificate()["holds"], 60)
    second = report()["data"][0]
    assert second["id"] == certificate()["calibration_id"] != first["calibration_id"]
    assert second["evidence"]["not_before"] == watch["alarm_at"]
    assert second["evidence"]["since"] > watch["alarm_at"]


def test_calibration_from_traffic_has_safe_defaults(tmp_path: Path) -> None:
    """A share and a budget of calls, unless a rate is set; nothing is spent uninvited."""
    path = tmp_path / "racer.yaml"
    candidates = [{"name": name, "base_url": "http://localhost:1/v1"} for name in NAMES]
    same: dict[str, Any] = {"schema_version": 1, "candidates": candidates, "same_answer": TENTH}
    path.write_text(yaml.safe_dump(same))
    override = {
        "same_answer": {"calibrate": "from_traffic"}
    }  # as --calibrate-from-traffic gives it
    found = settings.load(path, {}, **override)[0].same_answer
    assert (found.alpha, found.calibrate) == (0.1, "from_traffic")

    def sampling(**changes: Any) -> tuple[float, int | None]:
        path.write_text(yaml.safe_dump({"schema_version": 1, "candidates": candidates, **changes}))
        watching = settings.load(path, {})[0].watching
        return watching.shadow_rate, watching.shadow_calls_per_day

    traffic = {"calibrate": "from_traffic"}
    assert sampling() == (0.0, None)
    assert sampling(same_answer={}) == (0.0, None)
    assert sampling(same_answer=traffic) == (0.05, 5_000)
    assert sampling(same_answer=traffic, watching={"shadow_rate": 0.2}) == (0.2, None)
    assert sampling(same_answer=traffic, watching={"shadow_calls_per_day": 9}) == (0.05, 9)
    assert sampling(applications={"bot": {"same_answer": traffic}}) == (0.05, 5_000)
    own = {"bot": {"same_answer": traffic, "shadow_rate": 0.5}}
    assert sampling(applications=own) == (0.0, None)


# The alarm stays, and every sampled request bets --------------------------------------------------

STALE = ["stale:same_answer"]


@pytest.fixture
def agreeing(pool: FakePool) -> Iterator[FakePool]:
    """Candidates of which ada is always right."""
    pool.answer = lambda _: "0"
    yield pool
    pool.answer = lambda _: "42"


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a gateway does every minute."""
    monkeypatch.setattr(calibrator, "EVERY_S", 0.1)


def alone_ada(body: dict[str, Any]) -> str:
    """Ada is alone with her answer."""
    return "x" if body["model"] == "ada" else "0"


def watching(serve: Serve, pool: FakePool, folder: Path, rate: float = 1.0) -> Gateway:
    """A gateway that is calibrated by command."""
    section, terms = {"alpha": 0.1}, {"shadow_rate": rate, "false_alarm": 0.01}
    return serve(folder=folder, **configured(pool, same_answer=section, watching=terms))


def calibrated(gateway: Gateway, count: int) -> None:
    """Calibrate on this number of requests."""
    for number in range(count):
        gateway.chat(f"question {number}")
    sampled(gateway, count)
    response = gateway.post("/same-answer/calibrate", ADMIN_KEY)
    assert response.json()["active"], response.text


def reasons(gateway: Gateway) -> list[str]:
    """Those of a certificate."""
    return gateway.route("question 0")["certificate"]["reasons"]


@pytest.mark.usefixtures("often")
def test_an_alarm_outlives_a_lower_rate_and_a_start(
    serve: Serve, agreeing: FakePool, tmp_path: Path
) -> None:
    """Requests that a lower rate would not have drawn have bet all the same."""
    gateway = watching(serve, agreeing, tmp_path / "one")
    calibrated(gateway, 29)
    agreeing.answer = alone_ada
    for number in range(20):
        gateway.chat(f"another {number}")
    found = until(lambda: reasons(gateway) == STALE, 30)
    assert found, gateway.get("/same-answer", ADMIN_KEY).text
    seldom = watching(serve, agreeing, tmp_path / "one", rate=0.001)
    assert reasons(seldom) == STALE
    decision = seldom.chat("question 1")["racer"]["decision_id"]
    assert until(lambda: seldom.get(f"/decisions/{decision}", ADMIN_KEY).status_code == 200, 30)
    again = watching(serve, agreeing, tmp_path / "one", rate=0.001)
    assert reasons(again) == STALE


@pytest.mark.usefixtures("often")
def test_no_number_of_requests_ends_the_watch(
    serve: Serve, agreeing: FakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than are read at a time."""
    monkeypatch.setattr(answer_rows, "MAX_ROWS", 30)
    gateway = watching(serve, agreeing, tmp_path / "one")
    calibrated(gateway, 29)
    for number in range(40):
        gateway.chat(f"further {number}")
    sampled(gateway, 69)
    agreeing.answer = alone_ada
    for number in range(30):
        gateway.chat(f"another {number}")
    found = until(lambda: reasons(gateway) == STALE, 30)
    assert found, gateway.get("/same-answer", ADMIN_KEY).text


@pytest.mark.usefixtures("often")
def test_answers_that_wait_in_the_queue_are_not_lost(
    serve: Serve, agreeing: FakePool, tmp_path: Path
) -> None:
    """However long: candidates are called for a few sampled requests at a time."""
    given = configured(agreeing, watching={"shadow_rate": 1.0}, limits={"deadline_s": 2.5})
    gateway = serve(folder=tmp_path / "one", **given)
    for name in ("bob", "cyd", "dan", "eve"):
        agreeing.say(name, "0", delay_s=0.6)
    for number in range(24):  # four at a time: 3.6 s
        gateway.chat(f"question {number}")

    def progress() -> dict[str, Any]:
        return gateway.get("/same-answer", ADMIN_KEY).json()["applications"][""]

    seen: list[int] = []
    assert until(lambda: seen.append(progress()["lost"]) or progress()["rows"] == 24, 30)
    assert set(seen) == {0}
