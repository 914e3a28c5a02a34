"""POST /calibrate and the history: accepted rows, effects, and failures without effect."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.store import Store
from racer_core.calibration.calibration import Calibration
from racer_core.calibration.options import SMOOTHING_SALT, CalibrationOptions
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.errors import OverlapError
from racer_core.offline.train import train
from racer_core.racer import Racer
from racer_core.records.near_copies import count_near_copies
from racer_core.types import BINARY_TARGETS, LabelledRows, RiskTarget, Score
from tests.kit.case import Shared
from tests.kit.gateway import (
    ADMIN_KEY,
    ONE,
    POOL,
    TRAINED,
    TWO,
    UNANSWERABLE,
    Gateway,
    Serve,
    as_json,
    candidates,
    error_message,
    labelled,
    noisy,
)
from tests.kit.lazy import LazyModule
from tests.kit.upstream import FakePool

stats = LazyModule("scipy.stats")

ROWS = noisy(20_000, 120)
PRICES = (4.0, 1.0, 0.5)
PRICED = {name: {"price": price} for name, price in zip(POOL, PRICES, strict=True)}


@pytest.fixture
def unsure(shared: Shared, noisy_artifact: Path, pool: FakePool) -> Gateway:
    """A gateway whose router and labels are noisy, so that thresholds differ from 0."""
    changes = {"candidates": candidates(pool.url, **PRICED), "routing": {"score": "cover"}}
    case = shared(artifact=noisy_artifact, calibrated=False, group="calibrate", **changes)
    return case.gateway.once(as_json(ROWS))


@cache
def core_calibration(artifact: Path) -> tuple[Racer, Calibration]:
    """The core's calibration of ``ROWS``: loaded and scored once, for any options."""
    racer = Racer.load(artifact)
    return racer, racer.calibrate(ROWS, prices=PRICES)


def oracle(artifact: Path, **options: Any) -> tuple[Racer, Calibration]:
    """The core's own calibration of the same rows, with nothing of the gateway in between."""
    racer, calibration = core_calibration(artifact)
    options = {
        "score": Score.COVER,
        "null_threshold": racer.artifact.null_threshold,
        "smoothing_salt": SMOOTHING_SALT,
        **options,
    }
    return racer, replace(calibration, options=CalibrationOptions(**options))


def upload(gateway: Gateway, content: bytes | str, name: str = "", **query: Any) -> httpx2.Response:
    """A file when it has a name, else NDJSON."""
    data = content.encode() if isinstance(content, str) else content
    if name:
        return gateway.post("/calibrate", ADMIN_KEY, files={"file": (name, data)}, params=query)
    headers = {"content-type": "application/x-ndjson"}
    return gateway.post("/calibrate", ADMIN_KEY, content=data, headers=headers, params=query)


def jsonl(rows: list[Any]) -> str:
    """One row a line."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def evidence_without_source(result: dict[str, Any]) -> dict[str, Any]:
    """The evidence, without the digest of what was uploaded."""
    return {name: value for name, value in result["evidence"].items() if name != "source"}


def as_csv(rows: LabelledRows) -> bytes:
    """A header, and 1 or 0 a candidate."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["query", *POOL])
    writer.writerows([r.query, *(int(name in r.correct) for name in POOL)] for r in rows.rows)
    return text.getvalue().encode()


def as_parquet(rows: LabelledRows) -> bytes:
    """A column of texts and a column of structs."""
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(as_json(rows)), buffer)
    return buffer.getvalue()


# What goes in ---------------------------------------------------------------------------------


def written(name: str) -> bytes:
    """The rows in the format of a file name."""
    if name.endswith("csv"):
        return as_csv(ROWS)
    if name.endswith("parquet"):
        return as_parquet(ROWS)
    if name.endswith("json"):
        return json.dumps({"rows": as_json(ROWS)}).encode()
    return b"\xef\xbb\xbf" + jsonl(as_json(ROWS)).replace("\n", "\r\n").encode()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("rows.json", ""),
        ("ROWS.JSONL", "application/jsonl; charset=utf-8"),
        ("rows.csv", "text/csv"),
        ("rows.parquet", "application/vnd.apache.parquet"),
    ],
)
def test_every_format_gives_the_same_evidence(unsure: Gateway, name: str, kind: str) -> None:
    """As a file of a form, and as a body under the format's own content type."""
    expected = evidence_without_source(unsure.calibrate(rows=ROWS, dry_run=True))
    responses = [upload(unsure, written(name), name, dry_run=True)]
    if kind:
        request = {"content": written(name), "headers": {"content-type": kind}}
        responses.append(unsure.post("/calibrate?dry_run=true", ADMIN_KEY, **request))
    for response in responses:
        assert response.status_code == 200, response.text
        assert evidence_without_source(response.json()) == expected


def test_rows_with_scores_and_rows_without_go_together(
    unsure: Gateway, noisy_artifact: Path
) -> None:
    """The router scores those that brought none; the core says the same of the mixture."""
    rng = random.Random(8)
    mixed = tuple(
        replace(each, query="", scores=tuple(round(rng.random(), 3) for _ in POOL))
        if i % 3 == 0
        else each
        for i, each in enumerate(ROWS.rows)
    )
    sent = [
        (row if each.scores is None else {"correct": row["correct"]})
        | ({} if each.scores is None else {"scores": dict(zip(POOL, each.scores, strict=True))})
        for row, each in zip(as_json(ROWS), mixed, strict=True)
    ]
    core = oracle(noisy_artifact)[0].calibrate(LabelledRows(pool=POOL, rows=mixed), prices=PRICES)
    for score in (Score.COVER, Score.PROB):
        evidence = upload(unsure, jsonl(sent), dry_run=True, score=score).json()["evidence"]
        assert evidence["lambda_hat"] == core.lambda_hat(0.1, score)


def test_a_calibration_on_uploaded_scores_is_not_certified(serve: Serve) -> None:
    """The gateway cannot know whether the serving router would give the same scores."""
    gateway = serve(calibrated=False)
    scores = {"adder": 0.5, "speller": 0.25, "poet": 0.25}
    upload(gateway, jsonl([row(i, query=None, scores=scores) for i in range(20)]))
    certificate = gateway.route(ONE)["certificate"]
    assert (certificate["holds"], certificate["reasons"]) == (False, ["row_scores_unverified"])


def test_options_are_read_wherever_they_stand(unsure: Gateway) -> None:
    """Body fields, query parameters and form fields say the same."""
    options = {"alpha": "0.2", "score": "prob", "risk_target": "paper", "dry_run": "true"}
    data = jsonl(as_json(ROWS)).encode()
    with unsure.http(ADMIN_KEY) as client:
        form = client.post("/calibrate", files={"file": ("rows.jsonl", data)}, data=options)
        query = client.post("/calibrate", files={"file": ("rows.jsonl", data)}, params=options)
        body = {"rows": as_json(ROWS), **options, "alpha": 0.2, "dry_run": True}
        document = client.post("/v1/calibrate", json=body)
    assert (
        evidence_without_source(form.json())
        == evidence_without_source(query.json())
        == evidence_without_source(document.json())
    )
    evidence = form.json()["evidence"]
    assert (evidence["alpha"], evidence["score"]) == (0.2, "prob")
    assert (evidence["risk_target"], evidence["n"]) == ("paper", 120)


# What comes out -------------------------------------------------------------------------------


@pytest.mark.parametrize("target", BINARY_TARGETS)
@pytest.mark.parametrize("score", list(Score))
@pytest.mark.parametrize("alpha", [0.02, 0.1, 0.25])
def test_the_threshold_is_the_cores(
    unsure: Gateway, noisy_artifact: Path, alpha: float, score: Score, target: RiskTarget
) -> None:
    """lambda_hat and n equal an independent computation on the same rows."""
    _, core = oracle(noisy_artifact, alpha=alpha, score=score, risk_target=target)
    evidence = unsure.calibrate(
        rows=ROWS, alpha=alpha, score=score, risk_target=target, dry_run=True
    )["evidence"]
    expected = core.lambda_hat(alpha, score)
    assert evidence["lambda_hat"] == (expected if math.isfinite(expected) else None)
    assert evidence["n"] == core.n


@pytest.mark.parametrize("path", ["/route", "/calibrate"])
def test_a_score_that_needs_prices_is_refused_without_them(gateway: Gateway, path: str) -> None:
    """This gateway's candidates have no prices, so ``cover_cost`` is refused."""
    body = {"query": ONE} if path == "/route" else {"rows": as_json(ROWS), "dry_run": True}
    for score in Score:
        response = gateway.post(path, ADMIN_KEY, json=body | {"score": score})
        assert (response.status_code == 200) == (score is not Score.COVER_COST), response.text
    response = gateway.post(path, ADMIN_KEY, json=body | {"score": "cover_cost"})
    assert "cover_cost" in error_message(response, 400 if path == "/route" else 422)


def test_evidence_has_every_field(unsure: Gateway, noisy_artifact: Path) -> None:
    """Every field of the evidence, against the core."""
    racer, core = oracle(noisy_artifact)
    similarity = racer.score(ROWS.queries).similarity
    decisions = racer.route_batch(ROWS.queries, core)
    sizes = [len(each.selected) for each in decisions]
    price = dict(zip(POOL, PRICES, strict=True))
    costs = [sum(price[name] for name in each.selected) for each in decisions]
    rows_missed = math.floor(0.1 * (core.n + 1))
    law = rows_missed, core.n + 1 - rows_missed
    result = unsure.calibrate(rows=ROWS, activate=False)
    evidence = evidence_without_source(result)
    conditions = evidence.pop("conditions")
    assert (conditions["assumed"], conditions["parts"]) == (120, [])
    assert evidence.pop("prices") == {"currency": "USD", "of_calls": price, "usage": {}}
    assert evidence.pop("shift")["active_id"] == unsure.ready()["calibration"]
    assert evidence == {
        "alpha": 0.1,
        "delta": None,
        "score": "cover",
        "risk_target": "answerable",
        "r": 1,
        "n": sum(1 for row in ROWS.rows if row.correct),
        "rows": 120,
        "unlabelled": 0,
        "lambda_hat": core.lambda_hat(0.1, Score.COVER),
        "feasible": True,
        "min_n": 9,
        "alpha_basis": "fixed",
        "risk_band": None,
        "weights": None,
        "judge": None,
        "missed": rows_missed - 1,
        "tied": 1,
        "risk_q05": pytest.approx(stats.beta.ppf(0.05, *law)),
        "risk_q95": pytest.approx(stats.beta.ppf(0.95, *law)),
        "mean_size": pytest.approx(sum(sizes) / 120),
        "mean_cost": pytest.approx(sum(costs) / 120),
        "abstain": pytest.approx(sizes.count(0) / 120),
        "answer_risk": None,  # the rows have no answers
        "duplicates": 0,
        "near_duplicates": 0,
        "training_copies": similarity if similarity is None else count_near_copies(similarity),
        "least_similarity": similarity if similarity is None else similarity.min(),  # of 120 rows
        "overlap": 0,
        "overlap_voids": False,
        "sample": {
            "kind": "questions",
            "guessed": True,
            "clusters": None,
            "shared_clusters": 0,
            "unit": "request",
            "later_turns_answered_by": {},
        },
    }
    assert evidence["risk_q05"] < 0.1 < evidence["risk_q95"] < 0.2


def test_a_dry_run_changes_nothing(unsure: Gateway) -> None:
    """Evidence without a record: no id, no history, the active one stays."""
    before = history(unsure)
    result = unsure.calibrate(rows=ROWS, alpha=0.3, dry_run=True)
    assert (result["id"], result["active"]) == (None, False)
    assert result["evidence"]["alpha"] == 0.3
    assert history(unsure) == before


def history(gateway: Gateway) -> Any:
    """Everything that is kept, and which is active."""
    return gateway.get("/calibrations", ADMIN_KEY).json(), gateway.ready()


def test_certificates_state_the_terms_of_the_calibration(serve: Serve) -> None:
    """delta, risk target, score and r of the record are in every certificate."""
    gateway = serve(calibrated=False, routing={"alpha": 0.2})
    record = gateway.calibrate(400, delta=0.1, risk_target="paper", score="prob", alpha=0.2)
    certificate = gateway.route(ONE)["certificate"]
    assert certificate["guarantee"] == {
        "risk_target": "paper", "alpha": 0.2, "delta": 0.1, "r": 1, "unit": "request",
        "law": "beta", "group": None,
        "pool": list(POOL), "conditional": "pac", "weights": None, "labels": None, "trivial": False,
        "alpha_basis": "fixed", "risk_band": None, "risk_band_delta": None,
        "bound": {"value": 0.2, "confidence": 0.9}, "advice": None,
        "answer_risk_max": None, "answer_risk_delta": None, "premise": "alike", "turns": "separate",
    }  # fmt: skip
    assert certificate["calibration_id"] == record["id"]
    assert (certificate["score"], certificate["n"]) == ("prob", 400)


# History --------------------------------------------------------------------------------------


def test_history_is_kept_newest_first(serve: Serve) -> None:
    """Every record with options and evidence; one is active; no queries, no labels."""
    gateway = serve(calibrated=False)
    nothing = {"object": "list", "data": [], "served": [], "canary": None}
    assert gateway.get("/calibrations", ADMIN_KEY).json() == nothing
    ids = [gateway.calibrate(60, alpha=alpha)["id"] for alpha in (0.1, 0.2, 0.3)]
    listed = gateway.get("/calibrations", ADMIN_KEY).json()["data"]
    assert [each["id"] for each in listed] == ids[::-1]
    assert [each["active"] for each in listed] == [True, False, False]
    assert [each["evidence"]["alpha"] for each in listed] == [0.3, 0.2, 0.1]
    assert [each["options"]["alpha"] for each in listed] == [0.3, 0.2, 0.1]
    one = gateway.get(f"/calibrations/{ids[0]}", ADMIN_KEY)
    assert one.json() == listed[2]
    assert "plus" not in one.text
    assert set(listed[0]) >= {"id", "created_at", "active", "artifact", "options", "evidence"}


def test_activate_rolls_back_and_forward(serve: Serve) -> None:
    """One call brings any kept record back; decisions follow at once, at the configured alpha."""
    gateway = serve(calibrated=False)
    first = gateway.calibrate(60, alpha=0.1)["id"]
    kept = gateway.calibrate(80, alpha=0.3, activate=False)
    second = kept["id"]
    assert (kept["active"], gateway.ready()["calibration"]) == (False, first)
    for wanted, n in ((second, 60), (first, 45), (first, 45)):
        answer = gateway.post(f"/calibrations/{wanted}/activate", ADMIN_KEY)
        assert (answer.status_code, answer.json()["id"]) == (200, wanted)
        certificate = gateway.route(ONE)["certificate"]
        assert (certificate["calibration_id"], certificate["n"]) == (wanted, n)
        assert certificate["guarantee"]["alpha"] == 0.1
        assert gateway.ready()["calibration"] == wanted
    large = b'{"expected_active_id": null' + b" " * 2**16 + b"}"  # it has one field
    refused = gateway.post(f"/calibrations/{second}/activate", ADMIN_KEY, content=large)
    assert refused.status_code == 413
    assert gateway.ready()["calibration"] == first


def test_an_unexpected_active_one_is_a_conflict(serve: Serve) -> None:
    """Compare-and-set, in both endpoints: 409, and nothing is kept or changed."""
    gateway = serve(calibrated=False)
    rows = as_json(labelled(10_000, 40))
    body = {"rows": rows, "expected_active_id": "cal-0"}
    error_message(gateway.post("/calibrate", ADMIN_KEY, json=body), 409)
    assert gateway.get("/calibrations", ADMIN_KEY).json()["data"] == []
    first, second = (gateway.calibrate(100)["id"] for _ in range(2))
    before = history(gateway)
    body = {"rows": rows, "expected_active_id": first}
    assert "not the active one" in error_message(
        gateway.post("/calibrate", ADMIN_KEY, json=body), 409
    )
    path = f"/calibrations/{first}/activate"
    error_message(gateway.post(path, ADMIN_KEY, json={"expected_active_id": first}), 409)
    assert history(gateway) == before
    answer = gateway.post(path, ADMIN_KEY, json={"expected_active_id": second})
    assert answer.status_code == 200
    error_message(gateway.post(path, ADMIN_KEY, json={"expected_active_id": "", "x": 1}), 400)


def test_of_two_uploads_that_expect_the_same_one_wins(serve: Serve) -> None:
    """At the same moment: one record is kept and active, the other is a conflict and is not."""
    gateway = serve(calibrated=False)
    active = gateway.calibrate(40)["id"]
    body = {"rows": as_json(labelled(20_000, 40)), "expected_active_id": active}
    with ThreadPoolExecutor(4) as threads:
        answers = list(
            threads.map(lambda _: gateway.post("/calibrate", ADMIN_KEY, json=body), range(4))
        )
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409]
    (winner,) = (answer.json() for answer in answers if answer.status_code == 200)
    stored = gateway.get("/calibrations", ADMIN_KEY).json()["data"]
    assert {each["id"]: each["active"] for each in stored} == {active: False, winner["id"]: True}


def test_memory_and_store_agree_for_any_order_of_activations(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An activation that lingers after its commit does not undo a later one in memory."""
    gateway = serve(calibrated=False)
    first, second = (gateway.calibrate(40)["id"] for _ in range(2))
    activate, committed = Store.activate, threading.Event()

    def lingering(store: Store, name: str, *given: Any) -> Any:
        record = activate(store, name, *given)
        if name == first:
            committed.set()
            time.sleep(0.3)
        return record

    monkeypatch.setattr(Store, "activate", lingering)
    with ThreadPoolExecutor(1) as thread:
        slow = thread.submit(gateway.post, f"/calibrations/{first}/activate", ADMIN_KEY)
        assert committed.wait(30)
        assert gateway.post(f"/calibrations/{second}/activate", ADMIN_KEY).status_code == 200
        assert slow.result().status_code == 200
    stored = gateway.get("/calibrations", ADMIN_KEY).json()["data"]
    assert [each["id"] for each in stored if each["active"]] == [gateway.ready()["calibration"]]


# What is refused ------------------------------------------------------------------------------


def row(number: int, **changes: Any) -> dict[str, Any]:
    """A good row, and what is wrong with it; None takes a field out."""
    good = {"query": f"query {number}?", "correct": {"adder": True, "speller": False, "poet": True}}
    return {name: value for name, value in (good | changes).items() if value is not None}


def test_bad_rows_are_named_and_change_nothing(unsure: Gateway) -> None:
    """422 with the places and what is wrong, without any prompt; good rows are not used either."""
    before = history(unsure)
    bad = {"query": "CANARY", "correct": {"gpt": True}}
    lines = f'{json.dumps(row(1))}\n\n{json.dumps(bad)}\n{{"query": "CANARY\n'
    of_file = error_message(upload(unsure, lines, "r.jsonl"), 422)
    of_body = unsure.refused([row(1), bad])
    assert "line 3: unknown candidate 'gpt'" in of_file
    assert "line 4: not JSON" in of_file
    assert "row 2: unknown candidate 'gpt'" in of_body
    assert "line 1:" not in of_file
    assert "CANARY" not in of_file + of_body
    assert history(unsure) == before


FILES = {
    "empty": (b"", "x.jsonl", "no rows"),
    "latin1": (b'{"query": "\xe9"}', "x.jsonl", "line 1: not UTF-8"),
    "no_parquet": (b"PAR1 nothing", "x.parquet", "parquet"),
    "nobody_is_right": (
        json.dumps(row(1, correct=dict.fromkeys(POOL, False))).encode(),
        "x.jsonl",
        "nothing to calibrate on",
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_a_bad_file_is_one_clear_error(unsure: Gateway, case: str) -> None:
    """422 that says what to do; nothing changes."""
    before = history(unsure)
    data, name, words = FILES[case]
    assert words in error_message(upload(unsure, data, name), 422)
    assert history(unsure) == before


@pytest.mark.parametrize(
    ("option", "values", "status"),
    [
        ("alpha", ("0", "1", "nan", "inf"), 400),
        ("alpha", ("ten",), 400),
        ("delta", ("0", "nan"), 400),
        ("score", ("best",), 400),
        ("risk_target", ("none",), 400),
        ("r", ("0", "1" * 30), 400),
        ("dry_run", ("perhaps",), 400),
        ("alhpa", ("0.1",), 400),
    ],
)
def test_a_bad_option_is_named(
    unsure: Gateway, option: str, values: tuple[str, ...], status: int
) -> None:
    """One error with the option as param, and nothing changes."""
    before = history(unsure)
    for value in values:
        response = upload(unsure, jsonl(as_json(ROWS)), **{option: value})
        error_message(response, status)
        assert response.json()["error"]["param"] == option
    assert history(unsure) == before


def test_a_bad_form_is_one_clear_error(unsure: Gateway) -> None:
    """A form without one file, or that is no form, is the client's fault."""
    file = ("file", ("rows.jsonl", json.dumps(row(1)).encode()))
    form = {"content-type": "multipart/form-data; boundary=x"}
    requests: list[tuple[int, dict[str, Any]]] = [
        (400, {"files": [("other", file[1])]}),
        (400, {"files": [("x", ("x", b"x"))], "data": {"file": "rows"}}),
        (400, {"files": [file, file]}),
        (400, {"files": [file], "data": {"alhpa": "0.1"}}),
        (400, {"content": b"x", "headers": {"content-type": "multipart/form-data"}}),
        (400, {"content": b"nothing of the kind", "headers": form}),
    ]
    for status, request in requests:
        error_message(unsure.post("/calibrate", ADMIN_KEY, **request), status)


def test_a_document_without_rows_is_an_error(unsure: Gateway) -> None:
    """The field is named."""
    for body in ({}, {"rows": None}, {"rows": "x"}, {"rows": {}}):
        response = unsure.post("/calibrate", ADMIN_KEY, json=body)
        error_message(response, 400)
        assert response.json()["error"]["param"] == "rows"
    assert "no rows" in unsure.refused([])


COMPRESSED = {
    "rows.jsonl": gzip.compress(b"{}"),
    "rows.csv": b"PK\x03\x04 the beginning of a zip file",
    "x.jsonl.gz": b"plain",
}


@pytest.mark.parametrize("name", COMPRESSED)
def test_a_compressed_file_is_refused(unsure: Gateway, name: str) -> None:
    """A few kilobytes can hold gigabytes: 415 by name and by content, with what to do."""
    assert "unpack it" in error_message(upload(unsure, COMPRESSED[name], name), 415)


# Training rows, and alpha ---------------------------------------------------------------------


def test_training_rows_are_refused_or_void_the_guarantee(serve: Serve) -> None:
    """Overlap is 422 with a number; allowed, every certificate says so."""
    gateway = serve(calibrated=False)
    of_validation = {"rows": as_json(labelled(5_190, 20))}  # tau was chosen on ten of them
    message = error_message(gateway.post("/calibrate", ADMIN_KEY, json=of_validation), 422)
    assert "10 of 20 rows" in message
    rows = labelled(TRAINED - 10, 40)  # ten of them were training rows
    response = gateway.post("/calibrate", ADMIN_KEY, json={"rows": as_json(rows)})
    assert "10 of 40 rows" in error_message(response, 422)
    assert response.json()["error"]["code"] == "training_overlap"
    assert gateway.ready()["calibration"] is None
    result = gateway.calibrate(rows=rows, allow_overlap=True)
    assert result["evidence"]["overlap"] == 10
    certificate = gateway.route(ONE)["certificate"]
    assert (certificate["holds"], certificate["reasons"]) == (False, ["training_overlap"])


@pytest.mark.parametrize("chars", [100, 60, 30])
def test_training_rows_are_found_however_training_cut_them(
    serve: Serve, tmp_path: Path, chars: int
) -> None:
    """Rows are longer than the gateway reads, and were cut elsewhere, or not, in training."""

    def cut(rows: LabelledRows, end: int) -> LabelledRows:
        long = [replace(row, query=f"{row.query} {'context ' * 20}"[:end]) for row in rows.rows]
        return replace(rows, rows=tuple(long))

    training, validation = noisy(0, 200), noisy(5_000, 100)
    encoder = CharNgramEncoder()
    train(cut(training, chars), cut(validation, chars), tmp_path, encoder=encoder, kind="knn")
    gateway = serve(calibrated=False, artifact=tmp_path, limits={"query_chars": 40})
    rows = {"rows": as_json(cut(training, 100))}
    refused = error_message(gateway.post("/calibrate", ADMIN_KEY, json=rows), 422)
    assert "200 of 200 rows were training rows" in refused
    allowed = gateway.calibrate(rows=cut(training, 100), allow_overlap=True)
    assert allowed["evidence"]["overlap"] == 200
    assert gateway.route(training.rows[0].query)["certificate"]["holds"] is False
    fresh = gateway.calibrate(rows=cut(noisy(20_000, 200), 100))
    assert fresh["evidence"]["overlap"] == 0
    racer = Racer.load(tmp_path)
    with pytest.raises(OverlapError, match="200 of 200"):
        racer.calibrate(cut(training, 100))


def test_too_few_rows_for_alpha_call_the_whole_pool_with_a_reason(serve: Serve) -> None:
    """1/(n + 1) > alpha: the whole pool, flagged as trivial, and it holds."""
    gateway = serve(calibrated=False)
    body = {"rows": as_json(labelled(10_000, 100)), "alpha": 0.01}
    message = error_message(gateway.post("/calibrate", ADMIN_KEY, json=body), 409)
    assert "75 rows count, it needs 99" in message
    assert gateway.calibrate(100)["evidence"]["n"] == 75
    for query in (ONE, UNANSWERABLE):
        decision = gateway.route(query, alpha=0.01)
        assert sorted(decision["selected"]) == sorted(POOL)
        assert decision["certificate"]["guarantee"]["trivial"] is True
        assert decision["certificate"]["lambda_hat"] is None
        assert "alpha_infeasible_whole_pool" in decision["certificate"]["reasons"]
        assert decision["certificate"]["holds"] is True


def test_refusals_of_more_than_alpha_are_undone(serve: Serve) -> None:
    """A quarter of the answerable rows look unanswerable: at alpha 0.1 they are called."""
    gateway = serve(calibrated=False)
    rows = [
        replace(each, correct=each.correct or frozenset({"poet"}))
        for each in labelled(10_000, 80).rows
    ]
    evidence = gateway.calibrate(rows=LabelledRows(pool=POOL, rows=tuple(rows)))["evidence"]
    assert (evidence["n"], evidence["feasible"]) == (80, True)
    certificate = gateway.route(UNANSWERABLE)["certificate"]
    assert (certificate["reasons"], certificate["holds"]) == ([], True)
    assert "poet" in gateway.route(UNANSWERABLE)["selected"]


def test_an_infeasible_alpha_can_be_refused(serve: Serve) -> None:
    """``on_infeasible: reject`` answers 409 instead of calling the whole pool."""
    gateway = serve(routing={"on_infeasible": "reject"})
    response = gateway.ask(ONE, {"alpha": 0.001})
    error_message(response, 409)
    assert response.json()["error"]["code"] == "infeasible_alpha"
    assert response.headers["x-should-retry"] == "false"
    error_message(gateway.post("/route", json={"query": ONE, "alpha": 0.001}), 409)
    assert gateway.route(ONE, alpha=0.05)["selected"] == ["adder"]


# Per request ----------------------------------------------------------------------------------

QUERIES = [row.query for row in noisy(30_000, 24).rows] + ["something quite else", "Zahl?"]


@pytest.mark.parametrize("score", list(Score))
def test_alpha_and_score_of_a_request_are_the_cores_decision(
    unsure: Gateway, noisy_artifact: Path, score: Score
) -> None:
    """From the stored record: the same set, threshold and order as the core's own."""
    racer, core = oracle(noisy_artifact)
    scored = racer.score(QUERIES)
    assert scored.neighbours is not None
    given = zip(QUERIES, scored.scores.tolist(), scored.neighbours, strict=True)
    thresholds = set()
    for query, scores, near in given:
        for alpha in (0.03, 0.1, 0.3, 0.6):
            expected = core.decide(
                racer.fingerprint(query), scores, neighbours=near, alpha=alpha, score=score
            )
            decision = unsure.route(query, alpha=alpha, score=score)
            certificate = decision["certificate"]
            assert decision["selected"] == list(expected.selected)
            assert certificate["lambda_hat"] == expected.lambda_hat
            assert (certificate["score"], certificate["guarantee"]["alpha"]) == (score, alpha)
            thresholds.add(expected.lambda_hat)
    assert len(thresholds) >= 3  # the rows are noisy enough for the test to mean something


def test_a_sub_pool_is_recalibrated(unsure: Gateway, noisy_artifact: Path) -> None:
    """``candidates`` restricts the pool: threshold, n and set are the core's for that pool."""
    racer, core = oracle(noisy_artifact)
    names = ("adder", "poet")
    restricted = core.restrict(names)
    for query in QUERIES[:8]:
        scored = racer.score([query])
        assert scored.neighbours is not None
        scores = [scored.scores[0][racer.pool.index(name)] for name in names]
        expected = restricted.decide(
            racer.fingerprint(query), scores, neighbours=scored.neighbours[0]
        )
        decision = unsure.route(query, candidates=["poet", "adder", "poet"])
        certificate = decision["certificate"]
        assert decision["selected"] == list(expected.selected)
        assert certificate["lambda_hat"] == expected.lambda_hat
        assert certificate["n"] == restricted.n
        assert certificate["guarantee"]["pool"] == list(names)
        assert certificate["reasons"] == ["pool_assumed_independent_of_query"]
        assert certificate["holds"] is True


def test_the_whole_pool_by_name_is_the_whole_pool(gateway: Gateway, pool: FakePool) -> None:
    """Only the named are called."""
    racer = gateway.chat(TWO, {"candidates": ["adder", "poet"]})["racer"]
    assert racer["selected"] == ["adder"]
    assert pool.models_called() == ["adder"]
    assert gateway.route(TWO, candidates=list(POOL))["certificate"]["n"] == 300
    decision = gateway.route(ONE, candidates=["poet"])  # no row has it as a right candidate
    assert (decision["selected"], decision["certificate"]["holds"]) == (["poet"], False)


def test_a_new_calibration_renews_the_sub_pools(serve: Serve) -> None:
    """No threshold of an earlier record is left in a cache."""
    gateway = serve(calibrated=False)
    for count in (200, 100):
        record = gateway.calibrate(count)
        certificate = gateway.route(TWO, candidates=["adder", "speller"])["certificate"]
        assert (certificate["calibration_id"], certificate["n"]) == (record["id"], count * 3 // 4)


def test_every_decision_has_a_record_that_existed(serve: Serve) -> None:
    """While calibrations are swapped under load, id and rows always belong together."""
    gateway = serve(calibrated=False)
    gateway.calibrate(40)
    known: dict[str, int] = {gateway.ready()["calibration"]: 30}
    seen: list[tuple[str, int]] = []
    done = threading.Event()

    def ask() -> None:
        with gateway.http() as client:
            while not done.is_set():
                certificate = client.post("/route", json={"query": ONE}).json()["certificate"]
                seen.append((certificate["calibration_id"], certificate["n"]))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(2, 9):
        known[gateway.calibrate(40 * number)["id"]] = 30 * number
    done.set()
    for thread in threads:
        thread.join()
    assert all(known[identity] == n for identity, n in seen)
    assert len({identity for identity, _ in seen}) > 2
