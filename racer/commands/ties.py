"""Comparing a mode's token ids with plain decoding's, and telling rounding from error."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from racer.engine import Engine
from racer.model.layout import Segment
from racer.types import SamplingParams
from racer.verify.sampling import LogitsShaper, processed_distribution, uniform

_HALF_PRECISION_GAP = 0.05
_FULL_PRECISION_GAP = 1e-4
_ULPS = 4


@dataclass(frozen=True)
class Difference:
    """Where a mode first leaves plain decoding.

    ``plain_token`` and ``token`` are None where the answer ended there. ``gap`` is the distance of the two tokens'
    logits in one forward over prompt and common answer, or for a sampled token how far logits must move for its number
    to draw it; ``near_tie`` says that it is within the dtype's rounding.
    """

    position: int
    plain_token: int | None
    token: int | None
    gap: float
    near_tie: bool

    def as_json(self) -> dict[str, Any]:
        """Fields by name."""
        return asdict(self)


def tolerance(logit: float, dtype: torch.dtype) -> float:
    """Largest gap between two logits, the larger being ``logit``, that rounding can close.

    Four units in the last place of the larger one (docs/log.md), but at least 0.05 in half precision (bfloat16,
    float16) and 1e-4 in float32.
    """
    least = _FULL_PRECISION_GAP if dtype == torch.float32 else _HALF_PRECISION_GAP
    ulp = torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(max(abs(logit), 1e-30)))
    return max(least, _ULPS * ulp)


def compare(
    engine: Engine,
    prompt: tuple[int, ...],
    plain: list[int],
    other: list[int],
    params: SamplingParams | None = None,
) -> Difference | None:
    """The first difference of two answers to ``prompt``, or None. The engine must be idle.

    ``params``: how both were decoded, the seed included; None is greedy.
    """
    if plain == other:
        return None
    params = params or SamplingParams()
    common = next(
        (i for i, (a, b) in enumerate(zip(plain, other, strict=False)) if a != b), min(len(plain), len(other))
    )
    expected = plain[common] if common < len(plain) else None
    found = other[common] if common < len(other) else None
    stops = (frozenset() if params.ignore_eos else engine.loaded.eos_token_ids) | frozenset(params.stop_token_ids)
    logits = _next_logits(engine, [*prompt, *plain[:common]])
    if params.shapes_logits or params.min_tokens:
        shaper = LogitsShaper(params, prompt, stops, len(logits))
        for token in plain[:common]:
            shaper.count(token)
        logits = shaper(logits, common)
    both = [_token(logits, token, sorted(stops)) for token in (expected, found)]
    tokens = [token for token in both if token is not None]
    largest = max((float(logits[token]) for token in tokens), key=abs, default=math.inf)
    if len(tokens) < 2 or not math.isfinite(largest):  # one ended where nothing can end it, or took what is forbidden
        return Difference(common, expected, found, math.inf, near_tie=False)
    if params.greedy:
        gap = abs(float(logits[tokens[0]]) - float(logits[tokens[1]]))
    else:
        u = uniform(params.seed or 0, 0, common)
        gap = max(_shift(processed_distribution(logits, params), token, u) for token in tokens) * params.temperature
    return Difference(common, expected, found, gap, gap <= tolerance(largest, engine.loaded.dtype))


def _token(logits: Tensor, token: int | None, stops: list[int]) -> int | None:
    """``token``; for the end of an answer the likeliest stop token, None without one."""
    return token if token is not None or not stops else stops[int(logits[stops].argmax())]


def _shift(probs: NDArray[np.float64], token: int, u: float) -> float:
    """How far the logarithm of the odds of an edge of the token's interval must move for ``u`` to draw it.

    Logits that are off by at most d, at temperature 1, move the odds between the tokens before an edge and those behind
    it by a factor of at most exp(2 d): the same measure as the gap of two logits.
    """
    edges = np.cumsum(probs)
    low, high = (edges[token - 1] if token else 0.0), edges[token]
    if low <= u < high:
        return 0.0
    edge = low if u < low else high
    tiny = np.finfo(np.float64).tiny
    odds = [math.log(max(p, tiny)) - math.log(max(1.0 - p, tiny)) for p in (u, float(edge))]
    return abs(odds[0] - odds[1])


def _next_logits(engine: Engine, tokens: list[int]) -> Tensor:
    """Logits ``[vocab]`` after ``tokens``, from one forward without drafts, in the cache that an idle engine leaves."""
    chain = Segment(
        np.array(tokens, np.int32), np.arange(-1, len(tokens) - 1, dtype=np.int32), 0, 0, scored_from=len(tokens) - 1
    )
    return engine.runner.run([chain])[-1].float().cpu()
