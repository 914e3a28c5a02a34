"""Rows whose curve was shown: an alpha picked from it is certified by the band alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from app.calibrations import seen_rows
from app.calibrations.seen_rows import SeenRows
from app.store import Store
from tests.support.gateway import ADMIN_KEY, ONE, Gateway, Serve, as_json, noisy

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
        assert SeenRows(one).fixed_terms("a") is None
        SeenRows(one).add("a", [["first"]])
        SeenRows(other).add("a", [["second"]])
        assert SeenRows(other).fixed_terms("a") == [["first"]]
        for digest in "bcd":
            SeenRows(other).add(digest, [])
        assert [SeenRows(one).fixed_terms(each) for each in "abcd"] == [None, [], [], []]
