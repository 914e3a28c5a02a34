"""RouterBench's table: the same rows from CSV and parquet, never from a pickle."""

import csv
import io
import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from racer_core.errors import RowsError
from racer_core.records.reader import parse_rows, read_routerbench, read_rows

PROMPTS = ["Which letter?\nA) one\nB) two", 'Say "it\'s" — ä', "Write a function."]
SCORES = {"org/small": [1.0, 0.0, 0.0], "large-v1": [0.0, 1.0, 1.0]}
ANSWERS = {"org/small": ["A", "it's", None], "large-v1": ["B)", "", "def f(): ..."]}


def table(**changes):
    """The published columns, prompts and answers printed as lists of one text."""
    columns = {
        "sample_id": ["mmlu.val.1", "talk.dev.2", "mbpp.dev.3"],
        "prompt": [str([prompt]) for prompt in PROMPTS],
        "eval_name": ["mmlu", "talk", "mbpp"],
        **SCORES,
        "cluster": ["u", None, "u"],
        "oracle_model_to_route_to": ["org/small", "large-v1", "large-v1"],
    }
    for model, answers in ANSWERS.items():
        columns[f"{model}|model_response"] = [
            None if each is None else str([each]) for each in answers
        ]
        columns[f"{model}|total_cost"] = [0.001, 0.002, 0.003]
    return columns | changes


def as_csv(columns):
    """As pandas writes it with its index: a first column without a name, nothing for None."""
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(["", *columns])
    writer.writerows(
        [i, *("" if each is None else each for each in row)]
        for i, row in enumerate(zip(*columns.values(), strict=True))
    )
    return file.getvalue().encode()


def as_parquet(columns):
    """The same as parquet."""
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def save(folder, columns, name="bench.csv"):
    """A file of the table."""
    path = folder / name
    path.write_bytes(as_csv(columns) if name.endswith(".csv") else as_parquet(columns))
    return path


@pytest.mark.parametrize("name", ["bench.csv", "bench.parquet"])
def test_the_columns_make_it_routerbench(tmp_path, name):
    """Models, labels, tasks and texts; ids, costs and the oracle are no candidates."""
    rows = read_rows(save(tmp_path, table(), name))
    assert rows.pool == ("org/small", "large-v1")
    assert rows.queries == PROMPTS
    assert rows.labels(rows.pool).tolist() == [[True, False], [False, True], [False, True]]
    assert [row.task for row in rows.rows] == ["mmlu", "talk", "mbpp"]
    assert [row.cluster for row in rows.rows] == ["u", None, "u"]
    assert [row.answers["large-v1"] for row in rows.rows] == ["B)", "", "def f(): ..."]
    assert rows.rows[2].answers["org/small"] in (None, "")  # CSV cannot tell the two apart


def test_prompts_may_be_texts_or_lists():
    """Only what was printed as a list is taken for one."""
    texts = ["plain", "[1, 2, 3] is a list", "['no end"]
    assert parse_rows(as_csv(table(prompt=texts)), "x.csv").queries == texts
    lists = [[prompt] for prompt in PROMPTS]
    assert parse_rows(as_parquet(table(prompt=lists)), "x.parquet").queries == PROMPTS


def test_prompts_are_never_run():
    """A prompt that is a Python expression stays a text."""
    prompts = ["['a'.upper()]", "[__import__('os').getcwd()]", "['" + "(" * 100_000 + "]"]
    rows = [parse_rows(as_csv(table(prompt=[each, "b", "c"])), "x.csv") for each in prompts]
    assert [each.queries[0] for each in rows] == prompts


def test_prompts_of_several_turns_are_refused_by_line(tmp_path):
    """Another population than single-turn queries, as in our own files; `tasks` leaves them out."""
    path = save(tmp_path, table(prompt=["a", "b", "['one', 'two']"]))
    with pytest.raises(RowsError, match=r"line 4: .*several turns"):
        read_rows(path)
    assert read_routerbench(path, tasks=["mmlu", "talk"]).queries == ["a", "b"]


FRACTIONS = {"large-v1": [0.0, 0.5, 0.9]}


def test_fractions_need_a_threshold(tmp_path):
    """A fraction is not rounded; with a threshold, a score that reaches it is right."""
    path = save(tmp_path, table(**FRACTIONS))
    with pytest.raises(RowsError) as caught:
        read_rows(path)
    assert "line 3: the score 0.5 of 'large-v1' is neither 0 nor 1" in str(caught.value)
    assert "line 4: the score 0.9" in str(caught.value)
    assert "threshold" in str(caught.value)
    for threshold, right in ((0.5, [False, True, True]), (0.51, [False, False, True])):
        rows = read_routerbench(path, threshold=threshold)
        assert rows.labels(["large-v1"])[:, 0].tolist() == right
    assert len(read_routerbench(path, tasks=["mmlu"])) == 1


@pytest.mark.parametrize("score", [None, "", "n/a", float("nan"), float("inf")])
def test_a_missing_score_is_no_wrong_answer(score):
    """Unlabelled is refused by line, also below a threshold."""
    with pytest.raises(RowsError, match="line 3: 'large-v1' has no score"):
        parse_rows(as_csv(table(**{"large-v1": [0, score, 1]})), "x.csv")


def test_other_tables_keep_their_meaning(tmp_path):
    """A table with a query column is in our format, with any other columns."""
    ours = b"query,sample_id,prompt,eval_name\nq,1,0,1\n"
    assert parse_rows(ours, "x.csv").pool == ("sample_id", "prompt", "eval_name")
    (tmp_path / "ours.csv").write_bytes(ours)
    with pytest.raises(RowsError, match="not a RouterBench export"):
        read_routerbench(tmp_path / "ours.csv")
    with pytest.raises(RowsError, match="needs a query column"):
        parse_rows(b"sample_id,prompt\n1,2\n", "x.csv")


def test_a_table_without_models_is_refused():
    """Score columns cannot be distinguished from other numbers."""
    bare = {k: v for k, v in table().items() if "|" not in k}
    with pytest.raises(RowsError, match="no model"):
        parse_rows(as_csv(bare), "x.csv")


class Trap:
    """Its pickle writes a file when it is opened."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("name", ["bench.pkl", "bench.pickle", "bench.PKL"])
def test_a_pickle_is_never_opened(tmp_path, name):
    """Refused by name with a way out. Fails when its code runs."""
    (tmp_path / name).write_bytes(pickle.dumps(Trap(tmp_path / "trapped")))
    for read in (read_rows, read_routerbench):
        with pytest.raises(RowsError, match="to_parquet"):
            read(tmp_path / name)
    assert not (tmp_path / "trapped").exists()
