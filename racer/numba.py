"""A typed ``njit`` whose on-disk cache cannot go stale.

numba stamps a cached kernel with the time and size of the file that holds it, not of the files whose kernels it
inlines: after an edit of a callee, the caller would go on running the old code. The stamp is therefore widened by a
digest of every source file with kernels in the same folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


@cache
def _folder_digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        source = path.read_bytes()
        if b"racer.numba" in source:
            digest.update(source)
    return digest.hexdigest()


def _widen_stamp(dispatcher: Any, function: Callable[..., Any]) -> None:
    index = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    stamp = getattr(index, "_source_stamp", None)
    if index is not None and stamp is not None:
        index._source_stamp = (stamp, _folder_digest(Path(function.__code__.co_filename).parent))


def _compile(function: Function, **options: Any) -> Function:
    try:
        dispatcher = numba.njit(cache=True, nogil=True, **options)(function)
        _widen_stamp(dispatcher, function)
    except RuntimeError:  # neither the package's folder nor a user cache folder can be written
        dispatcher = numba.njit(nogil=True, **options)(function)
    return cast(Function, dispatcher)


def njit(function: Function) -> Function:
    """Compile ``function`` on its first call, without the GIL, cached on disk where a folder is writable."""
    return _compile(function)


def reordering(function: Function) -> Function:
    """The same, free to reorder sums so that they vectorise; NaN and infinities keep their meaning."""
    return _compile(function, fastmath={"reassoc", "contract", "arcp"})


def leaf(function: Function) -> Function:
    """The same for a kernel that neither allocates nor returns an array: it counts no references to those it is handed.

    Counting costs more than the work of a small kernel (drafting took five times as long with it).
    """
    try:
        return _compile(function, _nrt=False)
    except (KeyError, TypeError):  # a numba without this option
        return _compile(function)
