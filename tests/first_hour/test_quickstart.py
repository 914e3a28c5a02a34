"""docs/quickstart.md, word for word, from an empty folder to a certificate that holds.

The servers are models that answer as chat models do. Run it with ``-s`` to see the time of each
step.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from app.settings import load
from racer_core.records.reader import read_rows
from tests.first_hour.measure import LEVELS, measure
from tests.first_hour.ordinary import CERTIFIED
from tests.kit import chat_models

LABELLED = 400
HELD_OUT = 40
EQUALITY = {"numbers": "number", "letters": "choice", "names": ("auto", "text"), "json": "json"}
TOOLS = ("bash", "openssl")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        any(shutil.which(tool) is None for tool in TOOLS), reason=f"needs {', '.join(TOOLS)}"
    ),
]


@pytest.mark.parametrize("family", chat_models.FAMILIES)
def test_the_quickstart_ends_in_a_certificate_that_holds(family: str, tmp_path: Path) -> None:
    """Labels are right but for 4 % of the answers, and votes compare as grades do.

    One of five ordinary requests is certified, and all are by the command that the doctor prints.
    """
    found = measure(family, tmp_path, LABELLED, HELD_OUT)
    for name, seconds in found.seconds.items():
        sys.stdout.write(f"{seconds:6.1f} s  {name}\n")
    assert found.closing.splitlines()[-1] == "holds: True alpha: 0.1"
    for words in ("what you gain", "advice", "bound", "answerable at alpha 0.1", ", active"):
        assert words in found.closing, words
    equality = load(tmp_path / "racer.yaml", {})[0].aggregation.equality
    assert equality in EQUALITY[family]
    rows = read_rows(tmp_path / "bootstrap" / "rows.jsonl").rows
    right = [
        (name in row.correct) is chat_models.is_right(name, row.query)
        for row in rows
        for name in chat_models.NAMES
    ]
    assert len(rows) == LABELLED
    assert sum(right) > 0.96 * len(right)
    certified = [name for name, reasons in found.ordinary.items() if not reasons]
    assert certified == list(CERTIFIED), found.ordinary
    assert not any(found.cured.values()), found.cured
    own = found.answered[LEVELS[0]]
    assert all(not each.reasons for each in own), own
