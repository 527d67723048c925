"""Text that a model samples by itself: what it says where nobody has asked anything yet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from racer.draft.prior import FreeRun, Progress
from racer.model.attention import ATTENTION
from racer.model.topk import top_k

SEQUENCES, TOKENS = 256, 160
"""Size of a free run. Half as many sequences gave half the gain (docs/log.md)."""

_TOP_P, _CANDIDATES = 0.95, 64
_PLACEHOLDER = "@@"


def user_header(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokens of a conversation up to where the user's words begin; BOS or a newline where there is no template."""
    if tokenizer.chat_template:
        text = tokenizer.apply_chat_template([{"role": "user", "content": _PLACEHOLDER}], tokenize=False)
        head = str(text).split(_PLACEHOLDER)[0]
        if head:
            return list(tokenizer.encode(head, add_special_tokens=False))
    if tokenizer.bos_token_id is not None:
        return [int(tokenizer.bos_token_id)]
    return list(tokenizer.encode("\n", add_special_tokens=False)) or [0]


@contextmanager
def _own_attention(model: PreTrainedModel) -> Iterator[None]:
    """The model's usual attention and cache: all sequences have one length, which they batch well."""
    model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
    try:
        yield
    finally:
        model.set_attn_implementation(ATTENTION)


@torch.inference_mode()
def free_run(
    model: PreTrainedModel,
    prefix: list[int],
    k: int,
    *,
    sequences: int = SEQUENCES,
    tokens: int = TOKENS,
    seed: int = 0,
    progress: Progress | None = None,
) -> FreeRun:
    """Sample ``sequences`` texts of ``tokens`` tokens behind ``prefix`` at temperature 1 and top-p 0.95.

    The same for a seed. ``progress(done, total)`` counts forwards.
    """
    rng = np.random.default_rng(seed)
    sampled = np.empty((sequences, tokens), np.int32)
    tops = np.empty((sequences, tokens, k), np.int32)
    probs = np.empty((sequences, tokens, k), np.float32)
    ids = torch.tensor([prefix] * sequences, device=model.device)
    with _own_attention(model):
        cache = DynamicCache(config=model.config)
        for step in range(tokens):
            logits = model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
            likely, likely_probs = top_k(logits, max(k, _CANDIDATES))
            tops[:, step], probs[:, step] = likely[:, :k], likely_probs[:, :k]
            sampled[:, step] = _nucleus_draw(likely, likely_probs, rng)
            ids = torch.from_numpy(sampled[:, step : step + 1].astype(np.int64)).to(model.device)
            if progress is not None:
                progress(step + 1, tokens)
    return FreeRun(np.array(prefix, np.int32), sampled, tops, probs)


def _nucleus_draw(tokens: NDArray[np.int32], probs: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.int32]:
    """One token of each row, from the smallest set of most likely ones that holds 0.95 of the mass."""
    cumulative = np.cumsum(probs, 1)
    kept = np.where(cumulative - probs < _TOP_P, probs, 0).cumsum(1)
    column = (kept < rng.random((len(probs), 1)) * kept[:, -1:]).sum(1)
    drawn: NDArray[np.int32] = tokens[np.arange(len(tokens)), column]
    return drawn
