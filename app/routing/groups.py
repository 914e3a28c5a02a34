"""Whose threshold applies: the group of a request, and the rows that stand for it.

A group must be found in the same way when calibrating and when serving, from the query or from who
asks. Then P(miss | group) <= alpha holds for every group with a threshold of its own (Mondrian).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, cast

from racer_core.calibration.calibration import Calibration

GroupBy = Literal["request", "key", "language"]

UNSURE = 0.5  # below it a language is a guess, and the query belongs to "und"
_POOLED = "pooled"
READ_CHARS = 1_000  # of a text, for its language: enough to tell, and under a millisecond


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupThreshold:
    """The rows whose threshold applies, and the group that they are; None: pooled."""

    calibration: Calibration
    group: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """Which rows serve: those of a group, or all but those of the groups ``apart``."""

    group: str | None = None
    apart: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Grouping:
    """Finds groups; ``language`` tells one from a text and is needed for ``language`` alone."""

    group_by: GroupBy
    language: Callable[[str], str] | None = None

    @classmethod
    def open(cls, group_by: GroupBy) -> Self:
        """Load what the setting needs; blocks for most of a second with ``language``."""
        return cls(group_by, language_detector() if group_by == "language" else None)

    def of_request(self, text: str, asked: str | None, of_key: str | None) -> str | None:
        """The group of one request.

        Args:
            text: What the router reads.
            asked: ``racer.group`` of the request.
            of_key: The group of the caller's key.
        """
        match self.group_by:
            case "request":
                return asked
            case "key":
                return of_key
            case "language":
                return self._language_of(text)

    def of_row(self, query: str, group: str | None) -> str | None:
        """The group that a labelled row stands for.

        With ``language`` the text decides, as when serving, whatever the row says; a row of scores
        alone keeps its own, for it has no text.
        """
        if self.group_by != "language" or not query:
            return group
        return self._language_of(query)

    def _language_of(self, text: str) -> str:
        assert self.language is not None
        return self.language(text)


def language_detector() -> Callable[[str], str]:
    """A function from a text to its ISO 639 code, "und" where it cannot tell.

    The model ships inside the package: nothing is downloaded.
    """
    # Loading it costs memory that only this setting needs.
    from py3langid import langid  # pyright: ignore[reportMissingTypeStubs]

    library = cast("Any", langid)
    model = library.LanguageIdentifier.from_model_file(
        library.MODEL_FILE, norm_probs=True, min_confidence=UNSURE
    )
    return lambda text: str(model.classify(text[:READ_CHARS])[0])


class GroupedRows:
    """A calibration whose rows have groups: which groups have rows enough, and who serves whom.

    Enough for the calibration's own alpha: so a request's alpha moves thresholds, never rows.
    Building one blocks, and so does :meth:`serving`.
    """

    def __init__(self, calibration: Calibration) -> None:
        groups = set(calibration.groups or ())
        alpha = calibration.options.alpha
        self._calibration = calibration
        self._everyone_has_one = None not in groups
        self._own = frozenset(
            name
            for name in groups
            if name is not None and calibration.group(name).misses(alpha) >= 0
        )

    def plan(self, group: str | None) -> RowPlan:
        """Which rows serve a group: its own where they are enough, else the pooled ones.

        Pooled are the rows of all groups too small and the rows without any. Where every row has a
        group, a request of none known is taken as drawn like all rows together.
        """
        if group is None and self._everyone_has_one:
            return RowPlan()
        return RowPlan(group=group if group in self._own else None, apart=self._own)

    def serving(self, plan: RowPlan) -> GroupThreshold:
        """The rows of a plan: those that ``Calibration.for_group`` takes.

        Which groups have rows enough is known here, so that the rows are read once more and not
        once for each of them.
        """
        calibration = self._calibration
        if plan.group is not None:
            return GroupThreshold(calibration=calibration.group(plan.group), group=plan.group)
        if not plan.apart:
            return GroupThreshold(calibration=calibration, group=None)
        pooled = tuple(
            None if group in plan.apart else _POOLED for group in calibration.groups or ()
        )
        rows = replace(calibration, groups=pooled).group(_POOLED)
        return GroupThreshold(calibration=rows, group=None)
