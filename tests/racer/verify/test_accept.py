"""The walk through a verified tree."""

import numpy as np

from racer.draft.tree import DraftTree
from racer.types import Source
from racer.verify.accept import walk

#        0:10
#      /      \
#   1:11      2:12
#   /  \        |
# 3:13 4:14   5:13
TREE = DraftTree(
    tokens=np.array([10, 11, 12, 13, 14, 13], np.int32),
    parents=np.array([-1, 0, 0, 1, 1, 2], np.int32),
    depths=np.array([0, 1, 1, 2, 2, 2], np.int32),
    sources=np.array([0, 1, 2, 1, 2, 3], np.uint8),
    probs=np.ones(6, np.float32),
)


def run(model: dict[int, int], stop: int | None = None) -> tuple[list[int], list[tuple[int, Source]], list[int], bool]:
    decided: list[tuple[int, Source]] = []
    asked: list[int] = []

    def choose(node: int) -> int:
        asked.append(node)
        return model[node]

    def decide(node: int, token: int, source: Source) -> bool:
        assert node == asked[-1]
        decided.append((token, source))
        return token == stop

    result = walk(TREE, choose, decide)
    return result.path, decided, asked, result.finished


def test_follows_the_model_down_the_tree_and_takes_its_next_token() -> None:
    path, decided, asked, finished = run({0: 12, 2: 13, 5: 99})
    assert path == [0, 2, 5]
    assert decided == [(12, Source.LOGITS), (13, Source.STORE), (99, Source.ROOT)]
    assert asked == path and not finished


def test_a_whole_tree_rejected_still_decides_one_token() -> None:
    path, decided, asked, _ = run({0: 50})
    assert (path, decided, asked) == ([0], [(50, Source.ROOT)], [0])


def test_stops_inside_the_accepted_run() -> None:
    path, decided, asked, finished = run({0: 11, 1: 14, 4: 1}, stop=11)
    assert path == [0] and decided == [(11, Source.RETRIEVAL)] and asked == [0] and finished
