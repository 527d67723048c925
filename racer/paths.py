"""Where this project keeps files of its own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def cache_dir() -> Path:
    """Folder for models and tables that are costly to make; created if absent.

    ``$RACER_CACHE`` if set, else ``racer-serve`` under ``$XDG_CACHE_HOME`` or ``~/.cache``. Everything in it can be
    deleted: the next run makes it again.
    """
    own = os.environ.get("RACER_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(own).expanduser() if own else Path(base) / "racer-serve"
    folder.mkdir(parents=True, exist_ok=True)
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
