"""Judge verdicts of exported rows: those of one judge, beside labels on a random part of the rows.

The correction of a judge's verdicts by labels needs both: the errors of one judge, measured on rows
that are drawn at random. Labels as they come are no random part: the gateway itself labels what all
candidates refuse, a checker labels what it understands, and people choose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from app.ids import random_part

LABELS_ALONE: Final = ""  # instead of a judge's name: rows carry no verdicts


def with_one_judge(
    rows: Sequence[dict[str, Any]], judge: str | None
) -> tuple[list[dict[str, Any]], int]:
    """The rows with the verdicts of one judge, and with labels on a random part of them.

    Rows are ordered by the random part of their decision ids, as people are shown samples. Of rows
    with verdicts, those before the first without a label keep their labels. If any row has
    verdicts, a row with a label alone loses it, which counts as a miss.

    Args:
        rows: Rows with `decision_id` and, in `judged`, the complete verdicts of every judge.
        judge: The judge's name; None: the one with verdicts on most rows, of several the first by
            name; `LABELS_ALONE`: none.

    Returns:
        The rows, and how many lost their label.
    """
    counts = Counter(sorted(name for row in rows for name in row.get("judged", ())))
    if judge is None and counts:
        judge = counts.most_common(1)[0][0]
    chosen = [_of_judge(row, judge) for row in rows]
    if judge is None or judge not in counts:
        return chosen, 0
    labelled = _random_labels(chosen)
    left_out = 0
    for row in chosen:
        if "correct" in row and row["decision_id"] not in labelled:
            del row["correct"]
            row["unlabelled"] = True
            left_out += 1
    return chosen, left_out


def _of_judge(row: dict[str, Any], judge: str | None) -> dict[str, Any]:
    """The row with this judge's verdicts alone."""
    verdicts = row.get("judged", {}).get(judge)
    others = {name: value for name, value in row.items() if name != "judged"}
    return others if verdicts is None else others | {"judged": verdicts, "judge": judge}


def _random_labels(rows: Sequence[dict[str, Any]]) -> set[str]:
    """The decisions that keep their labels."""
    labelled = set[str]()
    judged = (row for row in rows if "judged" in row)
    for row in sorted(judged, key=lambda row: random_part(row["decision_id"])):
        if "correct" not in row:
            break
        labelled.add(row["decision_id"])
    return labelled
