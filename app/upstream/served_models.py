"""What the servers of candidates serve: fills `model` where it is not set, and says what is wrong.

A candidate without `model` is asked for by its name. Where its server lists one model of another
name, that is the one that is meant.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from pydantic import SecretStr

from app.errors import (
    ModelListElsewhere,
    ModelListError,
    ModelListUnreachable,
    UpstreamUnauthorized,
)
from app.settings import Secrets, Settings
from app.settings.candidates import Candidate
from app.upstream.model_list import ModelList, list_models
from app.upstream.replicas import Target, open_targets

log = logging.getLogger(__name__)

_AT_ONCE: Final = 8
_SHOWN: Final = 3  # names of models

ListAnswer = ModelList | UpstreamUnauthorized | ModelListError


def answers_of(targets: Sequence[Target]) -> list[list[ListAnswer]]:
    """What each server of each target answers when it is asked for its models. Blocks."""
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="racer-models") as threads:
        return list(threads.map(_answers, targets))


def _answers(target: Target) -> list[ListAnswer]:
    answers: list[ListAnswer] = []
    for replica in target.replicas.all:
        try:
            answers.append(
                list_models(replica.base_url, target.headers, verify_tls=target.verify_tls)
            )
        except (UpstreamUnauthorized, ModelListError) as exc:
            answers.append(exc)
    return answers


def only_model(candidate: Candidate, answer: ListAnswer) -> str | None:
    """The model that is meant by a candidate whose server lists no model of its name."""
    if candidate.model is not None or not isinstance(answer, ModelList):
        return None
    is_another = len(answer.models) == 1 and candidate.name not in answer.models
    return answer.models[0] if is_another else None


def few(models: Sequence[str]) -> str:
    """The names of some models, for a message."""
    shown = ", ".join(models[:_SHOWN])
    return shown if len(models) <= _SHOWN else f"{shown} and {len(models) - _SHOWN} more"


def misplaced(settings: Settings, secrets: Secrets) -> list[str]:
    """The candidates whose base URL lacks `/v1`, each with its cure. Blocks."""
    targets = open_targets(settings, secrets)
    return [
        f"candidate {name}: {answer}"
        for name, answers in zip(targets, answers_of([*targets.values()]), strict=True)
        for answer in answers
        if isinstance(answer, ModelListElsewhere)
    ]


_Place = tuple[str, tuple[str, ...]]  # a candidate's name, and its replicas


class ServedModels:
    """Fills `model` of candidates at a start; a reload asks no server again.

    Attributes:
        notes: What servers answer otherwise, with its level, for the log of a start that succeeds.
    """

    def __init__(self) -> None:
        self.notes: list[tuple[int, str]] = []
        self._found: dict[_Place, str | None] = {}

    def filled(self, settings: Settings, secrets: Secrets) -> Settings:
        """The configuration with the models that are meant. Blocks."""
        targets = open_targets(settings, secrets)
        asked = [each for each in settings.candidates if _place(each) not in self._found]
        answers = answers_of([targets[each.name] for each in asked])
        for candidate, given in zip(asked, answers, strict=True):
            self.notes += filter(None, (_note(candidate, answer) for answer in given))
            models = (only_model(candidate, answer) for answer in given)
            self._found[_place(candidate)] = next(filter(None, models), None)
        candidates = (
            each.model_copy(update={"model": each.model or self._found.get(_place(each))})
            for each in settings.candidates
        )
        return settings.model_copy(update={"candidates": tuple(candidates)})

    def log(self) -> None:
        """Log the notes, once."""
        for level, note in self.notes:
            log.log(level, "%s", note)
        self.notes.clear()


def filled(settings: Settings, environment: Mapping[str, str]) -> Settings:
    """The configuration that `racer serve` serves, for a command beside it. Blocks.

    Only servers of candidates without `model` are asked, by keys that are set here.
    """
    unset = tuple(each for each in settings.candidates if each.model is None)
    keys = {
        each.name: SecretStr(key)
        for each in unset
        if (key := environment.get(each.api_key_env or ""))
    }
    asked = settings.model_copy(update={"candidates": unset})
    answered = ServedModels().filled(asked, Secrets(candidate_keys=keys)) if unset else asked
    known = {each.name: each for each in answered.candidates}
    candidates = tuple(known.get(each.name, each) for each in settings.candidates)
    return settings.model_copy(update={"candidates": candidates})


def _place(candidate: Candidate) -> _Place:
    return candidate.name, candidate.replicas


def _note(candidate: Candidate, answer: ListAnswer) -> tuple[int, str] | None:
    """What to log of a server's answer; None: it serves the candidate's model."""
    whose = f"candidate {candidate.name}: "
    if not isinstance(answer, ModelList):
        is_elsewhere, unknown = isinstance(answer, ModelListElsewhere), ""
        if candidate.model is None and not is_elsewhere:
            unknown = (
                f": it is asked for the model {candidate.name}, and calibrations of another model "
                "are not used; set `model`, or restart once it answers"
            )
        # Not every server has a list.
        is_wrong = is_elsewhere or isinstance(answer, UpstreamUnauthorized | ModelListUnreachable)
        return logging.WARNING if is_wrong else logging.INFO, f"{whose}{answer}{unknown}"
    if (model := only_model(candidate, answer)) is not None:
        return logging.INFO, f"{whose}{answer.base_url} serves {model}, which is called"
    if answer.models and candidate.served_as not in answer.models:
        return logging.WARNING, (
            f"{whose}{answer.base_url} serves {few(answer.models)}, not {candidate.served_as}: set "
            "`model` to a name that the server lists"
        )
    return None
