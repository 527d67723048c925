"""What there is to do: the inputs' lines, counted, checked for double ids, in chunks that can be read alone."""

from __future__ import annotations

import contextlib
import hashlib
import io
import sqlite3
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deployments.batch.locations import Location
from deployments.batch.requests import LineError, Reading
from deployments.batch.tables import write_lines
from deployments.errors import ConfigError

_TABLES = (".csv", ".tsv", ".parquet")
_TEXTS = (".txt", ".text")
_PACKED = (".gz", ".bz2", ".zst", ".xz", ".zip")
_BOM = b"\xef\xbb\xbf"
_BUFFER = 1 << 20


@dataclass(frozen=True)
class InputFile:
    """A file of lines. ``source``: what the user named, where the lines were made from a table."""

    place: Location
    source: str
    reading: Reading


@dataclass(frozen=True)
class Chunk:
    """Lines that stand together in one file.

    file           index of the file
    first, count   requests: index of the first one over all inputs, and how many
    line           number of the first line in its file, from 1
    offset, bytes  where the lines stand
    twice          requests whose custom_id an earlier line has, with that line's name
    """

    file: int
    first: int
    count: int
    line: int
    offset: int
    bytes: int
    twice: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Plan:
    """All requests of a run. ``fingerprint``: of the inputs' contents; ``empty``: inputs that hold nothing."""

    files: tuple[InputFile, ...]
    chunks: tuple[Chunk, ...]
    requests: int
    fingerprint: str
    empty: tuple[str, ...]


def make_plan(places: list[Location], reading: Reading, lines: int, folder: Path) -> Plan:
    """Read all inputs once, a line at a time. ``lines``: of a chunk; ``folder``: for the lines of tables.

    Raises:
        ConfigError: a file cannot be read, or there is no line in any.
    """
    digest, chunks, empty, requests = hashlib.sha256(), list[Chunk](), list[str](), 0
    names = [place.name for place in places]
    files = []
    with SeenIds() as seen:
        for index, place in enumerate(places):
            name = place.name if names.count(place.name) == 1 else place.text
            file = _input_file(place, replace(reading, name=name), folder / f"{index}.jsonl")
            files.append(file)
            before = requests
            try:
                for chunk in _chunks(file, index, requests, lines, digest, seen):
                    chunks.append(chunk)
                    requests += chunk.count
            except OSError as error:
                raise ConfigError(f"--input {place.text}: cannot be read ({error})") from None
            if requests == before:
                empty.append(place.text)
    if not requests:
        raise ConfigError(f"--input {', '.join(empty)}: the file is empty; give it one request a line")
    return Plan(tuple(files), tuple(chunks), requests, digest.hexdigest(), tuple(empty))


def lines_of(chunk: Chunk, file: InputFile) -> list[tuple[int, int, bytes]]:
    """Index over all inputs, line number and content of each request of a chunk. Raises OSError."""
    with file.place.filesystem.open_input_file(file.place.path) as stream:
        stream.seek(chunk.offset)
        data = bytes(stream.read(chunk.bytes))
    return list(numbered(data, chunk))


def numbered(data: bytes, chunk: Chunk) -> Iterator[tuple[int, int, bytes]]:
    """The requests in a chunk's bytes; blank lines are none."""
    index = chunk.first
    for line, raw in enumerate(data.split(b"\n"), start=chunk.line):
        if raw.strip():
            yield index, line, raw
            index += 1


def _input_file(place: Location, reading: Reading, spool: Path) -> InputFile:
    lowered = place.name.lower()
    if lowered.endswith(_PACKED):
        raise ConfigError(f"--input {place.text}: is compressed; decompress it first")
    if lowered.endswith(_TABLES):
        with spool.open("wb") as target:
            write_lines(place, reading.column, target)
        return InputFile(Location.of(str(spool)), place.text, replace(reading, column=None))
    return InputFile(place, place.text, replace(reading, form="text" if lowered.endswith(_TEXTS) else "json"))


def _chunks(file: InputFile, index: int, first: int, lines: int, digest: Any, seen: SeenIds) -> Iterator[Chunk]:
    """The chunks of a file; ``digest`` takes in its content, ``seen`` its ids."""
    with file.place.filesystem.open_input_stream(file.place.path) as raw_stream:
        stream = io.BufferedReader(raw_stream, _BUFFER)
        start, offset, first_line = 0, 0, 1
        count, twice = 0, list[tuple[int, str]]()
        for line, raw in enumerate(stream, start=1):
            digest.update(raw)
            if line == 1 and raw.startswith(_BOM):
                raw, start, offset = raw[len(_BOM) :], len(_BOM), len(_BOM)
            offset += len(raw)
            if raw.strip():
                earlier = seen.add(custom_id_of(file.reading, raw, line), f"{file.source}:{line}")
                if earlier is not None:
                    twice.append((first + count, earlier))
                count += 1
            if count == lines:
                yield Chunk(index, first, count, first_line, start, offset - start, tuple(twice))
                first, start, first_line, count, twice = first + count, offset, line + 1, 0, []
        if count:
            yield Chunk(index, first, count, first_line, start, offset - start, tuple(twice))


def custom_id_of(reading: Reading, raw: bytes, line: int) -> str | None:
    """The id of a line, also of one that is no request, as far as it can be read."""
    try:
        return reading.read(raw, line).custom_id
    except LineError as error:
        return error.custom_id


class SeenIds(contextlib.AbstractContextManager["SeenIds"]):
    """The ids seen so far, on disk: they may be many."""

    def __init__(self) -> None:
        self._file = tempfile.NamedTemporaryFile(prefix="racer-ids-")  # noqa: SIM115  # closed by __exit__
        self._ids = sqlite3.connect(self._file.name, isolation_level=None)
        for setting in ("journal_mode=OFF", "synchronous=OFF", "locking_mode=EXCLUSIVE", "cache_size=-32768"):
            self._ids.execute(f"PRAGMA {setting}")
        self._ids.execute("CREATE TABLE seen (id TEXT PRIMARY KEY, place TEXT) WITHOUT ROWID")
        self._ids.execute("BEGIN")

    def __exit__(self, *error: object) -> None:
        self._ids.close()
        self._file.close()

    def add(self, custom_id: str | None, where: str) -> str | None:
        """Note an id; where it was seen before, if it was."""
        if custom_id is None:
            return None
        if self._ids.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", (custom_id, where)).rowcount:
            return None
        return str(self._ids.execute("SELECT place FROM seen WHERE id = ?", (custom_id,)).fetchone()[0])
