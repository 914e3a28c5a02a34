"""Reader of lm-evaluation-harness runs (``--log_samples``), joined to labelled rows.

The harness writes a folder per model: ``results_<time>.json`` and ``samples_<task>_<time>.jsonl``.
Documents are joined by task and ``doc_id``; the latest of several runs of a task counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from racer_core.errors import InputError, RowsError
from racer_core.records import formats
from racer_core.records.checks import check_rows
from racer_core.records.lm_eval_sample import FILTERS, Sample, chosen, metric_of, read_sample
from racer_core.types import LabelledRows

_SAMPLES = re.compile(r"samples_(?P<task>.+)_(?P<time>\d{4}-\d\d-\d\dT[^_]*)\.jsonl(\.gz)?")
Key = tuple[str, int]  # task and doc_id


@dataclass(frozen=True, slots=True, kw_only=True)
class LmEvalRows:
    """The rows, and what was chosen to make them."""

    rows: LabelledRows
    dropped: int  # documents left out because some model's run lacks them
    metrics: Mapping[str, str]  # by task
    filters: Mapping[str, str]  # by task; absent where the samples name none


@dataclass(frozen=True, slots=True, kw_only=True)
class _ModelRun:
    """One model's folder."""

    model: str
    files: Mapping[str, Path]  # by task
    templated: bool  # prompts are as the model's own chat template renders them


@dataclass(frozen=True, slots=True)
class _ReadOptions:
    """The caller's options, and the filter and metric of each task, equal for all models."""

    metric: str | None
    filter: str | None
    field: str | None
    metrics: dict[str, str]
    filters: dict[str, str]


def read_lm_eval(
    folders: str | Path | Sequence[str | Path],
    pool: Sequence[str] | None = None,
    *,
    metric: str | None = None,
    filter: str | None = None,
    question: str | None = None,
    incomplete: Literal["refuse", "drop"] = "refuse",
    max_query_chars: int | None = None,
) -> LmEvalRows:
    """Join the runs of several models over the same tasks.

    Args:
        folders: A folder per model, or one that contains them at any depth.
        pool: The required models; None takes all, in the order of the folders.
        metric: The logged 0/1 metric that means right; None takes the first of
            ``lm_eval_sample.METRICS`` that a task has.
        filter: The filter whose lines count; None takes the only one, else the first of
            ``lm_eval_sample.FILTERS``.
        question: The document's field that is the query. None takes the prompt with its few-shot
            examples; if models had different prompts (chat templates), the document's own question
            and choices.
        incomplete: Whether documents that are missing in a run are refused or dropped.
        max_query_chars: A longer query is cut, as a gateway cuts it at ``limits.query_chars``;
            None: none is.

    Raises:
        InputError: A folder holds no runs, or two runs of one model.
        RowsError: A line or the join is wrong; names the documents, 20 at most.
    """
    paths = [Path(each) for each in ([folders] if isinstance(folders, str | Path) else folders)]
    source = paths[0].name if len(paths) == 1 else f"{len(paths)} folders"
    choice = _ReadOptions(metric, filter, question, {}, {})
    runs = _runs(paths)
    problems: list[str] = []
    samples = {run.model: _samples(run, choice, problems) for run in runs}
    if problems:
        raise RowsError(source, problems)
    keys, dropped = _shared(source, samples, incomplete)
    numbered = [(f"{task} {doc}", _row((task, doc), samples)) for task, doc in keys]
    rows = check_rows(numbered, source, pool, max_query_chars=max_query_chars, unit="document")
    return LmEvalRows(rows=rows, dropped=dropped, metrics=choice.metrics, filters=choice.filters)


def _runs(paths: Iterable[Path]) -> list[_ModelRun]:
    """A run per folder that holds samples.

    Raises:
        InputError: No samples, or two folders of one model.
    """
    folders: list[Path] = []
    for path in paths:
        samples = (each for each in path.rglob("samples_*.jsonl*") if _SAMPLES.fullmatch(each.name))
        found = sorted({each.parent for each in samples})
        if not found:
            raise InputError(
                f"{path}: cannot be read: no samples_<task>_<time>.jsonl in it, which lm_eval "
                "writes with --log_samples"
            )
        folders += found
    runs = [_run(folder) for folder in dict.fromkeys(folders)]
    names = [run.model for run in runs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"two folders hold runs of {twice[0]!r}; name the one that counts")
    return runs


def _run(folder: Path) -> _ModelRun:
    latest: dict[str, tuple[str, Path]] = {}
    for path in folder.glob("samples_*.jsonl*"):
        if match := _SAMPLES.fullmatch(path.name):
            task, found = match["task"], (match["time"], path)
            latest[task] = max(latest.get(task, found), found)
    results = _results(folder)
    return _ModelRun(
        model=str(results.get("model_name") or results.get("model_name_sanitized") or folder.name),
        files={task: path for task, (_, path) in sorted(latest.items())},
        templated=bool(results.get("chat_template")),
    )


def _results(folder: Path) -> Mapping[str, Any]:
    """The harness's results file of the latest run; empty if that file is missing."""
    files = sorted(folder.glob("results_*.json"))
    if not files:
        return {}
    try:
        # The standard parser: a NaN among the figures, which are not used here, is no error.
        results = json.loads(files[-1].read_bytes())
    except (ValueError, RecursionError, OSError) as exc:
        raise InputError(f"{files[-1]}: cannot be read ({exc})") from exc
    return cast("dict[str, Any]", results) if isinstance(results, dict) else {}


def _samples(run: _ModelRun, choice: _ReadOptions, problems: list[str]) -> dict[Key, Sample]:
    found: dict[Key, Sample] = {}
    for task, path in run.files.items():
        place = f"{path.parent.name}/{path.name}"
        try:
            lines = _lines(path, task, choice)
        except (InputError, OSError) as exc:
            problems.append(f"{place}: {exc}")
            continue
        for number, line in lines:
            try:
                key = task, _document(line)
                if key in found:
                    raise InputError(f"document {key[1]} is duplicated")
                found[key] = read_sample(
                    cast("dict[str, Any]", line),
                    choice.metrics[task],
                    choice.field,
                    templated=run.templated,
                )
            except InputError as exc:
                problems.append(f"{place} line {number}: {exc}")
    return found


def _lines(path: Path, task: str, choice: _ReadOptions) -> list[formats.Numbered]:
    """The lines of the chosen filter; chooses filter and metric at the first run of a task.

    Raises:
        InputError: The file cannot be read, or has no such filter or metric.
    """
    data, _ = formats.unpacked(path.read_bytes(), path.name, formats.MAX_UNPACKED_BYTES)
    lines = list(formats.json_lines(data))
    samples = [cast("dict[str, Any]", line) for _, line in lines if isinstance(line, dict)]
    filters = [each["filter"] for each in samples if isinstance(each.get("filter"), str)]
    if filters:
        wanted = choice.filters.get(task, choice.filter)
        choice.filters[task] = chosen(filters, FILTERS, wanted, "filter")
    if samples and task not in choice.metrics:
        choice.metrics[task] = metric_of(samples[0], choice.metric)
    others = {name for name in filters if name != choice.filters[task]}
    return [
        (number, line)
        for number, line in lines
        if not (isinstance(line, dict) and cast("dict[str, Any]", line).get("filter") in others)
    ]


def _document(line: object) -> int:
    """A sample's document number within its task."""
    if isinstance(line, InputError):
        raise line
    identity = cast("dict[str, Any]", line).get("doc_id") if isinstance(line, dict) else None
    if not isinstance(identity, int):
        raise InputError('no "doc_id"')
    return identity


def _shared(
    source: str, samples: Mapping[str, Mapping[Key, Sample]], incomplete: str
) -> tuple[list[Key], int]:
    """The documents that every model answered, and the number of other documents.

    Raises:
        RowsError: Models had different documents, or a run lacks some and dropping is not allowed.
    """
    keys = sorted({key for run in samples.values() for key in run})
    complete = [key for key in keys if all(key in run for run in samples.values())]
    if incomplete != "drop" and (missing := _missing(samples, keys)):
        raise RowsError(source, [*missing, 'incomplete="drop" leaves such documents out'])
    if conflicts := [
        f"{task} {doc}: the models were shown different documents under this number"
        for task, doc in complete
        if len({run[task, doc].document for run in samples.values()}) > 1
    ]:
        raise RowsError(source, conflicts)
    return complete, len(keys) - len(complete)


def _missing(samples: Mapping[str, Mapping[Key, Sample]], keys: Sequence[Key]) -> list[str]:
    problems: list[str] = []
    for model, run in samples.items():
        lacks = [f"{task} {doc}" for task, doc in keys if (task, doc) not in run]
        if lacks:
            named = ", ".join(lacks[:10]) + (", ..." if len(lacks) > 10 else "")
            problems.append(f"{model} lacks {len(lacks)} of {len(keys)} documents: {named}")
    return problems


def _row(key: Key, samples: Mapping[str, Mapping[Key, Sample]]) -> object:
    """A row in our format; its query is the common prompt, if all models had the same."""
    found = {model: run[key] for model, run in samples.items()}
    prompts = {sample.prompt for sample in found.values()}
    first = next(iter(found.values()))
    query = prompts.pop() if len(prompts) == 1 else None
    query = first.question if query is None else query
    if query is None:
        return InputError(
            "the models were given different prompts, and no field of the document is known to "
            "hold its question: name it (question)"
        )
    return {
        "query": query,
        "correct": {model: sample.correct for model, sample in found.items()},
        "answers": {model: sample.answer for model, sample in found.items()},
        "reference": first.reference,
        "task": key[0],
    }
