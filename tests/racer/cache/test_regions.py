"""Places are accounted for exactly, whatever the order of requests."""

import random

import numpy as np
import pytest

from racer.cache.regions import Regions


def make(regions: Regions, pool: np.ndarray, owner: str, size: int) -> bool:
    moves = regions.resize(owner, size)
    if moves is None:
        return False
    for move in moves:
        pool[move.target : move.target + move.length] = pool[move.source : move.source + move.length].copy()
    return True


def test_grows_in_place_when_the_next_places_are_free() -> None:
    regions = Regions(100)
    assert regions.resize("a", 10) == []
    assert regions.resize("a", 40) == []
    assert (regions["a"].start, regions["a"].size) == (0, 40)


def test_moves_when_blocked_and_carries_only_used_places() -> None:
    regions = Regions(100)
    regions.resize("a", 10)
    regions.resize("b", 10)
    regions["a"].used = 7
    (move,) = regions.resize("a", 20) or []
    assert (move.source, move.target, move.length) == (0, 20, 7)
    assert regions.free == 100 - 30


def test_refuses_without_change() -> None:
    regions = Regions(50)
    regions.resize("a", 30)
    assert regions.resize("b", 21) is None
    assert "b" not in regions
    assert regions.resize("a", 51) is None
    assert regions["a"].size == 30


def test_compacts_when_free_places_are_scattered() -> None:
    regions, pool = Regions(40), np.zeros(40, int)
    for owner in "abcd":
        assert make(regions, pool, owner, 10)
    for number, owner in enumerate("abcd", 1):
        regions[owner].used = 10
        pool[regions[owner].start : regions[owner].end] = number
    regions.release("a")
    regions.release("c")
    assert make(regions, pool, "b", 20)
    for number, owner in ((2, "b"), (4, "d")):
        region = regions[owner]
        assert (pool[region.start : region.start + 10] == number).all()


@pytest.mark.parametrize("seed", range(20))
def test_random_life_keeps_every_token(seed: int) -> None:
    rng = random.Random(seed)
    regions, pool = Regions(200), np.zeros(200, int)
    texts: dict[str, list[int]] = {}
    for turn in range(400):
        owner = f"r{rng.randrange(8)}"
        if rng.random() < 0.2:
            regions.release(owner)
            texts.pop(owner, None)
        elif make(regions, pool, owner, rng.randrange(1, 80)):
            region = regions[owner]
            text = texts.setdefault(owner, [])
            for _ in range(min(rng.randrange(4), region.size - region.used)):
                pool[region.start + region.used] = turn
                region.used += 1
                text.append(turn)
        regions.check_integrity()
        for name, text in texts.items():
            region = regions[name]
            assert pool[region.start : region.start + region.used].tolist() == text
    assert regions.allocated + regions.free == 200
