"""Check of the endpoints: each candidate and evaluator answers, accepts the key, has the model."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from app.errors import ModelListError, ModelListUnreachable, UpstreamUnauthorized
from app.settings import Secrets, Settings
from app.tools.doctor.finding import Finding, State, failed, ok, warning
from app.upstream.model_list import ModelList, list_models
from app.upstream.replicas import Target
from app.upstream.targets import open_targets

_AT_ONCE: Final = 8


def check(settings: Settings, secrets: Secrets) -> tuple[list[Finding], list[ModelList]]:
    """Return a finding per candidate and evaluator, and the model lists of their servers."""
    models = {each.name: each.served_as for each in settings.candidates}
    keys = {each.name: each.api_key_env for each in settings.candidates}
    for name, rater in settings.raters.items():
        models[name], keys[name] = rater.model or "", rater.api_key_env
    targets = open_targets(settings, secrets)
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="racer-doctor") as threads:
        answers_by_target = list(threads.map(_list_all, targets.values()))
    findings = [
        _worst(judge(name, answer, models[name], keys[name]) for answer in answers)
        for name, answers in zip(targets, answers_by_target, strict=True)
    ]
    return findings, [
        each for answers in answers_by_target for each in answers if isinstance(each, ModelList)
    ]


def judge(
    name: str,
    answer: ModelList | UpstreamUnauthorized | ModelListError,
    model: str,
    key_env: str | None,
) -> Finding:
    """Judge one server's answer for one model."""
    check = f"endpoint {name}"
    if isinstance(answer, UpstreamUnauthorized):
        cure = f"put the right key into ${key_env}" if key_env else "name its key in `api_key_env`"
        return failed(check, str(answer), cure)
    if isinstance(answer, ModelListUnreachable):
        return failed(check, str(answer), "start the server, or change `base_url`")
    unsure = f"make sure that it serves {model}: no answer was requested from it"
    if isinstance(answer, ModelListError):
        return warning(check, str(answer), unsure)
    if model in answer.models:
        return ok(check, f"{answer.base_url} serves {model}")
    if not answer.models:
        return warning(check, f"{answer.base_url} lists no model", unsure)
    return failed(
        check,
        f"{answer.base_url} serves {_few(answer.models)}, not {model}",
        "set `model` to a name that the server lists, or load the model there",
    )


def _list_all(target: Target) -> list[ModelList | UpstreamUnauthorized | ModelListError]:
    answers: list[ModelList | UpstreamUnauthorized | ModelListError] = []
    for replica in target.replicas.all:
        try:
            answers.append(
                list_models(replica.base_url, target.headers, verify_tls=target.verify_tls)
            )
        except (UpstreamUnauthorized, ModelListError) as exc:
            answers.append(exc)
    return answers


def _worst(findings: Iterable[Finding]) -> Finding:
    """The worst finding of a candidate's replicas."""
    return max(findings, key=lambda each: list(State).index(each.state))


def _few(models: tuple[str, ...]) -> str:
    shown = ", ".join(models[:3])
    return shown if len(models) <= 3 else f"{shown} and {len(models) - 3} more"
