"""Training rows of a gateway's sample: their texts, their labels, and the names of their units."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from racer_core.errors import RowsError
from racer_core.records.conversation import TextOfGroup
from racer_core.records.left_out import Passage
from racer_core.records.request import row_text
from racer_core.records.units import sampled_unit
from racer_core.types import LabelledRow, LabelledRows

# What the router does not read of a group's requests; None: no group.
LeftOutOfGroup = Callable[[str | None], Sequence[Passage]]


def with_texts(
    rows: LabelledRows, text_of: TextOfGroup, left_out_of: LeftOutOfGroup, max_chars: int
) -> LabelledRows:
    """The rows, each with the text that a gateway's router reads of it as its query.

    Args:
        rows: The rows.
        text_of: The text that the router reads of a group's requests.
        left_out_of: The passages that it does not read there.
        max_chars: How many characters of it (``limits.query_chars``).
    """

    def read(row: LabelledRow) -> str:
        return row_text(row, text_of(row.group), left_out_of(row.group))[:max_chars]

    found = (replace(row, query=read(row)) if row.query else row for row in rows.rows)
    return replace(rows, rows=tuple(found))


def with_labels(rows: LabelledRows, source: str) -> LabelledRows:
    """The rows that a router can learn from.

    Of a row without a label the verdicts of its judge model are learnt: the router needs no right
    labels for the guarantee, which calibration rows alone carry. Rows without either are left out.
    Sampled rows have no weight any more: a router may learn from any mixture of rates.

    Raises:
        RowsError: No row is left.
    """
    found = tuple(_labelled(row) for row in rows.rows if is_learnable(row))
    if not found:
        raise RowsError(
            source,
            [
                f"none of the {len(rows)} rows has a label: label some first (a checker, the "
                "page's tab Label, `POST /feedback`, or `racer label --from-shadow`)"
            ],
        )
    return replace(rows, rows=found)


def is_learnable(row: LabelledRow) -> bool:
    """Whether the row has a label or a judge's verdicts."""
    return not row.unlabelled or row.judged is not None


def sampled_units(rows: LabelledRows) -> frozenset[str]:
    """The conversations and decisions of a gateway's sample, whether they have a label or not.

    Calibration leaves all of them out. If it took the rows without a label back, they would be more
    frequent among its rows than in the traffic.
    """
    units = (sampled_unit(row) for row in rows.rows)
    return frozenset(each for each in units if each is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCounts:
    """How many rows of one group were used, and how many were not."""

    first_turns: int
    later_turns: int
    judged: int  # of them those with verdicts of a judge model alone
    without_label: int  # left out

    @classmethod
    def by_group(cls, rows: LabelledRows) -> dict[str, RowCounts]:
        """The counts of each group, by its name; rows without a group are ``default``."""
        groups: dict[str, list[LabelledRow]] = {}
        for row in rows.rows:
            groups.setdefault(row.group or "default", []).append(row)
        return {name: cls._of(groups[name]) for name in sorted(groups)}

    @classmethod
    def _of(cls, rows: list[LabelledRow]) -> RowCounts:
        used = [row for row in rows if is_learnable(row)]
        later = sum(bool(row.earlier) for row in used)
        return cls(
            first_turns=len(used) - later,
            later_turns=later,
            judged=sum(row.unlabelled for row in used),
            without_label=len(rows) - len(used),
        )


def _labelled(row: LabelledRow) -> LabelledRow:
    if row.decision_id is not None:
        row = replace(row, weight=1.0)
    if not row.unlabelled or row.judged is None:
        return row
    return replace(row, correct=row.judged, unlabelled=False)
