"""The exception tree of the core: every error that it raises on purpose.

RacerError
├── InputError          the caller's data is wrong; correct it and retry
│   └── RowsError       labelled rows are wrong; names each line, 20 at most
├── CalibrationError    no threshold can be computed from these rows
│   ├── InfeasibleAlphaError   too few rows for this alpha
│   └── OverlapError    calibration rows were training rows of the router
├── ArtifactError       saved state does not fit this pool or this machine: fail at start
│   └── ArtifactSchemaError    it was written by another version of the program
└── AssertionRefuted    `racer evaluate --assert`: the measured figures refute the assertion
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MAX_LISTED = 20
# How an extra is installed. The project is in no package index, where its name may be another's.
INSTALL: Final = "`pip install '.[{extra}]'` in RACER's checkout"


def install_hint(extra: str) -> str:
    """What to do where the packages of an extra of ``pyproject.toml`` are missing."""
    return INSTALL.format(extra=extra)


class RacerError(Exception):
    """Base of all errors raised on purpose; the message says what to do next."""


class InputError(RacerError):
    """The caller's data is wrong.

    Attributes:
        param: The field at fault, when one can be named.
    """

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class RowsError(InputError):
    """Labelled rows are wrong; nothing of the file was used."""

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        shown = list(problems[:MAX_LISTED])
        if len(problems) > MAX_LISTED:
            shown.append(f"... and {len(problems) - MAX_LISTED} more")
        super().__init__(f"{source}: " + "; ".join(shown), param="rows")
        self.problems = tuple(problems)


class CalibrationError(RacerError):
    """No threshold can be computed from these rows."""


class InfeasibleAlphaError(CalibrationError):
    """Alpha is below 1/(n + 1), and the configuration refuses instead of calling the whole pool."""


class OverlapError(CalibrationError):
    """Calibration rows were training rows of the router: the guarantee would not hold."""


class ArtifactError(RacerError):
    """A saved artifact does not fit: wrong pool, encoder, backend, dtype or schema version."""


class ArtifactSchemaError(ArtifactError):
    """Another version of the program wrote the artifact."""


class AssertionRefuted(RacerError):
    """An assertion about measured figures does not hold."""
