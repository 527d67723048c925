"""Files of settings, and folders of results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from loadtest.errors import UserError


def read_mapping(path: Path) -> dict[str, Any]:
    """A YAML (or JSON) file that holds a mapping.

    Raises:
        UserError: it cannot be read, or holds none.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"{path} cannot be read ({reason})") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise UserError(f"{where}: not YAML ({getattr(error, 'problem', None) or error})") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: a mapping of settings is expected, not {type(values).__name__}")
    return values


def make_folder(path: Path) -> None:
    """Make ``path`` a folder that can be written to.

    Raises:
        UserError: it cannot be one.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"{path} cannot be written to ({error.strerror}); name another folder") from None
