"""The modes that ``bench`` compares: sources of drafts, tree shapes and budgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from racer.config import Budget, Drafts, TreeShape
from racer.types import SamplingParams

TRANSFORMERS: dict[str, dict[str, int]] = {"generate": {}, "lookup": {"prompt_lookup_num_tokens": 10}}
"""Modes that call ``model.generate`` of transformers, with its options: plain, and with its prompt lookup."""


@dataclass(frozen=True)
class Mode:
    """One way to decode. ``tree`` and ``budget`` are None where nothing is drafted; ``store``: it feeds drafts too."""

    drafts: str
    tree: TreeShape | None = None
    budget: Budget | None = None
    store: bool = False

    @property
    def label(self) -> str:
        """Name in tables."""
        if self.tree is None:
            return self.drafts
        return f"{self.drafts} {self.tree} {self.budget}" + (" +store" if self.store else "")

    def params(self, max_tokens: int, sampling: Mapping[str, Any]) -> SamplingParams:
        """Decoding in this mode; its budget is the engine's to set, as a request can only cap it.

        ``sampling``: a line's own parameters. Length and drafts are not the line's to choose, and every mode draws with
        the same seed.
        """
        own = {name: value for name, value in sampling.items() if name != "budget"}
        own["seed"] = sampling.get("seed") or 0
        own["min_tokens"] = min(sampling.get("min_tokens", 0), max_tokens)
        return SamplingParams(**own | {"max_tokens": max_tokens, "drafts": Drafts(self.drafts), "tree": self.tree})


PLAIN = Mode(Drafts.OFF)


def all_modes(drafts: list[str], trees: list[TreeShape], budgets: list[Budget], store: bool = False) -> list[Mode]:
    """Every combination, plain decoding first: it is what the others are compared with, listed or not.

    With ``store``, each mode that a store can feed comes without and with it.
    """
    modes = [PLAIN]
    for source in drafts:
        if source in TRANSFORMERS:
            modes.append(Mode(source))
        elif source != Drafts.OFF:
            with_store = (False, True) if store and source in (Drafts.RACER, Drafts.RETRIEVAL) else (False,)
            modes += [Mode(source, *rest) for rest in product(trees, budgets, with_store)]
    return modes


def rotated(modes: list[Mode], turn: int) -> list[Mode]:
    """The same modes, beginning with another one each turn, so that none profits from its place."""
    start = turn % len(modes)
    return modes[start:] + modes[:start]
