"""The ``racer`` command: results on stdout, one sentence on stderr, meaningful exit codes."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from app.cli.main import cli
from app.tools.gateway_client import GatewayClient
from racer_core import __version__, artifacts
from racer_core.encoder.base import Encoder
from racer_core.errors import ArtifactError
from racer_core.offline.train import EncoderChoice
from tests.kit.command_results import failed, parsed, write
from tests.kit.gateway import (
    ADMIN_KEY,
    DATA_KEY,
    ONE,
    POOL,
    TWO,
    UNANSWERABLE,
    Command,
    Gateway,
    Serve,
    candidates,
    configure,
    decided,
    labelled,
)
from tests.kit.upstream import FakePool

# Offline --------------------------------------------------------------------------------------


def test_train_makes_an_artifact_that_validates(racer: Command, tmp_path: Path) -> None:
    """Train, then validate a configuration around the artifact."""
    data = write(tmp_path / "train.jsonl", labelled(0, 80))
    validation = write(tmp_path / "validation.jsonl", labelled(5_000, 40))
    folder = tmp_path / "artifact"
    summary = parsed(
        racer("train", "--data", data, "--validation", validation, "--out", folder,
              "--encoder", "char-ngrams", "--router", "knn", "--json")
    )  # fmt: skip
    assert summary["router"] == "knn"
    assert summary["pool"] == list(POOL)
    assert summary["training_rows"] == 80
    assert "validation_copies" in summary
    assert summary["router_settings"]["k"] == 40
    assert artifacts.load(folder).pool == POOL
    path = configure(tmp_path, folder, "http://127.0.0.1:1/v1")
    assert parsed(racer("validate", "--config", path, "--json"))["router"] == "knn"


@pytest.mark.parametrize("forward", [None, "lean", "transformers"])
def test_train_opens_the_encoder_of_its_options(
    racer: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forward: str | None
) -> None:
    """Device, format and forward; unset options are chosen for the machine."""
    opened: list[EncoderChoice] = []

    def stop(choice: EncoderChoice) -> Encoder:
        opened.append(choice)
        raise ArtifactError("enough was seen")

    monkeypatch.setattr(EncoderChoice, "open", stop)
    data = write(tmp_path / "train.jsonl", labelled(0, 40))
    options = ["--backend", "cuda", "--dtype", "float32", "--forward", forward] if forward else []
    options += ["--encoder", str(tmp_path)]  # a folder: no hub is asked
    command = ["train", "--data", data, "--validation", data, "--out", tmp_path / "a", *options]
    code, _, stderr = racer(*command)
    assert code == 2
    assert "enough was seen" in stderr
    (choice,) = opened
    found = (choice.backend, choice.dtype, choice.forward)
    assert found == (("cuda", "float32", forward) if forward else (None, None, None))


def test_train_binds_the_candidates_of_a_configuration(racer: Command, tmp_path: Path) -> None:
    """``--config`` gives names, order and decoding parameters."""
    named = candidates("http://127.0.0.1:1/v1", parameters={"temperature": 0})
    config = configure(tmp_path, tmp_path / "a", "", candidates=named[::-1])
    data = write(tmp_path / "train.jsonl", labelled(0, 40))
    validation = write(tmp_path / "validation.jsonl", labelled(5_000, 40))
    summary = parsed(
        racer("train", "--data", data, "--validation", validation, "--out", tmp_path / "a",
              "--encoder", "char-ngrams", "--config", config, "--json")
    )  # fmt: skip
    assert summary["pool"] == list(POOL)[::-1]
    parameters = [each.parameters for each in artifacts.load(tmp_path / "a").candidates]
    assert parameters == [{"temperature": 0}] * 3
    assert racer("validate", "--config", config)[0] == 0


@pytest.mark.parametrize("command", ["train", "evaluate", "calibrate"])
def test_bad_rows_are_refused_with_their_line(
    racer: Command, gateway: Gateway, tmp_path: Path, command: str
) -> None:
    """Exit code 1; the file and the line are named."""
    good = write(tmp_path / "good.jsonl", labelled(0, 20))
    bad = tmp_path / "bad.jsonl"
    bad.write_text(good.read_text() + '{"query": "x", "correct": {"gpt": true}}\n')
    arguments: dict[str, list[object]] = {
        "train": ["--data", bad, "--validation", good, "--out", tmp_path / "a",
                  "--encoder", "char-ngrams"],
        "evaluate": ["--data", bad, "--encoder", "char-ngrams"],
        "calibrate": [bad, "--url", gateway.url, "--key", ADMIN_KEY],
    }  # fmt: skip
    failed(racer(command, *arguments[command]), 1, "bad.jsonl", "line 21", "unknown candidate")


def test_an_artifact_that_cannot_be_written(racer: Command, tmp_path: Path) -> None:
    """A file where the folder should be is a matter of configuration: 2."""
    data = write(tmp_path / "train.jsonl", labelled(0, 40))
    validation = write(tmp_path / "validation.jsonl", labelled(5_000, 40))
    result = racer(
        "train", "--data", data, "--validation", validation, "--out", data,
        "--encoder", "char-ngrams", "--json",
    )  # fmt: skip
    failed(result, 2, "train.jsonl")


def test_evaluate_reports_risk_and_size(racer: Command, tmp_path: Path) -> None:
    """The protocol as JSON: every alpha and target, the counts, and the controls."""
    data = write(tmp_path / "rows.jsonl", labelled(0, 200), answers=True)
    result = parsed(
        racer("evaluate", "--data", data, "--encoder", "char-ngrams", "--splits", 3,
              "--alpha", 0.1, "--alpha", 0.3, "--json")
    )  # fmt: skip
    assert result["pool"] == list(POOL)
    assert result["rows"] == {"rows": [60, 12, 48]}
    assert result["n_train"] == 80
    assert result["protocol"]["alphas"] == [0.1, 0.3]
    assert {cell["alpha"] for cell in result["cells"]} == {0.1, 0.3}
    assert {cell["risk_target"] for cell in result["cells"]} == {"paper", "answerable"}
    assert all(0 <= cell["mean"]["miss_given_answerable"] <= 1 for cell in result["cells"])
    assert result["controls"]["rows"]["mean"]["answerable"] == pytest.approx(0.75, abs=0.05)
    assert 0 <= result["controls"]["rows"]["mean"]["full pool majority"] <= 1


def test_evaluate_measures_the_paper_s_alphas_and_shows_a_few(
    racer: Command, tmp_path: Path
) -> None:
    """All 18 in the JSON; in the table four, or the requested ones."""
    data = write(tmp_path / "rows.jsonl", labelled(0, 120))
    arguments = ["evaluate", "--data", data, "--encoder", "char-ngrams", "--splits", 1,
                 "--score", "cover", "--risk-target", "answerable"]  # fmt: skip
    result = parsed(racer(*arguments, "--json"))
    assert len({cell["alpha"] for cell in result["cells"]}) == len(result["cells"]) == 18
    assert shown_alphas(racer(*arguments)[1]) == ["0.01", "0.05", "0.1", "0.2"]
    assert shown_alphas(racer(*arguments, "--alpha", 0.07)[1]) == ["0.07"]


def shown_alphas(out: str) -> list[str]:
    """The alphas of the rows of ``cover``."""
    return [line.split()[2] for line in out.splitlines() if line.split()[1:2] == ["cover"]]


def test_evaluate_takes_several_benchmarks(racer: Command, tmp_path: Path) -> None:
    """Named after their files or by the user; each with its shares; averaged, or merged."""
    first = write(tmp_path / "first.v2.jsonl", labelled(0, 100))
    second = write(tmp_path / "second.jsonl", labelled(5_000, 100))
    arguments = ["evaluate", "--data", first, "--data", f"other={second}", "--encoder",
                 "char-ngrams", "--splits", 2, "--alpha", 0.2, "--json"]  # fmt: skip
    shares = ["--share", "other=0.5,0.4,0.2", "--share", "all=0.2,0.5,0.1"]
    result = parsed(racer(*arguments, *shares))
    assert result["rows"] == {"first.v2": [40, 8, 32], "other": [20, 10, 20]}
    assert result["n_train"] == 20 + 50
    assert {cell["scope"] for cell in result["cells"]} == {"first.v2", "other", "average"}
    merged = parsed(racer(*arguments, *shares, "--calibrated", "merged"))
    assert merged["rows"] == {"merged": [60, 18, 52]}


def test_evaluate_passes_the_protocol_on(racer: Command, tmp_path: Path) -> None:
    """Every option is in the protocol that was measured."""
    data = write(tmp_path / "rows.jsonl", labelled(0, 100), answers=True)
    arguments = ["evaluate", "--data", data, "--encoder", "char-ngrams", "--splits", 1,
                 "--alpha", 0.2, "--json"]  # fmt: skip
    prices = [f"--price={name}={2**place}" for place, name in enumerate(POOL[::-1])]
    result = parsed(
        racer(*arguments, *prices, "--false-abstain-budget", "off", "--seed", 7,
              "--equality", "choice", "--risk-target", "paper")
    )  # fmt: skip
    protocol = result["protocol"]
    assert protocol["prices"] == [4.0, 2.0, 1.0]
    assert protocol["false_abstain_budget"] is None
    assert (protocol["seed"], protocol["equality"]) == (7, "choice")
    assert protocol["risk_targets"] == ["paper"]
    assert "cover_cost" in {cell["score"] for cell in result["cells"]}
    assert all(cell["mean"]["cost"] > 0 for cell in result["cells"])
    assert "cover_cost" not in parsed(racer(*arguments))["protocol"]["scores"]


def test_evaluate_measures_an_artifact(racer: Command, tmp_path: Path) -> None:
    """Its own rows are left out of the files, and its encoder and router stand in the report."""
    train, tune, rest = (
        write(tmp_path / f"{name}.jsonl", labelled(start, 60))
        for name, start in (("train", 0), ("tune", 100), ("rest", 200))
    )
    folder = tmp_path / "artifact"
    parsed(
        racer("train", "--data", train, "--validation", tune, "--out", folder, "--encoder",
              "char-ngrams", "--json")
    )  # fmt: skip
    both = tmp_path / "both.jsonl"
    both.write_text(train.read_text() + rest.read_text())
    arguments = ["evaluate", "--data", both, "--splits", 2, "--alpha", 0.2, "--artifact", folder]
    result = parsed(racer(*arguments, "--json"))
    assert result["router"] == f"knn of {folder}"
    assert (result["encoder"], result["dtype"]) == ("char-ngrams", "float32")
    assert (result["learned"], result["n_train"]) == (60, 60)
    assert result["rows"] == {"both": [30, 6, 24]}
    assert "60 rows of the artifact's training left out" in racer(*arguments)[1]
    failed(racer(*arguments, "--divisions", 2), 1, "--divisions")
    failed(racer(*arguments, "--router", "mlp"), 2, "--artifact and --router exclude each other")
    failed(racer(*arguments, "--scores", both), 2, "--artifact and --scores exclude each other")


def test_evaluate_measures_scores_of_a_file(racer: Command, tmp_path: Path) -> None:
    """No encoder is opened; a file that lacks a row is one sentence."""
    data = write(tmp_path / "rows.jsonl", labelled(0, 60))
    np.save(tmp_path / "scores.npy", np.random.default_rng(0).uniform(size=(60, len(POOL))))
    arguments = ["evaluate", "--data", data, "--splits", 1, "--alpha", 0.2]
    result = parsed(racer(*arguments, "--scores", tmp_path / "scores.npy", "--json"))
    assert (result["encoder"], result["dtype"]) == ("none", None)
    assert result["router"] == f"scores of {tmp_path / 'scores.npy'}"
    assert result["rows"] == {"rows": [18, 4, 14]}
    np.save(tmp_path / "short.npy", np.zeros((59, len(POOL))))
    failed(racer(*arguments, "--scores", tmp_path / "short.npy"), 1, "59 rows of scores for 60")
    wrong = racer(*arguments, "--scores", tmp_path / "short.npy", "--encoder", "char-ngrams")
    failed(wrong, 2, "--scores and --encoder exclude each other")


def test_evaluate_passes_options_to_the_router(racer: Command, tmp_path: Path) -> None:
    """As `racer train` does; an unknown one is one sentence."""
    data = write(tmp_path / "rows.jsonl", labelled(0, 60))
    arguments = ["evaluate", "--data", data, "--encoder", "char-ngrams", "--splits", 1,
                 "--alpha", 0.2, "--score", "gap", "--json"]  # fmt: skip
    one, all_ = (parsed(racer(*arguments, "--router-option", f"k={k}"))["cells"] for k in (1, 1000))
    assert one != all_
    failed(racer(*arguments, "--router-option", "size=3"), 1, "no option 'size'")
    failed(racer(*arguments, "--router", "nothing"), 2, "'nothing' is none of knn, mlp, routerdc")


def test_evaluate_keeps_embeddings(racer: Command, tmp_path: Path) -> None:
    """In the file that is named; `off` keeps none; a damaged one is one sentence."""
    data = write(tmp_path / "rows.jsonl", labelled(0, 60))
    file = tmp_path / "cache.sqlite"
    arguments = ["evaluate", "--data", data, "--encoder", "char-ngrams", "--splits", 1,
                 "--alpha", 0.2, "--json"]  # fmt: skip
    without = parsed(racer(*arguments, "--cache", "off"))
    assert not file.exists()
    for _ in range(2):
        assert parsed(racer(*arguments, "--cache", file)) == without
    assert file.stat().st_size > 60 * 1_000
    file.write_text("no embeddings")
    failed(racer(*arguments, "--cache", file), 1, str(file), "delete the file")


def test_evaluate_writes_a_report(racer: Command, tmp_path: Path) -> None:
    """A page, the same as Markdown, and numbers; it quotes the command; its path is printed."""
    data = write(tmp_path / "rows.jsonl", labelled(0, 100))
    folder = tmp_path / "a report"
    arguments = ["evaluate", "--data", data, "--encoder", "char-ngrams", "--splits", 2,
                 "--alpha", 0.2, "--report", folder]  # fmt: skip
    code, out, _ = racer(*arguments)
    assert code == 0
    assert f"report: {folder / 'index.html'}" in out
    results = json.loads((folder / "results.json").read_text())
    assert results["command"] == shlex.join(["racer", *map(str, arguments)])
    assert results["rows"] == {"rows": [30, 6, 24]}
    assert parsed(racer(*arguments, "--json"))["cells"] == results["cells"]
    assert "<svg" in (folder / "index.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--share", "x=0.4,0.5,0.1"], ["'x' is none of rows"]),
        (["--share", "rows=0.4,0.5"], ["NAME=train,calibration,validation"]),
        (["--share", "rows"], ["NAME=train,calibration,validation"]),
        (["--share", "rows=0.4,0.5,much"], ["'much' is not a number"]),
        (["--share", "rows=0.4,0.5,0.5"], ["shares"]),
        (["--share", "rows=nan,0.5,0.1"], ["not a number"]),
        (["--alpha", "0"], ["alpha"]),
        (["--alpha", "nan"], ["alpha"]),
        (["--price", "gpt=1"], ["'gpt' is none of adder"]),
        (["--price", "adder=1"], ["give a price to all candidates"]),
        (["--price", "adder=0"], ["above 0"]),
        (["--price", "adder=inf"], ["above 0"]),
        (["--price", "adder"], ["CANDIDATE=PRICE"]),
        (
            ["--price", "adder={input: 1}", "--price", "speller=1", "--price", "poet=1"],
            ["no row records what calls of 'adder' used"],
        ),
        (["--score", "cover_cost"], ["--price"]),
        (["--false-abstain-budget", "2"], ["0 to 1", "off"]),
        (["--false-abstain-budget", "nan"], ["not a number"]),
        (["--false-abstain-budget", "some"], ["not a number"]),
        (["--data", "rows=elsewhere.jsonl"], ["two files have the name 'rows'"]),
        (["--data", "average=elsewhere.jsonl"], ["'average' is a reserved name"]),
    ],
    ids=" ".join,
)
def test_evaluate_says_what_is_wrong_with_an_argument(
    racer: Command, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    """One sentence each, before anything is embedded."""
    data = write(tmp_path / "rows.jsonl", labelled(0, 60))
    result = racer("evaluate", "--data", data, "--encoder", "char-ngrams", *arguments)
    failed(result, 1, *words)


def test_evaluate_refuses_a_report_that_it_could_not_write(racer: Command, tmp_path: Path) -> None:
    """Before the rows are read, and so before an hour of work."""
    file = tmp_path / "file"
    file.write_text("")
    result = racer("evaluate", "--data", tmp_path / "none", "--report", file)
    failed(result, 1, str(file), "cannot be written")


# Against a gateway ----------------------------------------------------------------------------


def test_route_shows_the_decision(racer: Command, gateway: Gateway, pool: FakePool) -> None:
    """For people a table, for machines the gateway's own JSON; no candidate is called."""
    at = ["--url", gateway.url, "--key", DATA_KEY]
    decision = parsed(racer("route", TWO, *at, "--json"))
    assert decided(decision) == gateway.decided(TWO)
    code, out, stderr = racer("route", TWO, *at)
    assert (code, stderr) == (0, "")
    assert "adder, speller" in out
    assert "holds" in out
    assert "none (p_null)" in racer("route", UNANSWERABLE, *at)[1]
    assert pool.models_called() == []


def test_route_passes_alpha_and_executes(racer: Command, gateway: Gateway, pool: FakePool) -> None:
    """``--alpha`` is the request's own; ``--execute`` calls the set."""
    pool.say("adder", "7")
    at = ["--url", gateway.url, "--key", DATA_KEY]
    decision = parsed(racer("route", ONE, *at, "--alpha", 0.25, "--json"))
    assert decision["certificate"]["guarantee"]["alpha"] == 0.25
    result = parsed(racer("route", ONE, *at, "--execute", "--json"))
    assert (result["answers"], result["answer"]) == ({"adder": "7"}, "7")
    assert "7" in racer("route", ONE, *at, "--execute")[1]
    assert pool.models_called() == ["adder", "adder"]


def test_keys_come_from_the_environment(
    racer: Command, gateway: Gateway, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The data key for routing, the admin key for calibrating."""
    monkeypatch.setenv("RACER_DATA_KEY", DATA_KEY)
    monkeypatch.setenv("RACER_ADMIN_KEY", ADMIN_KEY)
    assert parsed(racer("route", ONE, "--url", gateway.url, "--json"))["selected"] == ["adder"]
    rows = write(tmp_path / "rows.jsonl", labelled(10_000, 40))
    result = racer("calibrate", rows, "--url", gateway.url, "--dry-run", "--json")
    assert parsed(result)["active"] is False


def test_calibrate_uploads_rows(racer: Command, serve: Serve, tmp_path: Path) -> None:
    """The record is active afterwards, with the options that were given."""
    gateway = serve(calibrated=False)
    rows = write(tmp_path / "rows.jsonl", labelled(10_000, 80))
    at = ["--url", gateway.url, "--key", ADMIN_KEY]
    tried = parsed(racer("calibrate", rows, *at, "--alpha", 0.2, "--dry-run", "--json"))
    assert (tried["id"], tried["evidence"]["alpha"]) == (None, 0.2)
    assert gateway.ready()["calibration"] is None
    result = parsed(
        racer("calibrate", rows, *at, "--alpha", 0.2, "--delta", 0.05, "--score", "prob",
              "--risk-target", "paper", "--json")
    )  # fmt: skip
    assert result["active"] is True
    evidence = result["evidence"]
    assert (evidence["alpha"], evidence["delta"], evidence["n"]) == (0.2, 0.05, 80)
    assert (evidence["score"], evidence["risk_target"]) == ("prob", "paper")
    assert gateway.ready()["calibration"] == result["id"]
    code, out, _ = racer("calibrate", rows, *at)
    assert code == 0
    assert "lambda_hat" in out


def test_a_refusal_of_the_gateway_is_one_line(
    racer: Command, gateway: Gateway, serve: Serve, tmp_path: Path
) -> None:
    """Exit code 1 with the gateway's own words and status."""
    at = ["--url", gateway.url]
    failed(racer("route", ONE, *at), 1, "API key", "401")
    failed(racer("route", ONE, *at, "--key", "wrong"), 1, "401")
    failed(racer("route", " ", *at, "--key", DATA_KEY), 1, "empty", "400")
    failed(racer("route", ONE, *at, "--key", DATA_KEY, "--alpha", 2), 1, "alpha", "400")
    rows = write(tmp_path / "rows.jsonl", labelled(10_000, 20))
    failed(racer("calibrate", rows, *at, "--key", DATA_KEY), 1, "admin key", "403")
    empty = serve(calibrated=False, candidates=candidates("http://127.0.0.1:1/v1"))
    unreached = ["route", ONE, "--url", empty.url, "--key", DATA_KEY]
    code, out, _ = racer(*unreached)
    assert code == 0
    assert "not_calibrated" in out  # answered by the fallback, which is no refusal
    failed(racer(*unreached, "--execute"), 3, "adder")


@pytest.mark.parametrize("command", ["route", "calibrate"])
def test_a_gateway_that_cannot_be_reached(
    racer: Command, pool: FakePool, tmp_path: Path, command: str
) -> None:
    """Exit code 3 and what to start, also where something else answers at the address."""
    what = ONE if command == "route" else write(tmp_path / "rows.jsonl", labelled(0, 4))
    for url in ("http://127.0.0.1:1", "http://no-such-host.invalid", "nonsense", "ftp://x"):
        failed(racer(command, what, "--url", url), 3, "racer serve")
    failed(racer(command, what, "--url", pool.url), 3, "gateway")


# Usage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["nothing"],
        ["route"],
        ["route", ONE, "--alpha", "ten"],
        ["feedback", "chatcmpl-1"],
        ["verify", "chatcmpl-1", "--from-store", "--url", "http://127.0.0.1:1"],
        ["train", "--router", "magic"],
        ["evaluate", "--data", "x", "--splits", "0"],
        ["calibrate", "x", "--score", "best"],
        ["demo", "--queries", "1"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2(racer: Command, arguments: list[str]) -> None:
    """One sentence on stderr, with where to read on."""
    code, out, stderr = racer(*arguments)
    assert (code, out) == (2, "")
    assert stderr.startswith("racer: ")
    known = "" if arguments == ["nothing"] else f" {arguments[0]}"
    assert stderr.endswith(f": see `racer{known} --help`\n")
    assert stderr.count("\n") == 1


def test_an_interrupt_is_130(racer: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C is no traceback."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(GatewayClient, "route", interrupted)
    code, _, stderr = racer("route", ONE)
    assert code == 130
    assert "Traceback" not in stderr


def test_the_installed_command_runs() -> None:
    """The script of the package, in a process of its own."""
    script = Path(sys.executable).with_name("racer")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert __version__ in done.stdout


def test_the_help_lists_every_command_in_one_group_on_one_line(racer: Command) -> None:
    """Whole sentences, and those that a new user needs come first."""
    _, text, _ = racer("--help")
    lines = text.partition("Start here:")[2].splitlines()
    listed = [line.split()[0] for line in lines if line.startswith("  ")]
    assert sorted(listed) == sorted(cli.commands)
    assert all(line.endswith(".") and "..." not in line for line in lines if line.startswith("  "))
    assert listed[0] == "demo"


def test_a_misspelt_command_names_the_nearest_one(racer: Command) -> None:
    """As one of a group does."""
    failed(racer("serv"), 2, "Did you mean 'serve'?")


@pytest.mark.parametrize(
    ("words", "unneeded"),
    [("--help", "torch"), ("serve --help", "torch"), ("completion bash", "pydantic")],
)
def test_no_more_is_imported_than_a_command_needs(words: str, unneeded: str) -> None:
    """The help of all commands, of the gateway's, and a short command."""
    probe = (
        "import contextlib, sys; from app.cli.main import main\n"
        "with contextlib.suppress(SystemExit): main()\n"
        f"sys.exit({unneeded!r} in sys.modules)"
    )
    command = [sys.executable, "-c", probe, *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
