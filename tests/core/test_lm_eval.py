"""Runs of lm-evaluation-harness: joined by document, or refused by name."""

import gzip
import hashlib
import json

import pytest

from racer_core.errors import InputError, RowsError
from racer_core.records.lm_eval import read_lm_eval
from racer_core.records.reader import read_rows

TIME = "2026-02-01T10-00-00.123456"


def as_written(value):
    """Numbers inside responses become texts, as the harness writes them."""
    return [as_written(each) for each in value] if isinstance(value, list) else str(value)


def sample(doc_id, doc, calls, responses, target, **metrics):
    """One line as version 0.4 writes it."""
    filtered = metrics.pop("filtered", responses)
    return {
        "doc_id": doc_id,
        "doc": doc,
        "target": str(target),
        "arguments": {
            f"gen_args_{i}": {f"arg_{j}": each for j, each in enumerate(call)}
            for i, call in enumerate(calls)
        },
        "resps": [[as_written(each)] for each in responses],
        "filtered_resps": as_written(filtered),
        "filter": metrics.pop("filter", "none"),
        "metrics": list(metrics),
        "doc_hash": hashlib.sha256(json.dumps(doc).encode()).hexdigest(),
        **metrics,
    }


def generated(doc_id, text, correct, **changes):
    """A line of a task in which text is generated."""
    doc = {"question": f"What is {doc_id} plus 1?", "answer": f"#### {doc_id + 1}"}
    prompt = changes.pop("prompt", f"Q: {doc['question']}\nA:")
    call = [prompt, {"until": ["\n"], "do_sample": False}]
    target = f"#### {doc_id + 1}"
    return sample(doc_id, doc, [call], [text], target, exact_match=correct, **changes)


def scored(doc_id, options, likelihoods, gold, **metrics):
    """A line of a task in which options are scored."""
    doc = {"question": f"Which one, {doc_id}?", "choices": options, "answer": gold}
    prompt = f"{doc['question']}\nAnswer:"
    calls = [[prompt, f" {option}"] for option in options]
    return sample(doc_id, doc, calls, [[each, False] for each in likelihoods], gold, **metrics)


def run(parent, model, tasks, *, time=TIME, **results):
    """One model's folder; returns it."""
    folder = parent / model.replace("/", "__")
    folder.mkdir(parents=True, exist_ok=True)
    results_file = {"model_name": model, "results": {"loss": float("nan")}} | results
    (folder / f"results_{time}.json").write_text(json.dumps(results_file))
    for task, lines in tasks.items():
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"samples_{task}_{time}.jsonl").write_text(text)
    return folder


def refusal(*arguments, **options):
    """The message of the error for refused runs."""
    with pytest.raises(RowsError) as caught:
        read_lm_eval(*arguments, **options)
    return str(caught.value)


@pytest.fixture
def runs(tmp_path):
    """Two models over two tasks, as `--output_path` holds them."""
    run(
        tmp_path,
        "org/small",
        {
            "sums": [generated(0, "1", 1.0), generated(1, "3", 0.0)],
            "picks": [scored(0, ["cat", "dog"], [-2.5, -1.5], 1, acc=1.0, acc_norm=1.0)],
        },
    )
    run(
        tmp_path,
        "large",
        {
            "sums": [generated(1, "2", 1.0), generated(0, "[invalid]", 0.0)],
            "picks": [scored(0, ["cat", "dog"], [-1.0, -3.0], 1, acc=0.0, acc_norm=0.0)],
        },
    )
    return tmp_path


def test_a_folder_of_runs_is_a_file_of_rows(runs):
    """Models join by task and document in any order of lines; `read_rows` reads the folder."""
    rows = read_rows(runs)
    assert rows.pool == ("large", "org/small")
    by_query = {row.query: row for row in rows.rows}
    assert set(by_query) == {
        "Q: What is 0 plus 1?\nA:", "Q: What is 1 plus 1?\nA:", "Which one, 0?\nAnswer:"
    }  # fmt: skip
    first = by_query["Q: What is 0 plus 1?\nA:"]
    assert first.correct == {"org/small"}
    assert first.answers == {"org/small": "1", "large": None}
    assert (first.task, first.reference) == ("sums", "#### 1")
    pick = by_query["Which one, 0?\nAnswer:"]
    assert pick.correct == {"org/small"}
    assert pick.answers == {"org/small": "dog", "large": "cat"}
    assert (pick.task, pick.reference) == ("picks", "dog")


def test_folders_may_be_named_one_by_one(runs):
    """The pool is then in their order; a pool that is given sets its own."""
    folders = [runs / "org__small", runs / "large"]
    assert read_lm_eval(folders).rows.pool == ("org/small", "large")
    assert read_lm_eval(folders, ["large", "org/small"]).rows.pool == ("large", "org/small")
    with pytest.raises(RowsError, match="unknown candidate"):
        read_lm_eval(folders, ["large"])


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"model_name": "", "model_name_sanitized": "org__m"}, "org__m"),
        ({"model_name": None}, "folder"),
    ],
)
def test_where_a_models_name_comes_from(tmp_path, fields, name):
    """The results' name, else their sanitised one, else the folder's."""
    run(tmp_path, "folder", {"sums": [generated(0, "1", 1)]}, **fields)
    assert read_lm_eval(tmp_path).rows.pool == (name,)


def test_two_folders_of_one_model_are_refused(tmp_path):
    """Else one of them would silently count."""
    for parent in ("a", "b"):
        run(tmp_path / parent, "m", {"sums": [generated(0, "1", 1)]})
    with pytest.raises(InputError, match="two folders hold runs of 'm'"):
        read_lm_eval(tmp_path)


def test_the_latest_run_of_a_task_counts(tmp_path):
    """A task that was run again replaces its older file, and only its own."""
    old = {"sums": [generated(0, "7", 0)], "more": [generated(5, "6", 1)]}
    run(tmp_path, "m", old, time="2025-12-31T23-59-59.0")
    run(tmp_path, "m", {"sums": [generated(0, "1", 1)]})
    rows = read_lm_eval(tmp_path).rows
    assert [(row.task, row.answers["m"]) for row in rows.rows] == [("more", "6"), ("sums", "1")]


def test_missing_documents_are_counted_and_named(tmp_path):
    """They are no wrong answers. Fails when a lacking document is labelled, or dropped unasked."""
    run(tmp_path, "a", {"sums": [generated(i, "x", 1) for i in range(30)]})
    run(tmp_path, "b", {"sums": [generated(i, "x", 0) for i in range(0, 30, 2)]})
    message = refusal(tmp_path)
    assert "b lacks 15 of 30 documents: sums 1, sums 3" in message
    assert "a lacks" not in message
    read = read_lm_eval(tmp_path, incomplete="drop")
    assert read.dropped == 15
    assert len(read.rows) == 15
    assert all(row.correct == {"a"} for row in read.rows.rows)


def test_different_documents_under_one_number_are_refused(tmp_path):
    """Runs over shuffled or changed data cannot be joined. Fails when the hash is not compared."""
    run(tmp_path, "a", {"sums": [generated(0, "1", 1)]})
    other = generated(0, "1", 1) | {"doc_hash": "f" * 64}
    run(tmp_path, "b", {"sums": [other]})
    assert "sums 0: the models were shown different documents" in refusal(tmp_path)
    for folder in ("a", "b"):  # older versions log no hash: the documents themselves are compared
        line = generated(0, "1", 1)
        del line["doc_hash"]
        line["doc"]["question"] += folder
        run(tmp_path, folder, {"sums": [line]})
    assert "sums 0: the models were shown different documents" in refusal(tmp_path)


def filtered(strict, flexible):
    """One document under two filters, a line each."""
    return [
        generated(0, "It is 1.", strict, filter="strict-match", filtered=["[invalid]"]),
        generated(0, "It is 1.", flexible, filter="flexible-extract", filtered=["1"]),
    ]


def test_filters_are_chosen_by_name(tmp_path):
    """Strict by default; a document is never counted once per filter."""
    run(tmp_path, "m", {"gsm8k": filtered(0, 1)})
    strict, flexible = (
        read_lm_eval(tmp_path, filter=name) for name in (None, "flexible-extract")
    )  # fmt: skip
    assert (strict.filters, flexible.filters) == (
        {"gsm8k": "strict-match"}, {"gsm8k": "flexible-extract"}
    )  # fmt: skip
    assert [row.correct for row in strict.rows.rows] == [set()]
    assert [row.answers["m"] for row in strict.rows.rows] == [None]
    assert [row.correct for row in flexible.rows.rows] == [{"m"}]
    assert [row.answers["m"] for row in flexible.rows.rows] == ["1"]
    assert "no filter 'none'; name one of ['flexible-extract', 'strict-match']" in refusal(
        tmp_path, filter="none"
    )


def test_filters_without_a_known_name_must_be_chosen(tmp_path):
    """Guessing between two unknown filters would be a guess about labels; one is no choice."""
    lines = [generated(0, "1", 1, filter=name) for name in ("by-hand", "by-eye")]
    run(tmp_path, "m", {"sums": lines})
    assert "no known filter; name one of ['by-eye', 'by-hand']" in refusal(tmp_path)
    run(tmp_path, "m", {"sums": lines[:1]})
    assert read_lm_eval(tmp_path).filters == {"sums": "by-hand"}


def test_repeated_documents_without_filter_names_are_refused(tmp_path):
    """Old versions wrote a line per filter and did not say which."""
    lines = [{k: v for k, v in line.items() if k != "filter"} for line in filtered(0, 1)]
    run(tmp_path, "m", {"gsm8k": lines})
    assert "line 2: document 0 is duplicated" in refusal(tmp_path)


def test_metrics_are_chosen_by_name(tmp_path):
    """`acc` before `acc_norm`; the normalised one also chooses the answer per character."""
    options, likelihoods = ["no", "certainly not"], [-2.0, -3.0]
    run(tmp_path, "m", {"picks": [scored(0, options, likelihoods, 1, acc=0.0, acc_norm=1.0)]})
    plain, normed = read_lm_eval(tmp_path), read_lm_eval(tmp_path, metric="acc_norm")
    assert (plain.metrics, normed.metrics) == ({"picks": "acc"}, {"picks": "acc_norm"})
    assert plain.rows.rows[0].answers == {"m": "no"}
    assert plain.rows.rows[0].correct == set()
    assert normed.rows.rows[0].answers == {"m": "certainly not"}
    assert normed.rows.rows[0].correct == {"m"}
    assert "no metric 'f1'; name one of ['acc', 'acc_norm']" in refusal(tmp_path, metric="f1")


def test_metrics_that_are_not_binary_are_refused(tmp_path):
    """A fraction is not rounded; every spelling of 0 and 1 is read."""
    run(tmp_path, "m", {"sums": [generated(0, "1", 0.42)]})
    assert "line 1: 'exact_match' is 0.42, not 0 or 1" in refusal(tmp_path)
    spellings = [1, 1.0, True, "1.0", "True", 0, 0.0, False, "0.0", "False"]
    run(tmp_path, "m", {"sums": [generated(i, "1", each) for i, each in enumerate(spellings)]})
    assert read_lm_eval(tmp_path).rows.labels(["m"])[:, 0].tolist() == [True] * 5 + [False] * 5


def test_rendered_chat_templates_are_no_queries(tmp_path):
    """Control tokens of one model mean nothing to the others: the document's question is taken."""
    lines = [generated(0, "1", 1, prompt="<|im_start|>user\nWhat is 0 plus 1?<|im_end|>\n")]
    run(tmp_path, "a", {"sums": lines}, chat_template="{{ messages }}")
    run(tmp_path, "b", {"sums": [generated(0, "1", 1)]})
    assert read_lm_eval(tmp_path).rows.queries == ["What is 0 plus 1?"]


def test_different_prompts_fall_back_to_the_question_with_its_choices(tmp_path):
    """Without the choices, questions such as "Which one?" could not be distinguished."""
    line = scored(0, ["cat", "dog"], [-1, -2], 0, acc=1)
    run(tmp_path, "a", {"picks": [line]})
    other = json.loads(json.dumps(line).replace("Answer:", "Reply:"))
    run(tmp_path, "b", {"picks": [other]})
    assert read_lm_eval(tmp_path).rows.queries == ["Which one, 0?\nA. cat\nB. dog"]
    named = read_lm_eval(tmp_path, question="question")
    assert named.rows.queries == ["Which one, 0?"]
    assert "no text 'body'" in refusal(tmp_path, question="body")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{not JSON", "line 2: not JSON"),
        ("42", 'line 2: no "doc_id"'),
        ('{"doc_id": "x"}', 'line 2: no "doc_id"'),
        ('{"doc_id": 9, "filter": "none", "exact_match": 1}', 'line 2: no "arguments"'),
        (
            '{"doc_id": 9, "filter": "none", "arguments": {"gen_args_0": 4}, "exact_match": 1}',
            "line 2: its arguments are neither",
        ),
        (
            '{"doc_id": 9, "filter": "none", "arguments": [[4]], "exact_match": 1}',
            "line 2: its arguments hold no text",
        ),
    ],
)
def test_a_broken_line_is_named(tmp_path, line, words):
    """File and line, never a traceback."""
    folder = run(tmp_path, "m", {"sums": [generated(0, "1", 1)]})
    path = next(folder.glob("samples_*"))
    path.write_text(path.read_text() + line + "\n")
    message = refusal(tmp_path)
    assert f"m/samples_sums_{TIME}.jsonl {words}" in message


def test_a_folder_without_samples_and_broken_results(tmp_path):
    """One sentence that says which flag writes them."""
    (tmp_path / "samples_of_mine.jsonl").write_text("{}\n")
    with pytest.raises(InputError, match="--log_samples"):
        read_lm_eval(tmp_path)
    folder = run(tmp_path, "m", {"sums": [generated(0, "1", 1)]})
    (folder / f"results_{TIME}.json").write_text("{")
    with pytest.raises(InputError, match=r"results_.*cannot be read"):
        read_lm_eval(tmp_path)


CONVERSATION = [
    json.dumps(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "an example"},
            {"role": "assistant", "content": "its answer"},
            {"role": "user", "content": "And 0 plus 1?"},
        ]
    )
]


OPTIONS = {"sentence": "The _ barked.", "option1": "cat", "option2": "dog"}


CALLS = [["The cat", " barked."], ["The dog", " barked."]]


UNPROMPTED = scored(0, ["cat", "dog"], [-2.0, -1.0], 1, acc=1.0)


LISTED = generated(0, "1", 1)


@pytest.mark.parametrize(
    ("line", "query", "answer"),
    [
        (generated(0, "1", 1, prompt=CONVERSATION), "And 0 plus 1?", "1"),  # what a user would send
        (UNPROMPTED, "Which one, 0?\nAnswer:", "dog"),  # mutual information asks each option twice
        (sample(0, {"text": "A b"}, [["A", " b"]], [[-3.0, True]], " b", acc=1.0), "A", None),
        (LISTED, "Q: What is 0 plus 1?\nA:", "1"),  # as `simple_evaluate` returns them
        (sample(0, OPTIONS, CALLS, [[-5, False], [-1, False]], 1, acc=1.0), "The _ barked.", "1"),
    ],
    ids=["conversation", "unprompted", "continuation", "lists", "winogrande"],
)
def test_query_and_answer_of_a_line(tmp_path, line, query, answer):
    """Prompts as JSON, options without a prompt, likelihoods alone, lists, prompts of options."""
    run(tmp_path, "m", {"task": [line]})
    row = read_lm_eval(tmp_path).rows.rows[0]
    assert (row.query, row.answers) == (query, {"m": answer})


def test_numbers_of_any_size_are_read(tmp_path):
    """A likelihood that no float holds is no answer; a target of many digits names no option."""
    huge = scored(0, ["cat", "dog"], [-2.0, -1.0], 1, acc=1.0)
    huge |= {"resps": [[[10**310, False]], [[-1.0, True]]], "target": "9" * 5_000}
    huge.pop("filtered_resps", None)
    run(tmp_path, "m", {"task": [huge]})
    row = read_lm_eval(tmp_path).rows.rows[0]
    assert row.answers == {"m": None}
    assert row.reference == huge["target"]


def test_documents_without_a_known_or_readable_question_are_named(tmp_path):
    """The place is named, and what to do."""
    line = sample(7, {"body": "b"}, CALLS, [[-5, False], [-1, False]], 1, acc=1.0)
    run(tmp_path / "odd", "m", {"odd": [line]})
    message = refusal(tmp_path / "odd")
    assert "document odd 7" in message
    assert "name it (question)" in message
    assert read_lm_eval(tmp_path / "odd", question="body").rows.queries == ["b"]
    run(tmp_path / "blank", "m", {"sums": [generated(2, "1", 1, prompt=" ")]})
    assert "document sums 2: query is empty" in refusal(tmp_path / "blank")


def test_task_names_may_hold_underscores_and_files_may_be_packed(tmp_path):
    """`mmlu_high_school_biology` is one task; gzip is unpacked."""
    folder = run(tmp_path, "m", {"mmlu_high_school_biology": [generated(0, "1", 1)]})
    path = next(folder.glob("samples_*"))
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert read_lm_eval(tmp_path).rows.rows[0].task == "mmlu_high_school_biology"
