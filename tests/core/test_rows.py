"""Labelled rows: every bad input is a RowsError that names the line and quotes no query."""

import io
import json
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from racer_core.errors import RowsError
from racer_core.records.checks import RowLimits
from racer_core.records.reader import check_rows, parse_rows, stream_rows
from racer_core.records.request import row_text
from racer_core.records.writer import row_line
from racer_core.types import LabelledRow, Turn

GOOD = {"query": "good", "correct": {"a": True, "b": False}}
SCORED = {"scores": {"a": 0.5, "b": 0.5}, "correct": {"a": True, "b": False}}


def parse(*rows, pool=None):
    """Rows written as JSON lines; a text is a line as it is."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    return parse_rows("\n".join(lines).encode(), "rows.jsonl", pool)


def refusal(*rows, pool=None):
    """What the reader says about rows that it refuses."""
    with pytest.raises(RowsError) as caught:
        parse(*rows, pool=pool)
    assert caught.value.param == "rows"
    return str(caught.value)


def test_labels_as_a_map_or_as_a_list_with_the_pool():
    """Both forms are the same rows; [] means that no candidate is right."""
    as_map = parse(
        {"query": "x", "correct": {"a": True, "b": False}},
        {"query": "y", "correct": {"b": False, "a": False}},
    )
    listed = [{"query": "x", "correct": ["a"]}, {"query": "y", "correct": []}]
    assert as_map == parse(*[row | {"candidates": ["a", "b"]} for row in listed])
    assert as_map == parse({"candidates": ["a", "b"]}, *listed)
    assert as_map.pool == ("a", "b")
    assert as_map.labels(["b", "a"]).tolist() == [[False, True], [False, False]]
    assert [row.correct for row in as_map.rows] == [{"a"}, set()]


def test_a_quality_of_a_half_counts_as_right():
    """Where a row has no labels of its own; below a half an answer is wrong."""
    (row,) = parse({"query": "x", "quality": {"a": 0.5, "b": 0.49}}).rows
    assert row.correct == {"a"}


def test_a_row_keeps_what_it_says():
    """Recorded answers, a reference and the task; numbers there become text, null stays null."""
    row = GOOD | {"answers": {"a": "4", "b": None}, "reference": 4, "task": "sums", "id": 7}
    assert parse(row).rows[0] == LabelledRow(
        query="good",
        correct=frozenset({"a"}),
        answers={"a": "4", "b": None},
        reference="4",
        task="sums",
    )


def test_one_user_message_is_a_query():
    """As in a chat request; conversations of several turns are another population."""
    message = {"role": "user", "content": "hello"}
    assert parse({"messages": [message], "correct": {"a": True}}).queries == ["hello"]
    for messages in ([], [message, message], [message | {"role": "system"}], "hello", [None]):
        assert "line 1" in refusal({"messages": messages, "correct": {"a": True}})


def row_of(*turns, **fields):
    """Read one row of these turns: (role, text)."""
    messages = [{"role": role, "content": text, "refusal": None} for role, text in turns]
    row = {"messages": messages, "correct": {"a": True}}
    (checked,) = check_rows([(1, row)], "rows", **({"text": "last_user"} | fields)).rows
    return checked


def test_the_last_of_several_turns_is_the_query():
    """If requested; the turns before it stay in order."""
    row = row_of(("user", "Hello"), ("assistant", ""), ("user", "And now?"))
    assert row.query == "And now?"
    assert row.earlier == (Turn("user", "Hello"), Turn("assistant", ""))
    assert row_of(("user", "Hello")).earlier == ()


def test_turns_that_no_row_can_have_are_refused():
    """The last turn is a text of the user: no answer, tool result, system prompt or call."""
    question = ("user", "Hello")
    for turns in (
        [question, ("assistant", "Hi")],
        [("system", "Be brief"), question],
        [("tool", "5"), question],
        [("assistant", None), question],
        [question, ("user", " ")],
        [("assistant", "\ud800"), question],
    ):
        with pytest.raises(RowsError):
            row_of(*turns)
    with pytest.raises(RowsError, match="messages"):
        check_rows(
            [(1, {"messages": [{"role": "user", "content": "x", "name": "y"}], "correct": ["a"]})],
            "rows",
            ["a"],
        )


def test_the_router_reads_a_conversation_as_it_is_served():
    """The last turn alone, or all of them but blank ones; the row keeps its turns."""
    row = row_of(("user", "x" * 5_000), ("assistant", " "), ("user", "y" * 5_000))
    assert row.query == row_text(row, "last_user") == "y" * 5_000
    assert row_text(row, "conversation") == "x" * 5_000 + "\n\n" + "y" * 5_000


def stream(*rows, **limits):
    """Rows read as a gateway reads an upload."""
    data = "\n".join(json.dumps(row) for row in rows).encode()
    source = RowLimits(takes_unlabelled=True, **limits)
    return list(stream_rows(io.BytesIO(data), "rows.jsonl", "rows.jsonl", ("a", "b"), source))


UNLABELLED = {"query": "open", "unlabelled": True, "decision_id": "dec-1", "weight": 100}


def test_a_row_may_say_that_its_label_is_missing():
    """Only an upload to a gateway takes such rows; every other reader needs labels."""
    row = stream(GOOD, UNLABELLED)[1]
    expected = LabelledRow(
        query="open", correct=frozenset(), unlabelled=True, decision_id="dec-1", weight=100.0
    )
    assert row == expected
    assert stream(json.loads(row_line(row, ("a", "b")))) == [expected]
    assert "correct" not in row_line(row, ("a", "b"))
    assert stream(GOOD | {"unlabelled": False}) == stream(GOOD)
    message = refusal(GOOD, UNLABELLED)
    assert "line 2: the row has no label, which is of use in calibration alone" in message


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (GOOD | {"unlabelled": True}, '"unlabelled" stands instead of "correct" and "quality"'),
        (UNLABELLED | {"quality": {"a": 1, "b": 0}}, '"unlabelled" stands instead of'),
        (UNLABELLED | {"unlabelled": "yes"}, '"unlabelled" must be true or false'),
        ({"query": "open"}, 'no label: "correct" is missing or null'),
    ],
)
def test_a_row_is_labelled_or_says_that_it_is_not(row, problem):
    """A forgotten label is an error as ever."""
    with pytest.raises(RowsError) as caught:
        stream(row)
    assert problem in str(caught.value)


def test_router_scores_may_stand_in_for_a_query():
    """In the order of the pool; beside a query they are another router's scores."""
    scored = {"scores": {"b": 0.25, "a": 1}, "correct": {"a": True, "b": False}}
    assert parse(GOOD, scored).rows[1].scores == (1.0, 0.25)
    assert parse(GOOD, scored).rows[1].query == ""
    assert parse(scored | {"query": "x"}).rows[0].scores is None


BAD_ROWS = [
    ({"query": "x", "correct": {"a": True, "b": False, "c": True}}, "unknown candidate 'c'"),
    ({"query": "x", "correct": ["c"], "candidates": ["a", "b"]}, "unknown candidate 'c'"),
    ({"query": "x", "correct": {"a": True}}, "no label for"),
    ({"query": "x", "correct": {"a": True, "b": None}}, "true or false"),
    ({"query": "x", "correct": {"a": 1, "b": 0}}, "true or false"),
    ({"query": "x"}, "no label"),
    ({"query": "x", "correct": None}, "no label"),
    ({"query": "x", "correct": "a"}, "list of candidate names"),
    ({"query": "x", "correct": [1], "candidates": ["a", "b"]}, "list of candidate names"),
    ({"query": "x", "correct": ["a", "a"], "candidates": ["a", "b"]}, "twice"),
    ({"query": "x", "correct": ["a"], "candidates": ["a"]}, "not the pool"),
    ({"query": "x", "correct": ["a"], "candidates": "ab"}, "list of candidate names"),
    ({"correct": {"a": True, "b": False}}, 'no "query"'),
    ({"query": " \n", "correct": {"a": True, "b": False}}, "empty"),
    ({"query": 5, "correct": {"a": True, "b": False}}, "string"),
    ({"query": None, "correct": {"a": True, "b": False}}, "string"),
    (GOOD | {"query": "x", "answers": ["4", "5"]}, '"answers"'),
    (GOOD | {"query": "x", "answers": {"c": "4"}}, "unknown candidate"),
    (GOOD | {"query": "x", "answers": {"a": 4, "b": None}}, '"answers"'),
    (GOOD | {"query": "x", "task": ["sums"]}, '"task"'),
    ({"scores": {"a": 0.5}, "correct": {"a": True, "b": False}}, "no number for 'b'"),
    ({"scores": {"a": 0.5, "b": True}, "correct": {"a": True, "b": False}}, "no number for 'b'"),
    ({"scores": {"a": 0.5, "b": 1.5}, "correct": {"a": True, "b": False}}, "score of 'b'"),
    ({"scores": {"a": 0.5, "b": -0.1}, "correct": {"a": True, "b": False}}, "score of 'b'"),
    ({"scores": {"a": 0.5, "b": 10**400}, "correct": {"a": True, "b": False}}, "score of 'b'"),
    ({"scores": {"a": 0.5, "b": 0.5, "c": 0.5}, "correct": {"a": True, "b": False}}, "unknown"),
    ({"scores": [0.5, 0.5], "correct": {"a": True, "b": False}}, '"scores"'),
    ([], "JSON object"),
    ('"text"', "JSON object"),
    ("not json" * 1_250, "not JSON"),  # 10,000 characters
    ('{"query": "y", "query": "y", "correct": {"a": true, "b": false}}', "same key twice"),
    ('{"scores": {"a": NaN, "b": 0.5}, "correct": {"a": true, "b": false}}', "NaN"),
    ('{"scores": {"a": 1e400, "b": 0.5}, "correct": {"a": true, "b": false}}', "too large"),
    (r'{"query": "y\ud800", "correct": {"a": true, "b": false}}', "surrogate"),
    ("[" * 100_000, "nested"),
]


@pytest.mark.parametrize(("bad", "expected"), BAD_ROWS)
def test_bad_row_is_named_by_its_line(bad, expected):
    """Line 2 of two; nothing of the file is used, and the message stays short."""
    message = refusal(GOOD, bad)
    assert message.startswith("rows.jsonl: line 2: ")
    assert expected in message
    assert len(message) < 300
    assert "yyy" not in message
    assert "not jsonnot" not in message


def test_a_long_query_is_read_by_its_beginning():
    """Up to the limit that the caller sets, as a gateway's router reads a request; else whole."""
    assert len(parse(GOOD | {"query": "y" * 20_000}).queries[0]) == 20_000
    numbered = [(1, GOOD | {"query": "y" * 10 + each}) for each in ("", "x")]
    rows = check_rows(numbered, "body", max_query_chars=10, unit="row")
    assert rows.queries == ["y" * 10, "y" * 10]


@pytest.mark.parametrize("pool", [None, ["a", "b"]])
def test_list_of_names_without_the_pool_is_refused(pool):
    """Unlabelled must not read as wrong: who was judged has to stand in the row or the header."""
    assert "line 1" in refusal({"query": "x", "correct": ["a"]}, pool=pool)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ({"candidates": ["a"]}, "pool"),
        ({"candidates": ["a", "b", "c"]}, "pool"),
        ({"candidates": "a"}, "list of candidate names"),
        ({"candidates": []}, "at least one candidate"),
        ({"candidates": ["a", "a"]}, "twice"),
        ({"candidates": ["a", " "]}, "name"),
    ],
)
def test_header_that_does_not_fit_is_refused(header, expected):
    """A header's pool counts even beside a configured one, and the error names the header."""
    message = refusal(header, {"query": "x", "correct": []}, pool=["a", "b"])
    assert message.startswith("rows.jsonl: line 1: ")
    assert expected in message


def test_rows_about_another_pool_than_the_configured_are_refused():
    """One more or one fewer candidate is another pool; another order is not."""
    assert "'c'" in refusal(GOOD, pool=["a", "b", "c"])
    assert "unknown candidate 'b'" in refusal(GOOD, pool=["a"])
    assert parse(GOOD, pool=["b", "a"]).pool == ("b", "a")


@pytest.mark.parametrize("text", ["", "\n \n", '{"candidates": ["a"]}'])
def test_file_without_rows_is_refused(text):
    """An empty upload is a mistake, not a calibration."""
    assert refusal(text) == "rows.jsonl: no rows"


def test_copies_are_kept_and_counted():
    """A sample of traffic has repeats; rows of scores alone have no query to compare."""
    rows = parse(GOOD, GOOD | {"query": "x"}, GOOD, GOOD, SCORED, SCORED)
    assert rows.queries == ["good", "x", "good", "good", "", ""]
    assert rows.duplicates == 2


def test_twenty_problems_are_listed_and_the_rest_is_counted():
    """The message of a hopeless file of 50 lines still fits a screen."""
    message = refusal(*[{"query": "x"}] * 50, pool=["a"])
    assert message.count("no label") == 20
    assert "line 20:" in message
    assert "line 21:" not in message
    assert message.endswith("; ... and 30 more")
    assert not refusal(*[{"query": "x"}] * 20, pool=["a"]).endswith("more")


json_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.sampled_from(["", "a", "b", "user"]),
        st.floats(),
        st.sampled_from([0, 1, 10**400]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["a", "b", "role", "content"]), inner, max_size=3),
    ),
    max_leaves=5,
)
FIELDS = ["query", "correct", "candidates", "messages", "answers", "scores", "task", "cluster"]
field_names = st.sampled_from(FIELDS)


@given(rows=st.lists(st.dictionaries(field_names, json_values, max_size=4), max_size=3))
@example(rows=[None, [], "text", 5])
def test_any_values_are_rows_or_a_rows_error(rows):
    """Whatever JSON or parquet can hold, NaN and huge integers included."""
    with suppress(RowsError):
        read = check_rows(list(enumerate(rows, 1)), "body")
        assert len(read) == len(rows)
        assert read.duplicates < len(rows)
        assert all(row.correct <= set(read.pool) for row in read.rows)


CHANCE = st.none() | st.floats(0, 1) | st.integers(0, 1)
RATED = st.dictionaries(st.sampled_from(["a", "b"]), CHANCE)
KINDS = st.dictionaries(st.sampled_from(["verbal", "p_true"]), RATED, min_size=1)


@given(confidences=st.dictionaries(st.text(min_size=1).filter(str.strip), KINDS, min_size=1))
def test_confidences_survive_writing_and_reading(confidences):
    """Of any number of evaluators, to the last bit; null is a rating that failed."""
    (row,) = parse_rows(json.dumps(GOOD | {"confidences": confidences}).encode(), "rows.jsonl").rows
    assert row.confidences == confidences
    (again,) = parse_rows(row_line(row, ("a", "b")).encode(), "rows.jsonl").rows
    assert again == row


@pytest.mark.parametrize(
    ("confidences", "problem"),
    [
        ([], '"confidences" must be an object'),
        ({"judge": 1}, '"confidences.judge" must be an object'),
        ({"judge": {"p_true": 0.5}}, '"confidences.judge.p_true" must be an object'),
        ({" ": {"verbal": {}}}, "an evaluator without a name"),
        ({"judge": {"ptrue": {}}}, "unknown kind 'ptrue'; choose from verbal, p_true"),
        ({"judge": {"verbal": {"c": 1}}}, "unknown candidate 'c'"),
        ({"judge": {"verbal": {"a": True}}}, "is not a number"),
        ({"judge": {"verbal": {"a": "1"}}}, "is not a number"),
        (
            {"judge": {"p_true": {"b": 1.5}}},
            "\"confidences.judge.p_true\" of 'b' is NaN or outside",
        ),
        ({"judge": {"p_true": {"b": -0.1}}}, "is NaN or outside [0, 1]"),
    ],
)
def test_confidences_are_checked_at_reading(confidences, problem):
    """A wrong weight would move votes in silence."""
    text = refusal(GOOD | {"confidences": confidences})
    assert "line 1" in text
    assert problem in text


@pytest.mark.parametrize("empty", [None, {}, {"judge": None}, {"judge": {"verbal": None}}])
def test_absent_confidences_may_be_written_as_null(empty):
    """As a column of parquet has them in rows that no evaluator rated."""
    (row,) = parse(GOOD | {"confidences": empty}).rows
    assert not any(any(kinds.values()) for kinds in row.confidences.values())


def test_conversations_that_end_alike_are_no_copies():
    """A copy says the same from the beginning."""
    ends = [
        {"messages": [{"role": "user", "content": text}, {"role": "user", "content": "Why?"}]}
        for text in ("It rains.", "It snows.", "It rains.")
    ]
    rows = [(i, end | {"correct": {"a": True}}) for i, end in enumerate(ends, 1)]
    checked = check_rows(rows, "rows", text="last_user")
    assert (len(checked), checked.duplicates) == (3, 1)
    alone = {"query": "Why?", "correct": {"a": False}}
    checked = check_rows([*rows[:2], (3, alone)], "rows", text="last_user")
    assert (len(checked), checked.duplicates) == (3, 0)
