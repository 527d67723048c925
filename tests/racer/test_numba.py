"""The kernel cache: used again, and never stale."""

import os
import subprocess
import sys
from pathlib import Path

CALLEE = "from racer.numba import leaf\n\n\n@leaf\ndef plus(x: int) -> int:\n    return x + {term}\n"
CALLER = "from callee import plus\nfrom racer.numba import njit\n\n\n@njit\ndef twice(x):\n    return 2 * plus(x)\n"
MAIN = "from caller import twice; print(twice(1), sum(twice.stats.cache_hits.values()))"


def run(folder: Path) -> tuple[int, int]:
    """Result of the kernel in a fresh process, and how many kernels came from the cache."""
    path = os.pathsep.join([str(folder), str(Path(__file__).parents[2])])
    environment = {**os.environ, "PYTHONPATH": path, "NUMBA_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run([sys.executable, "-c", MAIN], env=environment, capture_output=True, text=True, check=True)
    result, hits = done.stdout.split()
    return int(result), int(hits)


def test_an_edit_of_a_callee_reaches_its_cached_callers(tmp_path: Path) -> None:
    (tmp_path / "callee.py").write_text(CALLEE.format(term=1))
    (tmp_path / "caller.py").write_text(CALLER)
    assert run(tmp_path) == (4, 0)
    assert run(tmp_path) == (4, 1)
    (tmp_path / "callee.py").write_text(CALLEE.format(term=2))
    assert run(tmp_path) == (6, 0)


NOT_WRITABLE = """
from numba.core.caching import _CacheLocator
def refuse(self): raise OSError("read-only file system")
_CacheLocator.ensure_cache_path = refuse
for locator in _CacheLocator.__subclasses__():
    locator.ensure_cache_path = refuse
import numpy as np, torch
from racer.draft.automaton import Automaton
from racer.model.layout import hidden_of
from racer.model.topk import top_k
Automaton(3, 64).learn(np.arange(5, dtype=np.int32))
print(top_k(torch.tensor([[1.0, 3.0, 2.0]]), 2)[0].tolist(), hidden_of(np.array([-1, 0], np.int32)).tolist())
"""


def test_kernels_run_where_no_folder_is_writable() -> None:
    done = subprocess.run([sys.executable, "-c", NOT_WRITABLE], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[[1, 2]] [[False, True], [False, False]]", done.stderr
