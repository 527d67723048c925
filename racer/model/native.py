"""Builds and loads the operators of ``kernels/``: on matrix tiles (AMX, Intel since 2023), else on AVX-512 or AVX2."""

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

_SOURCES = Path(__file__).with_name("kernels")
_FLAGS = ("-std=c++20", "-O3", "-fPIC", "-shared", "-fopenmp")
# What the processor must have, by torch's names, and the compiler's options for it; the first that it has is taken.
_TARGETS = (
    (
        ("amx_bf16", "avx512_bf16", "avx512_bw", "avx512_dq", "avx512_vl"),
        ("-mamx-tile", "-mamx-bf16", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512bf16", "-mfma"),
    ),
    (
        ("avx512_bf16", "avx512_f", "avx512_bw", "avx512_dq", "avx512_vl"),
        ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512bf16"),
    ),
    (("avx512_f", "avx512_bw", "avx512_dq", "avx512_vl"), ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")),
    (("avx2", "fma3"), ("-mavx2", "-mfma")),
)
_BUILD_LIMIT_S = 300

_log = logging.getLogger(__name__)


def target() -> tuple[str, ...] | None:
    """The compiler's options for the best instructions that this processor and the kernels have; None without any."""
    capabilities = torch.cpu.get_capabilities()
    return next((flags for needs, flags in _TARGETS if all(capabilities.get(name, False) for name in needs)), None)


def suits_kernels(outputs: int, inputs: int) -> bool:
    """A weight of these sizes fills whole packed blocks."""
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
    """Make ``torch.ops.racer.block_linear`` and its companions available; False where that cannot be.

    The first call on a machine compiles for some 20 seconds and keeps the library in the cache folder.
    """
    flags = target()
    if not flags:
        return False
    try:
        torch.ops.load_library(str(_library(flags)))  # type: ignore[no-untyped-call]
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        _log.warning("the kernels cannot be used, so torch's own run instead, which are slower: %s", error)
        return False
    if not torch.ops.racer.allow():
        return False
    torch.library.register_fake("racer::block_linear", _like_product)
    return True


def _like_product(rows: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    return rows.new_empty((*rows.shape[:-1], packed.shape[0] * 32))


def _library(flags: tuple[str, ...]) -> Path:
    """The compiled library, built if the cache folder has none of these sources, options and this torch."""
    compiler = os.environ.get("CXX") or shutil.which("g++")
    sources = [path.read_bytes() for path in sorted(_SOURCES.iterdir())]
    key = hashlib.sha256(b"\0".join([*sources, " ".join(_FLAGS + flags).encode(), torch.__version__.encode()]))
    path = cache_path() / f"kernels-{key.hexdigest()[:16]}.so"
    if path.exists():
        return path
    if not compiler:
        raise RuntimeError("no C++ compiler was found; on Debian: apt-get install g++")
    _log.info("compiling the kernels, once per machine (some 20 seconds)")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        built = Path(folder) / path.name
        command = [
            *(compiler, *_FLAGS, *flags, str(_SOURCES / "kernels.cpp"), "-o", str(built)),
            *(f"-I{folder}" for folder in include_paths()),
            *(f"-L{folder}" for folder in library_paths()),
            *("-lc10", "-ltorch_cpu"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_LIMIT_S, check=False)
        if done.returncode:
            raise RuntimeError(f"{compiler} failed: {done.stderr.strip()[-300:]}")
        built.replace(path)
    return path
