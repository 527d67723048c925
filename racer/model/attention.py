"""Attention over a packed row with a cache of our own, through transformers' public ``AttentionInterface``.

The model's own code runs unchanged: it projects and rotates the packed row, calls this function once a layer with the
new queries, keys and values, and goes on. The function is one operator to torch's compiler, which does not look inside;
there it reads the :class:`StepLayout`, or the :class:`PaddedStep`, of the forward that this thread is in.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from racer.errors import UnsupportedModelError
from racer.model.graphs import PaddedStep
from racer.model.layout import PlacedSegment, StepLayout

ATTENTION = "racer"
"""Name of the attention implementation, as in ``from_pretrained(attn_implementation=...)``."""

# Arguments that change what attention computes, and that this function does not know how to honour.
_NOT_SUPPORTED = ("position_bias", "head_mask", "cross_attention_states", "indices")


class ShapeProbe:
    """Stands in for a layout to find out which layers call attention, in which order, with which shapes and windows."""

    def __init__(self) -> None:
        self.layers: dict[int, tuple[int, int, int]] = {}
        self.windows: dict[int, int | None] = {}
        self.modules: dict[int, nn.Module] = {}
        self.plain = True
        """No layer changes its scores (soft caps, sinks)."""


class _Thread(threading.local):
    """The forward that a thread is in, and how many of its layers have called attention."""

    step: StepLayout | PaddedStep | ShapeProbe | None = None
    layer: int = 0


_thread = _Thread()


@contextmanager
def stepping(step: StepLayout | PaddedStep | ShapeProbe) -> Iterator[None]:
    """The model's forward, called inside, attends as ``step`` says."""
    _thread.step, _thread.layer = step, 0
    with ExitStack() as stack:
        stack.callback(setattr, _thread, "step", None)
        if isinstance(step, StepLayout) and step.for_kernels is not None:
            torch.ops.racer.begin_step(step.pool.keys, step.pool.values, step.places, *step.for_kernels)
            stack.callback(torch.ops.racer.end_step)
        yield


def in_step() -> bool:
    """This thread is inside :func:`stepping`."""
    return _thread.step is not None


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
    for name in _NOT_SUPPORTED:
        if kwargs.get(name) is not None:
            raise UnsupportedModelError(f"its attention uses {name}, which drafts cannot be verified with")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    if not torch.compiler.is_compiling() and isinstance(_thread.step, ShapeProbe):
        _note(_thread.step, module, key, value, sliding_window)
        _thread.step.plain &= softcap is None and s_aux is None
    attend = torch.ops.racer.attend.default
    return attend(query, key, value, scale, sliding_window, softcap, s_aux), None


def _note(probe: ShapeProbe, module: nn.Module, key: Tensor, value: Tensor, window: int | None) -> None:
    layer = getattr(module, "layer_idx", None)
    if layer is None:
        raise UnsupportedModelError("its attention layers carry no index")
    probe.layers[layer] = (key.shape[1], key.shape[3], value.shape[3])
    probe.windows[layer] = window
    probe.modules[layer] = module


def _attend_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """The operator: attention of the step's next layer (they come in the order in which the probe saw them)."""
    step = _thread.step
    assert step is not None, "the forward was called outside of stepping()"
    if isinstance(step, ShapeProbe):
        causal = torch.full(query.shape[2:3] * 2, float("-inf"), dtype=query.dtype, device=query.device).triu(1)
        return _attend(query, key, value, causal[None, None], scale, softcap, sinks).transpose(1, 2).contiguous()
    keys, values = step.pool.keys[_thread.layer], step.pool.values[_thread.layer]
    _thread.layer += 1
    keys.index_copy_(1, step.places, key[0])
    values.index_copy_(1, step.places, value[0])
    if isinstance(step, PaddedStep):
        heads, keys, values = step.heads_of(query), step.cached_of(keys), step.cached_of(values)
        padded = _attend(heads, keys, values, step.mask(window), scale, softcap, sinks)
        return padded.transpose(1, 2).flatten(0, 1)[None]
    out = query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])
    for segment in step.segments:
        out[:, segment.rows] = _attend_segment(segment, query, keys, values, scale, window, softcap, sinks).transpose(
            1, 2
        )
    return out


def _like_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    return query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])


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
    """Masked attention of sequences of as many nodes each: ``[sequences, heads, nodes, value_dim]``."""
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
        column = sinks.float().view(1, -1, 1, 1).expand(len(scores), -1, scores.shape[2], 1)
        scores = torch.cat([scores, column], -1)
    weights = torch.softmax(scores, -1)[..., : keys.shape[2]]
    return torch.matmul(weights.to(values.dtype), values)


_LIBRARY = torch.library.Library("racer", "FRAGMENT")  # type: ignore[no-untyped-call]
# On a processor the kernels bring their own "attend"; for steps that are not theirs it calls the other one.
for _name in ("attend", "attend_generally"):
    _LIBRARY.define(  # type: ignore[no-untyped-call]
        f"{_name}(Tensor query, Tensor key, Tensor value, float scale, int? window, float? softcap, Tensor? sinks)"
        " -> Tensor"
    )
    _LIBRARY.impl(_name, _attend_step, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"racer::{_name}", _like_attention, lib=_LIBRARY)
AttentionInterface.register(ATTENTION, packed_attention)
