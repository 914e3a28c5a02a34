"""Every fault of the catalogue, plain and streaming, with one, two and three candidates selected.

In every cell a client gets, in time, an OpenAI completion or one error envelope in the gateway's
own words; a stream ends with ``[DONE]`` or with one error event; the certificate is void exactly
where a selected candidate failed; and every connection is closed.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.kit.hostile.server import MODES, find

from .bench import AT_ONCE_OF, Bench, look_at_modes, look_at_place
from .catalogue import GROUPS, PLACES
from .cells import Cell, Seen
from .judge import complaints

pytestmark = pytest.mark.slow


def check(cells: Mapping[Cell, Seen]) -> None:
    """Every cell is as the catalogue says; the report names those that are not."""
    failed = {
        cell.name: problems for cell, seen in cells.items() if (problems := complaints(cell, seen))
    }
    lines = [f"{name}: {'; '.join(problems)}" for name, problems in failed.items()]
    if lines:
        pytest.fail(f"{len(lines)} of {len(cells)} cells\n" + "\n".join(lines), pytrace=False)


@pytest.mark.parametrize("group", GROUPS)
def test_a_fault_of_one_candidate_ends_as_the_catalogue_says(bench: Bench, group: str) -> None:
    """Each mode of the upstream, for the candidate whose answer decides."""
    check(look_at_modes(bench, GROUPS[group], at_once=AT_ONCE_OF[group]))


@pytest.mark.parametrize("place", PLACES)
def test_a_candidate_that_cannot_be_reached_ends_as_the_catalogue_says(
    bench: Bench, place: str
) -> None:
    """No listener, no host, no handshake: the others answer, or the status says it."""
    check(look_at_place(bench, place))


def test_every_mode_of_the_upstream_has_a_cell() -> None:
    """No mode is written and never asked for; none is asked for and not written."""
    modes = [mode for rows in GROUPS.values() for mode in rows]
    assert {find(mode)[0] for mode in modes} == {play for _, play in MODES.values()}
