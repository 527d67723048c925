"""The choice itself, against brute force and by its properties."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from racer.budget import Plan, StepMs, plan_step

Floats = NDArray[np.float64]

probs = st.lists(st.floats(0.01, 1.0), max_size=4).map(lambda own: np.array(sorted(own, reverse=True)))
batches = st.lists(probs, min_size=1, max_size=4)
costs = st.tuples(st.floats(1.0, 50.0), st.floats(0.0, 5.0), st.floats(0.0, 5.0), st.integers(1, 6))


def step_cost(cost: tuple[float, float, float, int]) -> StepMs:
    base, per_token, per_block, block = cost
    return lambda tokens, requests: base + per_token * tokens + per_block * np.ceil(tokens / block) + 0.1 * requests


def level(tokens: NDArray[np.int64], requests: int) -> Floats:
    """More tokens cost nothing."""
    return np.full(len(tokens), 5.0)


def rate(batch: list[Floats], sizes: tuple[int, ...], t: StepMs) -> float:
    gain = len(batch) + sum(float(own[:size].sum()) for own, size in zip(batch, sizes, strict=True))
    return gain / float(t(np.array([len(batch) + sum(sizes)]), len(batch))[0])


def drafts(plan: Plan) -> tuple[int, ...]:
    return tuple(size - 1 for size in plan.sizes(plan.best))


def every_choice(batch: list[Floats]) -> itertools.product[tuple[int, ...]]:
    return itertools.product(*(range(len(own) + 1) for own in batch))


@given(batches, costs)
def test_no_choice_brings_more_tokens_per_second(batch: list[Floats], cost: tuple[float, float, float, int]) -> None:
    t = step_cost(cost)
    chosen = drafts(plan_step(batch, t))
    assert all(0 <= size <= len(own) for size, own in zip(chosen, batch, strict=True))
    best = max(rate(batch, sizes, t) for sizes in every_choice(batch))
    assert rate(batch, chosen, t) == pytest.approx(best, rel=1e-12)


@given(batches, costs, st.integers(1, 40), st.floats(0.5, 4.0) | st.none())
def test_beside_fixed_tokens_time_costs_what_it_earns_without_them(
    batch: list[Floats], cost: tuple[float, float, float, int], fixed: int, speedup: float | None
) -> None:
    t, n = step_cost(cost), len(batch)
    plain = n / float(t(np.array([n]), n)[0])
    price = max(rate(batch, s, t) for s in every_choice(batch)) if speedup is None else speedup * plain

    def worth(sizes: tuple[int, ...]) -> float:
        gain = n + sum(float(own[:size].sum()) for own, size in zip(batch, sizes, strict=True))
        return gain - price * float(t(np.array([fixed + n + sum(sizes)]), n + 1)[0])

    plan = plan_step(batch, t, fixed_tokens=fixed, fixed_requests=1, speedup=speedup)
    assert worth(drafts(plan)) == pytest.approx(max(map(worth, every_choice(batch))), rel=1e-9, abs=1e-9)


@given(batches, costs, st.data())
def test_better_drafts_bring_more(
    batch: list[Floats], cost: tuple[float, float, float, int], data: st.DataObject
) -> None:
    t = step_cost(cost)
    raised = [np.minimum(1.0, own * data.draw(st.floats(1.0, 3.0))) for own in batch]
    before, after = plan_step(batch, t), plan_step(raised, t)
    assert after.worth.max() >= before.worth.max() * (1 - 1e-12)


@given(st.lists(st.floats(0.01, 0.9), min_size=1, max_size=8), st.floats(0.0, 0.1), st.integers(0, 7))
def test_a_node_that_pays_still_pays_when_it_is_likelier(values: list[float], more: float, which: int) -> None:
    which %= len(values)
    t = step_cost((10.0, 2.0, 0.0, 1))
    raised = [value + more * (i == which) for i, value in enumerate(values)]
    before, after = (drafts(plan_step([np.array([v]) for v in some], t)) for some in (values, raised))
    assert after[which] >= before[which]


@given(batches)
def test_free_tokens_are_all_taken_and_ruinous_ones_never(batch: list[Floats]) -> None:
    def ruinous(tokens: NDArray[np.int64], requests: int) -> Floats:
        return np.where(tokens > requests, np.inf, 5.0).astype(np.float64)

    everything = tuple(len(own) for own in batch)
    for speedup in (None, 1.0, 2.5):
        assert drafts(plan_step(batch, level, speedup=speedup)) == everything
        assert drafts(plan_step(batch, ruinous, speedup=speedup)) == (0,) * len(batch)


def test_the_peak_behind_a_valley_is_found() -> None:
    """Blocks of eight tokens: one more node does not pay, seven more do."""
    t = step_cost((0.0, 0.0, 10.0, 8))
    assert drafts(plan_step([np.full(20, 0.9)], t)) == (7,)


def test_a_likely_node_behind_an_unlikely_one_does_not_overtake_it() -> None:
    """The best-first order is not quite that of the probabilities: a prefix is taken, and all of it is counted."""
    plan = plan_step([np.array([0.2, 0.5]), np.array([0.3])], level)
    assert plan.owners.tolist() == [1, 0, 0]
    assert plan.gain.tolist() == pytest.approx([2.0, 2.3, 2.5, 3.0])
    assert plan.sizes(2) == [2, 2]


def test_nothing_to_decode_and_nothing_drafted() -> None:
    assert plan_step([], step_cost((1.0, 1.0, 0.0, 1))).sizes(0) == []
    plan = plan_step([np.zeros(0), np.array([0.9]), np.zeros(0)], level)
    assert plan.sizes(plan.best) == [1, 2, 1]
