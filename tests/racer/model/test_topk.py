"""The top-k kernel agrees with torch, ties and odd sizes included."""

import numpy as np
import pytest
import torch

from racer.model.topk import top_k


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab", [5, 127, 128, 1000, 49152])
def test_matches_torch(dtype: torch.dtype, vocab: int) -> None:
    logits = (torch.randn(7, vocab, generator=torch.Generator().manual_seed(vocab)) * 4).to(dtype)
    tokens, probs = top_k(logits, 8)
    k = min(8, vocab)
    assert tokens.shape == probs.shape == (7, k)
    expected = torch.softmax(logits.double(), -1)
    np.testing.assert_allclose(probs, torch.topk(expected, k).values.numpy(), rtol=2e-3, atol=1e-6)
    np.testing.assert_allclose(torch.gather(expected, 1, torch.from_numpy(tokens).long()).numpy(), probs, rtol=2e-3)


def test_among_equals_the_smaller_id_comes_first() -> None:
    logits = torch.zeros(1, 300)
    logits[0, [250, 40, 130]] = 1.0
    assert top_k(logits, 5)[0].tolist() == [[40, 130, 250, 0, 1]]
    assert top_k(logits.bfloat16(), 5)[0].tolist() == [[40, 130, 250, 0, 1]]


def test_banned_tokens_and_huge_logits() -> None:
    logits = torch.full((1, 200), float("-inf"))
    logits[0, 7], logits[0, 3] = 1e30, -1e30
    tokens, probs = top_k(logits, 2)
    assert tokens[0].tolist() == [7, 3]
    assert probs[0].tolist() == [1.0, 0.0]


def test_no_rows() -> None:
    tokens, probs = top_k(torch.zeros(0, 10), 4)
    assert tokens.shape == probs.shape == (0, 4)
