"""The modes that ``bench`` compares: sources of drafts, tree shapes and budgets."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from racer.config import Budget, Drafts, TreeShape
from racer.types import SamplingParams

TRANSFORMERS = "generate"
"""Name of the mode that calls ``model.generate`` of transformers."""


@dataclass(frozen=True)
class Mode:
    """One way to decode. ``tree`` and ``budget`` are None where nothing is drafted."""

    drafts: str
    tree: TreeShape | None = None
    budget: Budget | None = None

    @property
    def label(self) -> str:
        """Name in tables."""
        return self.drafts if self.tree is None else f"{self.drafts} {self.tree} {self.budget}"

    def params(self, max_tokens: int) -> SamplingParams:
        """Greedy decoding in this mode; its budget is the engine's to set, as a request can only cap it."""
        return SamplingParams(max_tokens=max_tokens, drafts=Drafts(self.drafts), tree=self.tree)


PLAIN = Mode(Drafts.OFF)


def all_modes(drafts: list[str], trees: list[TreeShape], budgets: list[Budget]) -> list[Mode]:
    """Every combination, plain decoding first: it is what the others are compared with, listed or not."""
    modes = [PLAIN]
    for source in drafts:
        if source == TRANSFORMERS:
            modes.append(Mode(TRANSFORMERS))
        elif source != Drafts.OFF:
            modes += [Mode(source, tree, budget) for tree, budget in product(trees, budgets)]
    return modes


def rotated(modes: list[Mode], turn: int) -> list[Mode]:
    """The same modes, beginning with another one each turn, so that none profits from its place."""
    start = turn % len(modes)
    return modes[start:] + modes[:start]
