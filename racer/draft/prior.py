"""The prior table: the model's next tokens after each vocabulary token alone, behind a newline.

Where the model's own free-running text is sampled as well, its rows are averaged in, and kept for the last two and
three tokens. The table answers where a request has no history yet. :mod:`racer.draft.prior_file` keeps it on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from racer.draft.logits import Floats, Ints, LogitsTable

Forward = Callable[[int, Ints], tuple[Ints, Floats]]
Progress = Callable[[int, int], None]

FREE_ROWS = 1 << 24
"""No bound in practice: a free run has some 40,000 rows."""


@dataclass(frozen=True)
class FreeRun:
    """Text that the model sampled by itself, and what it said at each token. All arrays are in step order.

    prefix      int32 [p]        tokens that every sequence began with: a chat template's user header, or BOS
    tokens      int32 [b, t]     the sampled tokens (top-p 0.95 at temperature 1 served well; 256 x 160 of them)
    top_tokens  int32 [b, t, k]  the most likely tokens at that place: ``top_tokens[:, i]`` foresaw ``tokens[:, i]``
    top_probs   float32 [b, t, k]
    """

    prefix: Ints
    tokens: Ints
    top_tokens: Ints
    top_probs: Floats


@dataclass(frozen=True)
class PriorTable:
    """What the model says where a request knows nothing.

    tokens  int32 [vocab, k]    next tokens behind each vocabulary token, most likely first
    probs   float32 [vocab, k]  their probabilities
    free    next tokens behind the last two and three tokens, from free-running text; None where none was sampled
    """

    tokens: Ints
    probs: Floats
    free: LogitsTable | None = None

    @property
    def vocab_size(self) -> int:
        """Rows: one for each vocabulary token."""
        return len(self.tokens)

    @property
    def top_k(self) -> int:
        """Next tokens kept for each."""
        return int(self.tokens.shape[1])


def compute_prior(
    forward: Forward,
    vocab_size: int,
    top_k: int,
    prefix_token: int,
    *,
    chunk: int = 1024,
    progress: Progress | None = None,
    free_run: Callable[[], FreeRun] | None = None,
) -> PriorTable:
    """Ask the model for every vocabulary token.

    ``forward(prefix_token, tokens int32 [m])`` returns the most likely next tokens int32 [m, >= top_k] and their
    probabilities float32 [m, >= top_k] after the two-token text (prefix, token), for each token on its own.
    ``progress(done, total)`` is called after each chunk. ``free_run`` samples text from the model; its rows are
    averaged in. What the callables raise is passed on.
    """
    tokens = np.empty((vocab_size, top_k), np.int32)
    probs = np.empty((vocab_size, top_k), np.float32)
    for start in range(0, vocab_size, chunk):
        ids = np.arange(start, min(start + chunk, vocab_size), dtype=np.int32)
        top, top_probs = forward(prefix_token, ids)
        tokens[ids], probs[ids] = top[:, :top_k], top_probs[:, :top_k]
        if progress is not None:
            progress(int(ids[-1]) + 1, vocab_size)
    table = PriorTable(tokens, probs)
    return table if free_run is None else with_free_run(table, free_run())


def with_free_run(table: PriorTable, run: FreeRun) -> PriorTable:
    """Average a free run's rows by their last one, two and three tokens.

    Behind one token the row of ``table`` counts as one more row; behind two and three tokens the means become ``free``.
    """
    sequences, length = run.tokens.shape
    text = np.concatenate((np.broadcast_to(run.prefix, (sequences, len(run.prefix))), run.tokens), 1)
    tops, top_probs = run.top_tokens.reshape(sequences * length, -1), run.top_probs.reshape(sequences * length, -1)

    def last(count: int) -> tuple[Ints, NDArray[np.bool_]]:
        """The ``count`` tokens in front of every sampled token, and where there are as many."""
        ends = len(run.prefix) + np.arange(length)[:, None] - np.arange(count, 0, -1)
        keys = text[:, np.maximum(ends, 0)].reshape(-1, count)
        return keys, np.broadcast_to((ends >= 0).all(1), (sequences, length)).reshape(-1)

    free = LogitsTable(table.top_k, FREE_ROWS)
    for count in (3, 2):
        keys, whole = last(count)
        free.update(*_mean_rows(keys[whole], tops[whole], top_probs[whole], table.top_k))
    keys, whole = last(1)
    seen = np.unique(keys[whole])
    width = max(tops.shape[1], table.top_k)
    ids, tokens, probs = _mean_rows(
        np.concatenate((keys[whole], seen[:, None])),
        np.concatenate((_padded(tops[whole], width, -1), _padded(table.tokens[seen], width, -1))),
        np.concatenate((_padded(top_probs[whole], width, 0), _padded(table.probs[seen], width, 0))),
        table.top_k,
    )
    all_tokens, all_probs = table.tokens.copy(), table.probs.copy()
    all_tokens[ids[:, 0]], all_probs[ids[:, 0]] = tokens, probs
    return PriorTable(all_tokens, all_probs, free)


def _padded(rows: NDArray[Any], width: int, filler: int) -> NDArray[Any]:
    return np.pad(rows, ((0, 0), (0, width - rows.shape[1])), constant_values=filler)


def _mean_rows(keys: Ints, tops: Ints, probs: Floats, top_k: int) -> tuple[Ints, Ints, Floats]:
    """Distinct keys int32 [g, w] and the ``top_k`` likeliest of the mean of their rows; a token not listed counts 0."""
    distinct, group, size = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    span = int(tops.max(initial=0)) + 2
    codes = (group.reshape(-1, 1).astype(np.int64) * span + tops + 1).reshape(-1)
    pairs, place = np.unique(codes, return_inverse=True)
    owner, token = pairs // span, pairs % span - 1
    mean = np.bincount(place.reshape(-1), probs.reshape(-1)) / size[owner]
    mean[token < 0] = 0.0
    order = np.lexsort((token, -mean, owner))
    owner, token, mean = owner[order], token[order], mean[order]
    rank = np.arange(len(owner)) - np.searchsorted(owner, owner)
    kept = (rank < top_k) & (mean > 0.0)
    tokens = np.full((len(distinct), top_k), -1, np.int32)
    means = np.zeros((len(distinct), top_k), np.float32)
    tokens[owner[kept], rank[kept]], means[owner[kept], rank[kept]] = token[kept], mean[kept]
    return np.ascontiguousarray(distinct, np.int32), tokens, means
