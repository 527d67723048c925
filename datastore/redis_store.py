"""The store in Redis or Valkey: a single server, behind Sentinel, or a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datastore import layout
from datastore.kernels import MAX_COUNT, MAX_ENTRY
from datastore.keys import SCHEMA, SHARDS, KeyNames, every_schema, namespace_of
from datastore.layout import Part
from datastore.levels import REACH
from datastore.limits import BUCKET_FIELDS, Limits
from datastore.packer import LookupPacker
from datastore.records import pack_record, unpack_record
from datastore.scripts import script
from datastore.store import Continuation, Ints, StoreStats
from datastore.topology import Pool, Topology
from datastore.wire import Call, Command, Wire

_COMMAND_COST = 160
_BUCKET_COST = 3
"""Entries of one merge, about, a bucket costing as much as three more: lookups wait while the server is at it."""

_SCAN = 512
_SAMPLE = 64
"""Keys whose memory is measured for an estimate."""


class RedisStore:
    """An :class:`datastore.store.NgramStore` that all processes share."""

    reach = REACH

    def __init__(self, topology: Topology, names: KeyNames, limits: Limits) -> None:
        self._names = names
        self._limits = limits
        self._wire = Wire(topology, limits.connections, limits.pool_wait_s)
        self._lookup = script("lookup.lua")
        self._packer = LookupPacker(names, self._lookup.digest)
        self._shard_keys = [names.bucket_key(shard << (names.bucket_bits - 4)) for shard in range(SHARDS)]
        self._merge = script("merge.lua")
        self._caps = (MAX_ENTRY, MAX_COUNT, BUCKET_FIELDS)

    def lookup(self, contexts: Sequence[Ints], deadline_s: float) -> list[list[Continuation]]:
        """See :class:`NgramStore`; one script call, or one a shard in a cluster, all in one round trip."""
        if not contexts:
            return []
        places = layout.places(contexts, self._names.bucket_bits)
        packer = self._packer
        entries: list[bytes | None] = [None] * len(places.buckets)
        calls = [
            Call(self._shard_keys[shard], packer.packed(places.buckets[rows], places.fields[rows]), rows)
            for shard, rows in self._groups_of(packer.shards(places.buckets))
        ]
        for call, reply in zip(calls, self._wire.ask(calls, self._lookup, deadline_s), strict=True):
            for i, entry in zip(call.rows.tolist(), reply, strict=True):
                entries[i] = entry
        return layout.longest(places, entries)

    def _groups_of(self, shards: NDArray[np.int64]) -> list[tuple[int, NDArray[np.int64]]]:
        """A shard, and the rows that may be asked together with it."""
        if not self._wire.topology.by_slot:
            return [(0, np.arange(len(shards)))]
        return [(shard, np.flatnonzero(shards == shard)) for shard in np.unique(shards).tolist()]

    def learn(self, runs: Sequence[Ints], weight: int = 1) -> None:
        """See :class:`NgramStore`; in many small commands, so that lookups of others pass between them."""
        for batch in layout.parts(runs, weight, self._names.bucket_bits):
            self._write(batch)
        count = sum(map(len, runs))
        meta = self._names.meta
        self._wire.call(meta, (b"HINCRBY", meta, b"tokens", count), self._limits.write_s)

    def _write(self, parts: Sequence[Part]) -> None:
        self._wire.stream(map(self._merge_of, self._groups(parts)), self._merge, self._limits.write_s)

    def _merge_of(self, group: Sequence[Part]) -> tuple[bytes, Command]:
        keys = [self._names.bucket_key(part.bucket) for part in group]
        return keys[0], (b"EVALSHA", self._merge.digest, len(keys), *keys, *(part.data for part in group), *self._caps)

    def _groups(self, parts: Sequence[Part]) -> Iterator[list[Part]]:
        """Neighbours of one shard, about as many as one command should hold."""
        group: list[Part] = []
        cost = shard = 0
        for part in parts:
            if group and (cost >= _COMMAND_COST or self._names.shard_of(part.bucket) != shard):
                yield group
                group, cost = [], 0
            group.append(part)
            cost += part.entries + _BUCKET_COST
            shard = self._names.shard_of(part.bucket)
        if group:
            yield group

    def read_marks(self) -> dict[str, str]:
        """See :class:`NgramStore`."""
        files = self._names.files
        flat = self._wire.call(files, (b"HGETALL", files), self._limits.write_s)
        return {name.decode(): mark.decode() for name, mark in zip(flat[::2], flat[1::2], strict=True)}

    def write_marks(self, marks: Mapping[str, str]) -> None:
        """See :class:`NgramStore`."""
        files, flat = self._names.files, [text for item in marks.items() for text in item]
        self._wire.call(files, (b"HSET", files, *flat), self._limits.write_s)

    def stats(self) -> StoreStats:
        """See :class:`NgramStore`; memory is that of a sample of the keys times their number."""
        contexts = keys = measured = sampled = 0
        for pool, found in self._scan(self._names.pattern):
            keys += len(found)
            contexts += sum(self._ask(pool, [(b"HLEN", key) for key in found]))
            sample = found[: max(0, _SAMPLE - sampled)]
            measured += sum(size or 0 for size in self._ask(pool, [(b"MEMORY", b"USAGE", key) for key in sample]))
            sampled += len(sample)
        meta = self._names.meta
        tokens = self._wire.call(meta, (b"HGET", meta, b"tokens"), self._limits.write_s)
        return StoreStats(
            namespace=self._names.namespace,
            fingerprint=self._names.fingerprint,
            schema=SCHEMA,
            buckets=1 << self._names.bucket_bits,
            contexts=contexts,
            memory_bytes=round(measured / sampled * keys) if sampled else 0,
            tokens_learned=int(tokens or 0),
            evicted_keys=self._evicted(),
        )

    def _evicted(self) -> int:
        total = 0
        for pool in self._wire.pools():
            (reply,) = self._ask(pool, [(b"INFO", b"stats")])
            lines = dict(line.split(b":", 1) for line in reply.splitlines() if b":" in line)
            total += int(lines.get(b"evicted_keys", 0))
        return total

    def purge(self) -> int:
        """See :class:`NgramStore`; SCAN and UNLINK, a few hundred keys at a time."""
        removed = 0
        for pool, found in self._scan(every_schema(self._names.namespace)):
            ours = [key for key in found if namespace_of(key) == self._names.namespace]
            removed += sum(self._ask(pool, [(b"UNLINK", key) for key in ours]))
        return removed

    def dump(self) -> Iterator[bytes]:
        """See :class:`NgramStore`."""
        for pool, found in self._scan(self._names.pattern):
            for key, flat in zip(found, self._ask(pool, [(b"HGETALL", key) for key in found]), strict=True):
                bucket = int(key.rsplit(b":", 1)[1].split(b"/")[0], 16)
                yield pack_record(bucket, self._names.bucket_bits, zip(flat[::2], flat[1::2], strict=True))

    def load(self, records: Iterable[bytes]) -> None:
        """See :class:`NgramStore`."""
        for record in records:
            part = unpack_record(record, self._names.bucket_bits)
            if part.entries:
                self._write([part])

    def _scan(self, pattern: str) -> Iterator[tuple[Pool, list[bytes]]]:
        """Keys that match, server by server, page by page; one may come twice."""
        for pool in self._wire.pools():
            cursor = b"0"
            while True:
                ((cursor, found),) = self._ask(pool, [(b"SCAN", cursor, b"MATCH", pattern, b"COUNT", _SCAN)])
                if found:
                    yield pool, found
                if cursor == b"0":
                    break

    def _ask(self, pool: Pool, commands: Sequence[Command]) -> list[Any]:
        return self._wire.on(pool, commands, self._limits.write_s)

    def close(self) -> None:
        """See :class:`NgramStore`."""
        self._wire.close()
