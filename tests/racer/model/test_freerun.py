"""Text that a model samples by itself, against the model's own forward over it."""

from __future__ import annotations

import numpy as np
import torch

from racer.cache.pool import KVPool
from racer.draft.prior import FreeRun
from racer.model.attention import ATTENTION
from racer.model.freerun import free_run
from racer.model.runner import ModelRunner
from tests.tiny import TinyModel

PREFIX = [3, 1, 4]


def test_rows_are_what_the_model_says_however_many_texts_fit(tiny_model: TinyModel) -> None:
    model = tiny_model("llama", attn_implementation=ATTENTION)
    place = KVPool.bytes_per_place(ModelRunner(model).pool.shapes, torch.float32)

    def sampled(places: int) -> FreeRun:
        return free_run(ModelRunner(model, cache_bytes=places * place), PREFIX, k=4, sequences=7, tokens=40, seed=1)

    roomy, narrow = sampled(1024), sampled(2 * 43 + 5)  # all at once, and two by two
    own = tiny_model("llama")
    for run in (roomy, narrow):
        assert run.tokens.shape == (7, 40) and run.top_tokens.shape == run.top_probs.shape == (7, 40, 4)
        assert len({tuple(text) for text in run.tokens.tolist()}) == 7
        for text, tops, probs in zip(run.tokens, run.top_tokens, run.top_probs, strict=True):
            ids = torch.tensor([[*PREFIX, *text.tolist()]])
            with torch.inference_mode():
                said = own(ids).logits[0, len(PREFIX) - 1 : -1].softmax(-1).topk(4)
            np.testing.assert_array_equal(tops, said.indices)
            np.testing.assert_allclose(probs, said.values, atol=1e-5)
    np.testing.assert_array_equal(sampled(1024).tokens, roomy.tokens)


def test_texts_end_where_the_cache_does(tiny_model: TinyModel) -> None:
    runner = ModelRunner(tiny_model("llama", attn_implementation=ATTENTION), cache_bytes=1 << 16)
    assert free_run(runner, PREFIX, k=2, sequences=2, tokens=400).tokens.shape == (2, runner.pool.places - len(PREFIX))
