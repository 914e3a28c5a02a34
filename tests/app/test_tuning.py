"""`racer tune`: its plot, and the written choice, with every other line of the file unchanged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from app import settings
from app.errors import SettingsError
from app.routing.artifact_files import open_racer
from app.settings.editing import Change, as_yaml
from app.tools import tuning
from app.tools.tuning_frontier import HEIGHT, WIDTH, plot
from racer_core.aggregation.answers import Equality
from racer_core.aggregation.vote import Method, Weight
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.offline.train import train
from racer_core.offline.tuning_result import FixedCalls, Trial, Tuning
from racer_core.types import LabelledRows, Score
from tests.kit.command_results import answered, written
from tests.kit.gateway import POOL, Command, as_json, candidates, configure, labelled, noisy


def suggested(**changes: Any) -> Tuning:
    """A search that chose the weighted vote at alpha 0.2."""
    fields: dict[str, Any] = {
        "alpha": 0.2,
        "score": Score.COVER,
        "rule": Method.WEIGHTED,
        "weight": Weight.ROUTER,
        "temperature": 0.3,
        **changes,
    }
    chosen = Trial(**fields, accuracy=0.8, se=0.01, size=1.5, cost=1.5, missed=0.1, proven=True)
    return Tuning(trials=(chosen,), chosen=chosen, slack=0.01, rows=100)


MAJORITY = {"alpha": 0.1, "rule": Method.MAJORITY, "weight": None, "temperature": None}

FILE = """\
# Our gateway.
schema_version: 1
port: 8081   # behind the proxy
artifact: 'router'

candidates:   # in the order of the router
  - name: "adder"
    base_url: http://127.0.0.1:1/v1  # the small one
    parameters: {temperature: 0, stop: ["\\n"]}
  # the middle one
  - name: speller
    base_url: 'http://127.0.0.1:1/v1'
  - name: poet
    base_url: http://127.0.0.1:1/v1

# What we promise.
routing:
  score: "gap"
  # agreed with the team
  alpha: 0.10
  on_abstain: 'error'

aggregation:
  # one vote each
  method: majority
  equality: choice

# Limits of the machine.
limits:
  queue: 12
# the end
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """That configuration."""
    path = tmp_path / "racer.yaml"
    path.write_text(FILE, encoding="utf-8")
    return path


def lines_changed(change: tuning.Change) -> tuple[list[str], list[str]]:
    """Which lines went and which came."""
    diff = change.diff.splitlines()[2:]
    removed, added = ([line[1:] for line in diff if line[0] == sign] for sign in "-+")
    return removed, added


def test_only_the_lines_of_the_choice_change(file: Path) -> None:
    """Comments, order, quotes and indentation of everything else, to the last character."""
    removed, added = lines_changed(tuning.configuration_change(file, suggested()))
    assert removed == ['  score: "gap"', "  alpha: 0.10", "  method: majority"]
    assert sorted(line.split(":")[0].strip() for line in added) == [
        "alpha", "method", "score", "temperature",
    ]  # fmt: skip


def test_nothing_changes_where_the_file_says_it_already(file: Path) -> None:
    """0.10 is 0.1, and what stands in quotes keeps them: the diff is empty."""
    change = tuning.configuration_change(file, suggested(score=Score.GAP, **MAJORITY))
    assert change.diff == ""
    assert change.after == FILE


def test_the_best_equality_is_written_with_the_method(file: Path) -> None:
    """That of the chosen vote, whatever was configured."""
    by_number = suggested(score=Score.GAP, **MAJORITY | {"equality": Equality.NUMBER})
    removed, added = lines_changed(tuning.configuration_change(file, by_number))
    assert (removed, added) == (["  equality: choice"], ["  equality: number"])


def test_changed_settings_are_those_that_are_not_in_force(file: Path) -> None:
    """As lines of YAML; a default that is written down is no change, a removed setting is None."""
    change = tuning.configuration_change(file, suggested())
    in_force = settings.read(file).model_dump(mode="json")
    found = change.settings(in_force)
    after = yaml.safe_load(change.after)
    assert found["routing"] == {name: after["routing"][name] for name in ("score", "alpha")}
    assert set(found) == {"routing", "aggregation"}
    assert yaml.safe_load(as_yaml(found)) == found
    assert change.settings(found) == {}
    removed = Change(file, "aggregation:\n  weight: evaluator\n", "aggregation:\n")
    found = removed.settings(in_force)
    assert found == {"aggregation": {"weight": None}}
    assert "  # remove weight" in as_yaml(found)


STYLES = {
    "four spaces": "schema_version: 1\nrouting:\n    # ours\n    score: gap\n    alpha: 0.3\n"
    "candidates:\n    - name: a\n      base_url: b\n      parameters:\n          seed: 1\n",
    "lists at the margin": "schema_version: 1\nrouting:\n  score: gap\n  alpha: 0.3\n"
    "candidates:\n- name: a\n  base_url: b\n- name: c\n",
    "a document's start": "---\nschema_version: 1\nrouting:\n  score: gap\n  alpha: 0.3\n",
    "no line end": "schema_version: 1\nrouting:\n  score: gap\n  alpha: 0.3\naggregation:\n"
    "  method: majority",
}


@pytest.mark.parametrize("style", list(STYLES))
def test_the_files_own_style_stays(tmp_path: Path, style: str) -> None:
    """No line but those of the choice is written anew."""
    path = tmp_path / "racer.yaml"
    path.write_text(STYLES[style], encoding="utf-8")
    removed, added = lines_changed(tuning.configuration_change(path, suggested()))
    assert [line.strip() for line in removed if "method" not in line] == [
        "score: gap",
        "alpha: 0.3",
    ]
    indent = 4 if style == "four spaces" else 2
    assert all(len(line) - len(line.lstrip()) == indent for line in added if line[0] == " ")
    assert yaml.safe_load(tuning.configuration_change(path, suggested()).after)["routing"] == {
        "score": "cover",
        "alpha": 0.2,
    }


def test_sections_that_are_missing_are_added(tmp_path: Path) -> None:
    """A file that took the defaults."""
    path = tmp_path / "racer.yaml"
    path.write_text("schema_version: 1\n# no more\n", encoding="utf-8")
    change = tuning.configuration_change(path, suggested())
    assert change.after.startswith("schema_version: 1\n# no more\n")
    assert yaml.safe_load(change.after) == {
        "schema_version": 1,
        "routing": {"alpha": 0.2, "score": "cover"},
        "aggregation": {"method": "weighted", "temperature": 0.3},
    }


EVALUATED = """\
aggregation:
  method: weighted
  # asked after the answers
  weight: p_true
  temperature: 0.3
  evaluator:
    candidate: adder  # quick

    timeout_s: 5
  evaluators:
    maths:
      candidate: poet

# What we promise.
routing: {alpha: 0.2, score: cover}
"""
FLOW = """\
aggregation: {method: weighted, weight: p_true, temperature: 0.3, evaluator: {candidate: adder}}

# What we promise.
routing: {alpha: 0.2, score: cover}
"""
LAST = "routing: {alpha: 0.2, score: cover}\naggregation:\n  weight: router"


@pytest.mark.parametrize("text", [EVALUATED, FLOW, LAST], ids=["blocks", "flow", "last line"])
def test_evaluators_go_and_what_follows_them_stays(tmp_path: Path, text: str) -> None:
    """Another vote was chosen: left in, `weight` would contradict it."""
    path = tmp_path / "racer.yaml"
    path.write_text(text, encoding="utf-8")
    after = tuning.configuration_change(path, suggested()).after
    assert yaml.safe_load(after) == {
        "aggregation": {"method": "weighted", "temperature": 0.3},
        "routing": {"alpha": 0.2, "score": "cover"},
    }
    if text != LAST:
        assert "\n\n# What we promise.\nrouting: {alpha: 0.2, score: cover}\n" in after


@pytest.mark.parametrize("weight", [Weight.VERBAL, Weight.P_TRUE])
@pytest.mark.parametrize("text", [EVALUATED, FLOW], ids=["blocks", "flow"])
def test_evaluators_stay_with_the_vote_that_asks_them(
    tmp_path: Path, text: str, weight: Weight
) -> None:
    """Only temperature and weight are written anew, with every comment where it stood."""
    path = tmp_path / "racer.yaml"
    path.write_text(text, encoding="utf-8")
    change = tuning.configuration_change(path, suggested(weight=weight, temperature=0.05))
    wanted = text.replace("temperature: 0.3", "temperature: 0.05")
    assert change.after == wanted.replace("weight: p_true", f"weight: {weight}")


def test_the_vote_of_another_section_stays(tmp_path: Path) -> None:
    """Names like an evaluator's outside `aggregation` are not its settings."""
    path = tmp_path / "racer.yaml"
    text = "candidates:\n  - name: a\n    parameters:\n      weight: 2\n"
    path.write_text(text, encoding="utf-8")
    assert tuning.configuration_change(path, suggested()).after.startswith(text)


@pytest.mark.parametrize("rule", list(Method))
def test_the_tuned_file_is_a_valid_configuration(file: Path, rule: Method) -> None:
    """The gateway reads it, with the values that were chosen."""
    temperature = 0.05 if rule is Method.WEIGHTED else None
    weight = Weight.ROUTER if rule is Method.WEIGHTED else None
    chosen = suggested(score=Score.PROB, rule=rule, weight=weight, temperature=temperature)
    tuning.configuration_change(file, chosen).write()
    configured, _ = settings.load(file, {})
    assert (configured.routing.alpha, configured.routing.score) == (0.2, Score.PROB)
    assert configured.routing.on_abstain == "error"
    assert configured.aggregation.method.value == rule.value
    assert configured.aggregation.temperature == (temperature or 1.0)
    assert configured.candidates[0].parameters == {"temperature": 0, "stop": ["\n"]}


# The command ----------------------------------------------------------------------------------


@pytest.fixture
def validation(tmp_path: Path) -> Path:
    """Rows with answers, of no other file; enough to choose alpha by."""
    return written(tmp_path / "validation.jsonl", answered(noisy(30_000, 520)))


@pytest.fixture
def config(tmp_path: Path, noisy_artifact: Path) -> Path:
    """A configuration around a router that is unsure, with a comment."""
    path = configure(tmp_path, noisy_artifact, "http://127.0.0.1:1/v1", routing={"alpha": 0.45})
    path.write_text("# ours\n" + path.read_text())
    return path


def test_tune_shows_a_diff_and_writes_nothing(
    racer: Command, config: Path, validation: Path
) -> None:
    """A table and the diff on stdout; the file is as it was."""
    before = config.read_bytes()
    code, out, _ = racer("tune", "--config", config, "--validation", validation)
    assert code == 0
    assert "chosen" in out
    assert "+  alpha: " in out
    assert "-  alpha: 0.45" in out
    assert "For it write same_answer: {alpha: " in out
    assert config.read_bytes() == before


def test_tune_writes_what_its_json_says(racer: Command, config: Path, validation: Path) -> None:
    """The diff, the choice and the file agree; a second run has nothing to change."""
    code, out, stderr = racer(
        "tune", "--config", config, "--validation", validation, "--write", "--json"
    )
    assert code == 0, stderr
    result = json.loads(out)
    assert result["written"] is True
    assert (result["rows"], result["keeps_alpha"]) == (520, False)
    assert result["chosen"] in result["trials"]
    configured, _ = settings.load(config, {})
    assert configured.routing.alpha == result["chosen"]["alpha"]
    assert configured.routing.score == result["chosen"]["score"]
    assert configured.aggregation.method == result["chosen"]["rule"]
    assert config.read_text().startswith("# ours\n")
    assert f"+  alpha: {result['chosen']['alpha']}" in result["diff"].splitlines()
    shown = {(each["reference"], each["max_rounds"]) for each in result["same_answer"]}
    assert shown == {(None, 1), (None, 2), (None, 3)}  # there are no prices


def test_tune_compares_votes_under_every_equality(
    racer: Command, config: Path, validation: Path, tmp_path: Path
) -> None:
    """Two of three are right, each in its own words: under `exact`, as configured, none agree."""
    rows = [json.loads(line) for line in validation.read_text().splitlines()]
    for number, row in enumerate(rows):
        row["correct"] = [name for place, name in enumerate(POOL) if place != number % 3]
        row["answers"] = {
            name: f"I am {name}: {7 if name in row['correct'] else 8 + place + number % 2}"
            for place, name in enumerate(POOL)
        }
    sentences = tmp_path / "sentences.jsonl"
    sentences.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, out, stderr = racer(
        "tune", "--config", config, "--validation", sentences, "--write", "--json"
    )
    assert code == 0, stderr
    result = json.loads(out)
    by = {each["equality"]: each for each in result["equalities"]}
    assert next(iter(by)) == "exact"
    assert by["exact"]["agreement"] == 0.0
    assert by["number"]["accuracy"] > by["exact"]["accuracy"] + 2 * by["exact"]["se"]
    assert {each["equality"] for each in result["trials"]} == set(by)
    configured, _ = settings.load(config, {})
    assert configured.aggregation.equality == result["chosen"]["equality"]


def test_few_rows_keep_alpha_and_say_how_sure_the_choice_is(
    racer: Command, config: Path, tmp_path: Path
) -> None:
    """The table shows the other levels, each with the interval of what it is behind the best."""
    few = written(tmp_path / "few.jsonl", answered(noisy(30_000, 300)))
    result = json.loads(racer("tune", "--config", config, "--validation", few, "--json")[1])
    assert (result["chosen"]["alpha"], result["keeps_alpha"]) == (0.45, True)
    assert {each["alpha"] for each in result["trials"]} > {0.1, 0.45}
    chosen = result["chosen"]
    low, high = (chosen["behind"] + sign * 1.96 * chosen["behind_se"] for sign in (-1, 1))
    code, out, _ = racer("tune", "--config", config, "--validation", few)
    assert code == 0
    interval = f"(95 % interval of the paired difference: {low:.3f} to {high:.3f})"
    assert f"{chosen['behind']:.3f} behind the best setting {interval}" in out
    assert "alpha is the configured one: below 500 rows" in out
    assert f"Plateau: alpha {', '.join(f'{each:g}' for each in result['plateau'])}\n" in out
    assert "-  alpha: 0.45" not in out


def test_tune_says_when_there_is_nothing_to_change(
    racer: Command, tmp_path: Path, artifact: Path
) -> None:
    """What was written is what a second search finds; so few rows keep the alpha."""
    config = configure(tmp_path, artifact, "http://127.0.0.1:1/v1")
    validation = written(tmp_path / "rows.jsonl", answered(labelled(30_000, 200)))
    assert racer("tune", "--config", config, "--validation", validation, "--write")[0] == 0
    code, out, _ = racer("tune", "--config", config, "--validation", validation)
    assert code == 0
    assert out.endswith("nothing to change\n")


def test_tune_of_grades_chooses_score_and_alpha_and_leaves_the_vote(
    racer: Command, tmp_path: Path, noisy_artifact: Path
) -> None:
    """Rows need no answers; rows without grades are refused by their number."""
    config = configure(
        tmp_path,
        noisy_artifact,
        "http://127.0.0.1:1/v1",
        routing={"alpha": 0.45, "risk_target": "quality"},
        aggregation={"method": "weighted", "temperature": 0.3},
    )
    rng, rows = np.random.default_rng(1), tmp_path / "graded.jsonl"
    lines = [
        {
            "query": row["query"],
            "quality": {n: round(0.2 + 0.5 * g + 0.3 * rng.random(), 3) for n, g in each.items()},
        }
        for row in as_json(noisy(30_000, 600))
        if (each := row["correct"])
    ]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert "quality" in racer("tune", "--config", config, "--validation", rows)[1]
    code, out, stderr = racer("tune", "--config", config, "--validation", rows, "--write", "--json")
    assert code == 0, stderr
    result = json.loads(out)
    assert {trial["rule"] for trial in result["trials"]} == {None}
    configured, _ = settings.load(config, {})
    assert configured.routing.alpha == result["chosen"]["alpha"] != 0.45
    assert (configured.aggregation.method, configured.aggregation.temperature) == ("weighted", 0.3)
    plain = written(tmp_path / "plain.jsonl", noisy(30_000, 120))
    code, _, stderr = racer("tune", "--config", config, "--validation", plain)
    assert code == 1
    assert "120 of 120 rows have no `quality`" in stderr


def test_tune_of_a_file_that_cannot_be_written_is_one_sentence(
    racer: Command, config: Path, validation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 2, and no table that would look like success."""

    def raise_permission_error(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", raise_permission_error)
    code, out, stderr = racer("tune", "--config", config, "--validation", validation, "--write")
    assert (code, out) == (2, "")
    assert stderr.splitlines()[-1].endswith("racer.yaml: cannot be written (Permission denied)")
    assert "Traceback" not in stderr


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (noisy(30_000, 300), "rows with answers"),
        (answered(noisy(30_000, 60)), "too few to tune on"),
    ],
    ids=["no answers", "few"],
)
def test_tune_refuses_rows_that_cannot_be_tuned_on(
    racer: Command, config: Path, tmp_path: Path, rows: LabelledRows, words: str
) -> None:
    """Exit code 1, one sentence, and the file stays."""
    before = config.read_bytes()
    data = written(tmp_path / "rows.jsonl", rows)
    code, out, stderr = racer("tune", "--config", config, "--validation", data, "--write")
    assert (code, out) == (1, "")
    assert words in stderr
    assert stderr.strip().count("\n") == 0
    assert config.read_bytes() == before


# The stacked vote at start --------------------------------------------------------------------


def test_stacked_with_a_fitted_vote_starts(tmp_path: Path) -> None:
    """An artifact of rows with answers; the configured order of the pool is that of the weights."""
    train(
        answered(noisy(0, 200)),
        labelled(5_000, 60),
        tmp_path / "artifact",
        encoder=CharNgramEncoder(),
        kind="knn",
    )
    path = configure(
        tmp_path,
        tmp_path / "artifact",
        "http://127.0.0.1:1/v1",
        aggregation={"method": "stacked"},
        candidates=candidates("http://127.0.0.1:1/v1"),
    )
    stacked = open_racer(settings.load(path, {})[0]).artifact.stacked
    assert stacked is not None
    assert stacked.pool == POOL


def test_stacked_without_a_fitted_vote_stops_the_start(tmp_path: Path, artifact: Path) -> None:
    """One sentence that says what to do, before a socket opens."""
    path = configure(tmp_path, artifact, "http://127.0.0.1:1/v1", aggregation={"method": "stacked"})
    with pytest.raises(SettingsError, match="train it on rows with answers") as caught:
        open_racer(settings.load(path, {})[0])
    assert "\n" not in str(caught.value)


def trial(alpha: float, cost: float, accuracy: float) -> Trial:
    """A point."""
    return Trial(
        alpha=alpha, score=Score.COVER, rule=Method.MAJORITY, weight=None, temperature=None,
        accuracy=accuracy, se=0.01, size=1.0, cost=cost, missed=alpha, proven=True,
    )  # fmt: skip


def places(text: str) -> dict[str, tuple[int, int]]:
    """The line and the column of each sign within the axes."""
    lines = [line.split("|", 1)[1] for line in text.splitlines() if "|" in line]
    assert len(lines) == HEIGHT
    return {
        sign: (number, column)
        for number, line in enumerate(lines)
        for column, sign in enumerate(line)
        if sign != " "
    }


def test_points_stand_where_their_values_are() -> None:
    """Linear axes from the smallest to the largest value; a sign says what a point is."""
    cheap, chosen, beaten = trial(0.2, 1.0, 0.6), trial(0.1, 2.0, 0.8), trial(0.05, 4.0, 0.7)
    tuning = Tuning(
        trials=(cheap, chosen, beaten), chosen=chosen, slack=0.01, rows=100,
        everyone=FixedCalls(candidates=("a", "b"), accuracy=0.86, cost=5.0),
        best_single=FixedCalls(candidates=("b",), accuracy=0.73, cost=3.0),
    )  # fmt: skip
    text = plot(tuning, "USD")
    assert text.startswith("accuracy over USD a query")
    bottom, right = HEIGHT - 1, WIDTH - 1
    assert places(text) == {
        "+": (bottom, 0),
        "#": (round(bottom * 0.06 / 0.26), round(right / 4)),
        ".": (round(bottom * 0.16 / 0.26), round(right * 3 / 4)),
        "A": (0, right),
        "B": (round(bottom * 0.13 / 0.26), round(right / 2)),
    }
    *_, axis = text.splitlines()
    assert axis.split() == ["1", "5"]
