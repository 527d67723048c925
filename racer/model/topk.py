"""The most likely next tokens of many rows of logits, with their probabilities, in one pass on the processor."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from racer.model.native import load_kernels
from racer.numba import njit, reordering

_BLOCK = 128
_LOG2E = np.float32(math.log2(math.e))


def top_k(logits: Tensor, k: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The ``k`` most likely tokens of each row, most likely first, and their softmax probabilities.

    logits ``[rows, vocab]`` (float32, bfloat16 or float16); returns tokens int32 ``[rows, k]`` and probabilities
    float32 ``[rows, k]``, good to three digits. Among equal logits the smaller token id comes first, so that the
    first column is a deterministic argmax. ``k`` is cut to the size of the vocabulary.
    """
    rows, vocab = logits.shape
    k = min(k, vocab)
    if logits.device.type != "cpu" or logits.dtype == torch.float16:
        values, tokens = torch.topk(logits.float(), k, dim=-1)
        probs = torch.exp(values - torch.logsumexp(logits.float(), -1, keepdim=True))
        return tokens.to(torch.int32).cpu().numpy(), probs.cpu().numpy()
    if logits.dtype == torch.bfloat16 and load_kernels():
        tokens, probs = torch.ops.racer.top_k.default(logits, k)
        return tokens.numpy(), probs.numpy()
    tokens_out = np.empty((rows, k), np.int32)
    probs_out = np.empty((rows, k), np.float32)
    logits = logits.contiguous()
    if logits.dtype == torch.bfloat16:
        _top_k_bfloat16(logits.view(torch.int16).numpy(), tokens_out, probs_out)
    else:
        _top_k_float32(logits.float().numpy(), tokens_out, probs_out)
    return tokens_out, probs_out


@njit
def _top_k_bfloat16(bits: NDArray[np.int16], tokens: NDArray[np.int32], probs: NDArray[np.float32]) -> None:
    """A bfloat16 is the upper half of a float32: widened row by row, so that the copy stays in the cache."""
    wide = np.empty(bits.shape[1], np.int32)
    for row in range(len(bits)):
        for i in range(bits.shape[1]):
            wide[i] = np.int32(bits[row, i]) << 16
        _top_k_row(wide.view(np.float32), tokens[row], probs[row])


@njit
def _top_k_float32(logits: NDArray[np.float32], tokens: NDArray[np.int32], probs: NDArray[np.float32]) -> None:
    for row in range(len(logits)):
        _top_k_row(logits[row], tokens[row], probs[row])


@reordering
def _top_k_row(row: NDArray[np.float32], tokens: NDArray[np.int32], probs: NDArray[np.float32]) -> None:
    k = len(tokens)
    blocks = (len(row) + _BLOCK - 1) // _BLOCK
    block_max = np.empty(blocks, np.float32)
    for b in range(blocks):
        most = np.float32(-np.inf)
        for i in range(b * _BLOCK, min(len(row), (b + 1) * _BLOCK)):
            most = max(most, row[i])
        block_max[b] = most
    most = block_max.max()
    found = 0
    values = np.empty(k, np.float32)
    for b in range(blocks):
        if found == k and block_max[b] <= values[k - 1]:
            continue
        for i in range(b * _BLOCK, min(len(row), (b + 1) * _BLOCK)):
            value = row[i]
            if found == k and value <= values[k - 1]:
                continue
            at = min(found, k - 1)
            found = min(found + 1, k)
            while at > 0 and values[at - 1] < value:
                values[at] = values[at - 1]
                tokens[at] = tokens[at - 1]
                at -= 1
            values[at] = value
            tokens[at] = i
    total = _sum_exp(row, block_max, most)
    for i in range(k):
        probs[i] = np.exp(values[i] - most) / total


@reordering
def _sum_exp(row: NDArray[np.float32], block_max: NDArray[np.float32], most: np.float32) -> np.float32:
    """Sum of exp(row - most). 2**f on [0, 1) by a cubic (error 1e-4), 2**i by the exponent's bits: both vectorise."""
    bits = np.empty(_BLOCK, np.int32)
    power = bits.view(np.float32)
    total = np.float32(0)
    for b in range(len(block_max)):
        if block_max[b] - most < np.float32(-20):  # at most 2e-9 each
            continue
        start = b * _BLOCK
        part = np.float32(0)
        for j in range(min(_BLOCK, len(row) - start)):
            x = max((row[start + j] - most) * _LOG2E, np.float32(-126))
            whole = np.floor(x)
            f = x - whole
            cubic = np.float32(1) + f * (
                np.float32(0.6951786) + f * (np.float32(0.2276459) + f * np.float32(0.0771755))
            )
            bits[j] = (np.int32(whole) + np.int32(127)) << np.int32(23)
            part += cubic * power[j]
        total += part
    return total
