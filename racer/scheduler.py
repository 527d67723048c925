"""Which sequences take part in the next step, and with how many tokens."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice

from racer.cache.pool import KVPool
from racer.cache.regions import Regions
from racer.sequence import Sequence

HEADROOM = 128
"""Places reserved for answers beyond what is needed now, so that regions seldom have to grow."""


@dataclass(frozen=True)
class Slot:
    """One sequence's part of a step.

    ``chain`` pending tokens, and behind the last of them a draft tree of at most ``budget`` nodes (1: the root only).
    """

    sequence: Sequence
    chain: int
    budget: int


class Scheduler:
    """Waiting and running sequences, and the cache places between them.

    First come, first served: nobody overtakes the head of the queue, and when places run out the youngest running
    sequence gives its own back and waits again (its text stays; its keys and values are computed anew). So the oldest
    always goes on, and none starves.
    """

    def __init__(self, pool: KVPool, max_running: int, prefill_chunk: int) -> None:
        self.pool = pool
        self.regions = Regions(pool.places)
        self.max_running = max_running
        self.prefill_chunk = prefill_chunk
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; it must fit the pool on its own."""
        self.waiting.append(sequence)

    def schedule(self, budget_of: dict[Sequence, int]) -> list[Slot]:
        """Slots of the next step; ``budget_of`` holds the wanted draft budget of each running, decoding sequence."""
        slots: list[Slot] = []
        chunk = self.prefill_chunk
        for sequence in list(self.running):
            if sequence not in self.running:  # preempted by an older one of this loop
                continue
            if sequence.decoding:
                budget = self._make_room(sequence, budget_of.get(sequence, 1))
                if budget:
                    slots.append(Slot(sequence, 1, budget))
            elif chunk:
                chain = min(chunk, sequence.pending)
                slots.append(Slot(sequence, chain, 1))
                chunk -= chain
        while chunk and (admitted := self._admit()) is not None:
            chain = min(chunk, admitted.pending)
            slots.append(Slot(admitted, chain, 1))
            chunk -= chain
        return [slot for slot in slots if slot.sequence in self.running]

    def prefill_ahead(self) -> tuple[int, int]:
        """Prompt tokens that the next step will process, and of how many sequences, if places suffice."""
        room = max(0, self.max_running - len(self.running))
        pending = [sequence.pending for sequence in self.running if not sequence.decoding]
        pending += [sequence.pending for sequence in islice(self.waiting, room)]
        tokens, sequences = 0, 0
        for chain in pending:
            if tokens < self.prefill_chunk:
                tokens += min(chain, self.prefill_chunk - tokens)
                sequences += 1
        return tokens, sequences

    def _admit(self) -> Sequence | None:
        if not self.waiting or len(self.running) >= self.max_running:
            return None
        sequence = self.waiting[0]
        if not self._resize(sequence, len(sequence.tokens) + min(HEADROOM, sequence.remaining)):
            return None
        self.running.append(self.waiting.popleft())
        return sequence

    def _make_room(self, sequence: Sequence, budget: int) -> int:
        """Places for up to ``budget`` nodes behind the cached ones; fewer, at least 1, where places are scarce.

        0 if the sequence itself had to give way.
        """
        cached = sequence.cached
        region = self.regions[sequence]
        if cached + budget <= region.size:
            return budget
        for size in (cached + budget + min(HEADROOM, sequence.remaining), cached + budget):
            if self._resize(sequence, size):
                return budget
        while cached + 1 > self.regions[sequence].size:
            if self._resize(sequence, cached + 1):
                break
            if self._preempt_youngest() is sequence:
                return 0
        return self.regions[sequence].size - cached

    def _resize(self, sequence: Sequence, size: int) -> bool:
        moves = self.regions.resize(sequence, size)
        if moves is None:
            return False
        self.pool.move(moves)
        return True

    def _preempt_youngest(self) -> Sequence:
        youngest = self.running.pop()
        self.regions.release(youngest)
        youngest.cached = 0
        self.waiting.appendleft(youngest)
        self.preemptions += 1
        return youngest

    def advance(self, sequence: Sequence, tokens: int) -> None:
        """``tokens`` more of the sequence's tokens are verified and cached."""
        sequence.cached += tokens
        self.regions[sequence].used = sequence.cached

    def remove(self, sequence: Sequence) -> None:
        """Forget a finished or aborted sequence and free its places."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self.regions.release(sequence)

    def check_integrity(self) -> None:
        """Raise AssertionError unless regions and sequences agree."""
        self.regions.check_integrity()
        assert len(self.regions) == len(self.running), "a region without a running sequence, or the other way round"
        for sequence in self.running:
            region = self.regions[sequence]
            assert region.used == sequence.cached < len(sequence.tokens)
        for sequence in self.waiting:
            assert sequence.cached == 0 and sequence not in self.regions
