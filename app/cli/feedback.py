"""``racer feedback``: sends judgements of answers to a running gateway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import click

from app.cli import tables
from app.cli.console import FILE, JSON, URL, err, out, print_json, progress_bars
from app.errors import GatewayRefused
from app.tools.gateway_client import GatewayClient
from racer_core import strict_json
from racer_core.errors import MAX_LISTED, InputError, RowsError

_VERDICTS: Final = {"right": True, "true": True, "wrong": False, "false": False}


@dataclass(frozen=True, slots=True)
class Judgement:
    """Verdicts on some answers to one decision."""

    decision_id: str
    correct: Mapping[str, bool]


@click.command()
@click.argument("decision_id", required=False)
@click.argument("verdicts", metavar="[CANDIDATE=right|wrong]...", nargs=-1)
@click.option(
    "--file",
    "path",
    type=FILE,
    help="Judgements as JSON lines instead, each with `decision_id` and `correct`.",
)
@URL
@click.option(
    "--key",
    envvar=["RACER_ADMIN_KEY", "RACER_DATA_KEY"],
    show_envvar=True,
    help="Admin key of the gateway, or a data key.",
)
@JSON
def feedback(
    decision_id: str | None,
    verdicts: tuple[str, ...],
    path: Path | None,
    url: str,
    key: str | None,
    as_json: bool,
) -> None:
    """Report which candidates answered decision DECISION_ID right, or those of a file.

    Verdicts count at once with an admin key; with a data key they wait for an admin. The same
    command may be repeated: what the gateway knows already changes nothing.
    """
    if (path is None) != bool(decision_id and verdicts):
        raise click.UsageError("give DECISION_ID with CANDIDATE=right or =wrong, or --file")
    if path is None:
        assert decision_id is not None
        judgements = {"": Judgement(decision_id, dict(map(_verdict, verdicts)))}
    else:
        judgements = read_judgements(path)
    counts = {"sent": 0, "known already": 0, "waiting": 0}
    refused: list[str] = []
    quiet = as_json or not err.is_terminal  # progress bars are for terminals
    with progress_bars(quiet) as show, GatewayClient(url, key) as gateway:
        for place, each in judgements.items():
            try:
                result = gateway.add_feedback(each.decision_id, each.correct)
            except GatewayRefused as exc:
                if path is None:
                    raise
                refused.append(f"{place}: {exc}")
                continue
            counts["sent"] += 1
            counts["known already"] += result["repeated"]
            counts["waiting"] += bool(result["waiting"])
            show("judgements", counts["sent"], len(judgements))
    if as_json:
        print_json({name.replace(" ", "_"): count for name, count in counts.items()})
    else:
        out.print(tables.fields(counts))
        if counts["waiting"]:
            err.print("racer: verdicts of a data key wait until an admin accepts them")
    if refused:
        shown = "; ".join(refused[:MAX_LISTED])
        raise GatewayRefused(f"{path}: {len(refused)} of {len(judgements)} refused: {shown}")


def _verdict(given: str) -> tuple[str, bool]:
    name, _, verdict = given.rpartition("=")
    if not name or verdict not in _VERDICTS:
        raise click.BadParameter(f"{given!r} is not CANDIDATE=right or CANDIDATE=wrong.")
    return name, _VERDICTS[verdict]


def read_judgements(path: Path) -> dict[str, Judgement]:
    """The judgements of a file by their places in it, such as ``line 3``.

    Raises:
        InputError: The file cannot be read, or is empty.
        RowsError: A line is no judgement; all such lines are named.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as exc:
        raise InputError(f"{path}: cannot be read ({getattr(exc, 'strerror', exc)})") from exc
    found: dict[str, Judgement] = {}
    problems: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found[f"line {number}"] = _judgement(line)
        except InputError as exc:
            problems.append(f"line {number}: {exc}")
    if problems:
        raise RowsError(str(path), problems)
    if not found:
        raise InputError(f"{path}: no judgement; a line has `decision_id` and `correct`")
    return found


def _judgement(line: str) -> Judgement:
    value = strict_json.load_object(line.encode())
    decision_id, correct = value.get("decision_id"), value.get("correct")
    if value.keys() != {"decision_id", "correct"} or not isinstance(decision_id, str):
        raise InputError("expected `decision_id`, a text, and `correct`, and nothing else")
    if not isinstance(correct, dict) or not correct:
        raise InputError("`correct` must map candidates to true or false")
    verdicts = cast("dict[str, Any]", correct)
    if wrong := [name for name, each in verdicts.items() if not isinstance(each, bool)]:
        raise InputError(f"`correct.{wrong[0][:64]}` must be true or false")
    return Judgement(decision_id, verdicts)
