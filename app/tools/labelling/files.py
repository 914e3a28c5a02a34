"""Append-only files of `racer label`: finished rows, and a journal of unfinished questions.

``rows.jsonl`` gets a line per labelled question. The journal ``rows.jsonl.partial`` begins with
the conditions and gets a line per answer, verdict and rating, so that an interruption loses none.
A finished row that lacks confidences is rated through the journal and replaced at the end. So is
one whose answers are graded anew, by another rule or another reference: no candidate is called.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any, Self, cast

from app.tools.labelling.answer import Answer
from app.tools.labelling.confidences import AnswerConfidences, RatingPlan
from racer_core import strict_json
from racer_core.errors import InputError
from racer_core.records import formats
from racer_core.records.checks import CheckedRows, RowLimits
from racer_core.records.questions import CopyCounter, Question, question_identity
from racer_core.records.row import optional_text, row_query
from racer_core.records.writer import row_line
from racer_core.types import Confidences, LabelledRow

_GRADING = ("grade", "judge")  # conditions of labels, which need no new answers
# The first bytes of every line that is written here.
_BEGINNINGS = (
    b'{"query": "',
    b'{"messages": [',
    b'{"request": {',
    b'{"group": "',
    b'{"cluster": "',
    b'{"decision_id": "',
    b'{"conditions": {',
    b'{"evaluators": {',
)


class LabelFiles:
    """Both files, locked for one run.

    Args:
        out: The rows.
        pool: The candidates.
        conditions: What makes rows comparable; another run must have the same, but for `grade` and
            `judge`: by others, :meth:`regrade` opens the finished rows again.
        digests: For a question, candidate -> digest of what it is sent, but for the query.
        plan: The evaluators whose confidences a finished row has.
        evaluators: What makes an evaluator's confidences comparable, by its name.
    """

    def __init__(
        self,
        out: Path,
        *,
        pool: tuple[str, ...],
        conditions: Mapping[str, Any],
        digests: Callable[[Question], Mapping[str, str]],
        plan: RatingPlan | None = None,
        evaluators: Mapping[str, Any] | None = None,
    ) -> None:
        if out.suffix not in (".jsonl", ".ndjson"):
            raise InputError(f"{out}: rows are written as JSON lines; name it .jsonl")
        self.out = out
        self._partial = out.with_name(out.name + ".partial")
        self._pool = pool
        self._conditions = json.loads(json.dumps(conditions))  # tuples become lists, as on disk
        self._digests = digests
        self._answers: dict[str, dict[str, Answer]] = {}
        self._verdicts: dict[tuple[str, str], bool] = {}
        # Query -> evaluator -> answer -> kind of confidence -> value; of unfinished questions.
        self._ratings: dict[str, dict[str, dict[str, dict[str, float | None]]]] = {}
        self._references: dict[str, str | None] = {}  # of the rows in the file
        # Of them those without planned confidences, or whose answers are graded anew.
        self._unfinished: dict[str, LabelledRow] = {}
        self._new_lines: dict[str, bytes] = {}  # that will replace them
        self._begun_with: list[Any] = []  # conditions of the journal; the last ones hold
        self._is_open = False  # for what is graded anew
        self._plan = plan or RatingPlan()
        self._evaluators: dict[str, Any] = {}
        self._own_evaluators: dict[str, Any] = json.loads(json.dumps(evaluators or {}))
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            rows = self._open(stack, self.out)
            lock(rows, self.out)
            if not os.path.samestat(os.fstat(rows.fileno()), self.out.stat()):
                raise InputError(f"{self.out}: another `racer label` has just replaced it")
            self._rows = rows
            tail = self._read_rows()
            self._journal = self._open(stack, self._partial)
            partial_tail = self._read_partial()
            # Nothing is written before both files are recognised.
            repair_tail(self._rows, tail)
            repair_tail(self._journal, partial_tail)
            if self._journal.seek(0, os.SEEK_END) == 0:
                self._write(self._journal, {"conditions": self._conditions})
            self._add_evaluators()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with self._stack, suppress(OSError):  # on a full disk the files stay as they are
            self._put_in_order({})
            self._compact()

    def is_labelled(self, question: Question) -> bool:
        """Whether the question has a finished row, with the planned confidences."""
        key = question_key(question)
        return key in self._references and key not in self._unfinished

    def regrade(self, questions: Sequence[Question]) -> int:
        """Open finished rows whose labels are of another grading, or of another reference.

        Where the rule is another one, rows are replaced when all of them are graded anew; until
        then the journal says which gradings they may be of.

        Returns:
            How many rows are open for that.

        Raises:
            InputError: By another rule, a row of none of these questions would have to be graded.
        """
        references = {question_key(each): each.reference for each in questions}
        is_other = self._is_regraded
        data, _ = whole_lines(self._rows, self.out, _BEGINNINGS)
        stale = {
            key: row
            for key, row in self._keyed_rows(data)
            if row.answers
            and (is_other or (key in references and references[key] != row.reference))
        }
        if stale.keys() - references.keys():
            raise InputError(
                f"{self.out} was begun with another grading, and has rows of other questions: name "
                "them all, go on with that grading, or write to a new file"
            )
        for key, row in stale.items():
            self._reopen(key, row, keeps_labels=False)
            if references[key] != row.reference:
                for given in self._answers[key].values():
                    self._verdicts.pop((key, digest(given.verdict_key)), None)
        self._is_open = True
        if is_other and self._begun_with[-1] != self._conditions:
            self._begun_with.append(self._conditions)
            self._write(self._journal, {"conditions": self._conditions})
        return len(stale)

    @property
    def _is_regraded(self) -> bool:
        """Whether finished rows may be of another grading than this run's."""
        return any(each != self._conditions for each in self._begun_with)

    @property
    def _is_half_regraded(self) -> bool:
        return self._is_regraded and (bool(self._unfinished) or not self._is_open)

    def answers(self, question: Question) -> Mapping[str, Answer]:
        """The candidates' answers to an unfinished question."""
        return self._answers.get(question_key(question), {})

    def verdict(self, question: Question, answer: str) -> bool | None:
        """The judge's verdict on an answer; None if there is none yet."""
        return self._verdicts.get((question_key(question), digest(answer)))

    def add_answer(self, question: Question, candidate: str, answer: Answer) -> None:
        """Store a candidate's answer."""
        key = question_key(question)
        self._answers.setdefault(key, {})[candidate] = answer
        self._write(self._journal, _answer_line(key, candidate, answer))

    def add_verdict(self, question: Question, answer: str, correct: bool) -> None:
        """Store a judge's verdict."""
        key = question_key(question), digest(answer)
        self._verdicts[key] = correct
        self._write(self._journal, {"query": key[0], "judged": key[1], "correct": correct})

    def confidences(
        self, question: Question, evaluator: str, answer: str
    ) -> AnswerConfidences | None:
        """An evaluator's confidences in an answer; None if it has not rated it yet."""
        rated = self._ratings.get(question_key(question), {})
        return rated.get(evaluator, {}).get(digest(answer))

    def add_confidences(
        self, question: Question, evaluator: str, answer: str, values: AnswerConfidences
    ) -> None:
        """Store an evaluator's confidences in an answer."""
        key = question_key(question), evaluator, digest(answer)
        self._add_rating(*key, values)
        self._write(
            self._journal,
            {"query": key[0], "evaluator": evaluator, "rated": key[2], "values": dict(values)},
        )

    def add_row(self, question: Question, correct: Iterable[str]) -> None:
        """Write the row of a question and forget its partial answers."""
        key = question_key(question)
        confidences = self._row_confidences(key)
        if key in self._unfinished:
            row = replace(
                self._unfinished.pop(key),
                correct=frozenset(correct),
                reference=question.reference,
                confidences=confidences,
            )
            self._new_lines[key] = row_line(row, self._pool).encode()
        else:
            row = LabelledRow(
                query=question.query,
                earlier=question.earlier,
                request=question.request,
                correct=frozenset(correct),
                answers={name: self._answers[key][name].text for name in self._pool},
                calls={name: self._answers[key][name].call for name in self._pool},
                reference=question.reference,
                task=question.task,
                group=question.group,
                cluster=question.cluster,
                conversation=question.conversation,
                weight=question.weight,
                decision_id=question.decision_id,
                turn=question.turn,
                conditions=self._digests(question),
                confidences=confidences,
            )
            append(self._rows, row_line(row, self._pool).encode(), self.out)
        self._references[key] = question.reference
        del self._answers[key]

    def add_lost_row(self, question: Question) -> None:
        """Write the row of a question whose request was never stored: it stays without a label."""
        row = LabelledRow(
            query="",
            correct=frozenset(),
            scores=(0.0,) * len(self._pool),
            group=question.group,
            cluster=question.cluster,
            weight=question.weight,
            decision_id=question.decision_id,
            turn=question.turn,
            unlabelled=True,
        )
        append(self._rows, row_line(row, self._pool).encode(), self.out)
        self._references[question_key(question)] = None

    def put_in_order(self, questions: Iterable[Question]) -> None:
        """Rewrite the rows in the questions' order; rows of other questions come first."""
        self._put_in_order({question_key(each): place for place, each in enumerate(questions)})

    def rows_of(self, questions: Iterable[Question]) -> Iterator[LabelledRow]:
        """The rows in the file of those questions that have one."""
        keys = {question_key(each) for each in questions}
        data, _ = whole_lines(self._rows, self.out, _BEGINNINGS)
        return (row for key, row in self._keyed_rows(data) if key in keys)

    def _put_in_order(self, places: Mapping[str, int]) -> None:
        """Rewrite the rows by their places, with the confidences that some lacked."""
        if (not places and not self._new_lines) or self._is_half_regraded:
            return
        self._rows.seek(0)
        lines = [line + b"\n" for line in self._rows.readall().split(b"\n") if line.strip()]
        copies = CopyCounter()
        keys = [line_key(line, copies) or "" for line in lines]
        rated = [self._new_lines.get(key, line) for key, line in zip(keys, lines, strict=True)]
        order = sorted(range(len(lines)), key=lambda each: places.get(keys[each], -1))
        ordered = [rated[each] for each in order]
        if ordered == lines:
            return
        out = self.out.resolve()
        new = out.with_name(out.name + ".new")
        rows = self._open(self._stack, new)
        try:
            lock(rows, self.out)  # before the file gets its public name
            os.fchmod(rows.fileno(), os.fstat(self._rows.fileno()).st_mode & 0o777)
            rows.truncate(0)
            append(rows, b"".join(ordered), self.out)
            new.replace(out)
        finally:
            new.unlink(missing_ok=True)
        self._rows = rows
        self._new_lines.clear()

    def _row_confidences(self, key: str) -> Confidences:
        """Evaluator -> kind -> candidate -> value, of the candidates with a readable answer."""
        digests = {
            name: digest(each.text)
            for name, each in self._answers[key].items()
            if each.text is not None
        }
        return {
            evaluator: {
                kind: {
                    name: rated[digests[name]][kind]
                    for name in self._pool
                    if kind in rated.get(digests.get(name, ""), {})
                }
                for kind in dict.fromkeys(kind for values in rated.values() for kind in values)
            }
            for evaluator, rated in self._ratings.get(key, {}).items()
        }

    def _add_rating(self, key: str, evaluator: str, answer: str, values: AnswerConfidences) -> None:
        of_evaluator = self._ratings.setdefault(key, {}).setdefault(evaluator, {})
        of_evaluator.setdefault(answer, {}).update(values)

    def _add_evaluators(self) -> None:
        """Write down new evaluators, before they rate.

        Raises:
            InputError: One has the name of another model, whose confidences the rows have.
        """
        for name, own in self._own_evaluators.items():
            if self._evaluators.get(name, own) != own:
                raise InputError(
                    f"{self.out} has confidences of {name!r} as another model, or with another "
                    "prompt_chars: go on with those settings, or write to a new file"
                )
        if merged := {**self._evaluators, **self._own_evaluators}:
            if merged != self._evaluators:
                self._write(self._journal, {"evaluators": merged})
            self._evaluators = merged

    def _open(self, stack: ExitStack, path: Path) -> FileIO:
        if path.exists() and not path.is_file():  # a device may have no end
            raise InputError(f"{path}: cannot be written (not a file)")
        try:
            return stack.enter_context(path.open("a+b", buffering=0))
        except OSError as exc:
            raise InputError(f"{path}: cannot be written ({exc.strerror})") from exc

    def _read_rows(self) -> bytes:
        data, tail = whole_lines(self._rows, self.out, _BEGINNINGS)
        for key, row in self._keyed_rows(data):
            self._references[key] = row.reference
            if row.answers and not self._is_rated(row):
                self._reopen(key, row)
        return tail

    def _keyed_rows(self, data: bytes) -> Iterator[tuple[str, LabelledRow]]:
        """The rows of whole lines, each with the key of its question."""
        if not data.strip():
            return
        limits = RowLimits(text="conversation", takes_unlabelled=True)
        lines = formats.json_lines(data)
        copies = CopyCounter()
        for row in CheckedRows(lines, self.out.name, self._pool, limits=limits, unit="line"):
            yield row_key(row, copies), row

    def _is_rated(self, row: LabelledRow) -> bool:
        """Whether the row has the planned confidences in every readable answer."""
        given = [name for name, text in row.answers.items() if text is not None]
        return all(
            set(given) <= row.confidences.get(evaluator, {}).get(kind, {}).keys()
            for evaluator in self._plan.evaluators(row.group)
            for kind in self._plan.kinds
        )

    def _reopen(self, key: str, row: LabelledRow, *, keeps_labels: bool = True) -> None:
        """Restore what is known of a finished row, so that only what is missing is made."""
        self._unfinished[key] = row
        self._answers[key] = {
            name: Answer(text=text, call=row.calls.get(name, {}))
            for name, text in row.answers.items()
        }
        for name, text in row.answers.items():
            if text is None:
                continue
            verdict_key = self._answers[key][name].verdict_key
            if keeps_labels:
                self._verdicts[key, digest(verdict_key)] = name in row.correct
            for evaluator, kinds in row.confidences.items():
                values = {kind: of[name] for kind, of in kinds.items() if name in of}
                self._add_rating(key, evaluator, digest(text), values)

    def _read_partial(self) -> bytes:
        data, tail = whole_lines(self._journal, self._partial, _BEGINNINGS)
        lines = [value for _, value in formats.json_lines(data)]
        try:
            for line in lines:
                self._restore(cast("dict[str, Any]", line))
            begun_with = list(self._begun_with) if lines else []
            if lines and "conditions" not in cast("dict[str, Any]", lines[0]):
                raise KeyError("conditions")
        except (KeyError, TypeError) as exc:
            raise InputError(
                f"{self._partial}: not of `racer label`, or damaged; without it, unfinished "
                "questions are asked again"
            ) from exc
        if any(_answering(each) != _answering(self._conditions) for each in begun_with):
            if self._answers or self._references:
                raise InputError(
                    f"{self.out} was begun with other candidates, parameters or reasoning markers: "
                    "go on with those, or write to a new file"
                )
            self._journal.truncate(0)
            self._begun_with.clear()
            self._evaluators.clear()
            return b""
        if begun_with and begun_with[-1] != self._conditions:  # verdicts of another judge or rule
            self._verdicts.clear()
        return tail

    def _restore(self, line: Mapping[str, Any]) -> None:
        if "conditions" in line:
            if self._begun_with:  # verdicts of another judge
                self._verdicts.clear()
            self._begun_with.append(line["conditions"])
        elif "evaluators" in line:
            self._evaluators = dict(line["evaluators"])
        elif "rated" in line:
            self._add_rating(line["query"], line["evaluator"], line["rated"], line["values"])
        elif "judged" in line:
            self._verdicts[line["query"], line["judged"]] = line["correct"]
        elif line["query"] not in self._references:
            answer = Answer(text=line["answer"], call=line["call"])
            self._answers.setdefault(line["query"], {})[line["candidate"]] = answer

    def _compact(self) -> None:
        """Drop what finished rows hold; the conditions stay for later runs."""
        if self._is_half_regraded and self._begun_with[-1] != self._conditions:
            return  # nothing was graded by this rule
        begun_with = self._begun_with if self._is_half_regraded else [self._conditions]
        lines: list[dict[str, Any]] = [{"conditions": each} for each in begun_with]
        if self._evaluators:
            lines.append({"evaluators": self._evaluators})
        for key, answers in self._answers.items():
            if key not in self._references:
                lines += [_answer_line(key, name, each) for name, each in answers.items()]
        for (key, judged), correct in self._verdicts.items():
            if self._is_half_regraded or (key in self._answers and key not in self._references):
                lines.append({"query": key, "judged": judged, "correct": correct})
        for key, evaluators in self._ratings.items():
            for evaluator, rated in evaluators.items() if key in self._answers else ():
                for answer, values in rated.items():
                    rating = {"evaluator": evaluator, "rated": answer, "values": values}
                    lines.append({"query": key, **rating})
        new = self._partial.with_name(self._partial.name + ".new")
        try:
            new.write_text("".join(map(json_line, lines)), encoding="utf-8")
            new.replace(self._partial)
        finally:
            new.unlink(missing_ok=True)

    def _write(self, file: FileIO, line: Mapping[str, Any]) -> None:
        append(file, json_line(line).encode(), self._partial)


def _answering(conditions: Mapping[str, Any]) -> dict[str, Any]:
    """The conditions under which answers are comparable, however they are graded."""
    return {name: each for name, each in conditions.items() if name not in _GRADING}


def _answer_line(key: str, candidate: str, answer: Answer) -> dict[str, Any]:
    line = {"query": key, "candidate": candidate, "answer": answer.text}
    return {**line, "call": dict(answer.call)}


# Append-only files of JSON lines: whole lines, one writer, and repair of a torn last line.
#
# Every line is a single write: a killed process leaves whole lines; a full disk leaves at most
# one torn line, which is cut when the file is opened again.


def append(file: FileIO, data: bytes, path: Path) -> None:
    """Write whole lines at the end of a file.

    Raises:
        InputError: The file cannot be written, or not in full.
    """
    try:
        whole = file.write(data) == len(data)
    except OSError as exc:
        raise InputError(f"{path}: cannot be written ({exc.strerror})") from exc
    if not whole:
        raise InputError(f"{path}: cannot be written (no space left)")


def lock(rows: FileIO, path: Path) -> None:
    """Lock a file for this process. Raises InputError where another process holds it."""
    try:
        fcntl.flock(rows, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        raise InputError(f"{path}: another `racer label` is writing to it") from exc


def whole_lines(file: FileIO, path: Path, beginnings: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Split a file into whole lines and a tail; a complete object at the end is a line.

    Args:
        file: The file.
        path: Its path, for messages.
        beginnings: The first bytes of every line that is written into it.

    Raises:
        InputError: The tail is no beginning of such a line.
    """
    file.seek(0)
    data = file.readall()
    lines, end, tail = data.rpartition(b"\n")
    try:
        strict_json.load_object(tail)
    except InputError as exc:
        if not any(begin.startswith(tail[: len(begin)]) for begin in beginnings):
            raise InputError(f"{path}: not of `racer label`; write to a new file") from exc
        return lines + end, tail
    return data, b"\n"


def repair_tail(file: FileIO, tail: bytes) -> None:
    """Cut a torn last line; end a whole one with a line break."""
    if tail == b"\n":
        file.write(tail)
    elif tail:
        file.truncate(file.seek(0, os.SEEK_END) - len(tail))


def json_line(value: Mapping[str, Any]) -> str:
    """One object as a line."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"


# Keys of questions in the files of `racer label`: digests of what identifies a question.


def digest(text: str) -> str:
    """SHA-256 of a text, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def question_key(question: Question) -> str:
    """The key of a question."""
    return digest(question.identity)


def row_key(row: LabelledRow, copies: CopyCounter) -> str:
    """The key of the question of a row, whose earlier copies were counted."""
    copy = copies.next(row.query, row.earlier, row.cluster, request=row.request)
    return digest(
        question_identity(
            row.query,
            row.earlier,
            row.cluster,
            copy,
            request=row.request,
            decision_id=row.decision_id,
        )
    )


def line_key(line: bytes, copies: CopyCounter) -> str | None:
    """The same of the row in a line; None if the line holds no row."""
    value = strict_json.load_object(line)
    decision_id = optional_text(value, "decision_id") or None
    if decision_id is not None:
        return digest(question_identity("", (), None, 0, decision_id=decision_id))
    if not {"query", "messages", "request"} & value.keys():
        return None
    query, earlier, request = row_query(value, "conversation")
    cluster = optional_text(value, "cluster") or None
    copy = copies.next(query, earlier, cluster, request=request)
    return digest(question_identity(query, earlier, cluster, copy, request=request))
