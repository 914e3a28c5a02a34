"""Rows whose curve was shown: an alpha picked from it is certified by the band alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.calibrations import seen_rows
from app.calibrations.seen_rows import SeenRows
from app.settings import key_format
from app.store import Store
from app.store.calibration_record import CalibrationRecord
from tests.support.gateway import (
    ADMIN_KEY,
    ONE,
    POOL,
    Gateway,
    Serve,
    as_json,
    noisy,
)

ROWS = as_json(noisy(20_000, 150))
OTHERS = as_json(noisy(30_000, 150))


def calibrate(gateway: Gateway, rows: list[dict[str, Any]], **options: Any) -> str:
    """The basis of alpha in the evidence of an upload that is accepted."""
    body = {"rows": rows, "confirm": True, **options}
    response = gateway.post("/calibrate", ADMIN_KEY, json=body)
    assert response.status_code == 200, response.text
    return response.json()["evidence"]["alpha_basis"]


def served(gateway: Gateway) -> dict[str, Any]:
    """What a certificate says about alpha."""
    guarantee = gateway.route(ONE)["certificate"]["guarantee"]
    assert (guarantee["risk_band"] is None) == (guarantee["alpha_basis"] != "band")
    return {name: guarantee[name] for name in ("alpha", "alpha_basis")}


def test_an_alpha_picked_from_the_curve_is_certified_by_the_band(serve: Serve) -> None:
    """A dry run shows the curve; the configured alpha was fixed before, and stays so."""
    gateway = serve(calibrated=False)
    assert calibrate(gateway, ROWS, alpha=0.2, dry_run=True) == "band"
    assert calibrate(gateway, ROWS, alpha=0.2) == "band"
    assert served(gateway) == {"alpha": 0.2, "alpha_basis": "band"}
    # The active calibration has alpha 0.2 now, which was not fixed before these rows were seen.
    assert calibrate(gateway, ROWS[::-1], alpha=0.2) == "band"
    assert calibrate(gateway, ROWS) == "fixed"
    assert served(gateway) == {"alpha": 0.1, "alpha_basis": "fixed"}


def test_an_alpha_stated_with_new_rows_is_fixed(serve: Serve) -> None:
    """Also where they are uploaded again; another alpha, score or target is picked."""
    gateway = serve(calibrated=False)
    assert calibrate(gateway, ROWS, alpha=0.2) == "fixed"
    assert served(gateway) == {"alpha": 0.2, "alpha_basis": "fixed"}
    assert calibrate(gateway, ROWS, alpha=0.2, activate=False) == "fixed"
    for picked in ({"alpha": 0.15}, {"score": "prob"}, {"risk_target": "paper"}, {"delta": 0.1}):
        assert calibrate(gateway, ROWS, activate=False, **{"alpha": 0.2, **picked}) == "band"
    # The alpha of the active calibration was fixed before other rows were seen.
    assert calibrate(gateway, OTHERS, alpha=0.2, dry_run=True) == "fixed"
    assert calibrate(gateway, OTHERS, alpha=0.2) == "fixed"
    assert calibrate(gateway, OTHERS, alpha=0.3) == "band"


def test_rows_that_were_refused_were_not_shown(serve: Serve) -> None:
    """An error shows no curve."""
    gateway = serve(calibrated=False)
    response = gateway.post("/calibrate", ADMIN_KEY, json={"rows": ROWS, "max_weight": 2.0})
    assert response.status_code == 422
    assert calibrate(gateway, ROWS, alpha=0.2) == "fixed"


def test_gateways_on_one_store_share_what_was_seen(
    database: str, tmp_path: Path, monkeypatch: Any
) -> None:
    """Each keeps the first sight; the oldest are forgotten."""
    monkeypatch.setattr(seen_rows, "MAX_SEEN", 3)
    with Store(database) as one, Store(database) as other:
        hashes = {name: hashes_of(300, seed) for seed, name in enumerate("abcd")}
        assert SeenRows(one).fixed_terms(hashes["a"]) is None
        SeenRows(one).add("a", hashes["a"], [["first"]])
        SeenRows(other).add("a", hashes["a"], [["second"]])
        assert SeenRows(other).fixed_terms(hashes["a"]) == [["first"]]
        for digest in "bcd":
            SeenRows(other).add(digest, hashes[digest], [])
        found = [SeenRows(one).fixed_terms(hashes[each]) for each in "abcd"]
        assert found == [None, [], [], []]


def hashes_of(count: int, seed: int) -> NDArray[np.uint64]:
    """Random hashes, ascending."""
    return np.unique(np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64))


@pytest.mark.parametrize("count", [100, 5_000])
@pytest.mark.parametrize(("share", "is_seen"), [(0.01, False), (0.2, True), (1.0, True)])
def test_a_part_of_shown_rows_is_recognised(
    database: str, count: int, share: float, is_seen: bool
) -> None:
    """By 128 hashes of the earlier upload, up to the error of so small a sample."""
    earlier, others = hashes_of(count, 1), hashes_of(count, 2)
    parts = np.random.default_rng(3).permutation(count)[: int(share * count)]
    later = np.union1d(earlier[parts], others[: count - len(parts)])
    with Store(database) as store:
        seen = SeenRows(store)
        seen.add("a", earlier, [["first"], ["second"]])
        assert seen.fixed_terms(others) is None
        assert (seen.fixed_terms(later) is not None) == is_seen
        if share == 1.0:  # several earlier uploads: what was fixed before all of them
            seen.add("b", later, [["second"], ["third"]])
            assert seen.fixed_terms(later) == [["second"]]


def test_a_changed_file_of_shown_rows_was_seen(serve: Serve) -> None:
    """One row less or more, a space, another label; other rows were not."""
    gateway = serve(calibrated=False)
    assert calibrate(gateway, ROWS, dry_run=True) == "fixed"
    spaced = [{**ROWS[0], "query": ROWS[0]["query"] + " "}, *ROWS[1:]]
    relabelled = [{**ROWS[0], "correct": dict.fromkeys(POOL, True)}, *ROWS[1:]]
    for changed in (ROWS[:-1], ROWS[:-1] + OTHERS[:1], ROWS + OTHERS[:50], spaced, relabelled):
        assert calibrate(gateway, changed, alpha=0.2, activate=False) == "band"
    assert calibrate(gateway, OTHERS[50:], alpha=0.25) == "fixed"


def test_weighted_rows_with_a_picked_alpha_promise_nothing(
    serve: Serve, noisy_artifact: Path
) -> None:
    """They have no band; the configured alpha holds."""
    gateway = serve(calibrated=False, artifact=noisy_artifact)
    weighted = [row | {"weight": 1.0 + i % 2} for i, row in enumerate(ROWS)]
    assert calibrate(gateway, weighted, dry_run=True, max_weight=2.0) == "fixed"
    for alpha, basis, reasons in ((0.3, "assumed", ["alpha_picked"]), (0.1, "fixed", [])):
        assert calibrate(gateway, weighted, alpha=alpha, max_weight=2.0) == basis
        certificate = gateway.route(ONE)["certificate"]
        assert certificate["guarantee"]["alpha_basis"] == basis
        assert (certificate["holds"], certificate["reasons"]) == (not reasons, reasons)


@pytest.mark.parametrize("stored", [True, False, None])
def test_a_calibration_that_does_not_say_so_has_no_fixed_alpha(
    serve: Serve, stored: bool | None
) -> None:
    """Versions that did not store it had shown the curve of any rows."""
    gateway = serve()
    with Store(gateway.settings.store) as store:
        record = store.record(gateway.ready()["calibration"])
    text, arrays = record.encoded()
    document = json.loads(text)
    del document["options"]["is_alpha_fixed"]
    if stored is not None:
        document["options"]["is_alpha_fixed"] = stored
    read = CalibrationRecord.decoded("cal-1", "", "", json.dumps(document), arrays)
    assert read.calibration.options.is_alpha_fixed is bool(stored)


def test_a_key_that_lowers_the_alpha_of_weighted_rows_is_an_assumption(
    serve: Serve, noisy_artifact: Path
) -> None:
    """They have no band that would bound every alpha; a whole pool needs none."""
    secret = key_format.new_key()
    written = key_format.format_hash(secret, key_format.new_salt())
    access = {"keys": [{"name": "team", "hash": written, "max_alpha": 0.05}]}
    gateway = serve(calibrated=False, artifact=noisy_artifact, access=access)
    weighted = [row | {"weight": 1.0 + i % 2} for i, row in enumerate(ROWS)]
    for rows, terms, basis, reasons in (
        (ROWS, {}, "band", []),
        (weighted, {"max_weight": 2.0}, "assumed", ["alpha_assumed_independent_of_query"]),
    ):
        assert calibrate(gateway, rows, **terms) == "fixed"
        certificate = gateway.post("/route", secret, json={"query": ONE}).json()["certificate"]
        assert (certificate["guarantee"]["alpha"], certificate["guarantee"]["trivial"]) == (
            0.05,
            False,
        )
        assert certificate["guarantee"]["alpha_basis"] == basis
        assert (certificate["holds"], certificate["reasons"]) == (True, reasons)
