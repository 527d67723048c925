"""How the tokens of one step lie in the packed row, and what each may attend to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from racer.cache.pool import KVPool
from racer.numba import njit


@njit
def depths_of(parents: NDArray[np.int32]) -> NDArray[np.int64]:
    """Steps from node 0 to each node. Parents stand before their children."""
    depths = np.zeros(len(parents), np.int64)
    for node in range(1, len(parents)):
        depths[node] = depths[parents[node]] + 1
    return depths


@njit
def hidden_of(parents: NDArray[np.int32]) -> NDArray[np.bool_]:
    """hidden[i, j]: node j is neither node i nor an ancestor of it. Parents stand before their children."""
    n = len(parents)
    hidden = np.ones((n, n), np.bool_)
    for node in range(n):
        if node:
            parent = parents[node]
            for j in range(parent + 1):
                hidden[node, j] = hidden[parent, j]
        hidden[node, node] = False
    return hidden


@dataclass(frozen=True)
class Segment:
    """One sequence's part of a step: tokens that follow ``cached`` verified ones, as a tree.

    tokens   int32 [nodes]  a run of text is a tree that happens to be a chain; behind it may hang a draft tree
    parents  int32 [nodes]  index of the parent inside the segment, -1 for node 0, parents before children
    start    first place of the sequence's region; its verified tokens are at ``start .. start + cached``
    scored   rows of the segment whose logits are wanted: ``first .. len(tokens)``
    """

    tokens: NDArray[np.int32]
    parents: NDArray[np.int32]
    start: int
    cached: int
    scored_from: int = 0

    @property
    def is_chain(self) -> bool:
        """No node has a sibling."""
        return bool(np.array_equal(self.parents, np.arange(-1, len(self.parents) - 1)))


@dataclass
class PlacedSegment:
    """A segment with its rows in the packed row. Masks are built once a step, per window, and shared by all layers."""

    rows: slice
    start: int
    cached: int
    parents: NDArray[np.int32]
    depths: NDArray[np.int64]
    dtype: torch.dtype
    device: torch.device
    _masks: dict[int | None, tuple[int, Tensor | None]] = field(default_factory=dict)

    def mask(self, window: int | None) -> tuple[int, Tensor | None]:
        """``(first, mask)``: the first of the sequence's places worth reading, and the additive mask over the rest.

        The mask is ``[1, 1, nodes, cached - first + nodes]``, 0 where a node may look and -inf elsewhere; None where
        every node may look at everything. ``window``: a node sees the ``window`` latest positions, its own included.
        """
        if window not in self._masks:
            self._masks[window] = self._build(window)
        return self._masks[window]

    def _build(self, window: int | None) -> tuple[int, Tensor | None]:
        nodes = len(self.parents)
        # The root stands at position `cached`, and no node stands before it.
        first = 0 if window is None else max(0, self.cached - window + 1)
        if nodes == 1:
            return first, None
        hidden = np.zeros((nodes, self.cached - first + nodes), np.bool_)
        hidden[:, self.cached - first :] = hidden_of(self.parents)
        if window is not None and self.cached - first + int(self.depths.max()) >= window:
            key_positions = np.concatenate([np.arange(first, self.cached), self.cached + self.depths])
            query_positions = self.cached + self.depths
            hidden |= query_positions[:, None] - key_positions[None, :] >= window
        mask = torch.zeros(hidden.shape, dtype=self.dtype, device=self.device)
        mask.masked_fill_(torch.from_numpy(hidden).to(self.device), float("-inf"))
        return first, mask[None, None]


class KernelLayout(NamedTuple):
    """The step as the kernels read it.

    sequences  int64 [segments, 5]  first row, rows, first place, cached tokens, offset into ``visible`` (-1: a chain)
    depths     int32 [tokens]       of each node below its segment's node 0
    visible    uint8 [...]          of each tree, node by node, whether it sees the others
    """

    sequences: Tensor
    depths: Tensor
    visible: Tensor


def _for_kernels(segments: Sequence[Segment], placed: Sequence[PlacedSegment]) -> KernelLayout:
    table = np.empty((len(segments), 5), np.int64)
    visible: list[NDArray[np.bool_]] = [np.zeros(0, np.bool_)]
    offset = 0
    for i, (segment, where) in enumerate(zip(segments, placed, strict=True)):
        tree = -1
        if not segment.is_chain:
            tree = offset
            visible.append(~hidden_of(segment.parents).reshape(-1))
            offset += visible[-1].size
        table[i] = where.rows.start, len(segment.tokens), segment.start, segment.cached, tree
    depths = np.concatenate([where.depths for where in placed]).astype(np.int32)
    seen = np.concatenate(visible).view(np.uint8)
    return KernelLayout(torch.from_numpy(table), torch.from_numpy(depths), torch.from_numpy(seen))


class StepLayout:
    """The packed row of one step: all segments behind each other, no padding.

    ``by_kernels``: the kernels will attend, and ``self.for_kernels`` is what they read.

    input_ids, positions  int64 [1, tokens];  places  int64 [tokens];  scored  int64 [rows] indices of rows whose
    logits are wanted, segment by segment.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        pool: KVPool,
        dtype: torch.dtype,
        device: torch.device,
        *,
        by_kernels: bool = False,
    ) -> None:
        self.pool = pool
        self.segments: list[PlacedSegment] = []
        positions, places, scored = [], [], []
        row = 0
        for segment in segments:
            nodes = len(segment.tokens)
            depths = depths_of(segment.parents)
            positions.append(segment.cached + depths)
            places.append(np.arange(segment.start + segment.cached, segment.start + segment.cached + nodes))
            scored.append(np.arange(row + segment.scored_from, row + nodes))
            rows = slice(row, row + nodes)
            self.segments.append(
                PlacedSegment(rows, segment.start, segment.cached, segment.parents, depths, dtype, device)
            )
            row += nodes

        def packed(parts: list[NDArray[np.int64]]) -> Tensor:
            return torch.from_numpy(np.concatenate(parts)).to(device)

        self.input_ids = packed([segment.tokens.astype(np.int64) for segment in segments])[None]
        self.positions = packed(positions)[None]
        self.places = packed(places)
        self.scored = packed(scored)
        self.for_kernels = _for_kernels(segments, self.segments) if by_kernels else None
