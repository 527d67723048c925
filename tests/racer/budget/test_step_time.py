"""The curve, and how it follows the steps taken."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from racer.step_curve import StepCurve, monotone
from racer.step_time import StepTimes

CURVE = StepCurve(alone=((1.0, 20.0), (32.0, 22.0), (64.0, 38.0)), extra=((1.0, 0.0), (16.0, 7.5)))


def test_between_the_points_and_beyond_them() -> None:
    times = StepTimes(CURVE)
    assert times.ms(np.array([1, 32, 48, 64, 96, 5000]), 1) == pytest.approx([20.0, 22.0, 30.0, 38.0, 54.0, 2506.0])
    assert times.step_ms(32, 16) == pytest.approx(29.5)
    assert times.step_ms(64, 31) == pytest.approx(38.0 + 15.0)


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 40), st.floats(0.5, 500.0)), max_size=60),
    st.integers(1, 40),
)
def test_more_tokens_never_take_less_time(steps: list[tuple[int, int, float]], requests: int) -> None:
    times = StepTimes(CURVE)
    for tokens, of, ms in steps:
        times.observe(max(tokens, of), of, ms)
    predicted = times.ms(np.arange(requests, 1200), requests)
    assert (predicted > 0.0).all() and (np.diff(predicted) >= 0.0).all()


@given(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=12))
def test_monotone_is_the_nearest_ascending_sequence(values: list[float]) -> None:
    fitted = monotone(np.array(values))
    assert (np.diff(fitted) >= 0.0).all() and fitted.sum() == pytest.approx(sum(values), abs=1e-6)
    assert monotone(fitted).tolist() == pytest.approx(fitted.tolist())
    if sorted(values) == values:
        assert fitted.tolist() == values


def test_one_pause_of_the_machine_is_not_its_speed() -> None:
    times = StepTimes(CURVE)
    for _ in range(50):
        times.observe(32, 1, 22.0)
    times.observe(32, 1, 5000.0)
    assert times.step_ms(32, 1) < 22.0 * 1.1


def test_a_slower_machine_is_slower_at_sizes_not_seen_too() -> None:
    times = StepTimes(CURVE)
    for _ in range(100):
        times.observe(32, 1, 44.0)
    assert times.step_ms(32, 1) == pytest.approx(44.0, rel=0.02)
    assert times.step_ms(8, 1) > 30.0 and times.step_ms(64, 1) > 57.0


@pytest.mark.parametrize(
    ("alone", "extra"),
    [
        (((1.0, 20.0), (1.0, 21.0)), ((1.0, 0.0),)),
        (((1.0, 20.0), (2.0, 19.0)), ((1.0, 0.0),)),
        (((1.0, float("nan")),), ((1.0, 0.0),)),
        (((1.0, 0.0),), ((1.0, 0.0),)),
        ((), ((1.0, 0.0),)),
        (((1.0, 5.0),), ((1.0, 0.0), (4.0, -1.0))),
    ],
)
def test_a_curve_that_makes_no_sense_is_refused(
    alone: tuple[tuple[float, float], ...], extra: tuple[tuple[float, float], ...]
) -> None:
    with pytest.raises(ValueError):
        StepCurve(alone, extra)
