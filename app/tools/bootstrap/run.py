"""Run of a bootstrap: the steps in order, each skipped where its result stands."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from app import settings
from app.errors import SettingsError
from app.settings import Settings
from app.settings.editing import as_yaml, check_writable, has_settings
from app.settings.reloading import is_reloaded
from app.tools.bootstrap.gateway import check_gateway
from app.tools.bootstrap.state import BootstrapState, Step
from app.tools.bootstrap.steps import BootstrapOptions, Steps, artifact_of
from app.tools.gateway_client import GatewayClient
from app.tools.hub_probe import check_hub
from app.tools.planning import fields, plan_for
from racer_core.errors import InputError, RacerError
from racer_core.offline.encoder_choice import default_encoder, offered
from racer_core.offline.training_rows import with_labels
from racer_core.records.questions import read_questions
from racer_core.records.reader import read_rows
from racer_core.types import LabelledRows, RiskTarget

RunCommand = Callable[[Sequence[str]], Any]  # runs `racer` with these words, and returns its result
Say = Callable[[str], None]

STATE: Final = "bootstrap.json"
_NO_LABELS: Final = """\
no question has a reference, and there is no judge, so no answer could be called right. Add \
`reference` to the questions, or give --reference FILE. Without labels (docs/quickstart.md):
- a judge grades the answers: the same command with --judge CANDIDATE
- an answer is the whole pool's, without questions: racer serve --calibrate-from-traffic
- sampled requests, judged and partly labelled: `watching.shadow_rate`, racer label --from-shadow \
--grade judge --judge CANDIDATE, racer calibrate --from-shadow --delta 0.05"""


def run(
    options: BootstrapOptions, gateway: GatewayClient, command: RunCommand, say: Say
) -> dict[str, Any]:
    """Go from questions to an active calibration; finished steps of an earlier run are kept.

    Args:
        options: The options of the command.
        gateway: The running gateway.
        command: Runs the command of a step.
        say: Takes a line for people: the command of each step, or that it is skipped.

    Returns:
        The report.

    Raises:
        RacerError: A step failed; its files are kept, and the same call goes on with it.
    """
    configured = settings.read(options.config)
    questions = _check(options, configured)
    state = BootstrapState(options.folder / STATE)
    check_gateway(gateway, configured)
    if not state.has_begun("train"):
        backend = configured.encoder.backend
        for each in offered(options.encoders) or (default_encoder(options.router, backend),):
            check_hub(each)
    steps = Steps(options, state, gateway)
    _say_plan(say, questions, options, configured, steps)
    makers = (
        *(steps.label, steps.split, steps.train),
        *(steps.tune, steps.evaluate, steps.calibrate),
    )
    for number, make in enumerate(makers, 1):
        # `racer tune --write` changes what the next steps depend on.
        step = make(settings.read(options.config))
        say_here = partial(_say_at, say, f"[{number}/{len(makers)}]")
        if state.is_done(step) or state.recover(step):
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
            _say_plan(say, questions, options, configured, steps, rows)
    return report(state, steps, settings.read(options.config), gateway, options)


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


def _check(options: BootstrapOptions, configured: Settings) -> int:
    """Refuse what no step could do, before anything is asked.

    Returns:
        The number of questions.

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
        read_questions(options.references, configured.text_of)
    elif options.judge is None and all(each.reference is None for each in questions):
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
    return len(questions)


# Report of a bootstrap: what was chosen, what it costs and risks, and what to do next.


def report(
    state: BootstrapState,
    steps: Steps,
    settings: Settings,
    gateway: GatewayClient,
    options: BootstrapOptions,
) -> dict[str, Any]:
    """The figures of all steps, as JSON values.

    Args:
        state: With every step finished.
        steps: Where their files are.
        settings: The configuration at the end.
        gateway: Says which calibration it runs.
        options: Of the command: the configuration, and where clients reach the gateway.
    """
    read = read_rows(steps.rows, settings.pool, text="conversation", takes_unlabelled=True)
    rows = with_labels(read, steps.rows.name)
    right = rows.labels(settings.pool).mean(axis=0).tolist()
    calibration = dict(state.result("calibrate"))
    calibration["active"] = gateway.calibrations()[calibration["id"]]["active"]
    if calibration["mean_size"] is not None:
        calibration["calls_saved"] = 1.0 - calibration["mean_size"] / len(settings.pool)
    tuning = dict(state.result("tune"))
    left: list[str] = []
    if not calibration["active"]:
        left.append(
            "another calibration is active; to activate this one: racer calibrations activate "
            f"{calibration['id']} --url {gateway.url}"
        )
    if changed := tuning.get("settings"):
        if tuning["written"]:
            left.append(take_over(changed))
        elif not has_settings(options.config, changed):
            left.append(_apply(changed, options.config))
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


def _apply(changed: Mapping[str, Mapping[str, Any]], config: Path) -> str:
    """How settings that were not written come into the configuration."""
    return (
        "`racer tune` chooses other settings than those with which this run evaluated and "
        f"calibrated. To use them: give --write, or put the lines below into {config} (in a "
        "container: where it comes from, such as a ConfigMap or a chart's values); run the same "
        f"command again; {take_over(changed)}\n{as_yaml(changed)}"
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
