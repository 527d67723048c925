"""The controller on made-up machines: within 3% of the best fixed tree size in every regime, and after a change.

Expected tokens over true milliseconds, on the same drafts for all sizes; only what the controller is told has noise.
"""

from __future__ import annotations

import numpy as np
import pytest

from racer.draft.tree import DraftTree
from racer.pause import DraftPause
from racer.types import Source
from tests.racer.budget.world import Machine, Regime, TrueMs, compute_bound, grow_many, measured, memory_bound, steppy

OPTIMISTIC, HONEST, PESSIMISTIC = 0.5, 1.0, 2.0
DRAFTS = {bias: grow_many(bias) for bias in (OPTIMISTIC, HONEST, PESSIMISTIC)}
CURVES = pytest.mark.parametrize("true_ms", [memory_bound, compute_bound, steppy], ids=lambda curve: curve.__name__)
LOADS = pytest.mark.parametrize("requests", [1, 4, 32])


def steps(requests: int) -> int:
    return 400 if requests < 32 else 150


@CURVES
@LOADS
@pytest.mark.parametrize("bias", DRAFTS)
def test_every_regime(true_ms: TrueMs, requests: int, bias: float) -> None:
    machine, regime = Machine(measured(true_ms)), Regime(true_ms, requests, DRAFTS[bias])
    cold = machine.run(regime, steps(requests))
    assert cold.against_best > 0.97 and cold.against_plain > 0.99
    warm = machine.run(regime, steps(requests))
    assert warm.against_best > 0.97 and warm.against_plain > 1.0


@LOADS
@pytest.mark.parametrize(
    ("before", "after"),
    [(memory_bound, compute_bound), (compute_bound, memory_bound), (steppy, compute_bound), (memory_bound, steppy)],
    ids=lambda curve: curve.__name__,
)
@pytest.mark.parametrize(("promise", "then"), [(OPTIMISTIC, PESSIMISTIC), (PESSIMISTIC, OPTIMISTIC)])
def test_after_machine_and_drafts_have_changed(
    before: TrueMs, after: TrueMs, requests: int, promise: float, then: float
) -> None:
    """Nothing that was measured at start-up holds any more."""
    machine = Machine(measured(before))
    machine.run(Regime(before, requests, DRAFTS[promise]), 200)
    changed = Regime(after, requests, DRAFTS[then])
    machine.run(changed, 600)
    assert machine.run(changed, steps(requests)).against_best > 0.97


@CURVES
def test_after_the_load_has_changed(true_ms: TrueMs) -> None:
    machine = Machine(measured(true_ms))
    for requests in (1, 32, 4, 1):
        regime = Regime(true_ms, requests, DRAFTS[OPTIMISTIC])
        machine.run(regime, 50)
        assert machine.run(regime, 150).against_best > 0.97, f"at {requests} requests"


@pytest.mark.parametrize("factor", [0.4, 2.5])
def test_after_the_machine_has_become_slower_or_faster(factor: float) -> None:
    machine = Machine(measured(memory_bound))
    for true_ms in (memory_bound, lambda tokens, requests: factor * memory_bound(tokens, requests)):
        regime = Regime(true_ms, 4, DRAFTS[HONEST])
        machine.run(regime, 50)
        assert machine.run(regime, 200).against_best > 0.97
        predicted_ms = machine.controller.step_times.step_ms(40, 4)
        assert predicted_ms == pytest.approx(float(true_ms(np.array([40.0]), 4)[0]), rel=0.1)


def test_drafts_that_nobody_accepts_are_given_up() -> None:
    """Never slower than plain: at load, with drafts that promise much and hold nothing."""
    worthless = [grown.fails() for grown in DRAFTS[OPTIMISTIC]]
    machine, regime = Machine(measured(compute_bound)), Regime(compute_bound, 16, worthless)
    machine.run(regime, 50)
    assert machine.run(regime, 300).against_plain > 0.985


def test_drafts_that_cost_more_than_they_save_are_paused_and_taken_up_again() -> None:
    """Hard texts beside each other, of which a few nodes would pay if proposing them took nothing; then easy ones."""
    hard = [grown for i, grown in enumerate(DRAFTS[HONEST]) if i % 3 == 0]
    easy = [grown for i, grown in enumerate(DRAFTS[HONEST]) if i % 3 == 2]
    for draft_ms in (0.1, 1.0):
        machine = Machine(measured(compute_bound), draft_ms=draft_ms)
        machine.run(Regime(compute_bound, 16, hard), 40)
        outcome = machine.run(Regime(compute_bound, 16, hard), 300)
        assert outcome.against_plain > 0.98, f"{draft_ms} ms for each request"
    machine = Machine(measured(memory_bound), draft_ms=0.2)
    machine.run(Regime(memory_bound, 4, [grown.fails() for grown in hard]), 300)
    machine.run(Regime(memory_bound, 4, easy), 40)
    assert machine.run(Regime(memory_bound, 4, easy), 200).against_best > 0.97, "drafts are not taken up again"


def test_one_request_pauses_while_another_drafts() -> None:
    pauses = DraftPause(), DraftPause()
    drafted = [0, 0]
    for _ in range(100):
        for i, pause in enumerate(pauses):
            if not pause.skips():
                drafted[i] += 1
                pause.settle((0.0, 0.5)[i], 0.2)
    assert drafted[0] < 15 and drafted[1] == 100
    while pauses[0].skips():
        pass
    pauses[0].settle(5.0, 0.2)
    assert not pauses[0].skips(), "a draft that paid is followed by another"


def test_nodes_that_promise_little_are_proposed_again_when_nothing_else_is() -> None:
    """After a stretch of sure drafts; what is not proposed could never bring the bound down by paying."""
    controller = Machine(measured(memory_bound)).controller
    sure = DraftTree(
        np.array([1, 2], np.int32), np.array([-1, 0], np.int32), np.array([0, 1], np.int32),
        np.array([Source.ROOT, Source.RETRIEVAL], np.uint8), np.array([1.0, 0.96], np.float32),
    )  # fmt: skip
    for _ in range(60):
        controller.choose([sure])
    assert controller.least_prob == pytest.approx(0.12)
    for _ in range(40):
        controller.choose([DraftTree.root_only(1)])
    assert controller.least_prob < 0.01
