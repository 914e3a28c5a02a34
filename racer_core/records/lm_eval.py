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

from racer_core import strict_json
from racer_core.errors import InputError, RowsError
from racer_core.records import formats
from racer_core.records.checks import check_rows
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
            ``METRICS`` that a task has.
        filter: The filter whose lines count; None takes the only one, else the first of
            ``FILTERS``.
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


# Parser of one line of lm-evaluation-harness 0.4's ``samples_*.jsonl`` (``--log_samples``).
#
# The harness turns numbers inside ``resps`` into texts, spreads ``arguments`` over ``gen_args_0``
# ... ``arg_0`` ..., and repeats a document once per filter. This module reads the prompt, the
# answer and the verdict of the task's own metric.

# Without a named metric, the first of these that a task logs. Values are 1 (right) or 0 (wrong).
METRICS = (
    "acc",
    "exact_match",
    "acc_norm",
    "math_verify",
    "pass@1",
    "pass_at_1",
    "prompt_level_strict_acc",
    "em",
    "exact",
)
# The same for the filters between a model's text and the metric.
FILTERS = ("none", "strict-match", "flexible-extract")
_FLAGS = {"1": True, "1.0": True, "True": True, "0": False, "0.0": False, "False": False}
_QUESTION_FIELDS = (
    "question", "query", "problem", "prompt", "input", "goal", "sentence", "ctx", "text",
)  # fmt: skip
_CHOICE_FIELDS = ("choices", "options", "endings")
_NOTHING_FOUND = "[invalid]"  # what the harness writes where a filter matched nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One document as one model answered it."""

    document: str  # the same text for every model that was shown the same document
    prompt: str | None  # the text sent to the model; None where that differs between the options
    question: str | None  # the document's own wording of it
    answer: str | None
    reference: str | None
    correct: bool


def chosen(names: Sequence[str], preferred: Sequence[str], wanted: str | None, what: str) -> str:
    """The wanted name, else the only one, else the first preferred one.

    Raises:
        InputError: There is no such name; ``what`` names its kind in the message.
    """
    available = sorted(set(names))
    if wanted is None and len(available) == 1:
        return available[0]
    for name in preferred if wanted is None else (wanted,):
        if name in available:
            return name
    missing = f"no known {what}" if wanted is None else f"no {what} {wanted!r}"
    raise InputError(f"{missing}; name one of {available}" if available else missing)


def metric_of(sample: Mapping[str, Any], wanted: str | None) -> str:
    """The metric that labels the documents of a sample's task.

    Raises:
        InputError: The sample logs no supported metric.
    """
    logged = sample.get("metrics")
    # Older versions do not list their metrics: any known name is one.
    names = cast("list[str]", logged) if isinstance(logged, list) else [*METRICS, wanted or ""]
    return chosen([name for name in names if name in sample], METRICS, wanted, "metric")


def read_sample(
    sample: Mapping[str, Any], metric: str, field: str | None, *, templated: bool
) -> Sample:
    """Parse a line.

    Args:
        sample: The line.
        metric: The metric that labels it.
        field: The document's field that holds the question; None detects it.
        templated: The prompts are rendered by the model's own chat template.

    Raises:
        InputError: A field is missing, or the metric is not 0 or 1.
    """
    doc = sample.get("doc")
    document = cast("dict[str, Any]", doc) if isinstance(doc, dict) else {}
    if field is not None and not isinstance(document.get(field), str):
        raise InputError(f"its document has no text {field!r}; it has {sorted(document)[:20]}")
    calls = _calls(sample.get("arguments"), templated=templated)
    prompts = {prompt for prompt, _ in calls}
    scored, options = any(after for _, after in calls), _options(calls)
    return Sample(
        document=str(sample.get("doc_hash") or json.dumps(doc, sort_keys=True)),
        prompt=prompts.pop() if len(prompts) == 1 and field is None else None,
        question=cast("str", document[field]) if field is not None else _question(document),
        # A single continuation that was only scored is no answer.
        answer=None if scored and not options else _answer(sample, options, metric),
        reference=_reference(sample.get("target"), options),
        correct=_flag(sample, metric),
    )


def _flag(sample: Mapping[str, Any], metric: str) -> bool:
    if metric not in sample:
        raise InputError(f"no metric {metric!r}")
    flag = _FLAGS.get(str(sample[metric]))
    if flag is None:
        shown = str(sample[metric])[:40]
        raise InputError(f"{metric!r} is {shown}, not 0 or 1: choose a metric of right and wrong")
    return flag


def _calls(arguments: object, *, templated: bool) -> list[tuple[str | None, str]]:
    """Pairs of a prompt and the scored continuation ("" for generated text)."""
    if isinstance(arguments, dict):
        spread = cast("dict[str, object]", arguments).values()
        calls = [_values(call) for call in spread]
    elif isinstance(arguments, list):
        calls = [_values(call) for call in cast("list[object]", arguments)]
    else:
        raise InputError('no "arguments"; log samples with lm-evaluation-harness 0.4 or later')
    pairs = [(_prompt(call[0], templated=templated), call[1:]) for call in calls if call]
    # Mutual information scores every option once more, after an empty prompt.
    pairs = [pair for pair in pairs if pair[0] != ""] or pairs
    return [(prompt, _text(after)) for prompt, after in pairs]


def _values(call: object) -> list[object]:
    values = [*cast("dict[str, object]", call).values()] if isinstance(call, dict) else call
    if not isinstance(values, list):
        raise InputError("its arguments are neither lists nor objects")
    return cast("list[object]", values)


def _text(after: Sequence[object]) -> str:
    return after[0] if after and isinstance(after[0], str) else ""


def _prompt(argument: object, *, templated: bool) -> str | None:
    """The last user message of a conversation, as a user would send it; None if rendered."""
    if isinstance(argument, list) and argument:  # a conversation as JSON stands in a list
        argument = cast("list[object]", argument)[0]
    if not isinstance(argument, str):
        raise InputError("its arguments hold no text")
    content = _last_user_message(argument) if argument.startswith("[{") else None
    return content if content is not None else None if templated else argument


def _last_user_message(text: str) -> str | None:
    try:
        messages = strict_json.loads(text)
    except InputError:
        return None
    match messages:
        case [*_, {"role": "user", "content": str() as content}]:
            return content
        case _:
            return None


def _question(document: Mapping[str, Any]) -> str | None:
    """The document's own question with its choices, one a line."""
    found = [document[name] for name in _QUESTION_FIELDS if isinstance(document.get(name), str)]
    if not found:
        return None
    lettered = zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", _choices(document), strict=False)
    return "\n".join([found[0], *(f"{letter}. {text}" for letter, text in lettered)])


def _choices(document: Mapping[str, Any]) -> list[object]:
    choices: object = next((document[name] for name in _CHOICE_FIELDS if name in document), None)
    if isinstance(choices, dict):
        choices = cast("dict[str, object]", choices).get("text")
    return cast("list[object]", choices) if isinstance(choices, list) else []


def _options(calls: Sequence[tuple[str | None, str]]) -> list[str]:
    """The options of a log-likelihood task; their numbers if the texts do not differ."""
    texts = [after.strip() for _, after in calls]
    if len(texts) < 2 or not any(texts):
        return []
    return texts if len(set(texts)) == len(texts) else [str(i) for i in range(len(texts))]


def _answer(sample: Mapping[str, Any], options: Sequence[str], metric: str) -> str | None:
    for name in ("filtered_resps", "resps"):
        value = sample.get(name)
        if isinstance(value, list) and value:
            responses = cast("list[object]", value)
            return _most_likely(responses, options, metric) if options else _first_text(responses)
    return None


def _most_likely(responses: Sequence[object], options: Sequence[str], metric: str) -> str | None:
    """The option with the largest log-likelihood, per character if the metric is normalised."""
    try:
        scores = [_log_likelihood(response) for response in responses[: len(options)]]
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    if metric == "acc_norm":
        scores = [score / max(len(text), 1) for score, text in zip(scores, options, strict=False)]
    return options[scores.index(max(scores))]


def _log_likelihood(response: object) -> float:
    while isinstance(response, list):  # [log-likelihood, is greedy], in `resps` one list deeper
        response = cast("list[object]", response)[0]
    return float(cast("Any", response))


def _first_text(response: object) -> str | None:
    while isinstance(response, list) and response:  # repeats are a list deeper; the first counts
        response = cast("list[object]", response)[0]
    return response if isinstance(response, str) and response != _NOTHING_FOUND else None


def _reference(target: object, options: Sequence[str]) -> str | None:
    """The target; a number of an option becomes that option."""
    if target is None:
        return None
    text = str(target)
    return {str(number): option for number, option in enumerate(options)}.get(text, text)
