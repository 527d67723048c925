"""Scripts that run in the server, called by their digest and loaded again wherever the server has lost them."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import NamedTuple


class Script(NamedTuple):
    """Lua source and its SHA-1, by which the server knows it."""

    source: bytes
    digest: bytes


@cache
def script(name: str) -> Script:
    """The script in this package's file ``name``."""
    source = (files("datastore") / name).read_bytes()
    return Script(source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode())
