"""Comparing a mode's token ids with plain decoding's, and telling rounding from error."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from racer.engine import Engine
from racer.model.layout import Segment

_HALF_PRECISION_GAP = 0.05
_FULL_PRECISION_GAP = 1e-4
_ULPS = 2


@dataclass(frozen=True)
class Difference:
    """Where a mode first leaves plain decoding.

    ``plain_token`` and ``token`` are None where the answer ended there. ``gap`` is the distance of the two tokens'
    logits in one forward over prompt and common answer; ``near_tie`` says that it is within the dtype's rounding.
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
    """Largest gap that rounding can close: two units in the last place of the larger logit, at least 0.05 in half
    precision (bfloat16, float16) and 1e-4 in float32.
    """
    if dtype == torch.float32:
        least = _FULL_PRECISION_GAP
    else:
        least = _HALF_PRECISION_GAP
    ulp = torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(max(abs(logit), 1e-30)))
    return max(least, _ULPS * ulp)


def compare(engine: Engine, prompt: tuple[int, ...], plain: list[int], other: list[int]) -> Difference | None:
    """The first difference of two answers to ``prompt``, or None. The engine must be idle."""
    if plain == other:
        return None
    common = next(
        (i for i, (a, b) in enumerate(zip(plain, other, strict=False)) if a != b), min(len(plain), len(other))
    )
    expected = plain[common] if common < len(plain) else None
    found = other[common] if common < len(other) else None
    logits = _next_logits(engine, [*prompt, *plain[:common]])
    first, second = (_logit(engine, logits, token) for token in (expected, found))
    gap = abs(first - second)
    return Difference(common, expected, found, gap, gap <= tolerance(max(first, second, key=abs), engine.loaded.dtype))


def _logit(engine: Engine, logits: Tensor, token: int | None) -> float:
    """A token's logit; for the end of an answer that of the likeliest stop token."""
    if token is not None:
        return float(logits[token])
    stops = sorted(engine.loaded.eos_token_ids)
    return float(logits[stops].max()) if stops else math.inf


def _next_logits(engine: Engine, tokens: list[int]) -> Tensor:
    """Logits ``[vocab]`` after ``tokens``, from one forward without drafts, in the cache that an idle engine leaves."""
    chain = Segment(
        np.array(tokens, np.int32), np.arange(-1, len(tokens) - 1, dtype=np.int32), 0, 0, scored_from=len(tokens) - 1
    )
    return engine.runner.run([chain])[-1].float().cpu()
