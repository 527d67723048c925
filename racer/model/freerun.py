"""Text that a model samples by itself: what it says where nobody has asked anything yet."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from racer.draft.prior import FreeRun, Progress
from racer.model.layout import Segment
from racer.model.runner import ModelRunner
from racer.model.topk import top_k

SEQUENCES, TOKENS = 256, 160
"""Size of a free run. Half as many sequences gave half the gain (docs/log.md)."""

_TOGETHER = 256
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


def free_run(
    runner: ModelRunner,
    prefix: list[int],
    k: int,
    *,
    sequences: int = SEQUENCES,
    tokens: int = TOKENS,
    seed: int = 0,
    progress: Progress | None = None,
) -> FreeRun:
    """Sample ``sequences`` texts of ``tokens`` tokens behind ``prefix`` at temperature 1 and top-p 0.95.

    The same for a seed and a size of the cache. Needs the runner's cache to be empty. As many texts are sampled
    together as have room in it. ``progress(done, total)`` counts sampled tokens of all texts.
    """
    tokens = min(tokens, runner.pool.places - len(prefix))
    room = len(prefix) + tokens
    together = min(_TOGETHER, sequences, runner.pool.places // room)
    rng = np.random.default_rng(seed)
    sampled = np.empty((sequences, tokens), np.int32)
    tops = np.empty((sequences, tokens, k), np.int32)
    probs = np.empty((sequences, tokens, k), np.float32)
    for first in range(0, sequences, together):
        rows = np.arange(first, min(first + together, sequences))
        text = np.array([prefix] * len(rows), np.int32)
        for step in range(tokens):
            logits = runner.run([_last(new, i * room, step, len(prefix)) for i, new in enumerate(text)])
            likely, likely_probs = top_k(logits, max(k, _CANDIDATES))
            tops[rows, step], probs[rows, step] = likely[:, :k], likely_probs[:, :k]
            sampled[rows, step] = _nucleus_draw(likely, likely_probs, rng)
            text = sampled[rows, step : step + 1]
            if progress is not None:
                progress(first * tokens + len(rows) * (step + 1), sequences * tokens)
    return FreeRun(np.array(prefix, np.int32), sampled, tops, probs)


def _last(tokens: NDArray[np.int32], start: int, step: int, prefix: int) -> Segment:
    """The prefix, or the token sampled before this ``step``, of a text at ``start``; its last row is scored."""
    chain = np.arange(-1, len(tokens) - 1, dtype=np.int32)
    return Segment(tokens, chain, start, cached=prefix + step - 1 if step else 0, scored_from=len(tokens) - 1)


def _nucleus_draw(tokens: NDArray[np.int32], probs: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.int32]:
    """One token of each row, from the smallest set of most likely ones that holds 0.95 of the mass."""
    cumulative = np.cumsum(probs, 1)
    kept = np.where(cumulative - probs < _TOP_P, probs, 0).cumsum(1)
    column = (kept < rng.random((len(probs), 1)) * kept[:, -1:]).sum(1)
    drawn: NDArray[np.int32] = tokens[np.arange(len(tokens)), column]
    return drawn
