"""What stands behind a context: its entry, and the rule by which two entries become one.

An entry is at most ``MAX_ENTRY`` bytes of records, the most frequent first. A record is a count (one byte, 1 to
``MAX_COUNT``), the length of what follows in bytes (one byte), and tokens, each in groups of seven bits, the low group
first, the high bit set on all but its last. ``merge`` is the rule that ``merge.lua`` carries out in the server.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from datastore.errors import StoreDataError
from datastore.kernels import FIELD_BYTES, MAX_COUNT, MAX_ENTRY


class Record(NamedTuple):
    """Some tokens, encoded, and how often they followed."""

    seen: int
    tokens: bytes


def encode(tokens: Sequence[int]) -> bytes:
    """The bytes of ``tokens``, each 0 or more."""
    out = bytearray()
    for token in tokens:
        while token >= 128:
            out.append(token & 127 | 128)
            token >>= 7
        out.append(token)
    return bytes(out)


def decode(data: bytes) -> tuple[int, ...]:
    """The tokens that :func:`encode` wrote; a broken one at the end is left out, as is anything beyond 31 bits."""
    tokens: list[int] = []
    value = shift = 0
    for byte in data:
        value |= (byte & 127) << shift
        if byte < 128:
            if value >> 31:
                break
            tokens.append(value)
            value = shift = 0
        else:
            shift += 7
    return tuple(tokens)


def unpack(entry: bytes) -> list[Record]:
    """The records of an entry; none of one that this schema did not write."""
    records = []
    at = 0
    while at + 2 < len(entry):
        seen, end = entry[at], at + 2 + entry[at + 1]
        if seen == 0 or end == at + 2 or end > len(entry):
            return []
        records.append(Record(seen, entry[at + 2 : end]))
        at = end
    return records if at == len(entry) else []


def pack(records: Sequence[Record]) -> bytes:
    """The entry of ``records``."""
    return b"".join(bytes((record.seen, len(record.tokens))) + record.tokens for record in records)


@dataclass(slots=True)
class _Held:
    seen: int
    tokens: bytes
    fresh: bool


def merge(old: bytes, new: bytes) -> bytes:
    """The entry that holds what both held, or as much of it as fits.

    A record that another begins with counts as that one. Where not all fits, each record that ``new`` does not name
    loses one; those that come to nothing go, and then, from the most frequent down, newest of equals first, what fits
    stays. The most frequent record of ``new`` always does.
    """
    held = [_Held(record.seen, record.tokens, False) for record in unpack(old)]
    for record in unpack(new):
        _add(held, record)
    if sum(2 + len(one.tokens) for one in held) > MAX_ENTRY:
        for one in held:
            one.seen -= not one.fresh
    held.sort(key=lambda one: (-one.seen, not one.fresh))
    return pack([Record(one.seen, one.tokens) for one in _fitting(held)])


def _add(held: list[_Held], record: Record) -> None:
    for one in held:
        shared = min(len(one.tokens), len(record.tokens))
        if one.tokens[:shared] == record.tokens[:shared]:
            one.seen = min(one.seen + record.seen, MAX_COUNT)
            one.tokens = max(one.tokens, record.tokens, key=len)
            one.fresh = True
            return
    held.append(_Held(min(record.seen, MAX_COUNT), record.tokens, True))


def _fitting(held: list[_Held]) -> Iterator[_Held]:
    certain = next((one for one in held if one.fresh), None)
    room = MAX_ENTRY - (2 + len(certain.tokens) if certain else 0)
    for one in held:
        size = 2 + len(one.tokens)
        if one is certain:
            yield one
        elif one.seen > 0 and size <= room:
            room -= size
            yield one


def split_part(part: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Field and entry, one after another, of what a bucket is sent or dumped as.

    Raises:
        StoreDataError: it ends within an entry.
    """
    at = 0
    while at < len(part):
        start = at + FIELD_BYTES + 1
        end = start + part[start - 1] if start <= len(part) else len(part) + 1
        if end > len(part):
            raise StoreDataError(f"a bucket's part of {len(part)} bytes ends within an entry at byte {at}")
        yield part[at : start - 1], part[start:end]
        at = end
