"""Start-up check: what a draft tree says is what separate texts say, and what the model's own attention says."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from racer.errors import UnsupportedModelError
from racer.model.attention import ATTENTION
from racer.model.layout import Segment
from racer.model.runner import ModelRunner

_TEXT = 12
_BRANCHES = ((0, 1, 2), (0, 3), (4, 5, 6))
"""Token indices of three branches below the root; the first two share their first node."""

# Median relative error of a row of logits. A mixed-up state gives errors of the size of the logits themselves.
_TOLERANCE = {torch.float32: 2e-3, torch.float16: 3e-2, torch.bfloat16: 1e-1}


def check_verifiable(runner: ModelRunner, seed: int = 0) -> None:
    """Raise UnsupportedModelError unless drafts can be verified with this model.

    One forward holds a text with a branching draft tree and a second text; each branch must give the logits that it
    gives as a text of its own, and a text the logits of the model's own attention. Needs an empty pool.
    """
    rng = np.random.default_rng(seed)
    text, other, drafts = (rng.integers(0, runner.vocab_size, n).astype(np.int32) for n in (_TEXT, _TEXT, 7))
    run = runner.run
    # The text without its last token is cached first, so that the tree hangs from cached keys and values.
    run([_chain(text[:-1], 0)])
    tree = _tree(text[-1], drafts)
    packed = run([_chain(other, 2 * _TEXT), Segment(*tree, start=0, cached=_TEXT - 1)])
    rows, expected = [packed[:_TEXT]], [_own_attention(runner, other)]
    for branch in _BRANCHES:
        alone = run([_chain(np.concatenate([text, drafts[list(branch)]]), 2 * _TEXT)])
        nodes = [0, *(1 + node for node in branch)]
        rows.append(packed[_TEXT:][nodes])
        expected.append(alone[_TEXT - 1 :])
    error = _median_error(torch.cat(rows), torch.cat(expected))
    tolerance = _TOLERANCE.get(runner.dtype, 1e-1)
    if not error <= tolerance:
        raise UnsupportedModelError(
            f"model type {runner.model.config.model_type!r} cannot be verified with drafts: in the start-up check a "
            f"draft tree's logits differ from those of separate texts by {error:.2g} of their size (at most "
            f"{tolerance:g} is rounding); choose another model"
        )


def _chain(tokens: NDArray[np.int32], start: int) -> Segment:
    return Segment(tokens, np.arange(-1, len(tokens) - 1, dtype=np.int32), start, cached=0)


def _tree(root: np.int32, drafts: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    parents = np.zeros(len(drafts) + 1, np.int32)
    parents[0] = -1
    for branch in _BRANCHES:
        for above, node in pairwise(branch):
            parents[node + 1] = above + 1
    return np.concatenate([np.array([root], np.int32), drafts]), parents


@torch.inference_mode()
def _own_attention(runner: ModelRunner, tokens: NDArray[np.int32]) -> Tensor:
    model = runner.model
    model.set_attn_implementation("eager")
    try:
        ids = torch.from_numpy(tokens.astype(np.int64)).to(runner.device)[None]
        logits: Tensor = model(input_ids=ids, use_cache=False).logits[0]
        return logits
    finally:
        model.set_attn_implementation(ATTENTION)


def _median_error(rows: Tensor, expected: Tensor) -> float:
    rows, expected = rows.double(), expected.double()
    size = (expected - expected.mean(-1, keepdim=True)).norm(dim=-1)
    return float(((rows - expected).norm(dim=-1) / size).median())
