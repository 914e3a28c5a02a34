"""What the command line prints: tables and fields. Reads results, computes nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from racer_core.artifacts import Artifact
    from racer_core.offline.evaluate import Cell, Evaluation


def fields(values: Mapping[str, Any]) -> Table:
    """Names and values, one a line."""
    table = Table.grid(padding=(0, 2))
    for name, value in values.items():
        table.add_row(Text(name, style="bold"), Text(_plain(value)))
    return table


def artifact_summary(artifact: Artifact, folder: Path, rows: int) -> dict[str, Any]:
    """What `racer train` did."""
    return {
        "artifact": str(folder),
        "router": artifact.router.kind,
        "pool": list(artifact.pool),
        "encoder": artifact.encoder.kind,
        "backend": artifact.encoder.backend,
        "dtype": artifact.encoder.dtype,
        "training_rows": rows,
        "null_threshold": artifact.null_threshold,
    }


def decision(value: Mapping[str, Any]) -> Table:
    """What `racer route` found: the set, every candidate's score, and the certificate."""
    certificate = value["certificate"]
    guarantee = certificate["guarantee"]
    shown = {
        "selected": ", ".join(value["selected"]) or f"nobody ({value['abstain_reason']})",
        "router scores": "  ".join(f"{m} {s:.2f}" for m, s in value["pool_scores"].items()),
        "alpha": f"{guarantee['alpha']:g} ({guarantee['risk_target']})",
        "lambda_hat": certificate["lambda_hat"],
        "guarantee": "holds" if certificate["holds"] else "void",
        "reasons": ", ".join(certificate["reasons"]) or "-",
    }
    if "answers" in value:
        shown |= {"answers": "  ".join(f"{m}: {a!r}" for m, a in value["answers"].items())}
        shown |= {"answer": value["answer"]}
    return fields(shown)


def evaluation(result: Evaluation) -> list[Table | str]:
    """The protocol, one table per risk target, and the controls."""
    protocol = result.protocol
    head = (
        f"\n{protocol.splits} splits: {result.n_train} train (once), {result.n_calibration} "
        f"calibration, {result.n_validation} validation, {result.n_test} test\n"
        f"router {result.router}, encoder {result.encoder}, {len(result.pool)} candidates\n"
    )
    tables: list[Table] = [
        _cells([cell for cell in result.cells if cell.risk_target is target])
        for target in protocol.risk_targets
    ]
    controls = result.controls
    shown: dict[str, Any] = {
        "best single": f"{controls.best_single} {controls.accuracy[controls.best_single]:.3f}",
        "router top-1": f"{controls.router_top1:.3f}",
        "full vote": "no recorded answers" if math.isnan(_number(controls.full_vote))
        else f"{controls.full_vote:.3f}",
        "some candidate right": f"{controls.answerable:.3f}",
    }  # fmt: skip
    return [head, *tables, fields(shown)]


_COLUMNS = {
    "risk": "risk",
    "miss_given_answerable": "miss | answerable",
    "served_error": "served error",
    "false_abstain": "false abstain",
    "abstain": "abstain",
    "size": "size",
    "calls_saved": "calls saved",
    "accuracy": "accuracy",
}


def _cells(cells: Sequence[Cell]) -> Table:
    measured = [name for name in _COLUMNS if name in cells[0].mean]
    title = f"risk target: {cells[0].risk_target} (mean ± standard deviation over splits)"
    names = ("score", "alpha", *(_COLUMNS[name] for name in measured))
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1))
    for name in names:
        table.add_column(name, no_wrap=True)
    for cell in cells:
        values = [f"{cell.mean[name]:.3f} ±{cell.sd[name]:.3f}" for name in measured]
        table.add_row(cell.score, f"{cell.alpha:g}", *values)
    return table


def demo(result: Mapping[str, Any]) -> list[Table]:
    """What `racer demo` measured."""
    table = Table(
        "alpha",
        "miss | answerable",
        "paper risk",
        "mean set",
        "calls saved",
        "abstain",
        "accuracy",
        title=f"{result['queries']} test queries through the gateway, {result['pool_size']} "
        f"candidates, {result['n_calibration']} calibration rows",
    )
    for row in result["alphas"]:
        table.add_row(
            f"{row['alpha']:g}",
            _risk(row["answerable"]),
            _risk(row["paper"]),
            f"{row['mean_size']:.2f}",
            f"{row['calls_saved']:.0%}",
            f"{row['abstain']:.1%}",
            f"{row['accuracy']:.1%}",
        )
    controls = result["controls"]
    return [
        table,
        fields(
            {
                "best single candidate": f"{controls['best_single']['name']} "
                f"{controls['best_single']['accuracy']:.1%}",
                "router's top-1": f"{controls['router_top1']:.1%}",
                "full vote (everyone called)": f"{controls['full_vote']:.1%}",
                "brackets": "95 % beta-binomial interval of the realised risk, each risk from the "
                "calibration that targets it; where scores tie, risk may lie below",
            }
        ),
    ]


def _risk(value: Mapping[str, Any]) -> str:
    low, high = value["interval"]
    return f"{value['risk']:.3f} [{low:.3f}, {high:.3f}]"


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return ", ".join(str(each) for each in cast("list[Any]", value))
    return "-" if value is None else str(value)
