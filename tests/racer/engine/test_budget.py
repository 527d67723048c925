"""The budget controller in the engine: the same tokens, caps that hold, costs that are heeded."""

from typing import Any

import pytest

from racer import Engine, Request, SamplingParams
from racer.draft.drafter import RequestDrafts
from racer.errors import ConfigError
from racer.step_curve import StepCurve
from tests.racer.engine.helpers import both, decode, prompt, tiny_engine

CHEAP = StepCurve(alone=((1.0, 20.0), (512.0, 20.1)))
DEAR = StepCurve(alone=((1.0, 1.0), (2.0, 1000.0)))
REPEATED = prompt(12, 1, 24) * 3
LONG: dict[str, Any] = {"max_tokens": 60, "ignore_eos": True}


@pytest.fixture(autouse=True)
def times_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choices follow the curve given, not how fast the tests happen to run."""
    monkeypatch.setattr("racer.step_time.StepTimes.observe", lambda *_: None)


def auto_engine(curve: StepCurve = CHEAP, **settings: Any) -> Engine:
    return tiny_engine(model={"vocab_size": 24}, budget="auto", step_curve=curve, **settings)


@pytest.mark.parametrize("tree", ["best", "paper", "chain"])
@pytest.mark.parametrize("shape", [{}, {"temperature": 1.0, "seed": 1}, {"temperature": 0.7, "top_p": 0.9, "seed": 2}])
def test_equal_to_plain(tree: str, shape: dict[str, Any]) -> None:
    plain, drafted = both(auto_engine(tree=tree), REPEATED, **LONG, **shape)
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.steps < plain.stats.steps and sum(plain.stats.drafted.values()) == 0


def test_many_at_once_with_caps_and_without_drafts() -> None:
    budgets = [1, 2, 5, None, None]
    requests = [
        Request(prompt(12, i, 24) * 2, SamplingParams(budget=budget, **LONG)) for i, budget in enumerate(budgets)
    ]
    requests.append(Request(REPEATED, SamplingParams(drafts="off", **LONG)))
    engine = auto_engine(max_budget=9)
    answers = [choices[0] for choices in decode(engine, requests)]
    for request, one, cap in zip(requests, answers, [1, 2, 5, 9, 9, 1], strict=True):
        assert one.token_ids == decode(tiny_engine(model={"vocab_size": 24}), [request])[0][0].token_ids
        drafted = sum(one.stats.drafted.values())
        assert drafted <= (cap - 1) * one.stats.steps and (drafted > 0) == (cap > 1)
    assert all(1.0 <= step.mean_budget <= 9.0 for step in engine.metrics.recent)
    assert max(step.mean_budget for step in engine.metrics.recent) > 2.0


def test_where_tokens_are_dear_nothing_is_verified() -> None:
    engine = auto_engine(DEAR)
    answers = decode(engine, [Request(prompt(12, i, 24) * 2, SamplingParams(**LONG)) for i in range(3)])
    assert all(sum(choices[0].stats.drafted.values()) == 0 for choices in answers)
    assert all(step.mean_budget == 1.0 and step.budgets == step.decoding for step in engine.metrics.recent)


def test_requests_whose_drafts_do_not_pay_are_seldom_given_any(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    propose = RequestDrafts.propose

    def noted(self: RequestDrafts, budget: int, *args: Any, **kwargs: Any) -> Any:
        asked.append(budget > 1)
        return propose(self, budget, *args, **kwargs)

    monkeypatch.setattr(RequestDrafts, "propose", noted)
    engine = auto_engine(DEAR)
    for seed in range(2):  # what one request has lost is not held against the next
        asked.clear()
        decode(engine, [Request(prompt(12, seed, 24) * 2, SamplingParams(**LONG))])
        assert asked[:3] == [True] * 3 and len(asked) > 50 and sum(asked) < 15


def test_trees_without_an_order_have_a_fixed_size() -> None:
    for curve in (CHEAP, DEAR):
        engine = auto_engine(curve, tree="paper", max_budget=10)
        (answer,) = decode(engine, [Request(REPEATED, SamplingParams(**LONG))])[0]
        assert max(step.mean_budget for step in engine.metrics.recent) == 10.0
        assert (answer.stats.mat or 0) > 1.0


def test_a_step_records_what_it_was_to_cost() -> None:
    engine = auto_engine()
    decode(engine, [Request(REPEATED, SamplingParams(**LONG))])
    for step in engine.metrics.recent:
        assert step.predicted_ms == pytest.approx(20.0 + 0.1 * (step.tokens - 1) / 511, rel=1e-3)
    fixed = tiny_engine()
    decode(fixed, [Request(REPEATED, SamplingParams(**LONG))])
    assert {step.predicted_ms for step in fixed.metrics.recent} == {None}


def test_only_steps_without_prefill_correct_the_times(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(
        "racer.step_time.StepTimes.observe", lambda _, tokens, requests, ms: seen.append((tokens, requests))
    )
    engine = auto_engine(prefill_chunk=8)
    decode(engine, [Request(prompt(40, i, 24), SamplingParams(**LONG)) for i in range(3)])
    expected = [(step.tokens, step.decoding) for step in engine.metrics.recent if not step.prefilling]
    assert seen == expected and 0 < len(seen) < len(engine.metrics.recent)


def test_prefill_ahead_is_what_the_next_step_prefills() -> None:
    engine = auto_engine(prefill_chunk=16, max_running=3)
    for i in range(6):
        engine.add(Request(prompt(5 + 9 * i, i, 24), SamplingParams(max_tokens=5 + i, ignore_eos=True)))
    while engine.has_work:
        tokens, sequences = engine.scheduler.prefill_ahead()
        engine.step()
        step = engine.metrics.recent[-1]
        assert (step.tokens - step.budgets, step.prefilling) == (tokens, sequences)


def test_an_experiment_can_fix_the_budget() -> None:
    engine = auto_engine(DEAR)
    engine.budget = 6
    (answer,) = decode(engine, [Request(REPEATED, SamplingParams(**LONG))])[0]
    assert sum(answer.stats.drafted.values()) > 4 * answer.stats.steps


def test_budget_is_auto_or_a_number() -> None:
    with pytest.raises(ConfigError, match="must be auto or an integer from 1 to 1024"):
        tiny_engine(budget="most")
