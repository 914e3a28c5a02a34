"""Mondrian recalibration of one application: its populations are replaced in the active record.

The rows, thresholds and terms of all other applications stay what they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from app.calibrations.columns import RowColumns
from app.calibrations.evidence import application_evidence, evidence, parts_evidence
from app.errors import NotFound
from app.settings import DEFAULT, Settings
from app.store.calibration_record import CalibrationRecord, Population
from app.wire.schemas import CalibrateOptions
from racer_core.calibration.options import CalibrationOptions
from racer_core.errors import InputError

_MAX_EARLIER: Final = 100  # calibrations whose decisions show the risk of the same rows
_PROMISE: Final = ("alpha", "score", "risk_target", "r")  # of all applications


def check_application(settings: Settings, name: str, active: CalibrationRecord | None) -> None:
    """Refuse an application whose rows cannot be replaced.

    Raises:
        NotFound: It is not configured.
        InputError: The other rows of the active record are void.
    """
    names = [*settings.applications, DEFAULT] if settings.applications else []
    if name not in names:
        raise NotFound(
            f"no application {name[:128]!r}; the applications are {names}",
            code="application_not_found",
            param="application",
        )
    if active is not None and active.grouped_by != settings.grouping:
        raise InputError(
            "since the active calibration, what belongs to `applications` changed: upload the rows "
            "of all of them at once, without `application`",
            param="application",
        )


def check_rows(rows: RowColumns, name: str) -> None:
    """Refuse rows of other applications. Raises InputError."""
    for number, group in enumerate(rows.groups or (None,) * len(rows), 1):
        if (group or DEFAULT) == name:
            continue
        found = "names no application" if group is None else f"is of {group[:128]!r}"
        raise InputError(
            f"row {number} {found}, and the upload is for the application {name!r} alone: leave "
            "such rows out, or name the application in every row that belongs to it",
            param="rows",
        )


def with_promise(
    options: CalibrateOptions, active: CalibrationRecord, name: str
) -> CalibrateOptions:
    """The options of an upload, with those of the active record where they state none.

    The application keeps its own ``delta`` until another one is stated.

    Raises:
        InputError: They state others, which would hold for all applications.
    """
    before = _options_of(active, name)
    fixed: dict[str, Any] = {field: getattr(before, field) for field in _PROMISE}
    for field, value in fixed.items():
        given = getattr(options, field)
        if field in options.model_fields_set and given not in (None, value):
            raise InputError(
                f"{field} {given} is not that of the active calibration, {value}, which the other "
                "applications keep: leave it out, or upload the rows of all of them. An "
                "application may have an `alpha` of its own in the configuration",
                param=field,
            )
    delta = before.delta if options.delta is None else options.delta
    return options.model_copy(update=fixed | {"delta": delta})


def _options_of(record: CalibrationRecord, name: str) -> CalibrationOptions:
    """The options of an application's rows; those of the record where it has none."""
    own = (
        each.calibration.options
        for each in record.populations
        if name in each.calibration.group_names
    )
    return next(own, record.calibration.options)


def own_evidence(record: CalibrationRecord, name: str) -> dict[str, Any] | None:
    """The evidence of an application's first turns, at its configured alpha; None without rows."""
    own = record.own_alpha(name)
    for place, population in enumerate(record.populations):
        if population.later or name not in population.calibration.group_names:
            continue
        options = population.calibration.options
        if own is not None:
            options = record.options(name, own.alpha, place)
        return evidence(replace(population.calibration.group(name), options=options))
    return None


def uploaded_evidence(record: CalibrationRecord, name: str | None = None) -> Mapping[str, Any]:
    """The evidence of the rows that an upload brought.

    Args:
        record: The record, before or after it took over the rows of other applications.
        name: The application of all rows, before that.
    """
    name = name or replaced_application(record.evidence)
    if name is None:
        return record.evidence
    merged_before = record.evidence.get("uploads", {}).get(name)
    return merged_before or record.evidence | (own_evidence(record, name) or {})


def evidence_before(record: CalibrationRecord, active: CalibrationRecord) -> dict[str, Any] | None:
    """The evidence of the active record with which that of an upload is compared.

    Of a record that replaces an application this is the evidence of that application; None where it
    had no rows.
    """
    name = replaced_application(record.evidence)
    if name is None:
        return active.evidence
    uploads, own = active.evidence.get("uploads", {}), own_evidence(active, name)
    return None if own is None else uploads.get(name, active.evidence) | own


def replaced_application(found: Mapping[str, Any]) -> str | None:
    """The application that an upload replaced, by the evidence of its record; None: all rows."""
    return found.get("replaced", {}).get("application")


def merged(
    active: CalibrationRecord | None, upload: CalibrationRecord, name: str
) -> CalibrationRecord:
    """The active record with the populations of an upload in the place of an application's.

    Args:
        active: The record; None: there is none.
        upload: A record of rows of the application alone.
        name: The application.
    """
    own = own_evidence(upload, name) or {}
    before = [] if active is None else _without(active, name)
    new = [replace(each, void_reasons=upload.void_reasons) for each in upload.populations]
    populations = sorted(
        (*before, *new), key=lambda each: (each.later, -len(each.calibration.fingerprints))
    )
    alphas = {} if active is None else dict(active.alphas)
    alphas.pop(name, None)
    alphas |= {each: upload.alphas[each] for each in upload.alphas.keys() & {name}}
    first = populations[0]
    found = dict(upload.evidence)
    if active is not None and any(first is each for each in before):
        found = dict(active.evidence)
    elif active is not None and before:  # the kind of rows without an upload of their own
        found["sample"] = active.evidence.get("sample", {})
    for stale in ("shift", "refused", "later_turns", "conversations"):
        found.pop(stale, None)
    found |= evidence(first.calibration) | {
        "replaced": {
            "application": name,
            "calibration_id": None if active is None else active.id,
            "earlier": {} if active is None else _with_the_same_rows(active, before),
        },
        "applications": application_evidence(populations, alphas),
        "conditions": found["conditions"] | {"parts": parts_evidence(populations[1:])},
        "uploads": {} if active is None else active.evidence.get("uploads", {}),
    }
    found["uploads"] = found["uploads"] | {name: upload.evidence | own}
    return replace(
        upload, populations=tuple(populations), evidence=found, void_reasons=(), alphas=alphas
    )


def _with_the_same_rows(
    active: CalibrationRecord, populations: Sequence[Population]
) -> dict[str, list[str]]:
    """The latest calibrations with the rows of each application that is not replaced."""
    names = {name for each in populations for name in each.calibration.group_names if name}
    return {name: [*active.ids_of(name)][-_MAX_EARLIER:] for name in sorted(names)}


def _without(record: CalibrationRecord, name: str) -> list[Population]:
    """The populations without the rows of an application, each with the reasons of the record."""
    found: list[Population] = []
    for each in record.populations:
        groups: Sequence[str | None] = each.calibration.groups or ()
        others = [row for row, group in enumerate(groups) if group != name]
        if len(others) < len(groups):
            each = replace(each, calibration=each.calibration.take(others))
        if others:
            reasons = (*record.void_reasons, *each.void_reasons)
            found.append(replace(each, void_reasons=tuple(dict.fromkeys(reasons))))
    return found
