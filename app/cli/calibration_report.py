"""What `racer calibrate` and `racer calibrations` say of a calibration. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from racer_core.types import RiskTarget

_PROMISES: Final = {
    RiskTarget.PAPER: (
        "at most {bound:.3g} of the sets lack a right candidate, or the null model where none is"
    ),
    RiskTarget.ANSWERABLE: (
        "at most {bound:.3g} of the requests that some candidate answers right call none that does"
    ),
    RiskTarget.QUALITY: "answers fall short of the best one by at most {bound:.3g} on average",
}

_PICKED: Final = ("band", "declared")  # bases of an alpha that was not fixed before the rows

CHOSEN: Final = (
    "its certificates are void (chosen_by_figures) until the next calibration: it was activated by "
    "its id, after its figures were shown"
)


def terms(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """The rows and the terms of a calibration."""
    sample = evidence.get("sample", {})
    rows = f"{evidence['rows']}, of which {evidence['n']} count"
    if evidence.get("unlabelled"):
        rows += f", {evidence['unlabelled']} without label"
    shown = {
        "rows": rows + (f"; {sample['kind']}" if sample else ""),
        "score": evidence["score"],
        "risk target": evidence["risk_target"],
    }
    shown |= {name: evidence[name] for name in ("delta",) if evidence.get(name) is not None}
    if evidence.get("r", 1) > 1:
        shown["r"] = evidence["r"]
    if (turns := evidence.get("later_turns")) is not None:
        calls = f"{turns['mean_size']:.2f} calls"
        shown["later turns"] = f"{turns['rows']} rows, " + (
            calls if turns["feasible"] else f"not used: alpha needs {turns['min_n']}"
        )
    if whole := evidence.get("conversations"):
        shown["whole conversations"] = "; ".join(map(_conversations, whole))
    return shown


def _conversations(found: Mapping[str, Any]) -> str:
    """The evidence of whole conversations, with what it certifies for sessions."""
    if not found["feasible"]:
        return f"{found['n']}, not used: alpha needs {found['min_n']}"
    bound = "without a bound for one calibration"
    if found["law"] == "tail":
        bound = f"by this calibration with probability {1 - found['delta']:.3g}"
    return (
        f"{found['n']}, {found['mean_size']:.2f} calls a turn; sessions are missed in at most "
        f"{found['alpha']:.3g} of their turns on average, {bound}"
    )


def levels(evidence: Mapping[str, Any]) -> Table:
    """Calls, abstentions, price and risk at the calibration's alpha, and at those of a dry run."""
    own = evidence["alpha"]
    points = [evidence, *(each for each in evidence.get("curve", ()) if each["alpha"] != own)]
    has_price = "mean_cost" in evidence
    table = Table(box=SIMPLE_HEAD)
    names = ["alpha", "calls", "none called", *(["price"] if has_price else []), "risk, 5-95 %"]
    for name in (*names, "lambda_hat"):
        table.add_column(name, justify="right")
    for point in sorted(points, key=lambda each: each["alpha"]):
        table.add_row(
            f"{point['alpha']:.3g}",
            f"{point['mean_size']:.2f}",
            f"{point['abstain']:.1%}",
            *([f"{point['mean_cost']:.3g}"] if has_price else []),
            _interval(point["risk_q05"], point["risk_q95"]),
            "infinite" if point["lambda_hat"] is None else f"{point['lambda_hat']:.4g}",
            style="bold" if point is evidence and len(points) > 1 else "",
        )
    return table


def parts(evidence: Mapping[str, Any]) -> Iterator[Table]:
    """The groups of a dry run, and the applications."""
    for name in ("groups", "applications"):
        if lines := evidence.get(name):
            yield _table(name, lines)


def sentence(evidence: Mapping[str, Any], shift: Mapping[str, Any] | None) -> str:
    """What the calibration means for users, in one sentence.

    Args:
        evidence: The evidence; means are over its own rows.
        shift: Its distance from the calibration before it; None: there was none.
    """
    alpha, size = evidence["alpha"], evidence["mean_size"]
    if not evidence["feasible"]:
        return (
            f"{evidence['n']} rows are too few for alpha {alpha:.3g}, so every request calls all "
            f"candidates; it takes {evidence['min_n']} rows or more."
        )
    if evidence["lambda_hat"] is None and evidence.get("unlabelled"):
        return (
            f"{evidence['unlabelled']} of {evidence['n']} rows have no label and count as misses, "
            f"more than alpha {alpha:.3g} allows, so every request calls all candidates: label "
            "more of them."
        )
    before = "" if shift is None else f" instead of {_calls_before(evidence, shift)}"
    pool = len(evidence.get("conditions", {}).get("digests", ()))
    calls = f"{size:.2f} calls{before or (f' of {pool}' if pool else '')}"
    none = f", none for {evidence['abstain']:.1%} of the requests" if evidence["abstain"] else ""
    found = f"At alpha {alpha:.3g}: {calls} a request on average{none}"
    bound = evidence.get("risk_band") if evidence.get("alpha_basis") in _PICKED else alpha
    if bound is None:
        return f"{found}, and no bound on the risk is certified."
    found += f", and {_PROMISES[RiskTarget(evidence['risk_target'])].format(bound=bound)}"
    if evidence.get("delta") is not None:
        found += f" (with confidence {1.0 - evidence['delta']:.3g})"
    if (risk := evidence.get("answer_risk")) is not None:
        found += f"; of the final answers at most {risk['upper']:.3g} are wrong"
    return found + "."


def _calls_before(evidence: Mapping[str, Any], shift: Mapping[str, Any]) -> str:
    """The calls of the calibration before, with the terms that differ from the new one's."""
    terms_before = {
        name.replace("_", " "): f"{value:.3g}" if isinstance(value, float) else value
        for name in ("alpha", "score", "risk_target")
        if (value := shift.get(name)) not in (None, evidence[name])
    }
    shown = ", ".join(f"{name} {value}" for name, value in terms_before.items())
    return f"{shift['mean_size']:.2f}" + (f" (at {shown})" if shown else "")


def warnings(evidence: Mapping[str, Any]) -> Iterator[str]:
    """What an operator should know: why certificates do not hold, and what changes much."""
    if evidence.get("overlap_voids"):
        yield (
            f"{evidence['overlap']} rows trained the router, which voids every certificate: "
            "calibrate on other rows"
        )
    if evidence.get("alpha_basis") in _PICKED:
        band = evidence["risk_band"]
        bound = "none" if band is None else f"{band:.3g}"
        yield (
            f"alpha {evidence['alpha']:.3g} was chosen after rows were seen: the bound that "
            f"certificates state is {bound}"
        )
    limit = evidence.get("answer_limit")
    if limit is not None and not limit["passed"]:
        yield _limit_not_kept(evidence["alpha"], limit)
    if alert := evidence.get("shift", {}).get("alert"):
        yield alert


def _limit_not_kept(alpha: float, limit: Mapping[str, Any]) -> str:
    """What would help where no threshold passed the limit on wrong answers."""
    found = (
        f"no threshold keeps answer_risk_max {limit['answer_risk_max']:g} at alpha {alpha:g}, and "
        "certificates state no limit. "
    )
    if limit["smallest"] is None:
        return found + "These rows certify none: add rows or choose a larger alpha"
    return found + (
        f"The smallest limit that these rows would have passed is {limit['smallest']:g}: test it "
        "on other rows, since these chose it"
    )


def history(summaries: Sequence[Mapping[str, Any]]) -> Table:
    """Stored calibrations, newest first."""
    table = Table("calibration", "made", "", box=SIMPLE_HEAD)
    for name in ("alpha", "rows", "calls", "lambda_hat"):
        table.add_column(name, justify="right")
    table.add_column("terms")
    for each in summaries:
        found = each["evidence"]
        table.add_row(
            Text(each["id"]),
            _minute(each["created_at"]),
            Text(state(each), style="green" if each["active"] else "yellow"),
            f"{found['alpha']:.3g}",
            str(found["rows"]),
            f"{found['mean_size']:.2f}",
            "infinite" if found["lambda_hat"] is None else f"{found['lambda_hat']:.4g}",
            f"{found['score']}, {found['risk_target']}",
        )
    return table


def state(calibration: Mapping[str, Any]) -> str:
    """Whether a stored calibration decides, or why it does not; empty if it was not activated."""
    if calibration["active"]:
        return "active"
    if (share := calibration.get("share")) is not None:
        return f"canary of {share:.3g}"
    return "refused" if calibration["evidence"].get("refused") else ""  # of `same_answer`


def canary(found: Mapping[str, Any]) -> Table:
    """What a canary and the active calibration have realised since it began, by application."""
    title = f"canary of {found['share']:.3g} of the requests, since {_minute(found['since'])}"
    if found["ended"]:
        title += f"; ended by its drift alarm: {found['ended']}"
    table = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD)
    for name in ("calibration", "application"):
        table.add_column(name)
    for name in ("decisions", "calls", "none called", "judged", "risk", "95 % interval"):
        table.add_column(name, justify="right")
    for one in (found, found["active"]):
        for application, figures in _by_application(one["realised"]):
            table.add_row(Text(one["calibration_id"]), Text(application), *_realised(figures))
    return table


def _by_application(
    realised: Mapping[str, Any] | None,
) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
    """The figures with their application; ``-`` without applications."""
    if realised is None or "decisions" in realised:
        yield "-", realised
    else:
        yield from realised.items()


def _realised(figures: Mapping[str, Any] | None) -> tuple[str, ...]:
    if figures is None:  # the canary ended before the gateway started
        return ("-",) * 6
    size, abstained, risk = (figures[name] for name in ("mean_set", "abstained", "risk"))
    return (
        str(figures["decisions"]),
        "-" if size is None else f"{size:.2f}",
        "-" if abstained is None else f"{abstained:.1%}",
        str(figures["judged"]),
        "-" if risk is None else f"{risk:.3f}",
        "-" if risk is None else _interval(figures["lower"], figures["upper"]),
    )


def answers_history(summaries: Sequence[Mapping[str, Any]]) -> Table:
    """Stored calibrations of the promise `same_answer`, newest first."""
    table = Table("promise same_answer", "made", "", "application", box=SIMPLE_HEAD)
    for name in ("alpha", "rows", "calls"):
        table.add_column(name, justify="right")
    table.add_column("reference")
    for each in summaries:
        found = each["evidence"]
        table.add_row(
            Text(each["id"]),
            _minute(each["created_at"]),
            Text(state(each), style="green" if each["active"] else "yellow"),
            Text(each["application"] or "-"),
            f"{found['alpha']:.3g}",
            str(found["rows"]),
            f"{found['expected_calls']:.2f}",
            Text(found["reference"]),
        )
    return table


def _minute(moment: str) -> str:
    """A time in ISO 8601 to the minute."""
    return moment[:16].replace("T", " ")


def _interval(low: float | None, high: float | None) -> str:
    if high is None:
        return "-"
    return f"{high:.3f}" if low is None or low == high else f"{low:.3f}-{high:.3f}"


def _table(title: str, lines: Sequence[Mapping[str, Any]]) -> Table:
    """Render rows that have the same fields."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for name in lines[0]:
        table.add_column(name, justify="right")
    for line in lines:
        shown = (f"{v:.4g}" if isinstance(v, float) else str(v) for v in line.values())
        table.add_row(*map(Text, shown))
    return table
