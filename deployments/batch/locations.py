"""Where files lie: local paths, and what pyarrow or fsspec reach by a URI."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs as pafs

from deployments.errors import ConfigError

_PYARROWS = {"file", "s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss"}
"""Schemes that pyarrow serves: a second way to such a place would hide what is wrong with the URI, or pass it over."""


@dataclass(frozen=True)
class Location:
    """A path in a file system. Crosses processes.

    text   as the user wrote it, or as a glob found it
    local  only this machine may have it
    """

    filesystem: Any
    path: str
    text: str
    local: bool

    @classmethod
    def of(cls, text: str) -> Location:
        """The place that ``text`` names: a path, or a URI such as ``s3://bucket/key``.

        Raises:
            ConfigError: neither pyarrow nor an installed package of fsspec's knows the scheme, or it cannot be reached.
        """
        if "://" not in text:
            path = Path(text).expanduser().absolute()
            return cls(pafs.LocalFileSystem(), str(path), text, True)
        try:
            filesystem, path_text = pafs.FileSystem.from_uri(text)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            if isinstance(error, pa.ArrowInvalid) and text.partition("://")[0] in _PYARROWS:
                raise ConfigError(f"{text}: is no URI of its file system ({short(error)}); correct it") from None
            filesystem, path_text = _through_fsspec(text, error)
        except OSError as error:
            raise ConfigError(f"{text}: its file system cannot be reached ({short(error)})") from None
        return cls(filesystem, path_text, text, isinstance(filesystem, pafs.LocalFileSystem))

    @property
    def name(self) -> str:
        """Its last part."""
        return self.path.rstrip("/").rpartition("/")[2]

    def with_suffix(self, suffix: str) -> Location:
        """A place beside this one: ``suffix`` in the place of the name's last suffix."""
        return self._derived(lambda path: _stem(path) + suffix)

    def beside(self, suffix: str) -> Location:
        """A place beside this one: its name with ``suffix`` behind it."""
        return self._derived(lambda path: path + suffix)

    def child(self, name: str) -> Location:
        """A place below this one."""
        return self._derived(lambda path: f"{path.rstrip('/')}/{name}")

    def _derived(self, change: Callable[[str], str]) -> Location:
        text, query, settings = self.text.partition("?") if "://" in self.text else (self.text, "", "")
        return Location(self.filesystem, change(self.path), change(text) + query + settings, self.local)

    def kind(self) -> pafs.FileType:
        """What is there. Raises OSError where that cannot be told."""
        return self.filesystem.get_file_info(self.path).type

    def exists(self) -> bool:
        """A file or folder is there."""
        return bool(self.kind() != pafs.FileType.NotFound)

    def write(self, data: bytes) -> None:
        """Make a file of ``data``; no reader ever sees half of it."""
        with self.writing() as stream:
            stream.write(data)

    def writing(self) -> _Whole:
        """A stream to a file that is there only once the stream has closed without an error."""
        return _Whole(self)

    def read(self) -> bytes:
        """The file's content."""
        with self.filesystem.open_input_stream(self.path) as stream:
            return bytes(stream.read())

    def remove(self) -> None:
        """Delete the file, if there is one."""
        if self.exists():
            self.filesystem.delete_file(self.path)


class _Whole:
    """Writes beside the place and renames where files are local; object stores show a file only when it is closed.

    What is there afterwards is on the disk, too: what it was made of may be deleted.
    """

    def __init__(self, place: Location) -> None:
        self._place = place
        self._path = place.path + ".tmp" if place.local else place.path
        self._stream = place.filesystem.open_output_stream(self._path)

    def __enter__(self) -> Any:
        return self._stream

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is None:
            self._stream.close()
            if self._place.local:
                sync(Path(self._path))
                self._place.filesystem.move(self._path, self._place.path)
                sync(Path(self._place.path).parent)
        elif self._place.local:
            self._stream.close()
            self._place.filesystem.delete_file(self._path)


def expand(texts: list[str]) -> list[Location]:
    """The files that paths, URIs and globs name, in order, each once.

    Raises:
        ConfigError: one of them names no file.
    """
    found: dict[str, Location] = {}
    for text in texts:
        places = _matches(text) if _is_glob(text) else [Location.of(text)]
        if not places:
            raise ConfigError(f"--input {text}: no file matches; correct the pattern")
        for place in places:
            _check_file(place)
            found.setdefault(f"{type(place.filesystem).__name__}:{place.path}", place)
    return list(found.values())


def _check_file(place: Location) -> None:
    try:
        kind = place.kind()
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"--input {place.text}: cannot be reached ({short(error)})") from None
    if kind == pafs.FileType.NotFound:
        raise ConfigError(f"--input {place.text}: there is no such file; correct the path")
    if kind == pafs.FileType.Directory:
        raise ConfigError(f"--input {place.text}: is a folder; name its files, for example {place.text}/*.jsonl")


def _is_glob(text: str) -> bool:
    characters = "*[" if "://" in text else "*?["  # behind the ? of a URI come settings of its file system
    return any(character in text.partition("?")[0] if "://" in text else character in text for character in characters)


def _matches(text: str) -> list[Location]:
    if "://" not in text:
        return [Location.of(path) for path in sorted(glob.glob(text, recursive=True)) if Path(path).is_file()]
    pattern, query, settings = text.partition("?")
    fixed = pattern[: min(pattern.find(c) for c in "*[" if c in pattern)].rpartition("/")[0]
    base = Location.of(fixed + query + settings)
    wanted = base.path.rstrip("/") + pattern[len(fixed) :]
    try:
        entries = base.filesystem.get_file_info(pafs.FileSelector(base.path, recursive=True, allow_not_found=True))
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"--input {text}: cannot be listed ({short(error)})") from None
    names = sorted(
        entry.path for entry in entries if entry.type == pafs.FileType.File and fnmatch.fnmatchcase(entry.path, wanted)
    )
    return [base.child(name[len(base.path.rstrip("/")) + 1 :]) for name in names]


def _through_fsspec(text: str, first: Exception) -> tuple[Any, str]:
    import fsspec

    try:
        filesystem, path = fsspec.core.url_to_fs(text)
    except (ImportError, ValueError, OSError) as error:
        raise ConfigError(f"{text}: no file system can be opened for it ({short(first)}; {short(error)})") from None
    return pafs.PyFileSystem(pafs.FSSpecHandler(filesystem)), path


def _stem(path: str) -> str:
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}{name.rpartition('.')[0] or name}"


def sync(path: Path) -> None:
    """Return when the content of a file, or the names in a folder, are on the disk. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def short(error: Exception) -> str:
    """What an error says, as a part of a sentence."""
    return " ".join(str(error).split())[:200]
