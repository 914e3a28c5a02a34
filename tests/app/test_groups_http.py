"""Groups over HTTP: the threshold that applies, and its statement in the certificate."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.routing.active_calibration import ActiveCalibration
from app.routing.conditions import ConditionReader
from app.routing.groups import GroupedRows, Grouping, GroupThreshold, language_detector
from app.store.calibration_record import CalibrationRecord, Population
from app.telemetry.metrics import Metrics
from racer_core.calibration.calibration import Calibration
from racer_core.calibration.options import SMOOTHING_SALT, CalibrationOptions
from racer_core.racer import Racer
from racer_core.types import LabelledRows, Score
from tests.kit.accounts import configured_key
from tests.kit.case import Shared
from tests.kit.gateway import POOL, TWO, Gateway, Restart, Serve, as_json, labelled, noisy
from tests.kit.monitored import calibration_record

SIZES = {"easy": (20_000, 240, 0.05), "hard": (30_000, 240, 0.45), "tiny": (40_000, 3, 0.3)}
GROUPS = {name: noisy(start, n, flipped=f) for name, (start, n, f) in SIZES.items()}
GERMAN = "Vergleiche bitte die Zahl drei mit der Zahl vier und antworte mit einem Wort"


def rows_of(groups: dict[str | None, LabelledRows]) -> list[dict[str, Any]]:
    """Rows as they are uploaded, each with its group."""
    return [
        row | ({} if name is None else {"group": name})
        for name, rows in groups.items()
        for row in as_json(rows)
    ]


@pytest.fixture
def grouped(shared: Shared, noisy_artifact: Path) -> Gateway:
    """A gateway whose rows are of an easy group, a hard one and a tiny one, and of none."""
    routing = {"alpha": 0.2}
    case = shared(artifact=noisy_artifact, calibrated=False, group="groups", routing=routing)
    return case.gateway.once(rows_of({**GROUPS, None: noisy(50_000, 100)}), alpha=0.2)


@pytest.fixture(scope="module")
def oracle(noisy_artifact: Path) -> Calibration:
    """The core's own calibration of the same rows, with nothing of the gateway in between."""
    racer = Racer.load(noisy_artifact)
    rows = [replace(row, group=name) for name, rows in GROUPS.items() for row in rows.rows]
    rows += noisy(50_000, 100).rows
    options = CalibrationOptions(
        smoothing_salt=SMOOTHING_SALT,
        alpha=0.2,
        score=Score.GAP,
        null_threshold=racer.artifact.null_threshold,
    )
    return racer.calibrate(LabelledRows(pool=POOL, rows=tuple(rows)), options=options)


def certified(gateway: Gateway, query: str = TWO, **options: Any) -> dict[str, Any]:
    """The certificate of a decision."""
    return gateway.route(query, **options)["certificate"]


# Whose threshold ------------------------------------------------------------------------------


@pytest.mark.parametrize("group", ["easy", "hard", None])
def test_a_group_with_rows_enough_has_its_own_threshold(
    grouped: Gateway, oracle: Calibration, group: str | None
) -> None:
    """That of its rows alone, for every alpha; rows without a group are one, too."""
    several = [oracle.group("easy"), oracle.group("hard"), oracle.group(None), oracle]
    assert len({each.lambda_hat(0.2, Score.GAP) for each in several}) == 4
    own = oracle.group(group)
    for alpha in (0.1, 0.2, 0.4):
        certificate = certified(grouped, group=group, alpha=alpha)
        assert certificate["guarantee"]["group"] == group
        assert certificate["lambda_hat"] == own.lambda_hat(alpha, Score.GAP)
        assert certificate["n"] == own.n
        assert certificate["holds"]
        is_assumed = "group_assumed_independent_of_query" in certificate["reasons"]
        assert is_assumed == (group is not None)
    assert certified(grouped)["reasons"] == []  # where none was chosen


def test_a_group_with_too_few_rows_calls_the_whole_pool(
    grouped: Gateway, oracle: Calibration
) -> None:
    """It is not joined with other groups: which ones are would depend on the counts."""
    certificate = certified(grouped, group="tiny")
    assert certificate["guarantee"]["group"] == "tiny"
    assert (certificate["lambda_hat"], certificate["n"]) == (None, oracle.group("tiny").n)
    assert "alpha_infeasible_whole_pool" in certificate["reasons"]
    assert certificate["holds"]
    assert sorted(grouped.route(TWO, group="tiny")["selected"]) == sorted(POOL)


def test_all_rows_decide_without_a_promise_for_a_group_without_rows(
    grouped: Gateway, oracle: Calibration
) -> None:
    """They are no sample of its population; the certificate is void."""
    certificate = certified(grouped, group="unheard-of")
    assert certificate["guarantee"]["group"] is None
    assert certificate["lambda_hat"] == oracle.lambda_hat(0.2, Score.GAP)
    assert certificate["n"] == oracle.n
    assert not certificate["holds"]
    assert "group_uncalibrated" in certificate["reasons"]


def test_alpha_moves_the_threshold_and_not_the_rows(grouped: Gateway) -> None:
    """A group too small for an alpha calls the whole pool, and the certificate names the group."""
    certificate = certified(grouped, group="easy", alpha=0.001)
    stated = {"group": "easy", "alpha": 0.001, "trivial": True, "alpha_basis": "band"}
    assert certificate["guarantee"].items() >= stated.items()
    assert certificate["guarantee"]["risk_band"] == 0.0
    assert "alpha_infeasible_whole_pool" in certificate["reasons"]


def test_a_smaller_pool_keeps_its_groups(grouped: Gateway, oracle: Calibration) -> None:
    """The group's rows, and the threshold of these candidates."""
    names = ["adder", "poet"]
    own = oracle.restrict(names).group("hard")
    certificate = certified(grouped, group="hard", candidates=names)
    assert certificate["guarantee"]["group"] == "hard"
    assert certificate["guarantee"]["pool"] == names
    assert certificate["lambda_hat"] == own.lambda_hat(0.2, Score.GAP)
    assert certificate["n"] == own.n


@pytest.mark.parametrize("group_by", ["request", "key"])
def test_a_request_without_a_group_is_no_sample_of_groups(serve: Serve, group_by: str) -> None:
    """Where every row has a group: all rows choose its set, and certify nothing."""
    gateway = serve(calibrated=False, routing={"group_by": group_by})
    stored = gateway.upload(rows_of({name: GROUPS[name] for name in ("easy", "hard")}), alpha=0.2)
    certificate = certified(gateway)
    assert certificate["guarantee"]["group"] is None
    assert certificate["n"] == stored["evidence"]["n"]
    assert (certificate["holds"], certificate["reasons"]) == (False, ["group_uncalibrated"])


def test_a_group_is_no_sample_of_other_conditions_without_groups(
    serve: Serve, noisy_artifact: Path
) -> None:
    """Groups are declared for an upload: its rows without one are no rows of a group."""
    gateway = serve(calibrated=False, artifact=str(noisy_artifact))
    fields = ConditionReader(gateway.settings.candidates).read({"seed": 5}).digests
    seeded = [row | {"conditions": dict(fields)} for row in rows_of({None: noisy(50_000, 60)})]
    gateway.upload(
        [*rows_of({"easy": GROUPS["easy"], None: noisy(60_000, 40)}), *seeded], alpha=0.2
    )
    held = gateway.chat(TWO, seed=5)["racer"]["certificate"]
    assert (held["holds"], held["reasons"]) == (True, ["labelled_conditions"])
    found = gateway.chat(TWO, {"group": "easy"}, seed=5)["racer"]["certificate"]
    assert "group_uncalibrated" in found["reasons"]


@pytest.mark.parametrize("now", ["key", "language"])
def test_rows_that_were_grouped_otherwise_certify_nothing(restart: Restart, now: str) -> None:
    """After a change of `routing.group_by` and a restart the rows' groups are other populations."""
    rows = rows_of({"en": GROUPS["easy"], "hard": GROUPS["hard"], None: labelled(50_000, 60)})
    with restart() as gateway:
        gateway.upload(rows, alpha=0.2)
        assert certified(gateway)["holds"]
    with restart(routing={"group_by": now}) as gateway:
        certificate = certified(gateway)
        assert (certificate["holds"], certificate["reasons"]) == (False, ["grouping_changed"])
        gateway.upload(rows, alpha=0.2)
        assert certified(gateway)["holds"]
    with restart() as gateway:
        certificate = certified(gateway, group="en")
        assert (certificate["holds"], certificate["reasons"][0]) == (False, "grouping_changed")


def test_rows_without_groups_outlive_a_change_of_grouping(restart: Restart) -> None:
    """There is one population under every rule for groups."""
    with restart() as gateway:
        gateway.upload(as_json(GROUPS["easy"]), alpha=0.2)
    with restart(routing={"group_by": "key"}) as gateway:
        assert certified(gateway)["holds"]


# Where the group comes from -------------------------------------------------------------------


def test_a_keys_group_cannot_be_talked_away(serve: Serve) -> None:
    """`routing.group_by: key`: the request's own group is ignored."""
    made = {name: configured_key(name, group=name) for name in ("easy", "hard")}
    made["none"] = configured_key("none")
    keys = [line for _, line in made.values()]
    gateway = serve(calibrated=False, routing={"group_by": "key"}, access={"keys": keys})
    gateway.upload(rows_of({**GROUPS, None: noisy(50_000, 100)}), alpha=0.2)
    for name, (key, _) in made.items():
        body = {"query": TWO, "group": "easy"}
        certificate = gateway.post("/route", key, json=body).json()["certificate"]
        assert certificate["guarantee"]["group"] == (None if name == "none" else name)
        assert "group_assumed_independent_of_query" not in certificate["reasons"]


def test_the_language_of_the_query_decides(serve: Serve) -> None:
    """`routing.group_by: language`: the request's own group is ignored."""
    gateway = serve(calibrated=False, routing={"group_by": "language"})
    german = noisy(30_000, 60)
    german = replace(
        german,
        rows=tuple(
            replace(row, query=f"{GERMAN}, das ist die Frage Nummer {number}")
            for number, row in enumerate(german.rows)
        ),
    )
    gateway.upload(rows_of({"en": noisy(20_000, 100), "de": german}), alpha=0.2)
    english = certified(gateway, TWO, group="de")
    assert english["guarantee"]["group"] == "en"
    assert english["reasons"] == []
    certificate = certified(gateway, GERMAN)
    assert certificate["guarantee"]["group"] == "de"
    assert certificate["n"] == sum(bool(row.correct) for row in german.rows)


def test_rows_get_the_group_that_their_query_would_have() -> None:
    """By language the text decides, in the same way as when serving; else the row's own word."""
    by_language = Grouping.open("language")
    assert by_language.of_row(GERMAN, "en") == "de"
    assert by_language.of_row(GERMAN, "en") == by_language.of_request(GERMAN, "en", "fr")
    assert by_language.of_row("", "en") == "en"
    for group_by in ("request", "key"):
        assert Grouping.open(group_by).of_row(GERMAN, "en") == "en"  # type: ignore[arg-type]
    assert Grouping.open("request").of_request(TWO, "a", "b") == "a"
    assert Grouping.open("key").of_request(TWO, "a", "b") == "b"


@pytest.fixture(scope="module")
def language_of() -> Callable[[str], str]:
    """The detector, whose model takes half a second to load."""
    return language_detector()


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("What is the capital of France, and how many people live there?", "en"),
        (GERMAN, "de"),
        ("Quelle est la capitale de l'Allemagne et combien d'habitants a-t-elle ?", "fr"),
        ("¿Cuál es la raíz cuadrada de dieciséis y por qué?", "es"),
        ("Сколько будет два плюс два?", "ru"),
        ("中国的首都是哪里", "zh"),
        ("17 + 25 = ?", "und"),
        ("ok", "und"),
        ("\x00\ud800", "und"),
    ],
)
def test_languages_are_recognised(
    language_of: Callable[[str], str], text: str, language: str
) -> None:
    """ISO 639 codes; "und" for what is no language, or a guess."""
    assert language_of(text) == language


# How parts are computed -----------------------------------------------------------------------


def big() -> CalibrationRecord:
    """A record of 20,000 rows in two groups and none."""
    made = calibration_record(rows=20_000)
    groups = tuple(np.random.default_rng(0).choice(["a", "b", ""], 20_000).tolist())
    named = tuple(group or None for group in groups)
    calibration = replace(made.calibration, groups=named)
    return replace(made, populations=(replace(made.populations[0], calibration=calibration),))


@pytest.mark.parametrize("seed", range(5))
def test_the_rows_are_those_of_the_core(seed: int) -> None:
    """Row by row what ``Calibration.group`` takes, for large, small and unknown groups."""
    made = calibration_record(seed=seed, rows=80)
    names = np.random.default_rng(seed).choice(["a", "b", "c", ""], 80, p=[0.5, 0.35, 0.05, 0.1])
    calibration = replace(made.calibration, groups=tuple(name or None for name in names.tolist()))
    rows = GroupedRows(calibration)
    for group in ("a", "b", "c", "unheard-of", None):
        found = rows.serving(rows.plan(group))
        is_named = group in (calibration.groups or ())
        expected = calibration.group(group) if is_named else calibration
        assert (found.group, found.is_calibrated) == (group if is_named else None, is_named)
        assert found.calibration.fingerprints == expected.fingerprints


def test_a_groups_calibration_is_computed_once_for_concurrent_requests() -> None:
    """Twenty requests at once; and one that gives up leaves the work to the next."""
    made = big()

    async def story() -> list[GroupThreshold]:
        active = ActiveCalibration(Metrics())
        await active.swap(made)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await active.calibration(made, POOL[:2], "a")
        wanted = [active.calibration(made, POOL[:2], "a") for _ in range(20)]
        return [*await asyncio.gather(*wanted), await active.calibration(made, POOL[:2], "a")]

    first, *others = asyncio.run(story())
    assert first.group == "a"
    assert first.calibration.pool == POOL[:2]
    assert all(each is first for each in others)


def test_invented_groups_fill_no_memory() -> None:
    """All groups without rows are served by one and the same part."""
    made = big()

    async def story() -> set[int]:
        active = ActiveCalibration(Metrics())
        await active.swap(made)
        return {id(await active.calibration(made, POOL, f"invented-{i}")) for i in range(200)}

    assert len(asyncio.run(story())) == 1


def test_a_swap_forgets_the_parts_of_the_record_before() -> None:
    """The threshold of a group is that of the requested record."""
    one, two = big(), big()
    labels = ~two.calibration.labels.astype(bool)
    two = replace(
        two, populations=(Population(calibration=replace(two.calibration, labels=labels)),)
    )

    async def story() -> tuple[float, float, float]:
        active = ActiveCalibration(Metrics())
        await active.swap(one)

        async def threshold(record: CalibrationRecord) -> float:
            part = await active.calibration(record, POOL, "a")
            return part.calibration.lambda_hat(0.1, Score.GAP)

        before = await threshold(one)
        await active.swap(two)
        return before, await threshold(two), await threshold(one)

    before, after, again = asyncio.run(story())
    assert before == again
    assert before != after
    assert not math.isnan(after)
