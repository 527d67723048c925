"""Accounting of cache places: every sequence owns one contiguous region of the pool.

Contiguous regions let attention read a sequence's keys and values as a view, without gathering pages. The price is
that a region may have to move when it grows; callers get the moves to make.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True)
class Move:
    """Copy ``length`` places from ``source`` to ``target``; moves of one list are to be made in order."""

    source: int
    target: int
    length: int


@dataclass
class Region:
    """Places ``start .. start + size``, of which the first ``used`` hold verified tokens."""

    start: int
    size: int
    used: int = 0

    @property
    def end(self) -> int:
        """First place behind the region."""
        return self.start + self.size


class Regions:
    """First-fit allocator over ``capacity`` places.

    The owner of a region updates ``Region.used``; everything else changes through these methods only.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._regions: dict[Hashable, Region] = {}

    def __getitem__(self, owner: Hashable) -> Region:
        return self._regions[owner]

    def __contains__(self, owner: Hashable) -> bool:
        return owner in self._regions

    def __len__(self) -> int:
        return len(self._regions)

    @property
    def allocated(self) -> int:
        """Places that belong to a region."""
        return sum(region.size for region in self._regions.values())

    @property
    def used(self) -> int:
        """Places that hold verified tokens."""
        return sum(region.used for region in self._regions.values())

    @property
    def free(self) -> int:
        """Places that belong to nobody."""
        return self.capacity - self.allocated

    def resize(self, owner: Hashable, size: int) -> list[Move] | None:
        """Give ``owner`` a region of at least ``size`` places, keeping the used ones.

        Returns the moves to make in the pool, in order; None if so many places are not free, and then nothing has
        changed.
        """
        mine = self._regions.get(owner)
        if mine is not None and size <= mine.size:
            return []
        if size - (mine.size if mine else 0) > self.free:
            return None
        if mine is not None and self._room(mine) >= size:
            mine.size = size
            return []
        start = self._gap(size)
        if start is not None:
            used = mine.used if mine else 0
            self._regions[owner] = Region(start, size, used)
            return [Move(mine.start, start, used)] if mine else []
        return self._compact(owner, size)

    def _room(self, region: Region) -> int:
        """Places from the region's start to the next region."""
        behind = (other.start for other in self._regions.values() if other.start > region.start)
        return min(behind, default=self.capacity) - region.start

    def _gap(self, size: int) -> int | None:
        """First run of ``size`` free places."""
        at = 0
        for other in [*self._in_order(), Region(self.capacity, 0)]:
            if other.start - at >= size:
                return at
            at = other.end
        return None

    def _compact(self, owner: Hashable, size: int) -> list[Move]:
        """Push all regions to the front, then those behind ``owner`` back by what it grows."""
        moves = []
        at = 0
        for region in self._in_order():
            moves.append(Move(region.start, at, region.used))
            region.start = at
            at += region.size
        mine = self._regions.get(owner)
        if mine is None:
            self._regions[owner] = Region(at, size)
            return moves
        behind = [region for region in self._in_order() if region.start > mine.start]
        for region in reversed(behind):  # the last first, so that none overwrites the next
            moves.append(Move(region.start, region.start + size - mine.size, region.used))
            region.start += size - mine.size
        mine.size = size
        return moves

    def release(self, owner: Hashable) -> None:
        """Free the owner's region; unknown owners are no error (a request may never have been admitted)."""
        self._regions.pop(owner, None)

    def _in_order(self) -> list[Region]:
        return sorted(self._regions.values(), key=lambda region: region.start)

    def check_integrity(self) -> None:
        """Raise AssertionError unless regions are disjoint, inside the pool, and no fuller than they are large."""
        at = 0
        for region in self._in_order():
            assert region.start >= at, f"region at {region.start} overlaps the one before, which ends at {at}"
            assert 0 <= region.used <= region.size, f"{region.used} of {region.size} places used"
            at = region.end
        assert at <= self.capacity, f"a region ends at {at}, behind the pool of {self.capacity}"
