"""Walk a verified draft tree: the longest path that the model itself would have taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from racer.draft.tree import DraftTree
from racer.types import Source


@dataclass(frozen=True)
class Walk:
    """``path``: accepted nodes, the root first. ``finished``: the last token decided ended the answer."""

    path: list[int]
    finished: bool


def walk(tree: DraftTree, choose: Callable[[int], int], decide: Callable[[int, int, Source], bool]) -> Walk:
    """Decide tokens from the root on for as long as the tree foresaw them, and the one after.

    ``choose(node)`` is the model's token after ``node``, given the path to it; it is asked for reached nodes only, in
    order. ``decide(node, token, source)`` takes the token that follows ``node``, ``source`` being the draft source
    that foresaw it or ``ROOT``, and returns True when it ends the answer.
    """
    path = [0]
    parents, tokens = tree.parents.tolist(), tree.tokens.tolist()
    while True:
        node = path[-1]
        token = choose(node)
        child = next((i for i in range(node + 1, len(tokens)) if parents[i] == node and tokens[i] == token), None)
        source = Source.ROOT if child is None else Source(int(tree.sources[child]))
        if decide(node, token, source):
            return Walk(path, True)
        if child is None:
            return Walk(path, False)
        path.append(child)
