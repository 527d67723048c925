"""Steps of fixed shapes on a GPU, recorded once as CUDA graphs and played again.

A step of a few rows is some hundred small kernels, which a processor hands to the GPU more slowly than that computes
them. A graph hands over all of them at once, but its shapes and addresses are those of its recording. So a step is
padded to the next of a few shapes (:class:`Shape`): sequences, nodes of each, places of the longest text. All that
depends on the step, masks and places included, is computed inside the graph from a few small tensors.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from racer.cache.pool import KVPool
from racer.model.layout import Segment, depths_of, hidden_of

MOST_ROWS = 128
"""Rows of the largest padded step: with more a GPU computes longer than it is waited for."""

MOST_WASTE = 4
"""Padded rows for each row of a step, and places for each place read, at most."""

_FREE_ROWS, _FREE_PLACES = 32, 1 << 13
"""So much padding costs nothing that could be measured, whatever its share."""

_KEYS = tuple(256 << (2 * i) for i in range(8))
_MOST_GRAPHS = 32
_WARM_UPS = 2


class Shape(NamedTuple):
    """What a graph was recorded for: sequences, nodes of each, and places of the longest text with its nodes."""

    sequences: int
    nodes: int
    keys: int

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> Shape | None:
        """The smallest shape that holds the step; None where padding would cost more than a graph saves."""
        nodes = [len(segment.tokens) for segment in segments]
        read = [segment.cached + len(segment.tokens) for segment in segments]
        keys = next((count for count in _KEYS if count >= max(read)), None)
        if keys is None:
            return None
        shape = cls(_next(len(segments)), _next(max(nodes)), keys)
        rows, places = shape.sequences * shape.nodes, shape.sequences * shape.keys
        much = rows > min(MOST_ROWS, max(_FREE_ROWS, MOST_WASTE * sum(nodes)))
        return None if much or places > max(_FREE_PLACES, MOST_WASTE * sum(read)) else shape


def _next(count: int) -> int:
    """The next power of two."""
    return 1 << (count - 1).bit_length()


class PaddedStep:
    """A step padded to a shape: the tensors that its forward reads, at fixed addresses.

    tokens, depths  int64 [sequences, nodes]; tree  bool [sequences, nodes, nodes]: node i sees node j
    start, cached, nodes  int64 [sequences, 1]; a padding sequence has no nodes
    scored  rows whose logits are wanted, of the padded row

    Padding rows see their text and write to a spare place that nobody reads. Where others have no key they read the
    pool's other spare place, which always holds zeros: what a mask hides must still be finite.
    """

    def __init__(self, shape: Shape, pool: KVPool, dtype: torch.dtype, device: torch.device) -> None:
        self.shape, self.pool, self._dtype = shape, pool, dtype
        sequences, nodes, _ = shape
        numbers = sequences * (2 * nodes + 3)
        self._numbers = torch.zeros(numbers, dtype=torch.int64, device=device)
        self._tree = torch.zeros(sequences, nodes, nodes, dtype=torch.bool, device=device)
        pinned = device.type == "cuda"
        self._host_numbers = torch.zeros(numbers, dtype=torch.int64, pin_memory=pinned)
        self._host_tree = torch.zeros(sequences, nodes, nodes, dtype=torch.bool, pin_memory=pinned)
        self.scored = torch.zeros(0, dtype=torch.int64)
        self._masks: dict[int | None, Tensor] = {}

    def fill(self, segments: Sequence[Segment]) -> None:
        """Take in a step; what was computed for the one before is forgotten."""
        sequences, nodes, _ = self.shape
        flat = self._host_numbers.numpy()
        flat[:] = 0
        table = flat[: 3 * sequences].reshape(3, sequences)
        tokens = flat[3 * sequences : (3 + nodes) * sequences].reshape(sequences, nodes)
        depths = flat[(3 + nodes) * sequences :].reshape(sequences, nodes)
        tree = self._host_tree.numpy()
        tree[:] = np.eye(nodes, dtype=np.bool_)
        scored = []
        for i, segment in enumerate(segments):
            count = len(segment.tokens)
            table[:, i] = segment.start, segment.cached, count
            tokens[i, :count], depths[i, :count] = segment.tokens, depths_of(segment.parents)
            tree[i, :count, :count] = ~hidden_of(segment.parents)
            scored.append(np.arange(i * nodes + segment.scored_from, i * nodes + count))
        self._numbers.copy_(self._host_numbers)  # waits: the next step is written to the same memory
        self._tree.copy_(self._host_tree)
        self.scored = torch.from_numpy(np.concatenate(scored)).to(self._numbers.device)

    def begin(self) -> tuple[Tensor, Tensor]:
        """Tokens and positions, int64 ``[1, rows]``; computes what all layers share. Part of the graph."""
        sequences, nodes, keys = self.shape
        start, cached, count = self._numbers[: 3 * sequences].view(3, sequences, 1)
        tokens, self._depths = self._numbers[3 * sequences :].view(2, sequences, nodes)
        node = torch.arange(nodes, device=start.device)
        place = torch.arange(keys, device=start.device)
        zeros, written = self.pool.places, self.pool.places + 1
        self.places = torch.where(node < count, start + cached + node, written).view(-1)
        self._keys = torch.where(place < cached + count, start + place, zeros).view(-1)
        # Node that stands at each place of the text with its nodes; below 0: a token of the text.
        self._at = (place - cached)[:, None, :]
        self._masks = {}
        return tokens.reshape(1, -1), (cached + self._depths).view(1, -1)

    def mask(self, window: int | None) -> Tensor:
        """Additive mask ``[sequences, 1, nodes, keys]``, built once a step for each window."""
        if window not in self._masks:
            sequences, nodes, keys = self.shape
            node = self._at.clamp(0, nodes - 1).expand(sequences, nodes, keys)
            seen = (self._at < 0) | (self._tree.gather(2, node) & (self._at < nodes))
            if window is not None:
                depth = self._depths[:, None, :].expand(sequences, nodes, nodes).gather(2, node)
                behind = self._depths[:, :, None] - torch.where(self._at < 0, self._at, depth)
                seen &= behind < window
            mask = torch.zeros(seen.shape, dtype=self._dtype, device=seen.device)
            self._masks[window] = mask.masked_fill_(~seen, float("-inf"))[:, None]
        return self._masks[window]

    def heads_of(self, packed: Tensor) -> Tensor:
        """``[1, heads, rows, dim]`` as ``[sequences, heads, nodes, dim]``."""
        sequences, nodes, _ = self.shape
        return packed[0].reshape(packed.shape[1], sequences, nodes, packed.shape[3]).transpose(0, 1)

    def cached_of(self, stored: Tensor) -> Tensor:
        """A layer's keys or values ``[kv_heads, places, dim]`` as ``[sequences, kv_heads, keys, dim]``."""
        sequences, _, keys = self.shape
        gathered = stored.index_select(1, self._keys)
        return gathered.reshape(len(stored), sequences, keys, stored.shape[2]).transpose(0, 1)


Forward = Callable[[PaddedStep], Tensor]
"""Logits ``[rows, vocab]`` of a padded step."""

Play = Callable[[], Tensor]
"""Computes what was recorded, with what its inputs hold now; always the same tensor."""


class StepGraphs:
    """Plays steps of the shapes that have come before; a new shape is recorded.

    ``record`` makes of a forward something that plays it (:func:`cuda_recorder`).
    """

    def __init__(
        self,
        pool: KVPool,
        dtype: torch.dtype,
        device: torch.device,
        forward: Forward,
        record: Callable[[Play], Play],
    ) -> None:
        self._pool, self._dtype, self._device = pool, dtype, device
        self._forward, self._record = forward, record
        self._recorded: OrderedDict[Shape, tuple[PaddedStep, Play]] = OrderedDict()
        self.recorded = False
        """The latest step's shape was a new one: its time says nothing about the next."""

    def run(self, segments: Sequence[Segment]) -> Tensor | None:
        """Logits of the scored rows ``[rows, vocab]``; None for a step that is better taken as it is."""
        shape = Shape.of(segments)
        if shape is None:
            self.recorded = False
            return None
        self.recorded = shape not in self._recorded
        if self.recorded:
            step = PaddedStep(shape, self._pool, self._dtype, self._device)  # all padding: it writes no text's places
            self._recorded[shape] = step, self._record(partial(self._forward, step))
            if len(self._recorded) > _MOST_GRAPHS:
                self._recorded.popitem(last=False)
        self._recorded.move_to_end(shape)
        step, play = self._recorded[shape]
        step.fill(segments)
        return play().index_select(0, step.scored)


def cuda_recorder(device: torch.device) -> Callable[[Play], Play]:
    """Records as CUDA graphs, which share one pool of memory: only one of them is played at a time."""
    with torch.cuda.device(device):
        memory = torch.cuda.graph_pool_handle()
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def record(forward: Play) -> Play:
        with torch.cuda.device(device):
            # Libraries choose their kernels, and allocate, in the first calls, which a recording must not see.
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(_WARM_UPS):
                    forward()
            torch.cuda.current_stream().wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            # Other threads (metrics, a client of a store) may call CUDA meanwhile, in their own streams.
            with torch.cuda.graph(graph, pool=memory, stream=aside, capture_error_mode="thread_local"):
                logits = forward()

        def play() -> Tensor:
            graph.replay()
            return logits

        return play

    return record
