"""The state of calls in rounds, without candidates."""

from __future__ import annotations

import asyncio
import time

from app.answering.fan_out import FanOutResult
from app.answering.rounds import Rounds, RoundsVote
from app.answering.vote import Vote
from app.settings import Aggregation
from app.upstream.reply import Reply
from app.wire.format import Choice
from racer_core.aggregation.answers import Equality
from racer_core.sequential.calibration import SequentialCalibration
from racer_core.sequential.policy import Policy
from tests.support.same_answer import NAMES, classes

POLICY = Policy(pool=NAMES, reliabilities=(0.9,) * 5, order=NAMES, borders=(2, 5))


class NeverReads:
    """A reader that is never done."""

    def waits(self, *_: object) -> bool:
        """It always waits."""
        return True

    async def form(self, *_: object) -> str | None:
        """Longer than any deadline."""
        await asyncio.sleep(60)
        return "7"


def reply(name: str, text: str = "7") -> Reply:
    """An answer."""
    return Reply(candidate=name, body={}, choices=(Choice(text=text),), usage={}, seconds=0.0)


def rounds() -> Rounds:
    """Calls of a request that never stop before the last round."""
    found = SequentialCalibration(policy=POLICY, answers=classes(0, 50))
    return Rounds(found, 0.0, "decision")


def test_an_answer_that_is_not_read_in_time_is_a_failure() -> None:
    """Rows hold answers that were read without a deadline: it is no unreadable answer."""
    state = rounds()
    plain = Vote(
        rule=Aggregation(),
        kind=Equality.MATH,
        reader=NeverReads(),  # pyright: ignore[reportArgumentType]
        stacked=None,
        scores={},
        members=NAMES,
        deadline=time.monotonic() + 0.02,
    )
    vote = RoundsVote.of(plain, state)
    results = FanOutResult()
    assert vote.wave(results, NAMES) == ("ada", "bob")
    results.replies["ada"] = reply("ada")
    results.forms["ada"] = asyncio.run(vote.read(results.replies["ada"]))
    assert not vote.decided(results, ["bob"])
    results.replies["bob"], results.forms["bob"] = reply("bob"), "7"
    assert not vote.decided(results, ["cyd", "dan", "eve"])
    assert vote.wave(results, NAMES[2:]) == ("cyd", "dan", "eve")
    for name in NAMES[2:]:
        results.replies[name], results.forms[name] = reply(name), "7"
    assert vote.decided(results, [])
    assert state.reasons(results) == ("outvoted_candidate_failed:ada",)


def test_a_request_that_nobody_answered_has_no_other_reasons() -> None:
    """Such as one whose client left at once."""
    assert rounds().reasons(FanOutResult()) == ()
