"""Tuning of `racer tune`: rates recorded answers and turns the result into a diff.

The diff changes the configuration and is meant for review.
"""

from __future__ import annotations

import asyncio
import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table
from ruamel.yaml.error import YAMLError

from app.errors import SettingsError, UpstreamError
from app.judging.evaluator import Evaluator, Ratings
from app.settings import VOTE, Aggregation, SameAnswer, Secrets, Settings
from app.settings.editing import Change, parse, update_section
from app.settings.loading import yaml_problem
from app.telemetry.metrics import Metrics
from app.tools.answer_rules import answer_rule
from app.tools.labelling.confidences import recorded_name
from app.upstream.fleet import Fleet
from racer_core.aggregation.rule import AnswerRule
from racer_core.offline.reporting import Progress
from racer_core.offline.same_answer_levels import (
    SameAnswerLevel,
    cheapest_level,
    same_answer_levels,
)
from racer_core.offline.tune import AnswerRatings
from racer_core.offline.tuning_result import Trial, Tuning
from racer_core.racer import Racer
from racer_core.sequential.answer_classes import AnswerClasses
from racer_core.types import LabelledRow, LabelledRows

CONCURRENCY: Final = 8  # questions whose answers are rated at once
_EVALUATION: Final = ("weight", "evaluator", "evaluators")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatorRatings:
    """The evaluator's ratings of recorded answers."""

    ratings: AnswerRatings
    answers: int  # that were sent to the evaluator
    failures: Mapping[str, int]  # kind -> answers without a rating

    @property
    def failed(self) -> int:
        """Answers without a rating."""
        return sum(self.failures.values())

    @property
    def causes(self) -> str:
        """The kinds of failures with their counts, as text."""
        return ", ".join(f"{kind}: {count}" for kind, count in sorted(self.failures.items()))


def rate_rows(
    settings: Settings, secrets: Secrets, rows: LabelledRows, progress: Progress
) -> EvaluatorRatings:
    """Rate the recorded answers with the configured evaluator, as serving does.

    A rating depends on one question and one answer only, so the ratings of a set are a subset of
    the ratings of all answers. Rows whose readable answers all agree need no call.

    Args:
        settings: With a weight that an evaluator computes.
        secrets: API keys of the evaluators.
        rows: Labelled rows with answers.
        progress: Called after each row.

    Raises:
        SettingsError: The evaluator does not support the configured weight.
        UpstreamError: The evaluator cannot be reached, or returned no rating at all.
    """
    ratings = asyncio.run(_rate(settings, secrets, rows, progress))
    failures = Counter(kind for each in ratings for kind in each.failures.values())
    weights = [[each.weights.get(name) for name in settings.pool] for each in ratings]
    rated = EvaluatorRatings(
        ratings=AnswerRatings(
            weight=settings.aggregation.weight, values=np.array(weights, dtype=np.float64)
        ),
        answers=sum(len(each.weights) for each in ratings),
        failures=failures,
    )
    if rated.answers and rated.failed == rated.answers:
        raise UpstreamError(
            f"the evaluator rated none of {rated.answers} answers ({rated.causes}): check its "
            "server, choose another evaluator, or set `weight: router`"
        )
    return rated


async def _rate(
    settings: Settings, secrets: Secrets, rows: LabelledRows, progress: Progress
) -> list[Ratings]:
    """Rate all rows, several at once."""
    fleet = Fleet(settings, secrets, metrics=Metrics())
    free = asyncio.Semaphore(CONCURRENCY)
    reasoning = settings.aggregation.reasoning
    done = 0

    async def rate(row: LabelledRow) -> Ratings:
        nonlocal done
        answers = {
            name: reasoning.answer(text) for name, text in row.answers.items() if text is not None
        }
        async with free:
            ratings = await evaluator.rate(row.query, answers, row.group)
        done += 1
        progress("ratings", done, len(rows))
        return ratings

    async with fleet:
        evaluator = Evaluator(settings, fleet)
        await evaluator.check()
        return await asyncio.gather(*(rate(row) for row in rows.rows))


def servable_confidences(rows: LabelledRows, settings: Settings) -> LabelledRows:
    """The rows with the confidences of evaluators that the configuration can name.

    These are its candidates and its evaluators.

    Raises:
        SettingsError: Rows record confidences, but not those of a configured evaluator.
    """
    recorded = {name for row in rows.rows for name in row.confidences}
    configured = {recorded_name(spec) for spec in settings.aggregation.raters.values()}
    if recorded and (missing := sorted(configured - recorded)):
        raise SettingsError(
            f"the rows record confidences of {', '.join(sorted(recorded))}, but not of the "
            f"configured evaluator {missing[0]}: record them with `racer label --confidence`, or "
            "remove the evaluator from the configuration"
        )
    servable = configured | set(settings.pool)
    return replace(
        rows,
        rows=tuple(
            replace(
                row,
                confidences={n: each for n, each in row.confidences.items() if n in servable},
            )
            if row.confidences
            else row
            for row in rows.rows
        ),
    )


def configuration_change(
    path: Path, tuning: Tuning, aggregation: Aggregation | None = None
) -> Change:
    """Write the chosen score, alpha and vote into the configuration's text.

    Comments and order stay. Evaluators are removed unless the vote uses them: otherwise the
    configuration would contradict itself. Evaluators that were chosen by recorded confidences
    replace those of the configuration.

    Args:
        path: The configuration.
        tuning: The result of the search.
        aggregation: The section as it was read; it has the evaluators' models.

    Raises:
        SettingsError: The file cannot be read.
    """
    try:
        before = path.read_text(encoding="utf-8")
        chosen = _chosen_evaluators(tuning, aggregation)
        votes = tuning.chosen.rule is not None
        keeps = not votes or (tuning.chosen.evaluated and chosen is None)
        text = before if keeps else _without_evaluators(before)
        editor, document = parse(text)
    except OSError as exc:
        raise SettingsError(f"{path}: cannot be read ({exc.strerror})") from exc
    except YAMLError as exc:
        raise SettingsError(f"{path}: cannot be read{yaml_problem(exc)}") from None
    update_section(
        document, "routing", {"alpha": tuning.chosen.alpha, "score": tuning.chosen.score.value}
    )
    if votes:
        update_section(document, "aggregation", _vote(tuning.chosen) | (chosen or {}))
        if tuning.chosen.temperature is None:
            document["aggregation"].pop("temperature", None)
    if not keeps:
        written = {"weight", *chosen} if chosen else set[str]()
        for name in _EVALUATION:  # those that are not blocks of lines
            if name not in written:
                document["aggregation"].pop(name, None)
    after = io.StringIO()
    editor.dump(document, after)  # pyright: ignore[reportUnknownMemberType]
    return Change(path, before, after.getvalue())


def _without_evaluators(text: str) -> str:
    """The text without the block of each evaluator setting.

    ruamel.yaml attaches what follows a block, such as the comment of the next section, to its last
    line: removing the block there would remove the comment.
    """
    names = "|".join(_EVALUATION)
    block = rf"^( +)(?:{names}):.*(?:\n|\Z)(?:(?: *\n)*\1 +\S.*(?:\n|\Z))*"
    return re.sub(
        r"^aggregation:.*\n(?:(?:[ #].*)?\n|[ #].*\Z)*",
        lambda section: re.sub(block, "", section[0], flags=re.MULTILINE),
        text,
        flags=re.MULTILINE,
    )


def _chosen_evaluators(tuning: Tuning, aggregation: Aggregation | None) -> dict[str, Any] | None:
    """The settings of the evaluators of the chosen vote; None if those of the file stay."""
    choice = tuning.evaluator_choices.get(tuning.chosen.weight or "")
    if choice is None:
        return None
    rule = aggregation or Aggregation()
    specs = {recorded_name(spec): spec for spec in rule.raters.values()}

    def written(name: str) -> dict[str, Any]:
        if name not in specs:
            return {"candidate": name}
        return specs[name].model_dump(mode="json", exclude_unset=True)

    own = {group: recorded_name(spec) for group, spec in rule.evaluators.items()}
    is_same = rule.evaluator is not None and recorded_name(rule.evaluator) == choice.common
    if is_same and own == dict(choice.of_groups):
        return None
    groups = {group: written(name) for group, name in choice.of_groups.items()}
    return {"evaluator": written(choice.common)} | ({"evaluators": groups} if groups else {})


def _vote(chosen: Trial) -> dict[str, Any]:
    vote: dict[str, Any] = {} if chosen.rule is None else {"method": chosen.rule.value}
    if chosen.equality is not None:
        vote["equality"] = chosen.equality.value
    if chosen.weight is not None and chosen.evaluated:
        vote["weight"] = chosen.weight.value
    if chosen.temperature is not None:
        vote["temperature"] = chosen.temperature
    return vote


def evaluator_table(tuning: Tuning) -> Table:
    """The quality of each evaluator, and which were chosen by it."""
    shown = Table(
        title="evaluators by recorded confidences: AUC of a right answer against a wrong one to "
        "the same question; the largest is chosen",
        box=SIMPLE_HEAD,
        padding=(0, 1),
    )
    for name in ("confidence", "group", "evaluator", "AUC", "accuracy", "failed", "contested", ""):
        shown.add_column(name, no_wrap=True)
    for each in tuning.evaluators:
        choice = tuning.evaluator_choices[each.weight.value]
        measures = each.as_json()  # None: there is nothing to measure on
        chosen = (
            choice.common if each.group is None else choice.of_groups.get(each.group, choice.common)
        )
        values = (measures[name] for name in ("auc", "accuracy", "failed"))
        shown.add_row(
            *(each.weight.value, each.group or "all", each.evaluator),
            *("-" if value is None else f"{value:.3f}" for value in values),
            *(str(each.contested), "chosen" if each.evaluator == chosen else ""),
        )
    return shown


def rule_of(configured: Settings, racer: Racer) -> AnswerRule:
    """When the gateway counts two answers as the same."""
    rule = configured.aggregation
    return answer_rule(
        rule.equality,
        reasoning=rule.reasoning,
        text=racer.artifact.text_rule,
        similarity=rule.similarity,
        encoder=racer.encoder,
        embed_chars=configured.limits.query_chars,
    )


def equality_table(tuning: Tuning) -> Table:
    """The majority vote of all candidates under every equality that the answers allow."""
    shown = Table(
        title="the majority of all candidates by `aggregation.equality`, the configured one first",
        box=SIMPLE_HEAD,
        padding=(0, 1),
    )
    for name in ("equality", "answers read", "rows with two equal", "accuracy", "error"):
        shown.add_column(name, no_wrap=True)
    for each in tuning.equalities:
        shown.add_row(
            *(each.equality.value, f"{each.readable:.0%}", f"{each.agreement:.0%}"),
            *(f"{each.accuracy:.3f}", f"{each.se:.3f}"),
        )
    return shown


def same_answer(
    rule: AnswerRule, rows: LabelledRows, prices: Mapping[str, float] | None
) -> tuple[SameAnswerLevel, ...]:
    """What the promise `same_answer` takes of the rows."""
    prints = [number.to_bytes(8) for number in range(len(rows))]
    answers = AnswerClasses.of(rows, rule, prints)
    return tuple(same_answer_levels(answers, rows.labels(), prices))


def same_answer_table(levels: Sequence[SameAnswerLevel]) -> Table:
    """Every setting of the promise, with what it takes."""
    shown = Table(
        title="the promise same_answer on these rows: a quarter fits, the others calibrate",
        box=SIMPLE_HEAD,
        padding=(0, 1),
    )
    for name in ("reference", "max_rounds", "alpha", "calls", "rounds", "cost", "accuracy"):
        shown.add_column(name, no_wrap=True)
    for each in levels:
        shown.add_row(
            *(each.reference or VOTE, str(each.max_rounds), f"{each.alpha:g}"),
            *(f"{each.calls:.2f}", f"{each.rounds:.2f}", f"{each.price:.4g}"),
            f"{each.accuracy:.3f}",
        )
    return shown


def same_answer_advice(levels: Sequence[SameAnswerLevel], configured: Settings) -> str:
    """Which section to write: the cheapest as accurate as the best but for a standard error."""
    section = configured.same_answer or SameAnswer()
    best = cheapest_level(levels, section.max_rounds)
    if best is None:
        return "too few rows for the promise same_answer at these levels"
    return (
        f"For it write same_answer: {{alpha: {best.alpha:g}, reference: {best.reference or VOTE}, "
        f"max_rounds: {best.max_rounds}}}: {best.calls:.2f} of {len(configured.pool)} calls, "
        f"accuracy {best.accuracy:.3f}; settings within a standard error of the best count as "
        "equal, and the cheapest is chosen."
    )
