"""Attention over a packed row with a cache of our own, through transformers' public ``AttentionInterface``.

The model's own code runs unchanged: it projects and rotates the packed row, calls this function once a layer with the
new queries, keys and values, and goes on. :class:`StepLayout` arrives through the keyword arguments that transformers
hands down from the model's forward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from racer.errors import UnsupportedModelError
from racer.model.layout import PlacedSegment, StepLayout

ATTENTION = "racer"
"""Name of the attention implementation, as in ``from_pretrained(attn_implementation=...)``."""

STEP = "racer_step"
"""Keyword argument of the model's forward that carries the :class:`StepLayout`."""

# Arguments that change what attention computes, and that this function does not know how to honour.
_NOT_SUPPORTED = ("position_bias", "head_mask", "cross_attention_states", "indices")


class ShapeProbe:
    """Stands in for a layout to find out which layers call attention, with which shapes and windows."""

    def __init__(self) -> None:
        self.layers: dict[int, tuple[int, int, int]] = {}
        self.windows: dict[int, int | None] = {}


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer for all sequences of a step.

    query ``[1, heads, tokens, dim]``, key and value ``[1, kv_heads, tokens, dim]``; returns
    ``[1, tokens, heads, value_dim]``. Writes keys and values to the cache before reading it.
    ``sliding_window``, ``softcap`` and ``s_aux`` (attention sinks, one logit a head) as transformers passes them.
    """
    step = kwargs.get(STEP)
    layer = getattr(module, "layer_idx", None)
    for name in _NOT_SUPPORTED:
        if kwargs.get(name) is not None:
            raise UnsupportedModelError(f"its attention uses {name}, which drafts cannot be verified with")
    if layer is None:
        raise UnsupportedModelError("its attention layers carry no index")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    if isinstance(step, ShapeProbe):
        step.layers[layer] = (key.shape[1], key.shape[3], value.shape[3])
        step.windows[layer] = sliding_window
        causal = torch.full(query.shape[2:3] * 2, float("-inf"), dtype=query.dtype, device=query.device).triu(1)
        return _attend(query, key, value, causal[None, None], scale, softcap, s_aux).transpose(1, 2), None
    assert isinstance(step, StepLayout), f"the forward was called without {STEP}"
    step.pool.write(layer, step.places, key[0], value[0])
    keys, values = step.pool.keys[layer], step.pool.values[layer]
    out = query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])
    for segment in step.segments:
        out[:, segment.rows] = _attend_segment(
            segment, query, keys, values, scale, sliding_window, softcap, s_aux
        ).transpose(1, 2)
    return out, None


def _attend_segment(
    segment: PlacedSegment,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    first, mask = segment.mask(window)
    nodes = segment.rows.stop - segment.rows.start
    places = slice(segment.start + first, segment.start + segment.cached + nodes)
    return _attend(
        query[:, :, segment.rows], keys[None, :, places], values[None, :, places], mask, scale, softcap, sinks
    )


def _attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Masked attention of one sequence: ``[1, heads, nodes, value_dim]``."""
    if softcap is None and sinks is None:
        return scaled_dot_product_attention(query, keys, values, mask, scale=scale, enable_gqa=True)
    groups = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
    scores = torch.matmul(query.float(), keys.float().transpose(2, 3)) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores + mask
    if sinks is not None:
        # A sink takes its share of the attention and gives nothing: one more column, dropped after the softmax.
        column = sinks.float().view(1, -1, 1, 1).expand(1, -1, scores.shape[2], 1)
        scores = torch.cat([scores, column], -1)
    weights = torch.softmax(scores, -1)[..., : keys.shape[2]]
    return torch.matmul(weights.to(values.dtype), values)


AttentionInterface.register(ATTENTION, packed_attention)
