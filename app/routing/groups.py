"""Groups (Mondrian calibration): the group of a request, and the rows that set its threshold.

Calibration and serving must find a group in the same way, from the query or from the caller. Then
P(miss | group) <= alpha holds for every group that has rows, whatever their number.

All rows together are exchangeable with a request whose group is unknown only if the request is
drawn from the same mixture of groups. Groups of rows declare populations that differ, and nothing
says that requests without a group are such a mixture. So to have no group is a group like any
other: rows without a group are its sample, and where every row has one, it has no rows. By
language and by application, every request has a group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Self, cast

from app.routing.applications import Membership
from app.settings import DEFAULT, GroupBy
from racer_core.calibration.calibration import Calibration
from racer_core.errors import InputError

UNSURE = 0.5  # below it a language is a guess, and the query belongs to "und"
READ_CHARS = 1_000  # of a text, to detect its language in under a millisecond


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupThreshold:
    """The rows whose threshold applies, and their group; None: the rows without a group.

    Attributes:
        calibration: The rows.
        group: Their group.
        is_calibrated: Whether the rows are a sample of the request's population. Rows of other
            groups are no sample of a group that no row belongs to.
    """

    calibration: Calibration
    group: str | None
    is_calibrated: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """The rows to use: those of a group; all rows for a group that no row belongs to."""

    group: str | None = None
    is_calibrated: bool = True


@dataclass(frozen=True, slots=True)
class Grouping:
    """Finds groups.

    Attributes:
        group_by: What determines a group.
        language: Detects a text's language; only grouping by language needs it.
        applications: The configured applications.
    """

    group_by: GroupBy
    language: Callable[[str], str] | None = None
    applications: Collection[str] = ()

    @classmethod
    def open(cls, group_by: GroupBy, applications: Collection[str] = ()) -> Self:
        """Load the language detector if the setting needs it; that blocks for most of a second."""
        detector = language_detector() if group_by == "language" else None
        return cls(group_by, detector, tuple(applications))

    def of_request(
        self,
        text: str,
        requested: str | None,
        of_key: str | None,
        application: Membership | None = None,
    ) -> str | None:
        """The group of one request.

        Args:
            text: The text that the router reads.
            requested: ``racer.group`` of the request.
            of_key: The group of the caller's key.
            application: The application of the request.
        """
        match self.group_by:
            case "request":
                return requested
            case "key":
                return of_key
            case "language":
                return self._language_of(text)
            case "application":
                return DEFAULT if application is None else application.name

    def of_row(self, query: str, group: str | None) -> str | None:
        """The group of a labelled row.

        With ``language`` the text decides, as it does when serving. A row of scores has no text and
        keeps its own group. A row without an application is a row of ``default``.

        Raises:
            InputError: The row is of an application that is not configured.
        """
        if self.group_by == "application":
            if group not in (None, DEFAULT, *self.applications):
                raise InputError(
                    f"a row is of the application {group!r}, which is not configured; there are "
                    f"{list(self.applications)}",
                    param="rows",
                )
            return group or DEFAULT
        if self.group_by != "language" or not query:
            return group
        return self._language_of(query)

    def _language_of(self, text: str) -> str:
        assert self.language is not None
        return self.language(text)


def language_detector() -> Callable[[str], str]:
    """A function from a text to its ISO 639 code; "und" where the language is uncertain.

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
    """A calibration whose rows have groups. The constructor and :meth:`serving` block.

    Which groups have a threshold of their own depends on no number of rows: each has one. With too
    few rows it is infinite, and the whole pool is called.
    """

    def __init__(self, calibration: Calibration) -> None:
        self._calibration = calibration

    def plan(self, group: str | None) -> RowPlan:
        """The rows that set a group's threshold; None: those without a group.

        A group that no row belongs to gets all rows, which promise nothing about it.
        """
        if group in self._calibration.group_names:
            return RowPlan(group=group)
        return RowPlan(is_calibrated=False)

    def serving(self, plan: RowPlan) -> GroupThreshold:
        """The rows of a plan."""
        if plan.is_calibrated:
            rows = self._calibration.group(plan.group)
            return GroupThreshold(calibration=rows, group=plan.group)
        return GroupThreshold(calibration=self._calibration, group=None, is_calibrated=False)
