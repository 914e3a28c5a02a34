"""The configured risk level is served: after a reload, after a restart, by application."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.calibrations.served_level import PAGE
from racer_core.calibration.laws import beta_quantile
from tests.kit.gateway import (
    ADMIN_KEY,
    ENVIRONMENT,
    ONE,
    Command,
    Gateway,
    as_json,
    configure,
    noisy,
    running,
)
from tests.kit.upstream import FakePool

ROWS = as_json(noisy(20_000, 250))
OTHERS = as_json(noisy(30_000, 250))

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, artifact: Path, pool: FakePool) -> Write:
    """Write a configuration of one gateway; its store stays."""

    def configured(alpha: float, levels: list[float] | None = None, **changes: Any) -> Path:
        routing = {"alpha": alpha} | ({} if levels is None else {"levels": levels})
        return configure(tmp_path / "gateway", artifact, pool.url, routing=routing, **changes)

    return configured


def reloaded(gateway: Gateway) -> list[str]:
    """The settings that a reload took over."""
    response = gateway.post("/admin/reload", ADMIN_KEY)
    assert response.status_code == 200, response.text
    return response.json()["changed"]


def guarantee(gateway: Gateway, **options: Any) -> dict[str, Any]:
    """The guarantee of a request that chooses no level."""
    return gateway.route(ONE, **options)["certificate"]["guarantee"]


def served(gateway: Gateway) -> tuple[float, str, str]:
    """Level and bound in the headers, and the basis in the certificate, which has the same."""
    response = gateway.ask(ONE)
    found = response.json()["racer"]["certificate"]["guarantee"]
    bound, _, confidence = response.headers["x-racer-bound"].partition(";confidence=")
    assert response.headers["x-racer-guarantee"] == "holds"
    assert response.headers["x-racer-alpha"] == f"{found['alpha']:g}"
    assert float(bound) == found["bound"]["value"]
    assert (float(confidence) if confidence else None) == found["bound"]["confidence"]
    return found["alpha"], bound, found["alpha_basis"]


def test_a_reload_and_a_restart_serve_the_configured_level(write: Write) -> None:
    """With the threshold of that level, and the bound that holds for it."""
    with running(write(0.1, []), ENVIRONMENT) as gateway:
        gateway.upload(ROWS)
        assert served(gateway) == (0.1, "0.1", "fixed")
        before = gateway.route(ONE)["certificate"]["lambda_hat"]
        asked = gateway.route(ONE, alpha=0.05)["certificate"]
        write(0.05, [])
        assert reloaded(gateway) == ["routing.alpha"]
        after = gateway.route(ONE)["certificate"]
        assert after["lambda_hat"] == asked["lambda_hat"] > before
        assert after["guarantee"]["risk_band"] == asked["guarantee"]["risk_band"]
        now = served(gateway)
        assert (now[0], now[2]) == (0.05, "band")
        assert float(now[1]) > 0.05
        levels = gateway.get("/route/levels").json()
        assert levels["alpha"] == 0.05
        ready = gateway.ready()["level"]
        assert ready == {"alpha": 0.05, "bound": after["guarantee"]["bound"]}
    with running(write(0.05, []), ENVIRONMENT) as gateway:
        assert served(gateway) == now
        write(0.1, [])
        reloaded(gateway)
        assert served(gateway) == (0.1, "0.1", "fixed"), "it was fixed before the rows"


def test_the_level_of_an_application_is_served(write: Write) -> None:
    """Its own, else that of `routing`; what the others have stays."""
    keys = {"keys": ["data"]}
    with running(write(0.1, [], applications={"bot": keys | {"alpha": 0.2}}), ENVIRONMENT) as one:
        one.upload([{**each, "application": "bot"} for each in ROWS])
        assert served(one) == (0.2, "0.2", "fixed")
        write(0.1, [], applications={"bot": keys | {"alpha": 0.05}})
        assert reloaded(one) == ["applications.bot.alpha"]
        assert served(one)[::2] == (0.05, "band")
        write(0.07, [], applications={"bot": keys})
        reloaded(one)
        assert served(one)[::2] == (0.07, "band")


def test_a_level_that_was_declared_has_the_smaller_bound(write: Write) -> None:
    """The union over the declared levels; the level in force before the rows has alpha itself."""
    with running(write(0.1, [0.05, 0.1, 0.2]), ENVIRONMENT) as gateway:
        n = gateway.upload(ROWS)["evidence"]["n"]
        for alpha in (0.05, 0.2):
            write(alpha, [0.05, 0.1, 0.2])
            reloaded(gateway)
            found = guarantee(gateway)
            assert found["alpha_basis"] == "declared"
            most = beta_quantile(1.0 - 0.05 / 3, int(alpha * (n + 1)), n + 1 - int(alpha * (n + 1)))
            assert alpha < found["bound"]["value"] <= most + 0.001
            assert found["bound"]["confidence"] == 0.95
        # A list that is longer now was not declared before the rows.
        write(0.03, [0.03, 0.05, 0.1, 0.2])
        reloaded(gateway)
        assert guarantee(gateway)["alpha_basis"] == "band"
        gateway.upload(ROWS)
        assert guarantee(gateway)["alpha_basis"] == "band", "the same rows were shown before"
        gateway.upload(OTHERS)
        assert guarantee(gateway)["alpha_basis"] == "fixed"


def test_a_calibration_for_another_level_says_what_is_served(write: Write) -> None:
    """It is fixed with the rows, as what `racer bootstrap` states; the configuration serves."""
    with running(write(0.1), ENVIRONMENT) as gateway:
        made = gateway.upload(ROWS, alpha=0.2)
        assert made["evidence"]["alpha"] == 0.2
        assert made["served"]["alpha"] == 0.1
        assert "`routing.alpha: 0.2`" in made["served"]["remark"]
        assert served(gateway)[::2] == (0.1, "declared")
        write(0.2)
        reloaded(gateway)
        assert served(gateway) == (0.2, "0.2", "fixed")
        assert gateway.upload(OTHERS)["served"]["remark"] is None


def test_doctor_states_the_served_level_and_its_bound(write: Write, racer: Command) -> None:
    """The edited level is served by the next start; a page says how to change it."""
    path = write(0.1)
    with running(path, ENVIRONMENT) as gateway:
        gateway.upload(ROWS)

    def found() -> dict[str, str]:
        out = racer("doctor", "--config", path, "--json")[1]
        return next(e for e in json.loads(out)["findings"] if e["check"] == "risk level")

    assert found()["state"] == "OK"
    assert found()["found"] == "alpha 0.1 is served: at most 0.1 on average"
    write(0.05)
    assert found()["state"] == "warning"
    with running(path, ENVIRONMENT) as gateway:
        bound = guarantee(gateway)["bound"]["value"]
    assert found()["found"] == f"alpha 0.05 is served: at most {bound:g} with confidence 0.95"
    assert "new rows" in found()["cure"]
    assert PAGE in found()["cure"]
    assert Path(PAGE).is_file()
