"""From one row of logits to one token: the processed distribution and its exact draw.

The token at output position t of a choice is the inverse-CDF draw of one uniform number u(seed, choice, t), which
depends on nothing else. A speculative run visits the same positions with the same numbers as a plain run, so it draws
the same tokens, whatever was drafted; and since drafts never depend on u(t), each token follows the model's own
distribution exactly.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from racer.numba import njit, reordering
from racer.types import SamplingParams, TokenLogprob

_BLOCK = 128
_LOG2E = math.log2(math.e)
_TAYLOR = tuple(math.log(2.0) ** i / math.factorial(i) for i in range(13))
"""2**f on [0, 1) to the last bits of a float64."""


def uniform(seed: int, choice: int, position: int) -> float:
    """The number in [0, 1) that decides output token ``position`` (from 0) of ``choice`` under ``seed``."""
    digest = hashlib.blake2b(struct.pack("<QQQ", seed, choice, position), digest_size=8).digest()
    return float(int.from_bytes(digest, "little") >> 11) * 2.0**-53


class LogitsShaper:
    """Penalties, biases and bans of one choice, kept up to date with the tokens decided so far.

    Order as in vLLM: bias, banned stop tokens before ``min_tokens``, repetition, frequency and presence penalties.
    """

    def __init__(
        self, params: SamplingParams, prompt: Sequence[int], stop_ids: frozenset[int], vocab_size: int
    ) -> None:
        self._params = params
        self._stop_ids = torch.tensor([i for i in sorted(stop_ids) if 0 <= i < vocab_size], dtype=torch.long)
        self._bias_ids = torch.tensor(list(params.logit_bias), dtype=torch.long)
        self._bias = torch.tensor(list(params.logit_bias.values()), dtype=torch.float32)
        self._seen = torch.zeros(vocab_size, dtype=torch.bool)
        self._counts = torch.zeros(vocab_size, dtype=torch.float32)
        if prompt and params.repetition_penalty != 1.0:
            self._seen[torch.tensor(prompt)] = True

    def count(self, token: int) -> None:
        """A token has been decided: penalties count it from now on."""
        self._seen[token] = True
        self._counts[token] += 1

    def __call__(self, row: Tensor, decided: int) -> Tensor:
        """Shaped copy of ``row`` (float32 ``[vocab]`` on the processor) when ``decided`` tokens are already out."""
        params = self._params
        row = row.float().cpu().clone()
        if len(self._bias_ids):
            row[self._bias_ids] += self._bias
        if decided < params.min_tokens:
            row[self._stop_ids] = float("-inf")
        if params.repetition_penalty != 1.0:
            penalised = torch.where(row > 0, row / params.repetition_penalty, row * params.repetition_penalty)
            row = torch.where(self._seen, penalised, row)
        if params.frequency_penalty:
            row -= params.frequency_penalty * self._counts
        if params.presence_penalty:
            row -= params.presence_penalty * (self._counts > 0)
        return row


def processed_distribution(row: Tensor, params: SamplingParams) -> NDArray[np.float64]:
    """Probabilities float64 ``[vocab]`` after temperature, min-p, top-k and top-p; ``row`` is shaped already."""
    row = row.double()
    # the largest becomes 0 first: divided by a tiny temperature, two large ones would both be infinite
    probs = torch.softmax((row - row.max()) / params.temperature, -1)
    if params.min_p > 0:
        probs[probs < params.min_p * probs.max()] = 0
    if 0 < params.top_k < len(probs):
        probs[probs < torch.topk(probs, params.top_k).values[-1]] = 0
    if params.top_p < 1:
        ordered, order = torch.sort(probs / probs.sum(), descending=True, stable=True)
        before = torch.cumsum(ordered, -1) - ordered
        probs[order[before >= params.top_p]] = 0
    result: NDArray[np.float64] = (probs / probs.sum()).numpy()
    return result


def draw(probs: NDArray[np.float64], u: float) -> int:
    """Inverse-CDF draw: the first token whose cumulative probability exceeds ``u``; never one of probability 0."""
    cumulative = np.cumsum(probs)
    token = int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))
    return token if token < len(probs) and probs[token] > 0 else int(np.flatnonzero(probs)[-1])


def sample(row: Tensor, params: SamplingParams, u: float) -> int:
    """The token that ``u`` draws from the processed distribution of the shaped float32 ``row``.

    The same as ``draw(processed_distribution(row, params), u)``. Where no tail is cut by rank, in one compiled pass: a
    distribution over a whole vocabulary takes longer by the other way than verifying the token.
    """
    if params.top_p < 1 or 0 < params.top_k < len(row):
        return draw(processed_distribution(row, params), u)
    return int(_draw_logits(row.numpy(), params.temperature, params.min_p, u))


@njit
def _draw_logits(row: NDArray[np.float32], temperature: float, min_p: float, u: float) -> int:
    most = row.max()
    weights = np.empty(len(row), np.float64)
    sums = np.zeros((len(row) + _BLOCK - 1) // _BLOCK)
    _exp_blocks(row, most, 1.0 / max(temperature, 1e-300), min_p, weights, sums)
    left = u * sums.sum()
    block = 0
    for b in range(len(sums)):
        if sums[b] > 0.0:
            block = b
            if left < sums[b]:
                break
            left -= sums[b]
    token = block * _BLOCK
    for i in range(block * _BLOCK, len(row)):
        if weights[i] > 0.0:
            token = i
            left -= weights[i]
            if left < 0.0:
                break
    return token


@reordering
def _exp_blocks(
    row: NDArray[np.float32],
    most: np.float32,
    scale: float,
    min_p: float,
    weights: NDArray[np.float64],
    sums: NDArray[np.float64],
) -> None:
    """``weights`` exp((row - most) * scale), 0 below ``min_p``; ``sums`` of each block. 2**i by the exponent's bits."""
    bits = np.empty(_BLOCK, np.int64)
    power = bits.view(np.float64)
    for b in range(len(sums)):
        start = b * _BLOCK
        total = 0.0
        for j in range(min(_BLOCK, len(row) - start)):
            x = max((np.float64(row[start + j]) - np.float64(most)) * scale * _LOG2E, -1022.0)
            whole = math.floor(x)
            f = x - whole
            value = _TAYLOR[12]
            for i in range(11, -1, -1):
                value = value * f + _TAYLOR[i]
            bits[j] = (np.int64(whole) + 1023) << 52
            value *= power[j]
            value = value if value >= min_p and x > -1000.0 else 0.0
            weights[start + j] = value
            total += value
        sums[b] = total


def token_logprob(row: Tensor, token: int, top: int) -> TokenLogprob:
    """Log-probability of ``token`` under raw logits ``row`` and of the ``top`` most likely tokens."""
    logprobs = torch.log_softmax(row.float(), -1)
    best = torch.topk(logprobs, min(top, len(logprobs))) if top else None
    alternatives = zip(best.indices.tolist(), best.values.tolist(), strict=True) if best else ()
    return TokenLogprob(token, float(logprobs[token]), tuple(alternatives))
