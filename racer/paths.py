"""Where this project keeps files of its own."""

from __future__ import annotations

import os
from pathlib import Path


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
