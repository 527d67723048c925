"""A store in this process: for tests, and where one process has no server to share with."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence

from datastore import codec, layout
from datastore.keys import SCHEMA, checked
from datastore.levels import REACH
from datastore.limits import BUCKET_FIELDS, Limits
from datastore.records import pack_record, unpack_record
from datastore.store import Continuation, Ints, StoreStats

_FIELD_OVERHEAD = 150
"""Bytes that CPython spends on a field and an entry beyond their own, roughly."""


class MemoryStore:
    """An :class:`datastore.store.NgramStore` of dictionaries, with the layout and the rules of the one in Redis."""

    reach = REACH

    def __init__(self, namespace: str, fingerprint: str, limits: Limits | None = None) -> None:
        self._bits = (limits or Limits()).bucket_bits
        self._names = checked(namespace, fingerprint, self._bits)
        self._buckets: dict[int, dict[bytes, bytes]] = {}
        self._marks: dict[str, str] = {}
        self._tokens = 0
        self._lock = threading.Lock()

    def lookup(self, contexts: Sequence[Ints], deadline_s: float) -> list[list[Continuation]]:
        """See :class:`NgramStore`; never late."""
        places = layout.places(contexts, self._bits)
        with self._lock:
            entries = [
                self._buckets.get(bucket, {}).get(field.tobytes())
                for bucket, field in zip(places.buckets.tolist(), places.fields, strict=True)
            ]
        return layout.longest(places, entries)

    def learn(self, runs: Sequence[Ints], weight: int = 1) -> None:
        """See :class:`NgramStore`."""
        for batch in layout.parts(runs, weight, self._bits):
            for part in batch:
                self._merge(part.bucket, part.data)
        with self._lock:
            self._tokens += sum(map(len, runs))

    def _merge(self, bucket: int, data: bytes) -> None:
        with self._lock:
            held = self._buckets.setdefault(bucket, {})
            entries = list(codec.split_part(data))
            for start in range(0, len(entries), BUCKET_FIELDS // 4):
                _write(held, entries[start : start + BUCKET_FIELDS // 4])

    def read_marks(self) -> dict[str, str]:
        """See :class:`NgramStore`."""
        return dict(self._marks)

    def write_marks(self, marks: Mapping[str, str]) -> None:
        """See :class:`NgramStore`."""
        self._marks.update(marks)

    def stats(self) -> StoreStats:
        """See :class:`NgramStore`; no memory cap, so nothing is ever evicted."""
        with self._lock:
            contexts = sum(map(len, self._buckets.values()))
            size = sum(len(field) + len(entry) for held in self._buckets.values() for field, entry in held.items())
        return StoreStats(
            namespace=self._names.namespace,
            fingerprint=self._names.fingerprint,
            schema=SCHEMA,
            buckets=1 << self._bits,
            contexts=contexts,
            memory_bytes=size + contexts * _FIELD_OVERHEAD,
            tokens_learned=self._tokens,
            evicted_keys=0,
        )

    def purge(self) -> int:
        """See :class:`NgramStore`."""
        with self._lock:
            removed = len(self._buckets)
            self._buckets.clear()
            self._marks.clear()
            self._tokens = 0
        return removed

    def dump(self) -> Iterator[bytes]:
        """See :class:`NgramStore`."""
        for bucket in sorted(self._buckets):
            with self._lock:
                held = list(self._buckets.get(bucket, {}).items())
            yield pack_record(bucket, self._bits, held)

    def load(self, records: Iterable[bytes]) -> None:
        """See :class:`NgramStore`."""
        for record in records:
            part = unpack_record(record, self._bits)
            self._merge(part.bucket, part.data)

    def close(self) -> None:
        """See :class:`NgramStore`; what was learned is gone."""
        self._buckets.clear()


def _write(held: dict[bytes, bytes], entries: Sequence[tuple[bytes, bytes]]) -> None:
    """Merge some entries into a bucket, by the rule of merge.lua."""
    merged = {field: codec.merge(held[field], entry) if field in held else entry for field, entry in entries}
    if len(held) + len(merged.keys() - held.keys()) > BUCKET_FIELDS:
        _shrink(held)
    held.update(merged)


def _shrink(held: dict[bytes, bytes]) -> None:
    excess = len(held) - BUCKET_FIELDS * 3 // 4
    drop: list[bytes] = []
    spared: list[bytes] = []
    for field, entry in held.items():
        if len(drop) == excess:
            break
        (spared if entry and entry[0] > 1 else drop).append(field)
    short = max(0, excess - len(drop))
    for field in [*drop, *spared[:short]]:
        del held[field]
    for field in spared[short:]:
        entry = held.pop(field)
        held[field] = bytes((entry[0] // 2,)) + entry[1:]
