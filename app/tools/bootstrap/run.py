"""Run of a bootstrap: the steps in order, each skipped where its result stands."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from app import settings
from app.errors import GatewayRefused, SettingsError
from app.settings import Settings
from app.settings.editing import as_yaml, changed, check_writable, has_settings
from app.settings.reloading import is_reloaded
from app.tools.bootstrap.gateway import check_gateway
from app.tools.bootstrap.labels import JUDGE, Grading, LabelReview, grading_of, review
from app.tools.bootstrap.state import BootstrapState, Step
from app.tools.bootstrap.steps import BootstrapOptions, Steps, artifact_of
from app.tools.gateway_client import GatewayClient
from app.tools.hub_probe import check_hub
from app.tools.labelling.people import KIND as PEOPLE
from app.tools.planning import fields, plan_for
from racer_core.errors import InputError, RacerError
from racer_core.offline.encoder_choice import default_encoder, offered
from racer_core.offline.training_rows import with_labels
from racer_core.prices import MeanUsage
from racer_core.records.questions import Question, read_questions, with_references
from racer_core.records.reader import read_rows
from racer_core.types import LabelledRows, RiskTarget

RunCommand = Callable[[Sequence[str]], Any]  # runs `racer` with these words, and returns its result
Say = Callable[[str], None]

STATE: Final = "bootstrap.json"
_NO_LABELS: Final = """\
no question has a reference, and there is no judge, so no answer could be called right. Add \
`reference` to the questions, or give --reference FILE. Without labels (docs/quickstart.md):
- a judge grades the answers: the same command with --judge CANDIDATE
- you grade them, in a browser: the same command with --page
- an answer is the whole pool's, without questions: racer serve --calibrate-from-traffic
- sampled requests, judged and partly labelled: `watching.shadow_rate`, racer label --from-shadow \
--grade judge --judge CANDIDATE, racer calibrate --from-shadow --delta 0.05"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """Where a bootstrap says what it does.

    Attributes:
        say: Takes a line for people.
        note: Takes a line for the report.
        show: Takes what is known of the labels.
    """

    say: Say
    note: Say
    show: Callable[[LabelReview, Grading], None]


def run(
    options: BootstrapOptions,
    gateway: GatewayClient,
    command: RunCommand,
    terminal: Terminal,
) -> dict[str, Any]:
    """Go from questions to an active calibration; finished steps of an earlier run are kept.

    Args:
        options: The options of the command.
        gateway: The running gateway.
        command: Runs the command of a step.
        terminal: Takes the command of each step, and what is known of the labels.

    Returns:
        The report.

    Raises:
        InputError: The labels are doubted; the message says what to do.
        RacerError: A step failed; its files are kept, and the same call goes on with it.
    """
    say = terminal.say
    configured = settings.read(options.config)
    asked = _check(options, configured)
    questions, most = len(asked), len(asked) * len(configured.pool)
    grading = grading_of(asked, options.grade, options.judge, most)
    state = BootstrapState(options.folder / STATE)
    check_gateway(gateway, configured)
    if not state.has_begun("train"):
        backend = configured.encoder.backend
        for each in offered(options.encoders) or (default_encoder(options.router, backend),):
            check_hub(each)
    steps = Steps(options, state, gateway, grading)
    _say_plan(say, questions, options, configured, steps)
    say(f"plan: answers are graded by: {grading.kind}, {grading.reason}")
    if grading.kind == JUDGE:
        say(f"plan: judge: {judge_terms(options, configured, most)}")
    makers = (
        *(steps.label, steps.split, steps.train),
        *(steps.tune, steps.evaluate),
        *((steps.like,) if options.shapes.likes else ()),
        steps.calibrate,
    )
    left: list[str] = []
    for number, make in enumerate(makers, 1):
        # `racer tune --write` changes what the next steps depend on.
        step = make(settings.read(options.config))
        say_here = partial(_say_at, say, f"[{number}/{len(makers)}]")
        is_kept = state.is_done(step) or state.recover(step)
        if is_kept:
            say_here(f"{step.name}: nothing has changed, skipped")
        else:
            try:
                _do(step, state, command, say_here)
            except RacerError:
                say_here(
                    f"{step.name} failed; when that is mended, run the same command again: "
                    "finished steps are kept"
                )
                raise
        if step.name == "label":
            read = read_rows(
                steps.rows, configured.pool, text="conversation", takes_unlabelled=True
            )
            rows = with_labels(read, steps.rows.name)
            found = review(rows.rows, configured.pool, grading)
            terminal.show(found, grading)
            if found.doubt is not None:
                if found.is_hopeless or not options.accepts_labels:
                    raise InputError(found.doubt)
                say(f"labels are accepted although they are doubted: {found.doubt}")
            if not (is_kept and _is_tuned(state, settings.read(options.config))):
                left += vote_alike(options.config, grading, gateway, say)
            _say_plan(terminal.note, questions, options, configured, steps, rows)
    return report(state, steps, settings.read(options.config), gateway, options, left)


def _say_at(say: Say, place: str, text: str) -> None:
    say(f"{place} {text}")


def _do(step: Step, state: BootstrapState, command: RunCommand, say: Say) -> None:
    """Run a step's command and note its result."""
    inputs = step.inputs
    try:
        words = [*step.command, *step.prepare()]
        say(f"racer {shlex.join(words)}")
        state.begin(step, inputs=inputs)
        result = step.keep(command(words))
    except step.tolerates as exc:
        say(f"{step.name} is left out: {exc}")
        result = {"left_out": str(exc)}
    state.finish(step, result, inputs=inputs)


def _say_plan(
    say: Say,
    questions: int,
    options: BootstrapOptions,
    configured: Settings,
    steps: Steps,
    rows: LabelledRows | None = None,
) -> None:
    """What these questions give, as `racer plan` says it; the calls from labelled rows on."""
    routing = configured.routing
    plan = plan_for(
        questions,
        alpha=routing.alpha if options.alpha is None else options.alpha,
        risk_target=routing.risk_target,
        rows=rows,
        shares=steps.planned_shares,
    )
    for name, text in fields(plan).items():
        say(f"plan: {name}: {text}")


def _check(options: BootstrapOptions, configured: Settings) -> Sequence[Question]:
    """Refuse what no step could do, before anything is asked.

    Returns:
        The questions with their references.

    Raises:
        InputError: The questions cannot be read, or nothing says which answers are right.
        SettingsError: The configuration has one candidate, names no folder for the artifact, or a
            risk of graded rows, or cannot be written although it will be.
    """
    questions = read_questions(options.queries, configured.text_of)
    if len(configured.pool) < 2:
        raise SettingsError(
            f"{options.config}: a router chooses among candidates, and there is one: add another "
            "to `candidates`"
        )
    if options.references is not None:
        given = read_questions(options.references, configured.text_of)
        questions = with_references(questions, given, options.references.name)
    elif (
        options.judge is None
        and options.grade != PEOPLE
        and all(each.reference is None for each in questions)
    ):
        raise InputError(_NO_LABELS)
    if options.write:
        check_writable(options.config)
    if configured.artifact is None:
        raise SettingsError(
            f"{options.config}: set `artifact` to the folder where the router will be, such as "
            "`artifact: artifact`, and restart the gateway"
        )
    if (remote := configured.remote_artifact) is not None:
        raise SettingsError(
            f"{options.config}: a router is trained into a folder, not {remote.shown}: set "
            "`artifact` to a folder here, and to the URL when the trained artifact is there"
        )
    if configured.routing.risk_target is RiskTarget.QUALITY:
        raise SettingsError(
            f"{options.config}: `risk_target: quality` needs graded rows, and questions are "
            "labelled right or wrong: set `answerable` or `paper`"
        )
    return questions


# Report of a bootstrap: what was chosen, what it costs and risks, and what to do next.


def report(
    state: BootstrapState,
    steps: Steps,
    settings: Settings,
    gateway: GatewayClient,
    options: BootstrapOptions,
    begun: Sequence[str],
) -> dict[str, Any]:
    """The figures of all steps, as JSON values.

    Args:
        state: With every step finished.
        steps: Where their files are.
        settings: The configuration at the end.
        gateway: Says which calibration it runs.
        options: Of the command: the configuration, and where clients reach the gateway.
        begun: What is left to do of the steps.
    """
    read = read_rows(steps.rows, settings.pool, text="conversation", takes_unlabelled=True)
    rows = with_labels(read, steps.rows.name)
    right = rows.labels(settings.pool).mean(axis=0).tolist()
    calibration = dict(state.result("calibrate"))
    calibration["active"] = gateway.calibrations()[calibration["id"]]["active"]
    if calibration["mean_size"] is not None:
        calibration["calls_saved"] = 1.0 - calibration["mean_size"] / len(settings.pool)
    tuning = dict(state.result("tune"))
    left = [*begun]
    if not calibration["active"]:
        left.append(
            "another calibration is active; to activate this one: racer calibrations activate "
            f"{calibration['id']} --url {gateway.url}"
        )
    if changed := tuning.get("settings"):
        beside = _beside_one_model(tuning, steps, settings)
        if tuning["written"]:
            left.append(f"{take_over(changed)}{beside}")
        elif not has_settings(options.config, changed):
            left.append(_apply(changed, options.config, beside))
    artifact = artifact_of(settings)
    left.append(
        f"ask `auto` at {client_address(options.data_url)}: every answer carries its certificate"
    )
    left.append(
        f"keep {artifact} and {steps.calibration_rows}: other gateways are calibrated from them"
    )
    return {
        "candidates": dict(zip(settings.pool, right, strict=True)),
        "rows": {"labelled": len(rows), **state.result("split")},
        "router": dict(state.result("train")),
        "tuning": tuning,
        "vote": settings.aggregation.method.value,
        "evaluation": dict(state.result("evaluate")),
        "calibration": calibration,
        "next": left,
    }


def judge_terms(options: BootstrapOptions, configured: Settings, most: int) -> str:
    """What a judge may do: its calls, and their price where that is of a call."""
    calls = most if options.judge_calls is None else min(most, options.judge_calls)
    text = f"{options.judge} grades, in at most {calls:,} calls (equal answers once)"
    price = configured.exact_prices.get(options.judge or "")
    if price is not None and (each := price.expected(MeanUsage())) is not None:
        text += f", of some {each * calls:.2f} {configured.currency}"
    if options.judge_cost is not None:
        text += f", and for at most some {options.judge_cost:g} {configured.currency}"
    return f"{text}; --judge-calls and --judge-cost cap it"


def _is_tuned(state: BootstrapState, configured: Settings) -> bool:
    """Whether `racer tune` has chosen the equality of votes, and written it."""
    tuned = state.kept("tune")
    if not tuned.get("written"):
        return False
    chosen: Mapping[str, Mapping[str, Any]] = tuned["settings"]
    equality = configured.aggregation.equality.value
    return bool(chosen.get("aggregation", {}).get("equality") == equality)


def vote_alike(config: Path, grading: Grading, gateway: GatewayClient, say: Say) -> list[str]:
    """Let votes compare answers as grades do: in the configuration, and at the gateway.

    Returns:
        What is left to do, where the file cannot be written or the gateway does not take it over.
    """
    configured = settings.read(config).aggregation.equality
    equality = grading.equality(configured)
    if equality is configured:
        return []
    change = changed(config, "aggregation", {"equality": equality.value})
    by_hand = (
        f"answers are graded by `{grading.kind}`, and votes compare them by `{configured}`: set "
        f"`aggregation.equality: {equality}` in {config} (in a container: where it comes from), "
        "restart the gateway, and run the same command again"
    )
    try:
        change.write()
        taken_over = "aggregation.equality" in gateway.reload()
    except (SettingsError, GatewayRefused) as exc:
        if has_settings(config, {"aggregation": {"equality": equality.value}}):
            config.write_text(change.before, encoding="utf-8")
        say(f"{exc}")
        return [by_hand]
    say(
        f"answers vote as they are graded: `aggregation.equality: {equality}` is written to "
        f"{config} (it was `{configured}`)"
        + (", and the gateway has taken it over" if taken_over else "")
    )
    if taken_over:
        return []
    return [f"restart the gateway if it does not read {config}: votes compare by `{equality}` now"]


def take_over(changed: Mapping[str, Mapping[str, Any]]) -> str:
    """How a running gateway takes over these settings of its configuration."""
    places = [(section, name) for section, values in changed.items() for name in values]
    reloaded = [".".join(each) for each in places if is_reloaded(each)]
    others = [".".join(each) for each in places if not is_reloaded(each)]
    if not others:
        return (
            f"reload the gateway (SIGHUP or POST /admin/reload): it takes over {_listed(reloaded)}"
        )
    text = f"restart the gateway: it reads {_listed(others)} at its start"
    return text + (f"; {_listed(reloaded)} alone would need a reload only" if reloaded else "")


def _beside_one_model(tuning: Mapping[str, Any], steps: Steps, settings: Settings) -> str:
    """What the chosen settings measure where one model alone is not worse; else nothing."""
    if steps.validation is None:
        return ""
    rows = with_labels(
        read_rows(steps.validation, settings.pool, text="conversation", takes_unlabelled=True),
        steps.validation.name,
    )
    shares = rows.labels(settings.pool).mean(axis=0)
    best, chosen = int(shares.argmax()), tuning["chosen"]["accuracy"]
    if chosen is None or chosen > shares[best]:
        return ""
    return (
        f". They are no gain over {settings.pool[best]} alone: right on {chosen:.1%} of the "
        f"validation rows, where it is right on {shares[best]:.1%}"
    )


def _apply(changed: Mapping[str, Mapping[str, Any]], config: Path, beside: str) -> str:
    """How settings that were not written come into the configuration."""
    return (
        "`racer tune` chooses other settings than those with which this run evaluated and "
        f"calibrated{beside}. To use them: give --write, or put the lines below into {config} "
        "(in a container: where it comes from, such as a ConfigMap or a chart's values); run the "
        f"same command again; {take_over(changed)}\n{as_yaml(changed)}"
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


def client_address(url: str) -> str:
    """Where clients ask; the address that this command used may be of no use elsewhere."""
    if urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1"):
        return f"{url}/v1"
    return (
        f"{url}/v1, as this command does (outside of this network by a published port, an ingress "
        "or a port-forward)"
    )
