"""Labelled rows of a random history: as a client uploads them, and as the judge knows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.certificate_judge import LabelledPart
from tests.support.gateway import POOL, SKILLS
from tests.support.histories import LATER, TEMPLATES, language_of, messages


@dataclass(frozen=True, kw_only=True)
class Label:
    """How rows were labelled once.

    Attributes:
        request: The request that labelled them, without its text.
        digests: Those that the rows carry; empty: none.
        sent: What each candidate was sent.
    """

    request: Mapping[str, Any]
    digests: Mapping[str, str]
    sent: Mapping[str, str]

    @property
    def is_later(self) -> bool:
        """Whether the rows are turns after the first of a conversation."""
        return self.request["turns"] in LATER


@dataclass(frozen=True, kw_only=True)
class JudgedDecision:
    """A decision of the shadow sample after verdicts on all candidates.

    Attributes:
        label: What the candidates were sent.
        text: The query.
        groups: The group of the request under each `routing.group_by`.
        right: The candidates with the verdict "correct".
    """

    label: Label
    text: str
    groups: Mapping[str, str | None]
    right: frozenset[str]


@dataclass(kw_only=True)
class Upload:
    """Rows of one upload.

    Attributes:
        rows: The rows as a client sends them.
        parts: The rows as the judge knows them.
        labels: How each part was labelled, and its group.
    """

    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    parts: list[LabelledPart] = field(default_factory=list[LabelledPart])
    labels: list[tuple[Label, str | None]] = field(default_factory=list[tuple[Label, str | None]])

    def add(
        self,
        label: Label,
        queries: Mapping[str, frozenset[str]],
        group: str | None,
        *,
        is_by_language: bool,
    ) -> None:
        """Add a part.

        Args:
            label: How its rows were labelled.
            queries: The right candidates of each query.
            group: The group that the rows carry.
            is_by_language: The gateway finds the groups of rows by their language.
        """
        for text, right in queries.items():
            row: dict[str, Any] = {"query": text}
            if label.is_later:
                row = {"messages": messages("earlier", text)}
            row |= {"correct": {name: name in right for name in POOL}}
            row |= {"conditions": dict(label.digests)} if label.digests else {}
            row |= {"group": group} if group else {}
            self.rows.append(row)
        rows = [
            (language_of(text) if is_by_language else group, right)
            for text, right in queries.items()
        ]
        self.parts.append(LabelledPart(sent=label.sent, is_later=label.is_later, rows=rows))
        self.labels.append((label, group))

    def add_sample(
        self,
        exported: Sequence[Mapping[str, Any]],
        decisions: Mapping[str, JudgedDecision],
        group_by: str,
    ) -> None:
        """Add the rows that the gateway exported, unchanged.

        A row that carries the group of another `routing.group_by` belongs to no group at all.
        """
        self.rows += map(dict, exported)
        parts: dict[tuple[Any, ...], list[tuple[str | None, frozenset[str]]]] = {}
        for row in exported:
            decision = decisions[row["decision_id"]]
            label, group = decision.label, decision.groups[group_by]
            if group_by != "language" and row.get("group") != group:
                group = f"not {row.get('group')}"
            if (kind := (*sorted(label.sent.items()), label.is_later, group)) not in parts:
                rows = parts[kind] = []
                self.parts.append(LabelledPart(sent=label.sent, is_later=label.is_later, rows=rows))
                self.labels.append((label, group))
            parts[kind].append((group, decision.right))


def right_candidates(text: str, number: int, wrong_every: int) -> frozenset[str]:
    """The candidates that answer a query right, by its kind, with some labels inverted.

    Args:
        text: The query.
        number: Its number in the upload.
        wrong_every: One query in this number has the opposite labels; with 0 none has.
    """
    template = next(each for each in TEMPLATES if text.startswith(each.split(" ")[0]))
    is_wrong = wrong_every > 0 and number % wrong_every == 0
    return frozenset(name for name in POOL if (name in SKILLS[template]) != is_wrong)
