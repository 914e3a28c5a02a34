"""Judged sequence: the bets on labels, in the order of decisions and not in that of labels.

For example, people complain about misses at once, and 5 % of the hits get their label a day later.
Bets in the order of labels would see too many misses at every moment, and alarm.

So a sampled decision bets in the place of its own time. While its label is missing it counts in the
way that is worst for an alarm: as a hit, and with the p-value 1. The capital after each decision is
then at most what it would be with all labels, and the alarm looks at the largest of them. Hence
P(any false alarm) <= level, whatever label is late or never comes, and why.

A label that has not come ``DEADLINE`` after its decision is missing for good. What comes before the
first decision that may still get a label is settled, and stored; the decisions after it bet again
whenever a label comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Self

from app.monitoring.decisions.store import WatchedDecision
from app.monitoring.drift.statistics import JUDGED, NEVER_COVERED, evict_draws, tie_draws
from app.utc import past
from racer_core.calibration.martingales import UpwardMartingale
from racer_core.calibration.monitoring import DriftState
from racer_core.calibration.risk_e_process import RiskEProcess
from racer_core.calibration.wager import State

DEADLINE: Final = timedelta(days=7)  # how long after its decision a label counts for the alarms
WRITING: Final = timedelta(minutes=1)  # within which gateways write a decision, on any clock
MAX_OPEN: Final = 10_000  # decisions that may wait for labels; before the newest ones none waits
START: Final = ("", "")  # before all decisions


@dataclass(frozen=True, slots=True)
class JudgedSequence:
    """The judged streams after all decisions up to a place.

    Attributes:
        after: The time and the id of the last decision; ``START``: there is none.
        state: The judged streams alone.
    """

    after: tuple[str, str]
    state: DriftState

    @classmethod
    def begin(cls, state: DriftState, since: str = "") -> Self:
        """The judged streams of a new drift state.

        Args:
            state: The drift state.
            since: Earlier decisions do not bet: UTC, ISO 8601.
        """
        streams = {name: each for name, each in state.streams.items() if name in JUDGED}
        return cls((since, ""), _copy(DriftState(delta=state.delta, streams=streams)))

    def settled(self, decisions: Sequence[WatchedDecision]) -> Self:
        """The sequence after the bets on further decisions, in order."""
        state = _copy(self.state)
        ties = tie_draws([bytes.fromhex(each.fingerprint) for each in decisions])
        evictions = evict_draws([each.at[1].encode() for each in decisions])
        for each, tie, evict in zip(decisions, ties.tolist(), evictions.tolist(), strict=True):
            _bet(state, each, tie, evict)
        return type(self)(decisions[-1].at if decisions else self.after, state)

    def in_the_past(self) -> Self:
        """The same, at the present if its place is in the future: later decisions bet, too."""
        return type(self)((past(self.after[0]), self.after[1]), self.state)

    def to_state(self) -> State:
        """Everything that a restart needs."""
        return {"after": list(self.after), "state": self.state.to_state()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Continue where ``to_state`` was taken."""
        created_at, decision_id = state["after"]
        return cls((str(created_at), str(decision_id)), DriftState.from_state(state["state"]))


def settled_count(decisions: Sequence[WatchedDecision], too_late: str, written: str) -> int:
    """How many decisions come before the first that may still get a label, or come after another.

    Args:
        decisions: In order.
        too_late: Labels of decisions up to this time come too late: UTC, ISO 8601.
        written: Decisions up to this time are all stored, by whichever gateway made them.
    """
    waits = (
        each.at[0] > written or (not each.judged and each.at[0] > too_late) for each in decisions
    )
    return next((place for place, it_waits in enumerate(waits) if it_waits), len(decisions))


def replay_count(decisions: Sequence[WatchedDecision]) -> int:
    """How many decisions there are up to the last with a label: those after it only lose."""
    labelled = (place for place, each in enumerate(decisions, 1) if each.judged)
    return max(labelled, default=0)


def _copy(state: DriftState) -> DriftState:
    return DriftState.from_state(state.to_state())


def _bet(state: DriftState, decision: WatchedDecision, tie: float, evict: float) -> None:
    """One round of each stream. One that does not count takes a round, too.

    The reserve that rounds release would otherwise depend on which labels are missing.
    """
    loss, score = decision.loss, decision.critical_score
    for stream in state.streams.values():
        if isinstance(stream, RiskEProcess):
            if score is None:
                stream.update(0.0)
            elif loss is None:
                stream.skip()
            else:
                stream.update(loss)
        elif isinstance(stream, UpwardMartingale):
            if score is None:
                stream.update_unknown(NEVER_COVERED, evict)
            elif loss is None:
                stream.skip()
            else:
                stream.update(score, tie, evict)
