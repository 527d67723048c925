"""The kernels compute what torch computes, row by row the same whatever else is in the batch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from racer.cache.pool import KVPool, LayerShape
from racer.model import native
from racer.model.layout import Segment, StepLayout
from racer.model.native import load_kernels, target

pytestmark = pytest.mark.may_skip("a processor without AVX2 runs torch's own products")


@pytest.fixture(autouse=True)
def kernels() -> Iterator[None]:
    """Three threads, whatever the process of the tests may use: work is cut into parts that are not equal."""
    if not target():
        pytest.skip("this processor has none of AMX, AVX-512 and AVX2")
    assert load_kernels(), "the kernels could not be built"
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("outputs", "inputs"), [(64, 32), (960, 576), (576, 1536)])
@pytest.mark.parametrize("bias", [False, True])
def test_product(outputs: int, inputs: int, bias: bool) -> None:
    weight = (torch.randn(outputs, inputs) * 0.05).bfloat16()
    offset = torch.randn(outputs).bfloat16() if bias else None
    packed = torch.ops.racer.pack_weight(weight)
    for rows in (1, 2, 3, 4, 5, 6, 12, 13, 15, 16, 17, 31, 32, 33, 64, 100):
        x = torch.randn(1, rows, inputs).bfloat16()
        found = torch.ops.racer.block_linear(x, packed, offset)
        expected = torch.nn.functional.linear(x.float(), weight.float(), None if offset is None else offset.float())
        torch.testing.assert_close(found.float(), expected, rtol=1e-2, atol=1e-2)
        alone = [torch.ops.racer.block_linear(x[:, row : row + 1], packed, offset) for row in range(rows)]
        assert torch.equal(found, torch.cat(alone, 1)), "a row depends on the others"


def reference(query: Tensor, keys: Tensor, values: Tensor, seen: NDArray[np.bool_]) -> Tensor:
    """Attention in float32: query ``[heads, n, d]``, keys and values ``[kv_heads, m, d]`` to ``[n, heads, d]``."""
    groups = query.shape[0] // keys.shape[0]
    keys, values = keys.float().repeat_interleave(groups, 0), values.float().repeat_interleave(groups, 0)
    scores = query.float() @ keys.transpose(1, 2) * query.shape[-1] ** -0.5
    weights = scores.masked_fill(~torch.from_numpy(seen), float("-inf")).softmax(-1)
    return torch.matmul(weights, values).transpose(0, 1)


def tree(nodes: int, branching: bool) -> NDArray[np.int32]:
    rng = np.random.default_rng(nodes)
    above = [rng.integers(0, i) if branching else i - 1 for i in range(1, nodes)]
    return np.array([-1, *above], np.int32)


def seen_by(parents: NDArray[np.int32], cached: int, window: int) -> NDArray[np.bool_]:
    nodes = len(parents)
    own, depth = np.zeros((nodes, nodes), np.bool_), np.zeros(nodes, np.int64)
    for node, parent in enumerate(parents):
        if node:
            own[node], depth[node] = own[parent], depth[parent] + 1
        own[node, node] = True
    seen = np.concatenate([np.ones((nodes, cached), np.bool_), own], 1)
    positions = np.concatenate([np.arange(cached), cached + depth])
    return seen & ((cached + depth)[:, None] - positions[None] < window) if window else seen


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "value_dim"),
    [(9, 3, 64, 64), (4, 4, 32, 32), (6, 2, 96, 64), (8, 2, 128, 128), (4, 1, 256, 256)],
)
@pytest.mark.parametrize("window", [0, 40])
def test_attention(heads: int, kv_heads: int, dim: int, value_dim: int, window: int) -> None:
    pool = KVPool([LayerShape(kv_heads, dim, value_dim)], 1200, torch.bfloat16, "cpu")
    keys, values = pool.keys[0], pool.values[0]
    keys.fill_(float("nan"))  # nothing outside a sequence's own places may be read into a sum
    values.fill_(float("nan"))
    segments, start = [], 0
    for nodes, cached, branching in [(1, 0, 0), (1, 100, 0), (5, 63, 1), (40, 300, 1), (130, 70, 0), (70, 0, 1)]:
        for cache in (keys, values):
            cache[:, start : start + cached] = torch.randn(kv_heads, cached, cache.shape[-1])
        segments.append(Segment(np.zeros(nodes, np.int32), tree(nodes, bool(branching)), start, cached))
        start += cached + nodes + 3
    layout = StepLayout(segments, pool, torch.bfloat16, torch.device("cpu"), by_kernels=True)
    tokens = layout.places.shape[0]
    shapes = (heads, dim), (kv_heads, dim), (kv_heads, value_dim)
    query, new_keys, new_values = (torch.randn(n, tokens, size).bfloat16() for n, size in shapes)
    assert layout.for_kernels is not None
    attend = torch.ops.racer.block_attend
    found = attend(query, new_keys, new_values, keys, values, layout.places, *layout.for_kernels, dim**-0.5, window)
    row = 0
    for segment in segments:
        rows = slice(row, row := row + len(segment.tokens))
        places = slice(segment.start, segment.start + segment.cached + len(segment.tokens))
        seen = seen_by(segment.parents, segment.cached, window)
        expected = reference(query[:, rows], keys[:, places], values[:, places], seen)
        torch.testing.assert_close(found[rows].float(), expected, rtol=3e-2, atol=3e-2)


def test_on_vectors_a_node_is_attended_as_its_path_alone() -> None:
    """To the last bit: verification sees the very numbers that plain decoding would."""
    if "-mamx-tile" in (target() or ()):
        pytest.skip("matrix tiles round weights by the block of keys they lie in")
    pool = KVPool([LayerShape(2, 64, 64)], 1200, torch.bfloat16, "cpu")
    keys, values = pool.keys[0], pool.values[0]
    cached, nodes = 190, 40
    for cache in (keys, values):
        cache.copy_(torch.randn(cache.shape))
        cache[:, 600 : 600 + cached] = cache[:, :cached]
    query, new_keys, new_values = (torch.randn(n, nodes, 64).bfloat16() for n in (6, 2, 2))

    def attend(segment: Segment, rows: list[int]) -> Tensor:
        layout = StepLayout([segment], pool, torch.bfloat16, torch.device("cpu"), by_kernels=True)
        assert layout.for_kernels is not None
        new = [tensor[:, rows] for tensor in (query, new_keys, new_values)]
        attended: Tensor = torch.ops.racer.block_attend(
            *new, keys, values, layout.places, *layout.for_kernels, 0.125, 0
        )
        return attended

    parents = tree(nodes, branching=True)
    found = attend(Segment(np.zeros(nodes, np.int32), parents, 0, cached), list(range(nodes)))
    for leaf in range(nodes):
        path = [leaf]
        while parents[path[0]] >= 0:
            path.insert(0, int(parents[path[0]]))
        chain = Segment(np.zeros(len(path), np.int32), tree(len(path), branching=False), 600, cached)
        assert torch.equal(attend(chain, path), found[path])


LESSER = """
import sys
import pytest
from racer.model import native
native._TARGETS = native._TARGETS[int(sys.argv[2]):]
assert native.target() == native._TARGETS[0][1]
sys.exit(pytest.main([sys.argv[1], "-q", "-p", "no:cacheprovider", "-k", "test_product or attention or attended"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("lesser", range(1, len(native._TARGETS)))
def test_kernels_for_older_processors(lesser: int) -> None:
    """The same tests on what is compiled for processors that have less than this one."""
    if target() not in [flags for _, flags in native._TARGETS[:lesser]]:
        pytest.skip("this processor has no more than that: the other tests here run on it")
    command = [sys.executable, "-c", LESSER, __file__, str(lesser)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_without_a_compiler_torch_runs_instead(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RACER_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert not native.load_kernels.__wrapped__()
    assert "apt-get install g++" in caplog.text
