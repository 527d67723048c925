"""Names of the keys in Redis.

    ng1:{<fingerprint>:<namespace>:<shard>}:<bucket>   hash   context -> its continuations (codec.py)
    ng1:{<fingerprint>:<namespace>}:meta               hash   counters of the namespace
    ng1:{<fingerprint>:<namespace>}:files              hash   identity of a file -> how far it was learned (ingest.py)

1 is the schema's version, <fingerprint> the tokenizer's, <shard> one hexadecimal digit, <bucket> the bucket's number in
as many hexadecimal digits as the highest needs, "/", and how many buckets there are, in hexadecimal. The part in braces
is all that Redis Cluster looks at: a namespace lies on 16 slots, and a script may touch any buckets of one shard.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from datastore.errors import StoreConfigError

SCHEMA = 1
SHARDS = 16
NAMESPACE = re.compile(r"[A-Za-z0-9._-]{1,64}")
FINGERPRINT = re.compile(r"[0-9a-f]{4,64}")

_KEY = re.compile(rb"ng\d+:\{[0-9a-f]+:([A-Za-z0-9._-]+)(?::[0-9a-f])?\}:.+")


class KeyNames(NamedTuple):
    """The keys of one namespace of one tokenizer, spread over ``1 << bucket_bits`` buckets."""

    namespace: str
    fingerprint: str
    bucket_bits: int

    @property
    def meta(self) -> bytes:
        """Key of the namespace's counters."""
        return f"ng{SCHEMA}:{{{self.fingerprint}:{self.namespace}}}:meta".encode()

    @property
    def files(self) -> bytes:
        """Key of the marks of files."""
        return f"ng{SCHEMA}:{{{self.fingerprint}:{self.namespace}}}:files".encode()

    @property
    def pattern(self) -> str:
        """What SCAN matches to walk the buckets of this namespace and tokenizer, of this many buckets."""
        return f"ng{SCHEMA}:{{{self.fingerprint}:{self.namespace}:?}}:*/{1 << self.bucket_bits:x}"

    @property
    def digits(self) -> int:
        """Hexadecimal digits of a bucket's number."""
        return (self.bucket_bits + 3) // 4

    def shard_of(self, bucket: int) -> int:
        """Neighbouring buckets share a shard, so that what is sorted by bucket is sorted by shard too."""
        return bucket >> (self.bucket_bits - 4)

    def bucket_key(self, bucket: int) -> bytes:
        """Key of one bucket; all are of one length."""
        tag = f"{self.fingerprint}:{self.namespace}:{self.shard_of(bucket):x}"
        return f"ng{SCHEMA}:{{{tag}}}:{bucket:0{self.digits}x}/{1 << self.bucket_bits:x}".encode()


def check_namespace(namespace: str) -> None:
    """Raises StoreConfigError: ``namespace`` is no name, and might reach into another."""
    if not NAMESPACE.fullmatch(namespace):
        raise StoreConfigError(
            f"namespace {namespace!r} is not a name; use 1 to 64 letters, digits, dots, dashes or underscores"
        )


def checked(namespace: str, fingerprint: str, bucket_bits: int) -> KeyNames:
    """The names, if they can be told apart from all others.

    Raises:
        StoreConfigError: a part is malformed.
    """
    check_namespace(namespace)
    if not FINGERPRINT.fullmatch(fingerprint):
        raise StoreConfigError(
            f"tokenizer fingerprint {fingerprint!r} is not one; pass 4 to 64 hexadecimal digits in lower case"
        )
    return KeyNames(namespace, fingerprint, bucket_bits)


def every_schema(namespace: str) -> str:
    """What SCAN matches to find the keys of ``namespace``, of every schema and tokenizer, and maybe a few others."""
    return f"ng*:{{*:{namespace}*}}:*"


def namespace_of(key: bytes) -> str | None:
    """The namespace that a key belongs to; None if it is not one of ours."""
    match = _KEY.fullmatch(key)
    return match[1].decode() if match else None
