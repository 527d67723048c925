"""The draft tree as flat arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from racer.types import Source


@dataclass(frozen=True)
class DraftTree:
    """Nodes of one request's draft, node 0 the root; a parent stands before its children.

    tokens   int32 [nodes]
    parents  int32 [nodes]   index of the parent; -1 for the root
    depths   int32 [nodes]   0 for the root
    sources  uint8 [nodes]   a :class:`racer.types.Source`
    probs    float32 [nodes] estimated probability that the node is accepted (product along its path); 1 for the root
    """

    tokens: NDArray[np.int32]
    parents: NDArray[np.int32]
    depths: NDArray[np.int32]
    sources: NDArray[np.uint8]
    probs: NDArray[np.float32]

    @classmethod
    def root_only(cls, token: int) -> DraftTree:
        """The tree of plain decoding: nothing is drafted."""
        return cls(
            tokens=np.array([token], np.int32),
            parents=np.array([-1], np.int32),
            depths=np.zeros(1, np.int32),
            sources=np.array([Source.ROOT], np.uint8),
            probs=np.ones(1, np.float32),
        )

    def __len__(self) -> int:
        """Nodes, root included."""
        return len(self.tokens)

    def prefix(self, nodes: int) -> DraftTree:
        """The tree of the first ``nodes`` nodes (views): parents stand before children, so any prefix is a tree."""
        if nodes >= len(self):
            return self
        return DraftTree(
            self.tokens[:nodes], self.parents[:nodes], self.depths[:nodes], self.sources[:nodes], self.probs[:nodes]
        )

    def check_integrity(self) -> None:
        """Raise AssertionError unless this is one tree: parents first, depths consistent, no twin siblings."""
        assert self.parents[0] == -1 and self.depths[0] == 0
        seen = set()
        for node in range(1, len(self)):
            parent = int(self.parents[node])
            assert 0 <= parent < node, f"node {node} has parent {parent}"
            assert self.depths[node] == self.depths[parent] + 1
            key = (parent, int(self.tokens[node]))
            assert key not in seen, f"twin siblings {key}"
            seen.add(key)
