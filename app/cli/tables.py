"""Tables and field lists that the command line prints. Reads results, computes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, cast

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from app.tools.labelling.run import LabellingReport
    from app.tools.labelling.summary import RowsSummary
    from racer_core.artifacts import Artifact
    from racer_core.offline.conversations import ConversationEvaluation
    from racer_core.offline.evaluation_result import Evaluation
    from racer_core.offline.evaluation_tables import Grid
    from racer_core.types import LabelledRows


def fields(values: Mapping[str, Any]) -> Table:
    """A list of names and values, one per line."""
    table = Table.grid(padding=(0, 2))
    for name, value in values.items():
        table.add_row(Text(name, style="bold"), Text(_plain(value)))
    return table


def findings(rows: Sequence[tuple[str, ...]]) -> Table:
    """The findings of `racer doctor`: check, state, finding, what to do next."""
    table = Table("check", "state", "found", "what to do next", box=SIMPLE_HEAD)
    colours = {"OK": "green", "warning": "yellow", "failed": "bold red"}
    for check, state, found, cure in rows:
        table.add_row(Text(check), Text(state, style=colours[state]), Text(found), Text(cure))
    return table


def keys(listed: Sequence[Mapping[str, Any]]) -> Table:
    """API keys with their limits."""
    limits = ("requests_per_minute", "tokens_per_minute", "concurrency", "max_alpha")
    table = Table("name", "role", box=SIMPLE_HEAD)
    for name in limits:
        table.add_column(name.replace("_", " "), justify="right")
    table.add_column("budget", justify="right")
    table.add_column("may call")
    for each in listed:
        shown = (_plain(each.get(name)) for name in limits)
        candidates = each.get("candidates")
        may_call = "all" if candidates is None else ", ".join(candidates)
        budget = _budget(each.get("budget"))
        table.add_row(Text(each["name"]), each["role"], *shown, budget, Text(may_call))
    return table


def conversations(result: ConversationEvaluation) -> list[Text | Table]:
    """Risk, calls and cached characters of whole conversations, by risk level and policy."""
    table = Table("alpha", "candidates", box=SIMPLE_HEAD)
    for name in ("risk", "±", "calls a turn", "cached"):
        table.add_column(name, justify="right")
    for each in result.measures:
        table.add_row(
            f"{each.alpha:g}",
            "kept" if each.kept else "chosen at each turn",
            f"{each.risk:.4f}",
            f"{1.96 * each.risk_se:.4f}",
            f"{each.calls:.2f}",
            f"{each.cached:.1%}",
        )
    heading = (
        f"{result.conversations} conversations, {result.turns} turns; {result.splits} random "
        f"halves; {result.score}, {result.risk_target}. alpha bounds the mean risk."
    )
    return [Text(heading), table]


def labelled_kinds(summary: RowsSummary) -> Table:
    """How many rows of each kind of request every candidate had right."""
    table = Table("kind of request", box=SIMPLE_HEAD)
    for name in ("rows", *summary.pool):
        table.add_column(Text(name), justify="right")
    for name, kind in summary.kinds.items():
        counts = (kind.rows, *(kind.right[each] for each in summary.pool))
        table.add_row(Text(name), *map(str, counts))
    return table


def candidates(report: LabellingReport) -> Table:
    """What each candidate had right of the labelled questions, and what its calls took."""
    table = Table("candidate", box=SIMPLE_HEAD)
    for name in ("labelled", "right", "share, 95 % interval", "failed calls", "tokens", "seconds"):
        table.add_column(name, justify="right")
    for name, each in report.rows.candidates.items():
        low, high = each.interval if each.rows else (0.0, 1.0)
        share = f"{each.right / each.rows:.3f} [{low:.3f}, {high:.3f}]" if each.rows else "-"
        table.add_row(
            Text(name),
            str(each.rows),
            str(each.right),
            share,
            str(report.failed_calls[name]),
            f"{mean(each.tokens):.0f}" if each.tokens else "-",
            f"{mean(each.seconds):.2f}" if each.seconds else "-",
        )
    return table


def frontier(points: Sequence[Mapping[str, Any]]) -> Table:
    """What each level of risk takes under the promise `same_answer`."""
    table = Table(box=SIMPLE_HEAD)
    for name in ("alpha", "calls", "rounds", "share of the price"):
        table.add_column(name, justify="right")
    for point in points:
        share = point["price_share"]
        table.add_row(
            f"{point['alpha']:.3g}",
            f"{point['expected_calls']:.2f}",
            f"{point['expected_rounds']:.2f}",
            "" if share is None else f"{share:.2f}",
        )
    return table


def encoders(compared: Sequence[Mapping[str, Any]]) -> Table:
    """The encoders that `racer train` compared, and the chosen one."""
    table = Table("encoder", box=SIMPLE_HEAD)
    for name in ("ms a query", "mean set", "minus the smallest"):
        table.add_column(name, justify="right")
    table.add_column("")
    for each in compared:
        found = "chosen" if each["chosen"] else "larger sets" if each["larger"] else "dearer"
        table.add_row(
            Text(each["name"]),
            f"{each['ms']:.2f}",
            f"{each['size']:.2f}",
            f"{each['difference']:+.2f} ± {each['half_width']:.2f}",
            found,
        )
    return table


def rows_kind(rows: LabelledRows) -> str:
    """The kind of the rows, and whether it was guessed."""
    from racer_core.records.units import rows_kind

    return rows_kind(rows) if rows.kind else f"{rows_kind(rows)} (guessed)"


def artifact_summary(
    artifact: Artifact, folder: Path, rows: LabelledRows, validation: LabelledRows | None = None
) -> dict[str, Any]:
    """The summary of `racer train`: the artifact's router, pool and encoder, and its rows.

    ``validation_overlap`` counts validation rows whose query trained the router.
    """
    from racer_core.records.conversation import fingerprint

    queries = validation.queries if validation else []
    known = [fingerprint(artifact.salt, query) for query in queries]
    return {
        "artifact": str(folder),
        "router": artifact.router.kind,
        "router_settings": dict(artifact.router.settings()),
        "pool": list(artifact.pool),
        "encoder": artifact.encoder.kind,
        "backend": artifact.encoder.backend,
        "dtype": artifact.encoder.dtype,
        "training_rows": len(rows),
        "training_kind": rows_kind(rows),
        "validation_kind": rows_kind(validation) if validation else None,
        "validation_overlap": sum(each in artifact.training_fingerprints for each in known),
        "validation_copies": artifact.validation_copies,
        "null_threshold": artifact.null_threshold,
        "stacked_vote": artifact.stacked is not None,
    }


def training_rows(counts: Mapping[str, Mapping[str, int]]) -> Table:
    """How many rows of each application trained the router, and how many were left out."""
    table = Table("application", box=SIMPLE_HEAD)
    for name in ("first turns", "later turns", "judged", "without label"):
        table.add_column(name, justify="right")
    for name, each in counts.items():
        table.add_row(Text(name), *map(str, each.values()))
    return table


def decision(value: Mapping[str, Any]) -> Table:
    """The decision of `racer route`: set, router scores of the pool, certificate."""
    certificate = value["certificate"]
    guarantee = certificate["guarantee"]
    shown = {
        "selected": ", ".join(value["selected"]) or f"none ({value['abstain_reason']})",
        "router scores": "  ".join(f"{m} {s:.2f}" for m, s in value["pool_scores"].items()),
        "alpha": f"{guarantee['alpha']:g} ({guarantee['risk_target']})",
        "lambda_hat": certificate["lambda_hat"],
        "guarantee": "holds" if certificate["holds"] else "void",
        "reasons": ", ".join(certificate["reasons"]) or "-",
        "remarks": ", ".join(certificate.get("remarks", ())) or "-",
    }
    if "answers" in value:
        shown |= {"answers": "  ".join(f"{m}: {a!r}" for m, a in value["answers"].items())}
        shown |= {"answer": value["answer"]}
    return fields(shown)


def evaluation(result: Evaluation, alphas: Sequence[float]) -> list[Table | str]:
    """The result of `racer evaluate`: protocol, one table per risk target, controls."""
    from racer_core.offline import evaluation_tables as shown

    return [
        f"\n{shown.described(result)}, {len(result.pool)} candidates, {shown.repeats(result)}",
        _table(shown.rows(result)),
        *map(_table, shown.overview(result, alphas or shown.SHOWN)),
        *map(_table, shown.forecasts(result, alphas or shown.SHOWN)),
        f"{shown.LEGEND}\n",
        *map(_table, shown.beside(result)),
        *(f"not measured: {each}" for each in shown.unmeasured(result)),
    ]


def _table(grid: Grid) -> Table:
    """Render a grid; headings break at spaces, as do figures where the terminal is narrow."""
    table = Table(title=Text(grid.title), box=SIMPLE_HEAD, collapse_padding=True)
    for number, name in enumerate(grid.head):
        heading = name if number == 0 else name.replace(" ", "\n")
        is_figure = any(row[number].endswith(")") for row in grid.rows) and number > 0
        table.add_column(
            Text(heading), justify="right" if number else "left", no_wrap=not is_figure
        )
    for row in grid.rows:
        table.add_row(*map(Text, row))
    return table


def demo(result: Mapping[str, Any]) -> list[Table]:
    """The result of `racer demo`: one row per alpha, and the controls."""
    table = Table(
        "alpha",
        r"miss | answerable \[expected range]",
        r"paper risk \[expected range]",
        "mean set",
        "fixed order's",
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
            f"{row['fixed_order_size']:.2f}",
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
                "full vote (all called)": f"{controls['full_vote']:.1%}",
                "expected range": "holds 95 % of such figures by the exact law of the bound, with "
                "as many calibration rows and queries; about half of them are above alpha",
                "accuracy": "abstentions count as wrong; top-1 never abstains, and has no bound",
            }
        ),
    ]


def _risk(value: Mapping[str, Any]) -> str:
    low, high = value["expected_range"]
    return f"{value['risk']:.3f} [{low:.3f}, {high:.3f}]"


def _budget(terms: Mapping[str, Any] | None) -> str:
    """The hard limit of a key's budget, else the soft one."""
    if terms is None:
        return _plain(None)
    return f"{terms['hard'] or terms['soft']:g} a {terms['per']}"


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return ", ".join(str(each) for each in cast("list[Any]", value))
    return "-" if value is None else str(value)
