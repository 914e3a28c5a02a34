"""`racer calibrations`: history, evidence, activation and rollback of a running gateway."""

from __future__ import annotations

import json

import pytest

from app.cli.calibration_report import sentence, warnings
from app.tools.gateway_client import GatewayClient
from tests.kit.command_results import failed, parsed
from tests.kit.gateway import ADMIN_KEY, DATA_KEY, Command, Gateway, Serve
from tests.kit.waiting import wait_until


@pytest.fixture
def at(serve: Serve, gateway_of: list[Gateway]) -> list[object]:
    """How the gateway of a test is reached."""
    gateway_of.append(serve(calibrated=False))
    return ["--url", gateway_of[0].url, "--key", ADMIN_KEY]


@pytest.fixture
def gateway_of() -> list[Gateway]:
    """The gateway of a test, once it runs."""
    return []


def test_history_activation_and_rollback(
    racer: Command, at: list[object], gateway_of: list[Gateway]
) -> None:
    """Back to what was active when the active one was made; forward by its id."""
    (gateway,) = gateway_of
    for command in ("show", "rollback"):
        failed(racer("calibrations", command, *at), 1, "no calibration is active")
    failed(racer("calibrations", "activate", "cal-0", *at), 1, "404")
    first = gateway.calibrate(60)["id"]
    second = gateway.calibrate(80, alpha=0.2)["id"]
    third = gateway.calibrate(100, alpha=0.2, activate=False)["id"]
    listed = parsed(racer("calibrations", "list", *at, "--json"))["calibrations"]
    assert [(each["id"], each["active"]) for each in listed] == [
        (third, False), (second, True), (first, False),
    ]  # fmt: skip
    table = racer("calibrations", "list", *at)[1]
    (active,) = [line for line in table.splitlines() if "active" in line]
    assert second in active
    assert "0.2" in active
    shown = racer("calibrations", "show", *at)[1]
    assert f"{second}, active" in shown
    assert "At alpha 0.2: " in shown
    assert parsed(racer("calibrations", "show", first, *at, "--json"))["evidence"]["alpha"] == 0.1
    code, out, err = racer("calibrations", "rollback", *at)
    assert (code, out.startswith(f"{first} is active. At alpha 0.1: ")) == (0, True), out
    assert "its certificates are void (chosen_by_figures)" in err
    assert gateway.ready()["calibration"] == first
    failed(racer("calibrations", "rollback", *at), 1, "is the first that became active")
    result = parsed(racer("calibrations", "activate", third, *at, "--json"))
    assert (result["id"], result["active"]) == (third, True)
    assert gateway.ready()["calibration"] == third
    failed(racer("calibrations", "list", *at[:3], DATA_KEY), 1, "admin key")


def test_too_few_rows_are_not_activated(
    racer: Command, at: list[object], gateway_of: list[Gateway]
) -> None:
    """Every request would call all candidates."""
    (gateway,) = gateway_of
    many = gateway.calibrate(60)["id"]
    few = gateway.calibrate(2, activate=False)["id"]
    failed(racer("calibrations", "activate", few, *at), 1, "409", "add rows")
    assert gateway.ready()["calibration"] == many


def test_a_canary_decides_a_share_and_is_promoted(
    racer: Command, at: list[object], gateway_of: list[Gateway]
) -> None:
    """The active one stays until the canary is activated without a share.

    The list marks both and has what they have realised.
    """
    (gateway,) = gateway_of
    first = gateway.calibrate(60)["id"]
    second = gateway.calibrate(80, activate=False)["id"]
    code, out, _ = racer("calibrations", "activate", second, "--canary", 0.25, *at)
    assert (code, out.startswith(f"{second} decides 0.25 of the requests. ")) == (0, True), out
    assert gateway.ready()["calibration"] == first
    sizes: dict[str, list[int]] = {first: [], second: []}
    for number in range(40):
        answer = gateway.route(f"What is {number} plus 7?")
        sizes[answer["certificate"]["calibration_id"]].append(len(answer["selected"]))
    result = parsed(racer("calibrations", "list", *at, "--json"))
    shares = {each["id"]: each.get("share") for each in result["calibrations"]}
    assert shares == {first: None, second: 0.25}
    assert result["canary"]["calibration_id"] == second
    lines = racer("calibrations", "list", *at)[1].splitlines()
    assert any(second in line and "canary of 0.25" in line for line in lines)
    assert any(first in line and "active" in line for line in lines)
    for each, decided in sizes.items():
        expected = [each, "-", str(len(decided)), f"{sum(decided) / len(decided):.2f}"]
        wait_until(  # decisions are stored after their answers
            lambda wanted=expected: any(
                line.split()[:4] == wanted
                for line in racer("calibrations", "list", *at)[1].splitlines()
            )
        )
    assert f"{second}, canary of 0.25" in racer("calibrations", "show", second, *at)[1]
    assert racer("calibrations", "activate", second, *at)[0] == 0
    assert gateway.ready()["calibration"] == second
    assert "canary" not in racer("calibrations", "list", *at)[1]


def test_a_rollback_ends_a_canary_first(
    racer: Command, at: list[object], gateway_of: list[Gateway]
) -> None:
    """The active one stays, though it has a predecessor; the next rollback goes to that one."""
    (gateway,) = gateway_of
    first = gateway.calibrate(60)["id"]
    second = gateway.calibrate(80)["id"]
    third = gateway.calibrate(100, activate=False)["id"]
    assert gateway.activate(third, share=0.25).status_code == 200
    code, out, _ = racer("calibrations", "rollback", *at)
    assert code == 0
    assert out.startswith(f"the canary {third} is ended. {second} is active. "), out
    assert gateway.ready()["calibration"] == second
    assert gateway.get("/calibrations", ADMIN_KEY).json()["canary"] is None
    assert gateway.activate(third, share=0.25).status_code == 200
    code, out, _ = racer("calibrations", "rollback", "--json", *at)
    assert (code, json.loads(out)["ended_canary"]) == (0, third)
    code, out, _ = racer("calibrations", "rollback", "--json", *at)
    assert (code, json.loads(out)["ended_canary"]) == (0, None)
    assert gateway.ready()["calibration"] == first


def test_the_promise_same_answer_has_no_canary(
    racer: Command, at: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The option is refused, where it would be ignored and the calibration decide everything."""
    activated: list[str] = []
    monkeypatch.setattr(GatewayClient, "answer_calibrations", lambda _: {"sac-1": {"id": "sac-1"}})
    monkeypatch.setattr(GatewayClient, "activate_answers", lambda _, name: activated.append(name))
    words = ("same_answer", "--canary")
    failed(racer("calibrations", "activate", "sac-1", "--canary", 0.1, *at), 2, *words)
    assert activated == []


EVIDENCE = {
    "alpha": 0.1, "mean_size": 2.1, "abstain": 0.0, "feasible": True, "n": 90, "rows": 100,
    "lambda_hat": 0.2, "min_n": 9, "score": "gap", "risk_target": "answerable", "delta": None,
    "alpha_basis": "fixed",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "shift", "words"),
    [
        ({}, None, "At alpha 0.1: 2.10 calls a request on average, and at most 0.1"),
        ({}, {"mean_size": 2.4}, "2.10 calls instead of 2.40 a request"),
        (
            {},
            {"mean_size": 2.4, "alpha": 0.2, "score": "cover", "risk_target": "paper"},
            "2.10 calls instead of 2.40 (at alpha 0.2, score cover, risk target paper) a request",
        ),
        ({"conditions": {"digests": ["a", "b", "c"]}}, None, "2.10 calls of 3 a request"),
        ({"abstain": 0.08}, None, "none for 8.0% of the requests"),
        ({"delta": 0.05}, None, "(with confidence 0.95)"),
        ({"risk_target": "quality"}, None, "fall short of the best one by at most 0.1"),
        ({"risk_target": "paper"}, None, "at most 0.1 of the sets lack a right candidate"),
        ({"answer_risk": {"upper": 0.2}}, None, "final answers at most 0.2 are wrong"),
        ({"alpha_basis": "band", "risk_band": 0.15}, None, "at most 0.15 of the requests"),
        ({"alpha_basis": "band", "risk_band": None}, None, "no bound on the risk is certified"),
        ({"feasible": False, "n": 3}, None, "3 rows are too few for alpha 0.1"),
        ({"lambda_hat": None, "n": 9, "unlabelled": 2}, None, "2 of 9 rows have no label"),
    ],
)
def test_the_sentence(changes: dict[str, object], shift: dict[str, float], words: str) -> None:
    """What a reader without the method understands."""
    assert words in sentence(EVIDENCE | changes, shift)


NOT_KEPT = {"answer_risk_max": 0.2, "passed": 0, "smallest": 0.3}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"overlap": 7, "overlap_voids": True}, "7 rows trained the router"),
        ({"alpha_basis": "band", "risk_band": 0.15}, "that certificates state is 0.15"),
        ({"shift": {"alert": "the mean set changes"}}, "the mean set changes"),
        ({"answer_limit": NOT_KEPT}, "would have passed is 0.3: test it on other rows"),
        ({"answer_limit": NOT_KEPT | {"smallest": None}}, "certify none: add rows"),
    ],
)
def test_what_voids_certificates_is_said(changes: dict[str, object], words: str) -> None:
    """Red when a calibration looks good that certifies nothing."""
    assert list(warnings(EVIDENCE)) == []
    (found,) = warnings(EVIDENCE | changes)
    assert words in found
