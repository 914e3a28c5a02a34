"""``racer bootstrap``: from questions to an active calibration, by the commands in order."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from app.cli import tables
from app.cli.console import (
    ADMIN_KEY,
    CONFIG,
    FILE,
    JSON,
    JUDGE_CALLS,
    JUDGE_COST,
    LATE_URL,
    ROWS_KIND,
    err,
    gateway_address,
    out,
    print_json,
)
from app.cli.request_options import takes_shapes
from app.cli.router_options import known_router, routers_like
from app.cli.split import parse_shares
from app.tools.gateway_client import GatewayClient
from racer_core.aggregation.grading import Grade
from racer_core.errors import InputError

if TYPE_CHECKING:
    from app.tools.bootstrap.labels import Grading, LabelReview
    from app.tools.labelling.shapes import ShapeOptions

REPORT: Final = "report.txt"  # in the folder
WAIT_S = 120.0  # for the gateway to load the artifact: its encoder may be downloaded


@click.command()
@CONFIG
@click.option(
    "--queries",
    type=FILE,
    required=True,
    help="Questions, drawn like those that will be served, as `racer label` takes them.",
)
@click.option(
    "--reference",
    "references",
    type=FILE,
    help="File of the references, of the same format, where the questions have none.",
)
@click.option(
    "--grade",
    type=click.Choice([*(each.value for each in Grade), "judge"]),
    help="How an answer is compared with the reference; default: `judge` with --judge, else what "
    "the references ask for.",
)
@click.option("--page", is_flag=True, help="People grade in a browser, as of `racer label`.")
@click.option("--judge", help="A candidate that grades, or the URL of another server.")
@click.option("--judge-model", help="Model name of the judge at that URL.")
@JUDGE_CALLS
@JUDGE_COST
@click.option(
    "--accept-labels", is_flag=True, help="Go on with labels that are doubted, as you checked them."
)
@click.option(
    "--concurrency",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="Questions labelled at the same time.",
)
@click.option(
    "--share",
    "shares",
    metavar="NAME=SHARE",
    multiple=True,
    callback=parse_shares,
    help="Share of train, validation (or none) and calibration; repeatable. Default: 0.4, 0.3, 0.3;"
    " 0.4, 0, 0.6 where validation rows are too few to tune on.",
)
@click.option(
    "--router",
    callback=known_router,
    shell_complete=routers_like,
    default="knn",
    show_default=True,
    help="knn, mlp, routerdc, or a router of an installed package.",
)
@click.option(
    "--encoder",
    "encoders",
    multiple=True,
    help="As of `racer train`.",
)
@takes_shapes
@ROWS_KIND
@click.option("--alpha", type=float, help="Risk level; default: the configuration's.")
@click.option("--write", is_flag=True, help="Apply what `racer tune` chooses to the configuration.")
@click.option(
    "--out",
    "folder",
    type=FILE,
    default=Path("bootstrap"),
    show_default=True,
    help="Folder of rows and state, from which the same command goes on.",
)
@LATE_URL
@ADMIN_KEY
@JSON
def bootstrap(
    config: Path,
    queries: Path,
    references: Path | None,
    grade: str | None,
    page: bool,
    judge: str | None,
    judge_model: str | None,
    judge_calls: int | None,
    judge_cost: float | None,
    accept_labels: bool,
    concurrency: int,
    shares: Mapping[str, float] | None,
    router: str,
    encoders: tuple[str, ...],
    shapes: ShapeOptions,
    kind: str | None,
    alpha: float | None,
    write: bool,
    folder: Path,
    url: str | None,
    key: str | None,
    as_json: bool,
) -> None:
    """Label questions through the running gateway, split, train, tune, evaluate and calibrate.

    Each step is the command that is shown and can be run alone. The same command again skips what
    is done, as long as nothing that it depends on has changed. A judge's key is $RACER_JUDGE_KEY.

    References choose how answers are compared, for labels and for votes: `aggregation.equality` is
    written to the configuration. Where labels cannot be trusted it stops behind the first step, and
    says why; by another --grade stored answers are graded anew. It ends with what you gain; tables
    of all steps are added to report.txt in --out.

    With `--like` the questions that calibrate are also asked as your requests are sent; `racer
    doctor` prints the shapes. Without it, the options below it say how all questions are asked.

    Without references: --judge has a model grade the answers, and `racer serve
    --calibrate-from-traffic` needs neither questions nor labels to certify that an answer is the
    whole pool's.
    """
    from app.tools.bootstrap.run import Terminal, run
    from app.tools.bootstrap.steps import BootstrapOptions
    from app.tools.labelling.people import KIND as PEOPLE
    from racer_core.records.split import UNTUNED_SHARES

    if shares and (missing := UNTUNED_SHARES.keys() - shares.keys()):
        raise click.UsageError(f"--share: no share for {', '.join(sorted(missing))}")
    if page and (grade or judge):
        raise click.UsageError("--page has people grade: leave out --grade and --judge")
    address = url or gateway_address(config, admin=True)  # data routes are there, too
    options = BootstrapOptions(
        config=config,
        queries=queries,
        references=references,
        grade=PEOPLE if page else grade,
        judge=judge,
        judge_model=judge_model,
        judge_calls=judge_calls,
        judge_cost=judge_cost,
        accepts_labels=accept_labels,
        concurrency=concurrency,
        shares=shares or None,
        router=router,
        encoders=encoders,
        shapes=shapes,
        kind=kind,
        alpha=alpha,
        write=write,
        folder=folder,
        url=address,
        data_url=url or gateway_address(config, admin=False),
        wait_s=WAIT_S,
    )
    racer = click.get_current_context().find_root().command

    def command(words: Sequence[str]) -> Any:
        # Not among the words that are shown: a key is a secret.
        secret = ["--key", key] if key and words[0] in ("label", "calibrate") else []
        return racer.main([*words, *secret], prog_name="racer", standalone_mode=False)

    with GatewayClient(address, key) as gateway, _report(options.folder):
        found = run(options, gateway, command, Terminal(say=_say, note=print, show=_show))
        out.print(_accuracies(found["candidates"], found["rows"]["labelled"]))
        out.print(tables.fields(_fields(found)))
    if as_json:
        print_json(found)
        return
    if (found_gains := found["evaluation"].get("gains")) is not None:
        out.print(_gains(found_gains, len(found["candidates"])))
    out.print(tables.fields(_closing(found, options.folder / REPORT)))
    for number, each in enumerate(found["next"], 1):
        out.print(f"next {number}: {each}", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _report(folder: Path) -> Generator[None]:
    """Let the tables of the steps go to a file; each run adds to it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / REPORT).open("a", encoding="utf-8") as file, redirect_stdout(file):
            yield
    except OSError as exc:
        raise InputError(f"{folder / REPORT}: cannot be written ({exc.strerror})") from exc


def _show(review: LabelReview, grading: Grading) -> None:
    """What each rule finds right, and answers beside their references."""
    shares = Table("rule", box=SIMPLE_HEAD, title=f"right, of {review.rows} questions")
    for name in next(iter(review.shares.values()), ()):
        shares.add_column(Text(name), justify="right")
    for rule, of in review.shares.items():
        mark = " (chosen)" if rule == grading.kind else ""
        shares.add_row(f"{rule}{mark}", *(f"{each:.1%}" for each in of.values()))
    samples = Table("reference", "answer", "read", "label", box=SIMPLE_HEAD, title="samples")
    for each in review.samples:
        label = "right" if each.is_right else "wrong"
        answer = f"{each.candidate}: {each.answer}"
        samples.add_row(Text(each.reference), Text(answer), Text(each.read), label)
    err.print(shares, samples)


def _gains(gains: Mapping[str, Any], pool: int) -> Table:
    """Accuracy, calls and price of each way of asking, beside the best single model."""
    best = gains["best_candidate"]
    title = f"what you gain, on {gains['rows']} questions that trained nothing"
    table = Table("way of asking", box=SIMPLE_HEAD, title=title)
    has_prices = gains["ways"]["all"]["cost"] is not None
    for name in ("right", f"more than {best}", "calls", *(("price",) if has_prices else ())):
        table.add_column(Text(name), justify="right")
    vote, ways, settled = gains["vote"], gains["ways"], gains["until_settled"]
    lines = [
        (f"{best} alone, the best model", ways["best"]),
        ("the router's first choice", ways["first"]),
        (f"the set at alpha {ways['set']['alpha']:g}, by {vote} vote", ways["set"]),
        *((f"the set at alpha {each['alpha']:g}", each) for each in gains["smaller"]),
        *((f"same_answer at alpha {each['alpha']:g}, one by one", each) for each in settled),
        (f"all {pool}, by {vote} vote", ways["all"]),
    ]
    for name, of in lines:
        more = f"{100 * of['more']:+.1f} ± {100 * of['more_se']:.1f}"
        right = f"{100 * of['accuracy']:.1f} ± {100 * of['se']:.1f} %"
        cells = [right, "" if of is ways["best"] else more, f"{of['calls']:.2f}"]
        if has_prices:
            cells.append("" if of["cost"] is None else f"{of['cost']:.3g}")
        table.add_row(Text(name), *cells)
    return table


def _closing(found: Mapping[str, Any], report: Path) -> dict[str, Any]:
    """What holds, what to do, and where the rest is."""
    from app.tools.bootstrap import gains as bootstrap_gains

    calibration, evaluation = found["calibration"], found["evaluation"]
    bound = f"{calibration['risk_target']} at alpha {calibration['alpha']:g}"
    low, high = calibration["risk_q05"], calibration["risk_q95"]
    if low is not None and high is not None:
        bound += f": realised risk {low:.3f} to {high:.3f}, with probability 90 %"
    shown: dict[str, Any] = {"bound": bound}
    if (gains := evaluation.get("gains")) is not None:
        if gains["refused"]:
            shown["refused"] = f"{gains['refused']:.1%} of the questions, which count as wrong"
        shown["errors"] = "± one standard error over questions; differences are paired"
        shown["advice"] = bootstrap_gains.advice(gains)
    else:
        shown["advice"] = _measured(evaluation)
    state = "active" if calibration["active"] else "not active"
    shown["calibration"] = f"{calibration['id']}, {state}"
    return shown | {"report": f"{report}: labels, settings and tables of all steps"}


def _say(text: str) -> None:
    err.print(text, style="bold", markup=False, highlight=False, soft_wrap=True)


def _accuracies(right: Mapping[str, float], rows: int) -> Table:
    """The share of questions that each candidate answers right."""
    table = Table("candidate", box=SIMPLE_HEAD)
    table.add_column(f"right, of {rows}", justify="right")
    for name, share in right.items():
        table.add_row(Text(name), f"{share:.1%}")
    return table


def _fields(found: Mapping[str, Any]) -> dict[str, Any]:
    """The report, one line for each figure."""
    calibration, evaluation, router = found["calibration"], found["evaluation"], found["router"]
    rows = ", ".join(f"{count} {name}" for name, count in found["rows"].items())
    shown = {
        "rows": rows,
        "router": f"{router['router']} on {router['encoder']}, in {router['artifact']}",
        "promise": f"{calibration['risk_target']} at alpha {calibration['alpha']:g}, score "
        f"{calibration['score']}, vote {found['vote']}",
        "tuning": _tuning(found["tuning"]),
        "measured": _measured(evaluation),
    }
    if calibration["mean_size"] is not None:
        shown["mean set"] = (
            f"{calibration['mean_size']:.2f} of {len(found['candidates'])} calls, "
            f"{calibration['calls_saved']:.0%} saved"
        )
    low, high = calibration["risk_q05"], calibration["risk_q95"]
    if low is not None and high is not None:
        shown["realised risk"] = f"{low:.3f} to {high:.3f}, with probability 90 %"
    state = "active" if calibration["active"] else "not active"
    return shown | {"calibration": f"{calibration['id']}, {state}"}


def _tuning(tuning: Mapping[str, Any]) -> str:
    if "left_out" in tuning:
        return f"left out: {tuning['left_out']}"
    chosen = tuning["chosen"]
    vote = chosen["rule"] or "no vote"
    state = "written" if tuning["written"] else "not written" if tuning["diff"] else "as configured"
    behind = f"{chosen['behind']:.1%} ± {1.96 * chosen['behind_se']:.1%} behind the best setting"
    return (
        f"score {chosen['score']}, alpha {chosen['alpha']:g}, {vote}: accuracy "
        f"{chosen['accuracy']:.1%} ({behind}) with {chosen['size']:.2f} calls; {state}"
    )


def _measured(evaluation: Mapping[str, Any]) -> str:
    if "left_out" in evaluation:
        return f"left out: {evaluation['left_out']}"
    width, accuracy = evaluation["risk_half_width"], evaluation["accuracy"]
    text = f"risk {evaluation['risk']:.3f}" + ("" if width is None else f" ± {width:.3f}")
    text += f", {evaluation['size']:.2f} calls"
    if accuracy is not None:
        text += (
            f", accuracy by majority {accuracy:.1%} (best candidate "
            f"{evaluation['best_single']:.1%}, all called {evaluation['full_pool']:.1%})"
        )
    return f"{text}; {evaluation['splits']} splits of {evaluation['test']} test rows"
