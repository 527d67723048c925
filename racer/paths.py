"""Where this project keeps files of its own."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock

from racer.errors import ConfigError


def cache_path() -> Path:
    """Folder for models and tables that are costly to make; it may not exist yet.

    ``$RACER_CACHE`` if set, else ``racer-serve`` under ``$XDG_CACHE_HOME`` or ``~/.cache``. Everything in it can be
    deleted: the next run makes it again.
    """
    own = os.environ.get("RACER_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own).expanduser() if own else Path(base) / "racer-serve"


def cache_dir() -> Path:
    """The same folder, created if absent.

    Raises:
        ConfigError: it cannot be created.
    """
    folder = cache_path()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"the cache folder {folder} cannot be made ({error.strerror}); set RACER_CACHE to one that can be written"
        ) from error
    return folder


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Make ``path`` of what ``write`` writes: beside it first, then renamed, so that no reader ever sees half a file.

    Raises OSError where the folder cannot be written; the file is then as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=path.suffix + ".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Processes that would make ``path`` enter one after the other: look again whether it is there by then.

    Replicas that start together would each compute what one can read from another. Where the folder cannot be written
    nobody waits.
    """
    lock = FileLock(path.with_name(path.name + ".lock"))
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(lock)
        yield
