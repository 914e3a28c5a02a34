"""Judge verdicts of exported rows: those of one judge, beside labels on a random part of the rows.

The correction of a judge's verdicts by labels needs both: the errors of one judge, measured on rows
that are drawn at random. Labels as they come are no random part: the gateway itself labels what all
candidates refuse, a checker labels what it understands, and people choose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final

from app.ids import random_part
from racer_core.errors import InputError

LABELS_ALONE: Final = ""  # instead of a judge's name: rows carry no verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenVerdicts:
    """Which rows carry the verdicts of one judge, and which their label, by decision id.

    Attributes:
        judge: The judge's name.
        rows: The rows that were there when this was chosen. Later ones wait for the next export, so
            that the labels stay a random part.
        judged: Those with this judge's verdicts.
        labelled: Those with a label.
        left_out: How many lost their label.
    """

    judge: str
    rows: frozenset[str]
    judged: frozenset[str]
    labelled: frozenset[str]
    left_out: int

    def row(self, row: dict[str, Any]) -> dict[str, Any] | None:
        """A row with these verdicts; None if it was not there."""
        decision = row["decision_id"]
        if decision not in self.rows:
            return None
        chosen = without_verdicts(row)
        if decision in self.judged:
            chosen |= {"judged": row["judged"][self.judge], "judge": self.judge}
        if "correct" in chosen and decision not in self.labelled:
            del chosen["correct"]
            chosen["unlabelled"] = True
        return chosen


def without_verdicts(row: dict[str, Any]) -> dict[str, Any]:
    """A row without the verdicts of judges."""
    return {name: value for name, value in row.items() if name != "judged"}


def choose_verdicts(
    rows: Iterable[dict[str, Any]], judge: str | None, labels: int | None = None
) -> ChosenVerdicts | None:
    """The verdicts of one judge, beside labels on a random part of the rows.

    Rows are ordered by the random part of their decision ids, as people are shown samples. Of rows
    with verdicts, those before the first without a label keep their labels, or as many of these as
    were fixed beforehand. If any row has verdicts, a row with a label alone loses it, which counts
    as a miss.

    The bound is proved for a number of labels that depends on no label. To stop where thresholds
    look good breaks it, as it breaks every test that is repeated until it passes.

    Args:
        rows: Rows with `decision_id` and, in `judged`, the complete verdicts of every judge.
        judge: The judge's name; None: the one with verdicts on most rows, of several the first by
            name.
        labels: The number of labels, fixed before they were given; None: as many as there are.

    Returns:
        The choice; None where no row has verdicts of such a judge.

    Raises:
        InputError: Fewer than ``labels`` rows stand before the first without a label.
    """
    verdicts: dict[str, Sequence[str]] = {}
    with_label = set[str]()
    for row in rows:
        verdicts[row["decision_id"]] = tuple(row.get("judged", ()))
        if "correct" in row:
            with_label.add(row["decision_id"])
    counts = Counter(sorted(name for names in verdicts.values() for name in names))
    if judge is None and counts:
        judge = counts.most_common(1)[0][0]
    if judge is None or judge not in counts:
        return None
    judged = [decision for decision, names in verdicts.items() if judge in names]
    labelled = list(takewhile(with_label.__contains__, sorted(judged, key=random_part)))
    if labels is not None and len(labelled) < labels:
        raise InputError(
            f"of the first {labels} judged rows in the order of the page's tab Label, row "
            f"{len(labelled) + 1} has no label: label what the tab shows first, or have the judge "
            "read more rows",
            param="labels",
        )
    labelled = frozenset(labelled[:labels])
    return ChosenVerdicts(
        judge=judge,
        rows=frozenset(verdicts),
        judged=frozenset(judged),
        labelled=labelled,
        left_out=len(with_label - labelled),
    )
