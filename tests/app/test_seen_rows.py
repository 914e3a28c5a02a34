"""Rows whose curve was shown: an alpha picked from it is certified by the band alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.calibrations import seen_rows
from app.calibrations.seen_rows import SeenRows
from app.store import KeyPurpose, Store
from tests.kit.accounts import configured_key
from tests.kit.gateway import (
    ADMIN_KEY,
    ENVIRONMENT,
    ONE,
    POOL,
    Gateway,
    Serve,
    as_json,
    configure,
    noisy,
    running,
    user,
)
from tests.kit.lazy import LazyModule
from tests.kit.upstream import FakePool

stats = LazyModule("scipy.stats")

ROWS = as_json(noisy(20_000, 150))
OTHERS = as_json(noisy(30_000, 150))
TRIALS = 500
UNDECLARED: dict[str, Any] = {"levels": []}


def calibrate(gateway: Gateway, rows: list[dict[str, Any]], **options: Any) -> str:
    """The basis of alpha in the evidence of an upload that is accepted."""
    body = {"rows": rows, **options}
    response = gateway.post("/calibrate", ADMIN_KEY, json=body)
    assert response.status_code == 200, response.text
    return response.json()["evidence"]["alpha_basis"]


def served(gateway: Gateway) -> dict[str, Any]:
    """What a certificate says about alpha."""
    guarantee = gateway.route(ONE)["certificate"]["guarantee"]
    assert (guarantee["risk_band"] is None) == (guarantee["alpha_basis"] == "fixed")
    return {name: guarantee[name] for name in ("alpha", "alpha_basis")}


def test_an_alpha_picked_from_the_curve_is_certified_by_the_band(serve: Serve) -> None:
    """A dry run shows the curve, an error does not; the configured alpha was fixed before."""
    gateway = serve(calibrated=False, routing=UNDECLARED)
    refused = {"rows": OTHERS, "max_weight": 2.0}
    assert gateway.post("/calibrate", ADMIN_KEY, json=refused).status_code == 422
    assert calibrate(gateway, OTHERS, alpha=0.2, activate=False) == "fixed"
    assert calibrate(gateway, ROWS, alpha=0.2, dry_run=True) == "band"
    assert calibrate(gateway, ROWS, alpha=0.2) == "band"
    assert served(gateway) == {"alpha": 0.1, "alpha_basis": "fixed"}
    # Of the active calibration it is the level that its evidence shows, and none that was declared.
    assert calibrate(gateway, ROWS[::-1], alpha=0.2) == "band"
    assert calibrate(gateway, ROWS) == "fixed"
    assert served(gateway) == {"alpha": 0.1, "alpha_basis": "fixed"}


def test_an_alpha_stated_with_new_rows_is_fixed(serve: Serve) -> None:
    """Also where they are uploaded again; another alpha, score or target is picked.

    Until it is configured, too, the configured level is one of two that could be chosen.
    """
    gateway = serve(calibrated=False, routing=UNDECLARED)
    assert calibrate(gateway, ROWS, alpha=0.2) == "fixed"
    assert served(gateway) == {"alpha": 0.1, "alpha_basis": "declared"}
    assert calibrate(gateway, ROWS, alpha=0.2, activate=False) == "fixed"
    for picked in ({"alpha": 0.15}, {"score": "prob"}, {"risk_target": "paper"}, {"delta": 0.1}):
        assert calibrate(gateway, ROWS, activate=False, **{"alpha": 0.2, **picked}) == "band"
    assert calibrate(gateway, OTHERS, dry_run=True) == "fixed"
    assert calibrate(gateway, OTHERS, alpha=0.2) == "band"


def test_other_terms_are_fixed_with_the_configured_alpha(serve: Serve) -> None:
    """Those of a first upload, and those of the active calibration before other rows are seen."""
    gateway = serve(calibrated=False, routing=UNDECLARED)
    assert calibrate(gateway, ROWS, delta=0.1) == "fixed"
    assert calibrate(gateway, ROWS, activate=False) == "fixed"
    assert calibrate(gateway, ROWS, delta=0.2, activate=False) == "band"
    assert calibrate(gateway, OTHERS, dry_run=True) == "fixed"
    assert calibrate(gateway, OTHERS, delta=0.1) == "fixed"
    assert calibrate(gateway, OTHERS, delta=0.2) == "band"


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


def test_only_terms_that_every_earlier_upload_fixed_are_fixed(database: str) -> None:
    """Rows of two uploads: the curve of the one was shown before the terms of the other."""
    one, other = hashes_of(300, 1), hashes_of(300, 2)
    with Store(database) as store:
        seen = SeenRows(store)
        seen.add("one", one, [["both"], ["of one"]])
        seen.add("other", other, [["of the other"], ["both"]])
        assert seen.fixed_terms(np.concatenate([one, other])) == [["both"]]


def hashes_of(count: int, seed: int) -> NDArray[np.uint64]:
    """Random hashes, ascending."""
    return np.unique(np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64))


@pytest.mark.parametrize(
    ("earlier", "count"),
    [(20, 20), (2_000, 20), (200_000, 20), (2_000, 1_000), (200_000, 1_000), (2_000, 20_000)],
)
@pytest.mark.parametrize("uploads", [1, 3])
def test_a_twentieth_of_shown_rows_is_recognised(
    tmp_path: Path, earlier: int, count: int, uploads: int
) -> None:
    """Always: with every query stored, the share is known, whatever the sizes.

    A smaller share is not, and queries that no upload had are not: no hash of 64 bits is shared.
    """
    with Store(f"sqlite:///{tmp_path / 'racer.db'}") as store:
        seen = SeenRows(store)
        before = [hashes_of(earlier, seed) for seed in range(uploads)]
        for number, each in enumerate(before):
            seen.add(f"{number}", each, [["first"], [f"of {number}"]])
        others, shown = hashes_of(count, 9), count // 20
        pool = np.concatenate([each[: shown // uploads + 1] for each in before])[:shown]
        assert len(pool) == shown
        assert seen.fixed_terms(others) is None
        assert seen.fixed_terms(np.concatenate([pool[1:], others[shown - 1 :]])) is None
        found = seen.fixed_terms(np.concatenate([pool, others[shown:]]))
        assert found is not None
        assert ["first"] in found


def test_repeats_of_traffic_are_a_false_alarm_at_their_binomial_rate(tmp_path: Path) -> None:
    """Of 500 uploads of 20 queries, each of which was in an earlier upload by 1 %.

    The number of alarms is binomial; the test fails by chance with probability 1e-6.
    """
    rng = np.random.default_rng(5)
    before = hashes_of(10_000, 1)
    with Store(f"sqlite:///{tmp_path / 'racer.db'}") as store:
        seen = SeenRows(store)
        seen.add("a", before, [])
        alarms = 0
        for _ in range(TRIALS):
            new = rng.integers(0, 2**64, 20, dtype=np.uint64)
            repeats = rng.random(20) < 0.01
            new[repeats] = rng.choice(before, int(repeats.sum()), replace=False)
            alarms += seen.fixed_terms(new) is not None
    low, high = stats.binom.interval(1 - 1e-6, TRIALS, stats.binom.sf(0, 20, 0.01))
    assert low <= alarms <= high
    assert stats.binom.sf(4, 100, 0.01) < 0.004
    assert stats.binom.sf(0, 10, 0.01) < 0.1


@pytest.mark.parametrize("group", ["bot", None])
def test_a_shown_group_of_a_large_upload_is_recognised(database: str, group: str | None) -> None:
    """Three in a hundred rows of the upload are all the rows of one application."""
    shown, others = hashes_of(30, 1), hashes_of(970, 2)
    groups = [group] * 30 + ["search"] * 970
    with Store(database) as store:
        seen = SeenRows(store)
        seen.add("a", shown, [["first"]])
        upload = np.concatenate([shown, others])
        assert seen.fixed_terms(upload) is None
        assert seen.fixed_terms(upload, groups) == [["first"]]
        assert seen.fixed_terms(others, groups[30:]) is None


def test_large_sets_of_rows_are_forgotten_by_their_bytes(database: str, monkeypatch: Any) -> None:
    """The newest stays, however large."""
    monkeypatch.setattr(seen_rows, "MAX_BYTES", 8 * 300)
    hashes = {name: hashes_of(size, size) for name, size in (("a", 100), ("b", 101), ("c", 400))}
    with Store(database) as store:
        seen = SeenRows(store)
        for name, each in hashes.items():
            seen.add(name, each, [[name]])
            assert seen.fixed_terms(each) == [[name]]
        assert seen.fixed_terms(hashes["a"]) is None


@pytest.mark.parametrize("purpose", KeyPurpose)
def test_a_key_of_one_purpose_is_the_stores(
    database: str, tmp_path: Path, purpose: KeyPurpose
) -> None:
    """All gateways on it have one key, for good; another purpose or store has another."""
    with Store(database) as one, Store(database) as other:
        with ThreadPoolExecutor(8) as threads:
            made = [threads.submit(each.key, purpose) for each in [one, other] * 4]
            keys = {each.result() for each in made}
        assert {one.key(purpose)} == keys
        assert len({one.key(each) for each in KeyPurpose}) == len(KeyPurpose)
    with Store(f"sqlite:///{tmp_path / 'other.db'}") as another:
        assert another.key(purpose) not in keys


def test_another_artifact_forgets_no_row(
    tmp_path: Path, artifact: Path, noisy_artifact: Path, pool: FakePool
) -> None:
    """Artifacts have salts of their own; the rows are the same."""
    basis: list[str] = []
    for trained in (artifact, noisy_artifact):
        path = configure(tmp_path, trained, pool.url, routing=UNDECLARED)
        with running(path, ENVIRONMENT) as gateway:
            basis.append(calibrate(gateway, ROWS, alpha=0.3, activate=False))
            if len(basis) == 1:
                assert calibrate(gateway, OTHERS, dry_run=True) == "fixed"
            else:
                basis.append(calibrate(gateway, OTHERS, alpha=0.3, activate=False))
    assert basis == ["fixed", "fixed", "band"]


def test_a_changed_file_of_shown_rows_was_seen(serve: Serve) -> None:
    """One row less or more, a space, another label, whole requests; other rows were not."""
    gateway = serve(calibrated=False, routing=UNDECLARED)
    assert calibrate(gateway, ROWS, dry_run=True) == "fixed"
    spaced = [{**ROWS[0], "query": ROWS[0]["query"] + " "}, *ROWS[1:]]
    relabelled = [{**ROWS[0], "correct": dict.fromkeys(POOL, True)}, *ROWS[1:]]
    requests = [
        {"request": {"messages": user(row["query"]), "seed": 1}, "correct": row["correct"]}
        for row in ROWS
    ]
    swapped = ROWS[:-1] + OTHERS[:1]
    for changed in (ROWS[:-1], swapped, ROWS + OTHERS[:50], spaced, relabelled, requests):
        assert calibrate(gateway, changed, alpha=0.2, activate=False) == "band"
    assert calibrate(gateway, OTHERS[50:], alpha=0.25) == "fixed"


def test_weighted_rows_with_a_picked_alpha_promise_nothing(
    tmp_path: Path, noisy_artifact: Path, pool: FakePool
) -> None:
    """They have no band, and declared levels have no law; the configured alpha holds."""
    weighted = [row | {"weight": 1.0 + i % 2} for i, row in enumerate(ROWS)]
    with running(configure(tmp_path, noisy_artifact, pool.url), ENVIRONMENT) as gateway:
        assert calibrate(gateway, weighted, dry_run=True, max_weight=2.0) == "fixed"
        assert calibrate(gateway, weighted, alpha=0.3, max_weight=2.0) == "assumed"
        for alpha, basis, reasons in ((0.2, "assumed", ["alpha_picked"]), (0.1, "fixed", [])):
            configure(tmp_path, noisy_artifact, pool.url, routing={"alpha": alpha})
            assert gateway.post("/admin/reload", ADMIN_KEY).status_code == 200
            found = gateway.ask(ONE)
            certificate = found.json()["racer"]["certificate"]
            assert certificate["guarantee"]["alpha_basis"] == basis
            assert (certificate["holds"], certificate["reasons"]) == (not reasons, reasons)
            assert found.headers["x-racer-bound"] == ("none" if reasons else "0.1")


def test_a_key_that_lowers_the_alpha_of_weighted_rows_is_an_assumption(
    serve: Serve, noisy_artifact: Path
) -> None:
    """They have no band that would bound every alpha; a whole pool needs none."""
    secret, line = configured_key("team", max_alpha=0.05)
    gateway = serve(
        calibrated=False,
        artifact=noisy_artifact,
        access={"keys": [line]},
        routing=UNDECLARED,
    )
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
