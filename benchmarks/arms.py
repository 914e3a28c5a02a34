"""Arms of the comparison: every way to get an answer, loaded by the same generator.

An answer of the gateway is right only if the set has the size that the arm is named after.
"""

import contextlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import load
import peers
import queries
import rig
from load import Answer, Ask, Client, Judge, Kind
from verdict import Arm

SHORT, LONG = 9, 100  # digits of the numbers that are added, and so letters of the answers
PINNED = queries.POOL[0]


@dataclass(frozen=True, slots=True)
class Way:
    """One arm: its server, its client and the size of its sets."""

    arm: Arm
    server: rig.Server
    client: Client
    size: int = 1  # candidates that are right, and so the gateway's set

    def asks(self, *, stream: bool = False, digits: int = SHORT) -> Iterator[Ask]:
        """The arm's queries, from the first on."""
        return (Ask(each, stream) for each in queries.repeated(self.size, digits=digits))


@contextlib.contextmanager
def running(folder: Path, upstream: rig.Server) -> Generator[list[Way]]:
    """All arms that can be had here, each process started and the gateway calibrated."""
    base_url = upstream.url + "/v1"
    with contextlib.ExitStack() as stack:
        bare = stack.enter_context(peers.bare(folder, base_url))
        # An arm asks queries of one kind alone, which would be a drift from the rows, and alarm.
        config = rig.configure(folder, base_url, watching={"false_alarm": None})
        gateway = stack.enter_context(rig.gateway(config))
        gateway.calibrate(3)
        ways = [
            Way(Arm.DIRECT, upstream, Client(upstream.port, "", model=PINNED)),
            *(_bare(arm, bare, calls) for arm, calls in ((Arm.BARE_1, 1), (Arm.BARE_3, 3))),
        ]
        if peers.litellm_version() is not None:
            litellm = stack.enter_context(peers.litellm(folder, base_url))
            client = Client(litellm.port, peers.LITELLM_KEY, model=PINNED)
            ways.append(Way(Arm.LITELLM, litellm, client))
        ours = partial(Client, gateway.port, rig.KEY)
        pinned = ours(model=PINNED, judge=with_condition(load.judged, _is_by_pinned))
        route = ours(path="/route", model=None, judge=with_condition(_decided, has_set_of(1)))
        ways += [Way(Arm.PINNED, gateway, pinned), Way(Arm.ROUTE, gateway, route)]
        for size, arm in enumerate((Arm.SET_1, Arm.SET_2, Arm.SET_3), 1):
            ways.append(
                Way(arm, gateway, ours(judge=with_condition(load.judged, has_set_of(size))), size)
            )
        yield ways
        for way in ways:
            way.client.close()


def _bare(arm: Arm, server: rig.Server, calls: int) -> Way:
    path = f"/{calls}/v1/chat/completions"
    return Way(arm, server, Client(server.port, "", path=path, model=PINNED))


def with_condition(judge: Judge, condition: Callable[[Answer], bool]) -> Judge:
    """A judge that accepts what ``judge`` accepts if ``condition`` holds for the answer too."""

    def both(ask: Ask, answer: Answer) -> tuple[Kind, str]:
        kind, message = judge(ask, answer)
        if kind is Kind.RIGHT and not condition(answer):
            return Kind.WRONG, "other candidates than expected"
        return kind, message

    return both


def _decided(ask: Ask, answer: Answer) -> tuple[Kind, str]:
    return (Kind.RIGHT, "") if answer.status == 200 else load.refused(answer)


def _is_by_pinned(answer: Answer) -> bool:
    return answer.headers[b"x-racer-served-by"].decode() == PINNED


def has_set_of(size: int) -> Callable[[Answer], bool]:
    """A condition: the answer was decided by a set of ``size`` candidates."""
    return lambda answer: len(answer.headers[b"x-racer-selected"].split(b",")) == size
