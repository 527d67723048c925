from __future__ import annotations

import pytest

from datastore.breaker import Breaker, BreakerState
from tests.datastore.clock import Clock


def opened(clock: Clock) -> Breaker:
    breaker = Breaker(failures=3, wait_s=1.0, max_wait_s=3.0, clock=clock)
    for _ in range(3):
        assert breaker.allow()
        breaker.failed()
    return breaker


def test_it_opens_at_the_third_failure_in_a_row_and_not_before() -> None:
    breaker = Breaker(failures=3, clock=Clock())
    for _ in range(4):
        breaker.failed()
        breaker.failed()
        breaker.succeeded()
    assert breaker.state is BreakerState.CLOSED
    assert opened(Clock()).state is BreakerState.OPEN


def test_an_open_one_lets_a_single_attempt_through_after_its_wait() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now = 0.99
    assert not breaker.allow()
    clock.now = 1.0
    assert breaker.state is BreakerState.HALF_OPEN
    assert [breaker.allow() for _ in range(3)] == [True, False, False]
    breaker.succeeded()
    assert (breaker.state, breaker.opened) == (BreakerState.CLOSED, 1)


def test_each_failed_attempt_doubles_the_wait_up_to_the_longest() -> None:
    clock = Clock()
    breaker = opened(clock)
    for wait in (1.0, 2.0, 3.0, 3.0):
        clock.now += wait - 0.01
        assert not breaker.allow()
        clock.now += 0.01
        assert breaker.allow()
        breaker.failed()
    clock.now += 3.0
    assert breaker.allow()
    breaker.succeeded()
    for _ in range(3):
        breaker.failed()
    clock.now += 1.0
    assert breaker.allow(), "after a success the wait is short again"
    assert breaker.opened == 2


def test_failures_of_questions_asked_before_it_opened_do_not_lengthen_the_wait() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now = 0.9
    breaker.failed()
    clock.now = 1.0
    assert breaker.allow()


def test_the_first_time_it_opens_is_told(caplog: pytest.LogCaptureFixture) -> None:
    breaker = Breaker(failures=1, clock=Clock(), name="lookups")
    for _ in range(3):
        breaker.failed()
        breaker.succeeded()
    assert breaker.opened == 3
    assert caplog.messages == ["lookups fail or come too late; going on without them until they do not"]
