"""Builds and loads the operators of ``kernels.cpp``, for processors with matrix tiles (AMX, Intel since 2023)."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import mmap
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.cpp_extension import include_paths, library_paths

from racer.paths import cache_path

_SOURCE = Path(__file__).with_name("kernels.cpp")
_NEEDS = ("amx_bf16", "avx512_bf16", "avx512_bw", "avx512_dq", "avx512_vl")
_FLAGS = (
    *("-std=c++20", "-O3", "-fPIC", "-shared", "-fopenmp"),
    *("-mamx-tile", "-mamx-bf16", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512bf16", "-mfma"),
)
_BUILD_LIMIT_S = 300

_log = logging.getLogger(__name__)


def have_tiles() -> bool:
    """This processor multiplies bfloat16 tiles."""
    capabilities = torch.cpu.get_capabilities()
    return all(capabilities.get(name, False) for name in _NEEDS)


def suits_tiles(outputs: int, inputs: int) -> bool:
    """A weight of these sizes fills whole tiles."""
    return outputs % 32 == 0 and inputs % 32 == 0


class LargePages:
    """Memory that the system may map in large pages, so that reading weights misses fewer translations.

    A large page holds 2 MB and many weights are smaller, so copies lie behind each other in blocks of memory. A block
    is given back with the last tensor in it; what of it was never written costs nothing.
    """

    _BLOCK = 64 << 20

    def __init__(self) -> None:
        self._block = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def copy(self, tensor: Tensor) -> Tensor:
        """The same values in such memory."""
        size = tensor.numel() * tensor.element_size()
        if self._used + size > len(self._block):
            memory = mmap.mmap(-1, max(size, self._BLOCK), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with contextlib.suppress(OSError):  # a system without them
                memory.madvise(mmap.MADV_HUGEPAGE)
            self._block, self._used = torch.frombuffer(memory, dtype=torch.uint8), 0
        place = self._block[self._used : self._used + size]
        self._used += -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        return place.view(tensor.dtype).view(tensor.shape).copy_(tensor)


@functools.cache
def load_kernels() -> bool:
    """Make ``torch.ops.racer.tile_linear`` and its companions available; False where that cannot be.

    The first call on a machine compiles for some 15 seconds and keeps the library in the cache folder.
    """
    if not have_tiles():
        return False
    try:
        torch.ops.load_library(str(_library()))  # type: ignore[no-untyped-call]
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        _log.warning("the matrix kernels cannot be used, so torch's own run instead, which are slower: %s", error)
        return False
    if not torch.ops.racer.allow_tiles():
        return False
    torch.library.register_fake("racer::tile_linear", _like_product)
    return True


def _like_product(rows: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    return rows.new_empty((*rows.shape[:-1], packed.shape[0] * 32))


def _library() -> Path:
    """The compiled library, built if the cache folder has none of this source, torch and compiler."""
    compiler = os.environ.get("CXX") or shutil.which("g++")
    key = hashlib.sha256(b"\0".join([_SOURCE.read_bytes(), " ".join(_FLAGS).encode(), torch.__version__.encode()]))
    path = cache_path() / f"kernels-{key.hexdigest()[:16]}.so"
    if path.exists():
        return path
    if not compiler:
        raise RuntimeError("no C++ compiler was found; on Debian: apt-get install g++")
    _log.info("compiling the matrix kernels, once per machine (some 15 seconds)")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        built = Path(folder) / path.name
        command = [
            *(compiler, *_FLAGS, str(_SOURCE), "-o", str(built)),
            *(f"-I{folder}" for folder in include_paths()),
            *(f"-L{folder}" for folder in library_paths()),
            *("-lc10", "-ltorch_cpu"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_LIMIT_S, check=False)
        if done.returncode:
            raise RuntimeError(f"{compiler} failed: {done.stderr.strip()[-300:]}")
        built.replace(path)
    return path
