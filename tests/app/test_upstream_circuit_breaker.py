"""Circuit breaker: ejection and readmission for one caller and for all, on an injected clock."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.settings import FleetSettings
from app.upstream.circuit_breaker import ALL_CALLERS, CircuitBreaker

RULES = FleetSettings(failures=5, eject_s=30, eject_max_s=100)

# A story: `a7` is a failure of the caller a with the payload 7, `!` before it says that the server
# refused the connection and `~` that it was late, `+` is a success, `?` a rejected request, `p` a
# passed health check and `f` a failed one, `@30` the time. `in:az` says that the breaker is closed
# for the callers a and z, `out:a` that it is open for a, `until:30` how long. `a7*3` repeats it.
STORIES = {
    "five failures in a row": "a1 b2 c3 d4 in:az e5 out:az until:30",
    "a success between them": "a1 b2 c3 d4 + a1 b2 c3 d4 in:az e5 out:az",
    "half of the last twenty": "+ a0 + b1 + c2 + d3 + e4 + a5 + b6 + c7 + d8 + e9 in:az",
    "more than half of them": "a0 b1 c2 + d3 e4 a5 + b6 c7 d8 + in:az e9 a10 out:az",
    "a poison payload counts once": "a7*1000 in:az a8 a7 a8 a7 a9 a7 a10 in:az a11 out:a",
    "poison and answers in turn": "a7 a7 a7 + a7 a7 a7 + a7 a7 a7 + a7 a7 a7 + a7 a7 a7 + in:az",
    "two refused connections": "!a7 ? in:az !a7 in:az !a7 out:az",
    "a rejected request is neither": "? a0 ? b1 ? c2 ? d3 in:az ? e4 out:az",
    "five of one caller between successes": "+ a0 a1 a2 a3 a4 in:az + a0 a1 a2 a3 a4 in:az",
    "three of four fail for one caller": "a0 a1 a2 + a3 a4 a5 + a6 a7 a8 + a9 a10 a11 in:az",
    "one caller alone": "a0 a1 a2 a3 a4 out:a in:z @1 + in:az",
    "two callers despite a success": "+ a1 b2 a3 b4 in:ab a5 out:abc",
    "three of five are of one caller": "a0 a1 a2 a3 a4 a5 out:a b1 in:c b2 out:c until:30",
    "ten seconds of silence": "+ @9.9 a0 a1 a2 a3 a4 a5 in:a @10 a6 out:a",
    "a poisoned trial": "a0 b1 c2 d3 e4 out:z p @30 a7 out:a in:z p @90 a8 @91 + in:az",
    "a second failed trial": "a0 b1 c2 d3 e4 p @30 a7 in:z @31 b7 out:z until:91",
    "a failed trial puts it out for longer": "a0 b1 c2 d3 e4 until:30 p @30 a7 until:90 p @90 a7 "
    "until:180 p @180 a7 until:280 p @280 a7 until:380",
    "five successes forget the past": "a0 b1 c2 d3 e4 p + a1 b2 c3 d4 in:az @100 a5 until:160 p "
    "+*5 @200 a0 b1 c2 d3 e4 until:230",
    "failed checks do not lengthen it": "a0 b1 c2 d3 e4 @30 f until:60 @60 f until:90",
    "calls from before": "a0 b1 c2 d3 e4 @20 a10 b11 c12 d13 e14 a15 b16 until:30",
    "timeouts despite a success": "+ @1 ~a0 ~a1 ~a2 ~a3 ~a4 out:a in:b",
    "refused connections despite a success": "+ @1 !a0 !a1 !a2 !a3 !a4 out:ab",
    "a check that passes late": "a0 b1 c2 d3 e4 @30 + p in:az",
    "a check that fails late": "a0 b1 c2 d3 e4 @30 + f in:az",
    "a trial of one is none of others": "a0 a1 a2 a3 a4 p b1 in:b a9 out:a",
}


@pytest.mark.parametrize("story", STORIES)
def test_the_breaker_opens_for_whom_it_should(story: str) -> None:
    """Each word of the story is done or checked in its order."""
    circuit, now = CircuitBreaker(RULES), 0.0
    for word in STORIES[story].split():
        what, _, times = word.partition("*")
        verb, _, value = what.partition(":")
        for _ in range(int(times or 1)):
            match verb[0]:
                case "+":
                    circuit.record_success(now)
                case "?":
                    circuit.record_answer()
                case "p":
                    circuit.record_passed_check()
                case "f":
                    circuit.record_failed_check(now)
                case "@":
                    now = float(verb[1:])
                case "i" | "o":
                    opened = [circuit.is_open_for(caller) for caller in value]
                    assert opened == [verb == "out"] * len(value), word
                case "u":
                    assert circuit.out_until == float(value)
                case _:
                    who = verb.lstrip("!~")
                    how = {"unreachable": verb[0] == "!", "timed_out": verb[0] == "~"}
                    circuit.record_failure(now, caller=who[0], payload=int(who[1:]), **how)


@pytest.mark.parametrize("failures", [1, 2, 40])
def test_how_many_failures_is_a_setting(failures: int) -> None:
    """So does the number of recent calls that are looked at."""
    circuit = CircuitBreaker(FleetSettings(failures=failures))
    assert not fail(circuit, *range(failures - 1))
    assert fail(circuit, failures)


def fail(
    circuit: CircuitBreaker, *payloads: int, now: float = 0.0, callers: str = "abcde", **how: bool
) -> bool:
    """Fail once for each payload, each of another caller; whether it is out in the end."""
    for payload, caller in zip(payloads, itertools.cycle(callers), strict=False):
        circuit.record_failure(now, caller=caller, payload=payload, **how)
    return circuit.out_until is not None


@given(
    st.lists(
        st.one_of(st.just("ok"), st.just("answered"), st.just("probe"), st.integers(0, 30)),
        max_size=200,
    )
)
def test_it_is_out_only_after_failures_and_never_for_longer_than_the_limit(
    events: list[str | int],
) -> None:
    """Any history: time out is bounded, and a success always lets it in."""
    circuit = CircuitBreaker(RULES)
    for now, event in enumerate(events):
        match event:
            case "ok":
                circuit.record_success(float(now))
                assert circuit.state == "in"
            case "answered":
                was = circuit.state
                circuit.record_answer()
                assert circuit.state == was
            case "probe":
                if circuit.out_until is not None:
                    circuit.record_passed_check()
            case _:
                was = circuit.out_until
                caller = "abc"[int(event) % 3]
                was_open = circuit.is_open_for(caller)
                took_out = circuit.record_failure(float(now), caller=caller, payload=int(event))
                assert took_out == (not was_open and circuit.is_open_for(caller))
                if was is not None:
                    assert circuit.out_until is not None
        if circuit.out_until is not None:
            assert circuit.out_until <= now + RULES.eject_max_s


def test_ejections_for_one_caller_do_not_lengthen_that_for_all() -> None:
    """Nor do its failures between the successes keep the past from being forgotten."""
    circuit = CircuitBreaker(RULES)
    for number in range(9):
        fail(circuit, *range(5), now=100.0 * number, callers="a")
        circuit.record_passed_check()
    assert fail(circuit, 9, now=1_000, callers="a")
    assert circuit.out_until == 1_100
    fail(circuit, 1, 2, now=1_000, callers="bc")
    assert circuit.is_open_for("z")
    assert circuit.out_until == 1_030
    for second in range(5):
        circuit.record_success(2_000.0 + second)
        fail(circuit, second, now=2_000.5 + second, callers="a")
    fail(circuit, *range(5), now=3_000)
    assert circuit.out_until == 3_030


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 9), st.booleans()), max_size=60),
    st.integers(1, 7),
)
def test_no_caller_alone_opens_it_for_another(
    events: list[tuple[str, int, bool]], failures: int
) -> None:
    """Whatever one caller does, beside others whose calls succeed."""
    circuit = CircuitBreaker(FleetSettings(failures=failures))
    for now, (caller, payload, timed_out) in enumerate(events):
        if caller == "a":
            circuit.record_failure(float(now), caller="a", payload=payload, timed_out=timed_out)
        else:
            circuit.record_success(float(now))
        if payload == 0:
            circuit.record_passed_check()
        assert not circuit.is_open_for("b")
        assert not circuit.is_open_for(ALL_CALLERS)
