"""A namespace as one file, to be shipped and merged elsewhere.

Layout: a line of magic, a line of JSON (the header), then a zstd stream of records: each its length (uint32, little
endian) and its bytes, then the length 0xFFFFFFFF and the SHA-256 of the header line and of all records with their
lengths. The file is read to that sum before anything of it is merged.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from datastore.errors import InputError

_MAGIC = b"racer-serve n-grams 1\n"
_LENGTH = struct.Struct("<I")
_END = 0xFFFFFFFF
_MAX_RECORD = 64 << 20
_MAX_HEADER = 64 << 10


@dataclass(frozen=True)
class Header:
    """What a file holds: its records' schema, its tokenizer's fingerprint, the namespace it came from."""

    schema: int
    fingerprint: str
    namespace: str


def write_archive(path: Path, header: Header, records: Iterable[bytes]) -> int:
    """Write ``records`` to ``path``, which is there once it is whole; returns their number.

    Raises:
        InputError: the file cannot be written.
    """
    import pyarrow

    line = json.dumps(asdict(header)).encode() + b"\n"
    digest, count = hashlib.sha256(line), 0
    with _written_whole(path) as file:
        file.write(_MAGIC + line)
        with pyarrow.CompressedOutputStream(pyarrow.PythonFile(_KeptOpen(file), "w"), "zstd") as stream:
            for record in records:
                packed = _LENGTH.pack(len(record)) + record
                digest.update(packed)
                stream.write(packed)
                count += 1
            stream.write(_LENGTH.pack(_END) + digest.digest())
    return count


class Archive:
    """A file written by :func:`write_archive`.

    ``header`` says what is in it; iterating gives the records.

    Raises:
        InputError: there is no such file, it is none of ours, or it is not whole.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._reading() as (file, _):
            self.header = self._header(file)

    def _header(self, file: Any) -> Header:
        try:
            return Header(**json.loads(self._header_line(file)))
        except (ValueError, TypeError):
            raise self._broken("its header is damaged") from None

    def _header_line(self, file: Any) -> bytes:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise InputError(f"{self._path}: no file of n-grams; name one that 'python -m datastore export' wrote")
        return bytes(file.readline(_MAX_HEADER))

    def check(self) -> int:
        """Read the whole file and compare its sum; returns the number of records.

        Raises:
            InputError: it is damaged, or its end is missing.
        """
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[bytes]:
        import pyarrow

        with self._reading() as (file, stack):
            digest = hashlib.sha256(self._header_line(file))
            stream = stack.enter_context(
                pyarrow.CompressedInputStream(pyarrow.PythonFile(_KeptOpen(file), "r"), "zstd")
            )
            while (length := _LENGTH.unpack(self._read(stream, _LENGTH.size))[0]) != _END:
                if length > _MAX_RECORD:
                    raise self._broken("a record is damaged")
                record = self._read(stream, length)
                digest.update(_LENGTH.pack(length) + record)
                yield record
            if self._read(stream, digest.digest_size) != digest.digest():
                raise self._broken("its checksum does not match")

    def _read(self, stream: Any, size: int) -> bytes:
        data = bytes(stream.read(size))
        if len(data) < size:
            raise self._broken("its end is missing")
        return data

    @contextmanager
    def _reading(self) -> Iterator[tuple[Any, ExitStack]]:
        try:
            with ExitStack() as stack:
                yield stack.enter_context(self._path.open("rb")), stack
        except OSError as error:  # of the disk, or of the decompressor
            raise InputError(
                f"{self._path}: cannot be read ({error.strerror or error}); correct the path, or export it again"
            ) from error

    def _broken(self, how: str) -> InputError:
        return InputError(f"{self._path}: not a whole file ({how}); copy it anew, or export it again")


class _KeptOpen:
    """A file that the stream over it does not close."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def close(self) -> None:
        self.closed = True


@contextmanager
def _written_whole(path: Path) -> Iterator[Any]:
    """A file to write that takes the place of ``path`` once the block has ended well."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=path.suffix + ".tmp", delete=False) as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                os.replace(file.name, path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); free space, or name another file") from error
