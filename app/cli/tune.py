"""``racer tune``: chooses score, alpha and vote on validation rows."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from app import settings
from app.cli import tables
from app.cli.console import CONFIG, FILE, JSON, ROWS_KIND, err, out, print_json, progress_bars
from app.errors import SettingsError
from racer_core.types import RiskTarget, RowsKind


@click.command()
@CONFIG
@click.option(
    "--validation", type=FILE, required=True, help="Labelled rows with answers, or grades."
)
@click.option(
    "--objective",
    type=click.Choice(["size", "cost"]),
    help="What to minimise; default: cost if the configuration has prices, else size.",
)
@click.option(
    "--at",
    type=float,
    metavar="ALPHA",
    help="Choose the point of the table at this alpha instead.",
)
@click.option("--write", is_flag=True, help="Apply the diff to the configuration.")
@ROWS_KIND
@JSON
def tune(
    config: Path,
    validation: Path,
    objective: str | None,
    at: float | None,
    write: bool,
    kind: str | None,
    as_json: bool,
) -> dict[str, Any]:
    """Choose score, alpha, vote and equality on validation rows; print the change as a diff.

    The table and the plot show what each alpha costs, misses and gets right. Of the settings within
    one standard error of the best, the plateau, the one with the smallest alpha is chosen that is
    not shown to be dearer than the cheapest; `--at` chooses another point. Fewer than 500 rows
    choose no alpha: the configured one stays. With prices by the token the rows must record what
    calls used.

    Votes are counted under the configured equality and every other one that the answers allow.
    Votes by an evaluator use recorded confidences; without any, an evaluator in the
    configuration rates the answers. Graded rows (`risk_target: quality`) choose no vote. The second
    table says what the promise `same_answer` takes of these rows.
    """
    from app.routing.artifact_files import open_racer
    from app.settings.editing import check_writable
    from app.tools import tuning, tuning_frontier
    from app.tools.router_rows import read_rows
    from racer_core.offline import tune as search
    from racer_core.offline.training_rows import with_labels
    from racer_core.records.usage import mean_usage

    configured = settings.read(config)
    if write:
        check_writable(config)
    if objective == "cost" and not configured.exact_prices:
        raise SettingsError(f"{config}: --objective cost needs a price for every candidate")
    read = read_rows(validation, configured, None if kind is None else RowsKind(kind))
    rows = with_labels(read, "validation rows")
    if left_out := len(read) - len(rows):
        err.print(f"racer: {left_out} of {len(read)} rows have no label and are left out")
    prices = None if objective == "size" else configured.call_prices(mean_usage(rows.rows))
    if prices is None and objective != "size" and configured.exact_prices:
        raise SettingsError(
            f"{config}: what a call costs is not known, for prices depend on tokens and no row "
            "records what calls used: take rows of `racer label`, let `price` be the number of a "
            "call, or give --objective size"
        )
    opened = open_racer(configured)
    search.check_rows(opened, rows, configured.routing.risk_target)
    rows = tuning.servable_confidences(rows, configured)
    recorded = any(row.confidences for row in rows.rows)
    rule = tuning.rule_of(configured, opened)
    with progress_bars(as_json) as progress:
        rated = None
        is_graded = configured.routing.risk_target is RiskTarget.QUALITY
        if configured.aggregation.raters and not recorded and not is_graded:
            secrets = settings.load(config, serves=False)[1]
            rated = tuning.rate_rows(configured, secrets, rows, progress)
        tuned = search.tune(
            opened,
            rows,
            rule=rule,
            risk_target=configured.routing.risk_target,
            prices=None if prices is None else tuple(prices[name] for name in opened.pool),
            alpha=configured.routing.alpha,
            ratings=rated.ratings if rated else None,
            progress=progress,
        )
        levels = () if is_graded else tuning.same_answer(rule, rows, prices)
    tuned = tuned if at is None else tuned.at(at)
    change = tuning.configuration_change(config, tuned, configured.aggregation)
    if rated and rated.failed:
        err.print(
            f"racer: {rated.failed} of {rated.answers} ratings failed ({rated.causes}); they "
            "count as the mean of the others given to the same set",
            soft_wrap=True,
        )
    if write:
        change.write()
    shown = asdict(tuned) | {
        "frontier": [each.alpha for each in tuned.frontier],
        "plateau": tuned.plateau,
        "evaluators": [each.as_json() for each in tuned.evaluators],
        "kind": tables.rows_kind(rows),
        "diff": change.diff,
        "settings": change.settings(configured.model_dump(mode="json")),
        "written": write,
        "same_answer": [asdict(each) for each in levels],
    }
    if as_json:
        print_json(shown)
        return shown
    if tuned.evaluators:
        out.print(tuning.evaluator_table(tuned))
    unit = None if prices is None else configured.currency
    out.print(tuning_frontier.table(tuned, unit))
    out.print(tuning_frontier.plot(tuned, unit), markup=False, highlight=False, soft_wrap=True)
    out.print(tuning_frontier.sentence(tuned), markup=False, highlight=False, soft_wrap=True)
    if tuned.equalities:
        out.print(tuning.equality_table(tuned))
    if levels:
        out.print(tuning.same_answer_table(levels))
        out.print(tuning.same_answer_advice(levels, configured), highlight=False, markup=False)
    out.print(f"rows: {tables.rows_kind(rows)}", highlight=False)
    out.print(change.diff or "nothing to change", markup=False, highlight=False)
    return shown
