"""Where two answers part, and whether rounding alone may have parted them."""

from __future__ import annotations

import math

import pytest
import torch

from racer import Engine
from racer.commands.ties import compare, tolerance
from racer.types import SamplingParams
from racer.verify.sampling import uniform
from tests.racer.engine.helpers import answer


def test_a_difference_is_a_near_tie_only_within_rounding(engine: Engine) -> None:
    prompt = (5, 6, 7)
    plain = answer(engine, prompt, max_tokens=6, logprobs=2)
    second, gap = plain.logprobs[3].top[1][0], plain.logprobs[3].top[0][1] - plain.logprobs[3].top[1][1]
    other = [*plain.token_ids[:3], second, 9]
    found = compare(engine, prompt, plain.token_ids, other)
    assert found is not None and (found.position, found.plain_token, found.token) == (3, plain.token_ids[3], second)
    assert found.gap == pytest.approx(gap, abs=1e-4) and found.near_tie == (gap < 1e-4)
    assert compare(engine, prompt, plain.token_ids, plain.token_ids) is None
    ended = compare(engine, prompt, plain.token_ids, plain.token_ids[:2])
    assert ended is not None and (ended.position, ended.token, ended.near_tie) == (2, None, False)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_a_sampled_difference_is_a_near_tie_at_the_edge_of_its_interval(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    """260 equal logits: u draws token floor(260 u), and logits must move the odds of an edge for a neighbour."""
    monkeypatch.setattr("racer.commands.ties._next_logits", lambda engine, tokens: torch.zeros(260))
    params = SamplingParams(temperature=temperature, seed=3)
    u = uniform(3, 0, 1)
    drawn, edge = int(260 * u), (int(260 * u) + 1) / 260
    found = compare(engine, (5,), [8, drawn], [8, drawn + 1], params)
    moved = temperature * (math.log(edge / (1 - edge)) - math.log(u / (1 - u)))
    assert found is not None and found.gap == pytest.approx(moved) and not found.near_tie
    monkeypatch.setattr("racer.commands.ties.uniform", lambda *_: edge - 1e-7)
    found = compare(engine, (5,), [8, drawn], [8, drawn + 1], params)
    assert found is not None and found.near_tie


@pytest.mark.parametrize("gap, tie", [(0.00005, True), (0.0002, False)])
def test_near_tie(engine: Engine, monkeypatch: pytest.MonkeyPatch, gap: float, tie: bool) -> None:
    logits = torch.zeros(260)
    logits[10], logits[1] = 5.0, 5.0 - gap  # 1 is the stop token
    monkeypatch.setattr("racer.commands.ties._next_logits", lambda engine, tokens: logits)
    found = compare(engine, (5,), [8, 10, 9], [8])
    assert found is not None and found.near_tie is tie
    assert found.as_json() == {
        "position": 1,
        "plain_token": 10,
        "token": None,
        "gap": pytest.approx(gap, abs=1e-6),
        "near_tie": tie,
    }


def test_tolerance_is_four_units_in_the_last_place() -> None:
    assert tolerance(20.0, torch.bfloat16) == 4 * 2**-7 * 16
    assert tolerance(0.5, torch.bfloat16) == tolerance(0.0, torch.bfloat16) == 0.05
    assert tolerance(-20.0, torch.float32) == tolerance(0.1, torch.float32) == 1e-4
