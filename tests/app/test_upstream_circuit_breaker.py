"""When a replica is taken out and let back in, on a clock of the test's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.settings import FleetSettings
from app.upstream.circuit_breaker import CircuitBreaker

RULES = FleetSettings(failures=5, eject_s=30, eject_max_s=100)


def fail(
    circuit: CircuitBreaker, *payloads: int, now: float = 0.0, unreachable: bool = False
) -> bool:
    """Fail once for each payload; whether it is out in the end."""
    for payload in payloads:
        circuit.record_failure(now, payload=payload, unreachable=unreachable)
    return circuit.out_until is not None


def test_so_many_failures_in_a_row_take_a_replica_out() -> None:
    """Not one less, and a success in between starts the count anew."""
    circuit = CircuitBreaker(RULES)
    assert not fail(circuit, 1, 2, 3, 4)
    circuit.record_success()
    assert not fail(circuit, 1, 2, 3, 4)  # the same ones count again
    assert fail(circuit, 5)
    assert circuit.out_until == 30


def test_failing_more_often_than_not_takes_a_replica_out() -> None:
    """More than half of the last twenty, though never five in a row."""
    circuit = CircuitBreaker(RULES)
    for number in range(10):
        circuit.record_success()
        assert not fail(circuit, number)
    assert circuit.state == "in"  # ten of twenty
    circuit = CircuitBreaker(RULES)
    for number in range(3):
        assert not fail(circuit, 4 * number, 4 * number + 1, 4 * number + 2)
        circuit.record_success()
    assert fail(circuit, 100, 101)  # eleven of fourteen


def test_a_poison_payload_counts_once() -> None:
    """However often it is sent, it takes the replica from nobody else."""
    circuit = CircuitBreaker(RULES)
    assert not fail(circuit, *[7] * 1_000)
    assert not fail(circuit, 8, 7, 8, 7, 9, 7, 10)
    assert fail(circuit, 11)


def test_answers_between_them_do_not_let_a_poison_payload_count_for_more() -> None:
    """One failure and one answer in turn is half, not more."""
    circuit = CircuitBreaker(RULES)
    for _ in range(100):
        assert not fail(circuit, 7, 7, 7)
        circuit.record_success()


def test_two_refused_connections_in_a_row_are_enough() -> None:
    """Whatever was going to be sent: nobody is there."""
    circuit = CircuitBreaker(RULES)
    assert not fail(circuit, 7, unreachable=True)
    circuit.record_answer()
    assert not fail(circuit, 7, unreachable=True)
    assert fail(circuit, 7, unreachable=True)


def test_what_is_nobodys_fault_is_neither_a_failure_nor_a_success() -> None:
    """A rejected request in between breaks no row."""
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
    circuit.record_success()
    assert not fail(circuit, 1, 2, 3, 4)
    assert fail(circuit, 5, now=100)
    assert circuit.out_until == 160
    circuit.record_passed_check()
    for _ in range(5):
        circuit.record_success()
    fail(circuit, *range(5), now=200)
    assert circuit.out_until == 230


def test_a_failed_probe_does_not_lengthen_the_wait() -> None:
    """It cost nobody anything."""
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
                circuit.record_success()
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
                took_out = circuit.record_failure(float(now), payload=int(event))
                assert took_out == (was is None and circuit.out_until is not None)
        if circuit.out_until is not None:
            assert circuit.out_until <= now + RULES.eject_max_s


@pytest.mark.parametrize("failures", [1, 2, 40])
def test_how_many_failures_is_a_setting(failures: int) -> None:
    """So does the number of recent calls that are looked at."""
    circuit = CircuitBreaker(FleetSettings(failures=failures))
    assert not fail(circuit, *range(failures - 1))
    assert fail(circuit, failures)
