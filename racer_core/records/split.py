"""Random split of labelled rows: for training, choosing settings, calibrating and checking.

Random numbers come from numpy alone, so a split is the same on every platform.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from racer_core.errors import InputError
from racer_core.records.reader import read_rows
from racer_core.records.units import rows_kind, rows_units
from racer_core.records.writer import write_rows
from racer_core.types import LabelledRow, LabelledRows, RowsKind

# To train a router, to choose settings, to set the threshold, and to check the result.
SHARES: Final[Mapping[str, float]] = MappingProxyType(
    {"train": 0.4, "validation": 0.1, "calibration": 0.4, "check": 0.1}
)
# With as many validation rows as calibration rows, for `racer tune`; and without any.
TUNING_SHARES: Final[Mapping[str, float]] = MappingProxyType(
    {"train": 0.4, "validation": 0.3, "calibration": 0.3}
)
UNTUNED_SHARES: Final[Mapping[str, float]] = MappingProxyType({"train": 0.4, "calibration": 0.6})
TUNED_ROWS: Final = 100  # validation rows that count, without which `racer tune` chooses nothing


def split_rows(
    rows: LabelledRows, *shares: float, seed: int = 0, by_group: bool = False
) -> tuple[LabelledRows, ...]:
    """Split rows at random, for example into training, calibration and test rows.

    A sample of traffic (``rows.kind``) is split row by row: its repeats belong to the distribution.
    Turns of one sampled conversation stay together, and rows without a label are divided alike.
    In a list of questions, copies of a query and the rows of one cluster stay together. A file that
    does not say its kind is guessed: traffic if queries repeat and no row has a cluster, a
    reference or a task.

    Args:
        rows: The rows.
        shares: The share of each part, above 0, together at most 1; in a list of questions the
            share of distinct queries or clusters.
        seed: Seed of the draw.
        by_group: Divide every group of rows by these shares, too.

    Returns:
        A part for each share, in the order of the file. No row is in two parts.

    Raises:
        InputError: Wrong shares, or a part that would be empty.
    """
    if not shares or min(shares) <= 0.0 or sum(shares) > 1.0 + 1e-9:
        raise InputError("shares must be above 0, and together at most 1", param="shares")
    units = rows_units(rows)
    groups = _groups_of_units(rows, units) if by_group else np.zeros(len(np.unique(units)), np.intp)
    part_of_unit = _parts(groups, shares, np.random.default_rng(seed))
    part_of_row = part_of_unit[units]
    parts = [rows[np.flatnonzero(part_of_row == part)] for part in range(len(shares))]
    if not all(map(len, parts)):
        raise InputError(f"{len(rows)} rows are too few for {len(shares)} parts")
    # A guess stays a guess: only a kind that was said excuses training rows.
    return tuple(replace(part, kind=rows.kind) for part in parts)


def shares_for(
    rows: LabelledRows, counts: Callable[[LabelledRow], bool], *, seed: int = 0
) -> Mapping[str, float]:
    """The shares of a bootstrap: where validation rows are too few to tune on, they calibrate.

    The draw is that of :func:`split_rows` by group with the same seed. Without validation rows
    its calibration part is that of validation and calibration together, so that the decision
    depends on nothing but how many rows of one part count. That selects no calibration: given
    which rows count, the critical scores of those and of the next query that counts are
    exchangeable.

    Args:
        rows: All rows.
        counts: Whether a row counts for the risk.
        seed: Seed of the draw.

    Raises:
        InputError: Too few rows for three parts.
    """
    parts = split_rows(rows, *TUNING_SHARES.values(), seed=seed, by_group=True)
    counted = sum(map(counts, parts[[*TUNING_SHARES].index("validation")].rows))
    return TUNING_SHARES if counted >= TUNED_ROWS else UNTUNED_SHARES


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSplit:
    """The parts of a file by their own files, and the kind by which it was split."""

    parts: Mapping[Path, LabelledRows]
    kind: RowsKind


def split_file(
    path: Path,
    folder: Path,
    shares: Mapping[str, float] = SHARES,
    *,
    kind: RowsKind | None = None,
    seed: int = 0,
) -> FileSplit:
    """Split a file of rows, group by group, into files of JSON lines; all are written, or none.

    The parts may be read by the users that may read the file.

    Args:
        path: The rows, in any format of :func:`read_rows`.
        folder: Where the parts are written; made if it does not exist.
        shares: Name of each part, without suffix, and its share.
        kind: What the file is; None: guessed.
        seed: Seed of the draw.

    Raises:
        InputError: The rows or the shares are wrong, or a part exists or cannot be written.
    """
    names = [folder / f"{name}.jsonl" for name in shares]
    if existing := [str(name) for name in names if name.exists()]:
        raise InputError(f"{', '.join(existing)}: is there already; name a new folder")
    # No text is read here: any request of several turns has one of its conversation.
    mode = stat.S_IMODE(path.stat().st_mode) if path.is_file() else None
    rows = read_rows(path, kind=kind, text="conversation", takes_unlabelled=True)
    parts = dict(
        zip(names, split_rows(rows, *shares.values(), seed=seed, by_group=True), strict=True)
    )
    with ExitStack() as written:
        for name, part in parts.items():
            try:
                folder.mkdir(parents=True, exist_ok=True)
                written.callback(_remove, name)
                write_rows(part, name, mode=mode)
            except OSError as exc:
                raise InputError(f"{name}: cannot be written ({exc.strerror})") from exc
        written.pop_all()
    return FileSplit(parts=parts, kind=rows_kind(rows))


def _remove(path: Path) -> None:
    """Remove a file if it is there."""
    with suppress(OSError):
        path.unlink()


def _groups_of_units(rows: LabelledRows, units: NDArray[np.intp]) -> NDArray[np.intp]:
    """The group of each unit, that of its first row, numbered by first appearance."""
    _, first = np.unique(units, return_index=True)
    groups = [rows.rows[int(row)].group for row in first]
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    return np.array([numbers[group] for group in groups], dtype=np.intp)


def _parts(
    groups: NDArray[np.intp], shares: Sequence[float], rng: np.random.Generator
) -> NDArray[np.intp]:
    """The part of each unit; -1 for none."""
    parts = np.full(len(groups), -1, dtype=np.intp)
    numbers = np.unique(groups)
    for number in numbers:
        members = np.flatnonzero(groups == number)
        order = members[rng.permutation(len(members))]
        # Of several groups each is cut at a random offset: else groups of a single unit would all
        # go into the same part.
        offset = 0.5 if len(numbers) == 1 else rng.random()
        cuts = np.floor(np.cumsum(shares) * len(order) + offset + 1e-9).astype(int)
        for part, (start, end) in enumerate(pairwise([0, *cuts])):
            parts[order[start:end]] = part
    return parts
