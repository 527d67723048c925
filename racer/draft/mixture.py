"""The probability of each next token behind a path, mixed from all sources.

The sources are asked in a fixed order, the surer first. Each takes its share of what the ones before left unclaimed,
and spreads it over its next tokens: p(token) = sum over sources of rest * share * p_source(token). A share is the
measured probability that the source's distribution is the right one where no surer source was. Order: n-grams of the
request's text, the longest match first, then shorter ones that have seen more; a store's continuations, at the length
of their match, as far as the request has found them true (:mod:`racer.draft.trust`); the request's latest next tokens
behind the last two tokens, then behind the last one; the model's own free-running text behind three tokens, then two;
the prior table.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from racer.draft.automaton import ABSENT, COUNT, FIRST, NEXT, TOKEN, TOTAL
from racer.draft.known import Bytes, Floats, Ints, Known, TableView, TrieView
from racer.draft.logits import ANY, find_row
from racer.draft.sources import POOL_COUNT, POOL_FIRST, POOL_NEXT, POOL_TOKEN, POOL_TOTAL, PoolView
from racer.numba import leaf, njit
from racer.types import Source

_RETRIEVAL = int(Source.RETRIEVAL)
_LOGITS = int(Source.LOGITS)
_STORE = int(Source.STORE)

_ROOM = 256  # children of one node that are considered; what the surest sources name comes first
_LEVELS = 5  # confidence classes of a row, by the probability of its first token

PAIR_ROW, LATEST_ROW, FREE_TRIPLE_ROW, FREE_PAIR_ROW, PRIOR_ROW = range(5)

Shorts = NDArray[np.int16]


class MixtureParams(NamedTuple):
    """Shares of the sources, and bounds of the work. Measured on the demo model (SmolLM2-135M).

    max_match, min_match  lengths of n-gram matches, in tokens
    scan                  continuations of one match that are looked at, the most recent first
    ngram_shares          float32 [2, max_match + 1, 3]: one continuation seen or several; match length; seen once,
                          two or three times, four times or more
    shorter_share         of a shorter match that has seen more than the longer one
    row_shares            float32 [5, 5]: pair, latest, free-running triple and pair, prior; by the row's first
                          probability in fifths
    damping               factor of each link when nodes are ranked: conditionals of long paths promise too much
    """

    max_match: int
    min_match: int
    scan: int
    ngram_shares: Floats
    shorter_share: float
    row_shares: Floats
    damping: float


_ONE_CONTINUATION = ((0.33, 0.46, 0.57), (0.48, 0.50, 0.65), (0.48, 0.57, 0.75), (0.68, 0.73, 0.82), (0.80, 0.88, 0.88))
_MORE_CONTINUATIONS = (
    *((0.23, 0.23, 0.20), (0.30, 0.30, 0.45), (0.40, 0.40, 0.50)),
    *((0.55, 0.55, 0.65), (0.77, 0.77, 0.84)),
)
_ROW_SHARES = (
    (0.45, 0.53, 0.62, 0.64, 0.78),
    (0.57, 0.65, 0.66, 0.72, 0.72),
    (0.33, 0.54, 0.66, 0.66, 0.78),
    (0.30, 0.52, 0.72, 0.70, 0.72),
    (0.40, 0.60, 0.55, 0.68, 0.78),
)


def default_params() -> MixtureParams:
    """The measured shares, for matches of two to six tokens."""
    unused = ((0.0, 0.0, 0.0),) * 2  # matches of no or one token are never asked
    return MixtureParams(
        max_match=6,
        min_match=2,
        scan=32,
        ngram_shares=np.array([[*unused, *_ONE_CONTINUATION], [*unused, *_MORE_CONTINUATIONS]], np.float32),
        shorter_share=0.72,
        row_shares=np.array(_ROW_SHARES, np.float32),
        damping=0.85,
    )


class Mix(NamedTuple):
    """Children of one node while their sources are mixed; ``weights`` is the largest contribution, by ``sources``.

    ``places`` is an open-addressing hash from token to place + 1, twice as large as the other arrays.
    """

    places: Shorts
    tokens: Ints
    probs: Floats
    weights: Floats
    sources: Bytes


@njit
def new_mix() -> Mix:
    """Scratch for :func:`mix_children`, used again for every node."""
    return Mix(
        np.zeros(2 * _ROOM, np.int16),
        np.empty(_ROOM, np.int32),
        np.empty(_ROOM, np.float32),
        np.empty(_ROOM, np.float32),
        np.empty(_ROOM, np.uint8),
    )


@leaf
def _add(mix: Mix, size: int, token: int, weight: float, source: int) -> int:
    mask = mix.places.shape[0] - 1
    slot = (token ^ (token >> 9)) & mask
    while mix.places[slot] != 0:
        i = mix.places[slot] - 1
        if mix.tokens[i] == token:
            mix.probs[i] += weight
            if weight > mix.weights[i]:
                mix.weights[i] = weight
                mix.sources[i] = source
            return size
        slot = (slot + 1) & mask
    if size < mix.tokens.shape[0]:
        mix.places[slot] = size + 1
        mix.tokens[size] = token
        mix.probs[size] = weight
        mix.weights[size] = weight
        mix.sources[size] = source
        size += 1
    return size


@leaf
def _ngram_share(params: MixtureParams, length: int, total: int, several: bool) -> float:
    level = 0 if total < 2 else 1 if total < 4 else 2
    return float(params.ngram_shares[1 if several else 0, length, level])


@leaf
def _add_ngrams(mix: Mix, size: int, trie: TrieView, node: int, weight: float, scan: int) -> int:
    child = int(trie.nodes[node, FIRST])
    while child != 0 and scan > 0:
        size = _add(mix, size, int(trie.nodes[child, TOKEN]), weight * trie.nodes[child, COUNT], _RETRIEVAL)
        child = int(trie.nodes[child, NEXT])
        scan -= 1
    return size


@leaf
def _add_pool(mix: Mix, size: int, pool: PoolView, node: int, weight: float) -> int:
    child = int(pool.rows[node, POOL_FIRST])
    while child != 0:
        size = _add(mix, size, int(pool.rows[child, POOL_TOKEN]), weight * pool.rows[child, POOL_COUNT], _STORE)
        child = int(pool.rows[child, POOL_NEXT])
    return size


@leaf
def _mix_text(
    mix: Mix, known: Known, params: MixtureParams, states: Ints, pooled: int, depth: int
) -> tuple[int, float]:
    """N-grams and store; returns the children so far and the share that is left. Shorter matches must add something."""
    size, rest, seen = 0, 1.0, 0
    rows, nodes = known.pool.rows, known.trie.nodes
    store_total = rows[pooled, POOL_TOTAL] if pooled != ABSENT else 0
    store_length = max(params.min_match, min(known.pool.matched + depth, params.max_match))
    for length in range(params.max_match, params.min_match - 1, -1):
        node = states[length]
        total = nodes[node, TOTAL] if node != ABSENT else 0
        if total > seen:
            several = nodes[nodes[node, FIRST], NEXT] != 0
            share = float(params.shorter_share) if seen > 0 else _ngram_share(params, length, total, several)
            size = _add_ngrams(mix, size, known.trie, int(node), rest * share / total, params.scan)
            rest *= 1.0 - share
            seen = total
        if length == store_length and store_total > 0:
            several = rows[rows[pooled, POOL_FIRST], POOL_NEXT] != 0
            share = known.pool.trust * _ngram_share(params, length, store_total, several)
            size = _add_pool(mix, size, known.pool, pooled, rest * share / store_total)
            rest *= 1.0 - share
    return size, rest


@leaf
def _add_row(
    mix: Mix, size: int, rest: float, tokens: Ints, probs: Floats, row: int, shares: Floats, kind: int
) -> tuple[int, float]:
    share = float(shares[kind, min(_LEVELS - 1, int(probs[row, 0] * _LEVELS))])
    for i in range(tokens.shape[1]):
        size = _add(mix, size, int(tokens[row, i]), rest * share * probs[row, i], _LOGITS)
    return size, rest * (1.0 - share)


@leaf
def _add_latest(
    mix: Mix, size: int, rest: float, table: TableView, first: int, second: int, third: int, shares: Floats, kind: int
) -> tuple[int, float]:
    row = find_row(table.slots, table.keys, first, second, third)
    if row >= 0:
        return _add_row(mix, size, rest, table.tokens, table.probs, row, shares, kind)
    return size, rest


@leaf
def mix_children(
    mix: Mix, known: Known, params: MixtureParams, states: Ints, pooled: int, depth: int, last: Ints
) -> int:
    """Fill ``mix`` with the next tokens of a path; returns how many.

    ``states`` int32 [max_match + 1] are the trie nodes of its last 0..max_match tokens, ``pooled`` its node in the
    store's pool, ``depth`` its tokens below the root, ``last`` int32 [3] its last tokens.
    """
    mix.places[:] = 0
    size, rest = _mix_text(mix, known, params, states, pooled, depth)
    first, second, third = int(last[0]), int(last[1]), int(last[2])
    shares = params.row_shares
    size, rest = _add_latest(mix, size, rest, known.pairs, ANY, second, third, shares, PAIR_ROW)
    size, rest = _add_latest(mix, size, rest, known.latest, ANY, ANY, third, shares, LATEST_ROW)
    size, rest = _add_latest(mix, size, rest, known.free, first, second, third, shares, FREE_TRIPLE_ROW)
    size, rest = _add_latest(mix, size, rest, known.free, ANY, second, third, shares, FREE_PAIR_ROW)
    if third < known.prior.tokens.shape[0]:
        size, rest = _add_row(mix, size, rest, known.prior.tokens, known.prior.probs, third, shares, PRIOR_ROW)
    return size
