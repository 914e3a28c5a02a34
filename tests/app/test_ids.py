"""Time-ordered ids of decisions and requests."""

import re
import time

from app.ids import IdGenerator


def test_no_name_comes_twice_and_they_sort_by_time() -> None:
    """Past the end of what is drawn at once, too; of 80 random bits 1,000 are never twice alike."""
    ids = IdGenerator()
    names = [ids.new_id() for _ in range(1_000)]
    assert len({name[12:] for name in names}) == 1_000
    assert all(re.fullmatch(r"[0-9a-f]{32}", name) for name in names)
    time.sleep(0.002)
    assert max(names) < ids.new_id()


def test_two_sources_give_different_names() -> None:
    """A gateway's replicas share a store."""
    assert IdGenerator().new_id()[12:] != IdGenerator().new_id()[12:]
