"""The processed distribution and its draw, against definitions written out."""

import numpy as np
import pytest
import torch
from scipy import stats

from racer.types import SamplingParams
from racer.verify.sampling import LogitsShaper, draw, processed_distribution, sample, token_logprob, uniform

LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0])


def test_uniform_depends_on_seed_choice_and_position_only() -> None:
    values = {uniform(seed, choice, t) for seed in range(5) for choice in range(5) for t in range(5)}
    assert len(values) == 125
    assert uniform(42, 1, 7) == uniform(42, 1, 7)
    many = [uniform(3, 0, t) for t in range(5000)]
    assert stats.kstest(many, "uniform").pvalue > 0.001
    assert all(0 <= u < 1 for u in many)


def test_temperature() -> None:
    expected = torch.softmax(LOGITS.double() / 0.5, -1).numpy()
    np.testing.assert_allclose(processed_distribution(LOGITS, SamplingParams(temperature=0.5)), expected)


def test_a_tiny_temperature_is_greedy() -> None:
    """Also where dividing by it overflows."""
    for temperature in (1e-6, 1e-310):
        probs = processed_distribution(LOGITS, SamplingParams(temperature=temperature))
        assert probs.tolist() == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_top_k_keeps_the_k_most_likely() -> None:
    probs = processed_distribution(LOGITS, SamplingParams(temperature=1.0, top_k=2))
    assert np.flatnonzero(probs).tolist() == [0, 1]
    assert probs.sum() == pytest.approx(1)


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    plain = torch.softmax(LOGITS.double(), -1).numpy()
    for p in (0.1, float(plain[0]) - 1e-6, float(plain[0]) + 1e-6, 0.9, 0.999):
        probs = processed_distribution(LOGITS, SamplingParams(temperature=1.0, top_p=p))
        kept = np.count_nonzero(probs)
        assert plain[:kept].sum() >= p > plain[: kept - 1].sum()


def test_min_p_is_relative_to_the_most_likely() -> None:
    plain = torch.softmax(LOGITS.double(), -1).numpy()
    probs = processed_distribution(LOGITS, SamplingParams(temperature=1.0, min_p=0.2))
    assert np.flatnonzero(probs).tolist() == np.flatnonzero(plain >= 0.2 * plain.max()).tolist()


def test_draw_is_the_inverse_cdf() -> None:
    probs = np.array([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    assert [draw(probs, u) for u in (0.0, 0.2499, 0.25, 0.7499, 0.75, 1 - 2**-53)] == [1, 1, 3, 3, 4, 4]


def test_penalties_follow_their_formulas() -> None:
    params = SamplingParams(
        frequency_penalty=0.5, presence_penalty=0.25, repetition_penalty=2.0, logit_bias={3: 4.0}, min_tokens=3
    )
    shaper = LogitsShaper(params, prompt=[4, 1], stop_ids=frozenset([5]), vocab_size=6)
    for token in (0, 0, 3):
        shaper.count(token)
    shaped = shaper(LOGITS, decided=2).tolist()
    # repetition halves positive and doubles negative logits of tokens seen in prompt or output
    assert shaped == [2.0 / 2 - 2 * 0.5 - 0.25, 1.0 / 2, 0.5, (0.0 + 4.0) / 2 - 0.5 - 0.25, -1.0 * 2, float("-inf")]
    assert shaper(LOGITS, decided=3).tolist()[5] == -3.0
    assert LOGITS.tolist() == [2.0, 1.0, 0.5, 0.0, -1.0, -3.0], "the row itself is not touched"


def test_logprobs_are_of_the_raw_distribution() -> None:
    found = token_logprob(LOGITS, 2, 3)
    expected = torch.log_softmax(LOGITS, -1)
    assert found.logprob == pytest.approx(float(expected[2]))
    assert [token for token, _ in found.top] == [0, 1, 2]
    assert [token for token, _ in token_logprob(LOGITS, 2, 20).top] == [0, 1, 2, 3, 4, 5], "all there are"
    assert [value for _, value in found.top] == pytest.approx(expected[:3].tolist())


@pytest.mark.parametrize(("temperature", "min_p"), [(1.0, 0.0), (0.01, 0.0), (1e-30, 0.0), (1.7, 0.05), (100.0, 0.0)])
def test_one_pass_draws_what_the_distribution_draws(temperature: float, min_p: float) -> None:
    params = SamplingParams(temperature=temperature, min_p=min_p)
    generator = torch.Generator().manual_seed(7)
    for trial in range(40):
        row = torch.randn(1000, generator=generator) * 4
        row[trial % 3 :: 3] = float("-inf") if trial % 2 else row.min()
        probs = processed_distribution(row, params)
        for u in torch.rand(5, generator=generator, dtype=torch.float64).tolist():
            assert sample(row, params, u) == draw(probs, u)
        assert min(probs[sample(row, params, u)] for u in (0.0, 1.0 - 2.0**-53)) > 0
