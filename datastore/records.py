"""Records of a dump, one bucket each.

A byte with the binary logarithm of the number of buckets, the bucket in four bytes, low one first, and the part that
merge.lua takes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from datastore import codec
from datastore.errors import StoreDataError
from datastore.kernels import FIELD_BYTES, MAX_ENTRY
from datastore.layout import Part
from datastore.limits import BUCKET_FIELDS

_HEAD = struct.Struct("<BI")


def pack_record(bucket: int, bucket_bits: int, held: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The record of a bucket that holds these fields and entries; what this schema did not write is left out."""
    sound = [field + bytes((len(entry),)) + entry for field, entry in held if _is_sound(field, entry)]
    return _HEAD.pack(bucket_bits, bucket) + b"".join(sound)


def unpack_record(record: bytes, bucket_bits: int) -> Part:
    """What the record's bucket is to merge.

    Raises:
        StoreDataError: it is no record, or one of a store with another number of buckets.
    """
    if len(record) < _HEAD.size:
        raise StoreDataError(f"a record of {len(record)} bytes is none; the shortest has {_HEAD.size}")
    bits, bucket = _HEAD.unpack_from(record)
    if bits != bucket_bits:
        raise StoreDataError(
            f"the records are of a store with 2^{bits} buckets, this one has 2^{bucket_bits}; open it with"
            f" {BUCKET_FIELDS << bits} contexts at most"
        )
    data = record[_HEAD.size :]
    entries = list(codec.split_part(data))
    if bucket >> bits or len(entries) > BUCKET_FIELDS or not all(_is_sound(*entry) for entry in entries):
        raise StoreDataError(f"the record of bucket {bucket} does not hold entries of this schema")
    return Part(bucket, data, len(entries))


def _is_sound(field: bytes, entry: bytes) -> bool:
    return len(field) == FIELD_BYTES and len(entry) <= MAX_ENTRY and bool(codec.unpack(entry))
