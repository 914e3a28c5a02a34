"""Circuit breaker: ejection and readmission for one caller and for all, on an injected clock."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.settings import FleetSettings
from app.upstream.circuit_breaker import ALL_CALLERS, WORKING_S, CircuitBreaker

RULES = FleetSettings(failures=5, eject_s=30, eject_max_s=100)


def fail(
    circuit: CircuitBreaker,
    *payloads: int,
    now: float = 0.0,
    callers: str = "abcde",
    **how: bool,
) -> bool:
    """Fail once for each payload, each of another caller; whether it is out in the end."""
    for payload, caller in zip(payloads, itertools.cycle(callers), strict=False):
        circuit.record_failure(now, caller=caller, payload=payload, **how)
    return circuit.out_until is not None


def test_so_many_failures_in_a_row_take_a_replica_out() -> None:
    """Not one less, and a success in between starts the count anew."""
    circuit = CircuitBreaker(RULES)
    assert not fail(circuit, 1, 2, 3, 4)
    circuit.record_success(0.0)
    assert not fail(circuit, 1, 2, 3, 4)  # the same ones count again
    assert fail(circuit, 5)
    assert circuit.out_until == 30


def test_failing_more_often_than_not_takes_a_replica_out() -> None:
    """More than half of the last twenty, though never five in a row."""
    circuit = CircuitBreaker(RULES)
    for number in range(10):
        circuit.record_success(0.0)
        assert not fail(circuit, number)
    assert circuit.state == "in"  # ten of twenty
    circuit = CircuitBreaker(RULES)
    for number in range(3):
        assert not fail(circuit, 4 * number, 4 * number + 1, 4 * number + 2)
        circuit.record_success(0.0)
    assert fail(circuit, 100, 101)  # eleven of fourteen


def test_a_poison_payload_counts_once() -> None:
    """A payload that fails 1,000 times opens the breaker for no other caller."""
    circuit = CircuitBreaker(RULES)
    assert not fail(circuit, *[7] * 1_000, callers="a")
    assert not fail(circuit, 8, 7, 8, 7, 9, 7, 10, callers="a")
    assert fail(circuit, 11, callers="a")


def test_answers_between_them_do_not_let_a_poison_payload_count_for_more() -> None:
    """One failure and one answer in turn is half, not more."""
    circuit = CircuitBreaker(RULES)
    for _ in range(100):
        assert not fail(circuit, 7, 7, 7, callers="a")
        circuit.record_success(0.0)


def test_two_refused_connections_in_a_row_are_enough() -> None:
    """A refused connection does not depend on the payload: no server listens."""
    circuit = CircuitBreaker(RULES)
    assert not fail(circuit, 7, unreachable=True)
    circuit.record_answer()
    assert not fail(circuit, 7, unreachable=True)
    assert fail(circuit, 7, unreachable=True)


def test_a_rejected_request_is_neither_a_failure_nor_a_success() -> None:
    """Failures before and after it count as consecutive."""
    circuit = CircuitBreaker(RULES)
    for payload in range(5):
        circuit.record_answer()
        out = fail(circuit, payload)
    assert out


def test_on_probation_the_next_failure_puts_it_out_for_longer() -> None:
    """30 s, 60 s, 90 s, and no more than the limit."""
    circuit = CircuitBreaker(RULES)
    assert fail(circuit, *range(5), now=0)
    for now, until in ((30.0, 90.0), (90.0, 180.0), (180.0, 280.0), (280.0, 380.0)):
        circuit.record_passed_check()
        assert circuit.state == "probation"
        assert fail(circuit, 7, now=now)
        assert circuit.out_until == until


def test_a_success_ends_the_probation_and_several_forget_the_past() -> None:
    """As many successes in a row as failures would have been needed."""
    circuit = CircuitBreaker(RULES)
    fail(circuit, *range(5))
    circuit.record_passed_check()
    circuit.record_success(0.0)
    assert not fail(circuit, 1, 2, 3, 4)
    assert fail(circuit, 5, now=100)
    assert circuit.out_until == 160
    circuit.record_passed_check()
    for _ in range(5):
        circuit.record_success(0.0)
    fail(circuit, *range(5), now=200)
    assert circuit.out_until == 230


def test_a_failed_probe_does_not_lengthen_the_wait() -> None:
    """A failed health check costs no request, so the pause stays the same."""
    circuit = CircuitBreaker(RULES)
    fail(circuit, *range(5))
    for now in (30.0, 60.0, 90.0):
        circuit.record_failed_check(now)
        assert circuit.out_until == now + 30


def test_failures_of_calls_from_before_do_not_keep_it_out_for_longer() -> None:
    """They were under way when it was taken out."""
    circuit = CircuitBreaker(RULES)
    fail(circuit, *range(5), now=0)
    assert fail(circuit, *range(10, 30), now=20)
    assert circuit.out_until == 30


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


@pytest.mark.parametrize("failures", [1, 2, 40])
def test_how_many_failures_is_a_setting(failures: int) -> None:
    """So does the number of recent calls that are looked at."""
    circuit = CircuitBreaker(FleetSettings(failures=failures))
    assert not fail(circuit, *range(failures - 1))
    assert fail(circuit, failures)


def test_five_failing_queries_of_one_caller_leave_a_working_replica_to_all() -> None:
    """While calls succeed, a status of 500 is the fault of the query; the caller is served, too."""
    circuit = CircuitBreaker(RULES)
    for second in range(100):
        circuit.record_success(float(second))
        assert not fail(circuit, *range(5), now=second + 0.5, callers="a")


def test_three_of_four_calls_that_fail_are_one_callers() -> None:
    """More than half of the recent calls fail, and all failures have one origin."""
    circuit = CircuitBreaker(RULES)
    for number in range(100):
        assert not fail(circuit, *range(4 * number, 4 * number + 3), callers="a")
        circuit.record_success(0.0)


def test_a_caller_alone_opens_the_breaker_for_itself() -> None:
    """Other callers find out for themselves, and the first success closes it."""
    circuit = CircuitBreaker(RULES)
    assert fail(circuit, *range(5), callers="a")
    assert circuit.is_open_for("a")
    assert not circuit.is_open_for("b")
    assert circuit.state == "out"
    circuit.record_success(1.0)
    assert circuit.state == "in"
    assert not circuit.is_open_for("a")


def test_a_server_that_fails_two_callers_is_out_at_the_fifth_failure() -> None:
    """Recent successes do not prevent it: two callers are unlikely to be both at fault."""
    circuit = CircuitBreaker(RULES)
    circuit.record_success(0.0)
    assert not fail(circuit, 1, 2, 3, 4, callers="ab")
    assert fail(circuit, 5, callers="a")
    assert circuit.is_open_for("c")


def test_one_caller_provides_three_of_five_failures() -> None:
    """It needs two failures of others, and no success between them."""
    circuit = CircuitBreaker(RULES)
    assert fail(circuit, *range(100), callers="a")
    fail(circuit, 1, callers="b")
    assert not circuit.is_open_for("c")
    fail(circuit, 2, callers="b")
    assert circuit.is_open_for("c")
    assert circuit.out_until == 30  # the first ejection still


@pytest.mark.parametrize("how", [{"timed_out": True}, {"unreachable": True}])
def test_unanswered_calls_count_despite_a_recent_success(how: dict[str, bool]) -> None:
    """A timeout or a refused connection counts although a call has just succeeded."""
    circuit = CircuitBreaker(RULES)
    circuit.record_success(0.0)
    assert fail(circuit, *range(5), now=1, callers="a", **how)
    assert circuit.is_open_for("a")
    assert circuit.is_open_for("b") == ("unreachable" in how)


def test_the_silence_of_a_failing_server_opens_the_breaker_for_its_only_caller() -> None:
    """Ten seconds after the last success."""
    circuit = CircuitBreaker(RULES)
    circuit.record_success(0.0)
    assert not fail(circuit, *range(50), now=WORKING_S - 0.1, callers="a")
    assert fail(circuit, 50, now=WORKING_S, callers="a")


def test_a_poisoned_trial_keeps_the_breaker_open_for_its_own_caller_only() -> None:
    """Another caller's call is the trial that counts."""
    circuit = CircuitBreaker(RULES)
    fail(circuit, *range(5))
    assert circuit.is_open_for("z")
    circuit.record_passed_check()
    assert fail(circuit, 7, now=30, callers="a")
    assert circuit.is_open_for("a")
    assert not circuit.is_open_for("z")
    circuit.record_passed_check()
    assert circuit.state == "probation"
    fail(circuit, 8, now=90, callers="a")
    circuit.record_success(91.0)
    assert circuit.state == "in"


def test_a_second_caller_whose_trial_fails_opens_it_for_all() -> None:
    """A server that passes its health check but fails every request costs two calls."""
    circuit = CircuitBreaker(RULES)
    fail(circuit, *range(5))
    circuit.record_passed_check()
    fail(circuit, 7, now=30, callers="a")
    assert not circuit.is_open_for("z")
    fail(circuit, 7, now=31, callers="b")
    assert circuit.is_open_for("z")
    assert circuit.out_until == 91


def test_a_trial_of_one_caller_is_no_trial_of_the_others() -> None:
    """Opened by one caller, and half-open: a single failure of another counts as it always does."""
    circuit = CircuitBreaker(RULES)
    fail(circuit, *range(5), callers="a")
    circuit.record_passed_check()
    fail(circuit, 1, callers="b")
    assert not circuit.is_open_for("b")
    assert fail(circuit, 9, callers="a")


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


def test_a_check_that_ends_after_a_success_changes_nothing() -> None:
    """The check was under way when a call closed the breaker."""
    for end in ("passed", "failed"):
        circuit = CircuitBreaker(RULES)
        fail(circuit, *range(5))
        circuit.record_success(30.0)
        circuit.record_passed_check() if end == "passed" else circuit.record_failed_check(30.0)
        assert circuit.state == "in"


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.integers(0, 9), st.booleans()),
        max_size=60,
    ),
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
