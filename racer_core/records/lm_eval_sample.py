"""Parser of one line of lm-evaluation-harness 0.4's ``samples_*.jsonl`` (``--log_samples``).

The harness turns numbers inside ``resps`` into texts, spreads ``arguments`` over ``gen_args_0`` ...
``arg_0`` ..., and repeats a document once per filter. This module reads the prompt, the answer and
the verdict of the task's own metric.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from racer_core import strict_json
from racer_core.errors import InputError

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
    except (TypeError, ValueError, IndexError):
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
    return options[int(text)] if text.isdecimal() and int(text) < len(options) else text
