"""The key-value cache: one pool of places for all layers and sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from racer.cache.regions import Move


@dataclass(frozen=True)
class LayerShape:
    """Shape of one layer's keys and values for one token."""

    kv_heads: int
    key_dim: int
    value_dim: int


class KVPool:
    """Keys ``[kv_heads, places, key_dim]`` and values of every layer, at places that the caller accounts for.

    Behind them lie two spare places: at ``places`` one that holds zeros and is never written, at ``places + 1`` one to
    write what nobody reads.
    Layers of one shape share a stacked tensor, so that moving places is a few operations whatever the depth.
    Memory of places never written is not touched (on CPU it costs no resident memory).
    """

    def __init__(
        self, shapes: Sequence[LayerShape], places: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        self.places = places
        self.shapes = tuple(shapes)
        self._stacks: list[Tensor] = []
        self.keys: list[Tensor] = [torch.empty(0)] * len(shapes)
        self.values: list[Tensor] = [torch.empty(0)] * len(shapes)
        for shape in dict.fromkeys(shapes):
            layers = [i for i, other in enumerate(shapes) if other == shape]
            for views, dim in ((self.keys, shape.key_dim), (self.values, shape.value_dim)):
                stack = torch.empty(len(layers), shape.kv_heads, places + 2, dim, dtype=dtype, device=device)
                stack[:, :, places:].zero_()
                self._stacks.append(stack)
                for row, layer in enumerate(layers):
                    views[layer] = stack[row]

    @staticmethod
    def bytes_per_place(shapes: Sequence[LayerShape], dtype: torch.dtype) -> int:
        """Bytes that one token takes over all layers."""
        return sum(shape.kv_heads * (shape.key_dim + shape.value_dim) for shape in shapes) * dtype.itemsize

    def write(self, layer: int, places: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store ``keys`` and ``values`` ``[kv_heads, tokens, dim]`` at ``places`` ``[tokens]`` (int64)."""
        self.keys[layer].index_copy_(1, places, keys)
        self.values[layer].index_copy_(1, places, values)

    def copy_places(self, source: Tensor, target: Tensor) -> None:
        """Copy places ``source`` to ``target`` (int64 ``[n]``) in all layers; the two may overlap."""
        for stack in self._stacks:
            stack.index_copy_(2, target, stack.index_select(2, source))

    def move(self, moves: Sequence[Move]) -> None:
        """Carry out moves of :class:`racer.cache.regions.Regions`, in order."""
        for move in moves:
            if move.length and move.source != move.target:
                for stack in self._stacks:
                    run = stack.narrow(2, move.source, move.length).clone()
                    stack.narrow(2, move.target, move.length).copy_(run)
