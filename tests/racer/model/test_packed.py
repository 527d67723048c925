"""Packed layers give the values of the layers they replace."""

import mmap

import pytest
import torch
from torch import nn

from racer.model.native import LargePages
from racer.model.packed import LinearPart, PackedLinear, can_pack, pack_linears, siblings
from tests.tiny import tiny_model

needs_packing = pytest.mark.may_skip("a processor without bfloat16 products has nothing to pack for")


@needs_packing
@pytest.mark.parametrize("rows", [1, 3, 16, 40])
@pytest.mark.parametrize("bias", [True, False])
def test_same_values(rows: int, bias: bool) -> None:
    linear = nn.Linear(96, 160, bias=bias, dtype=torch.bfloat16)
    if not can_pack([linear]):
        pytest.skip("this processor has no bfloat16 products")
    x = torch.randn(1, rows, 96, dtype=torch.bfloat16)
    with torch.inference_mode():
        expected, found = linear(x), PackedLinear([linear], LargePages())(x)
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)


@needs_packing
def test_packs_every_plain_layer_once() -> None:
    model = tiny_model("llama").bfloat16()
    if not can_pack([model.lm_head]):
        pytest.skip("this processor has no bfloat16 products")
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.inference_mode():
        expected = model(ids).logits
        layers = sum(type(module) is nn.Linear for module in model.modules())
        assert pack_linears(model) == layers == 3 * 7 + 1
        assert pack_linears(model) == 0
        found = model(ids).logits
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


@needs_packing
def test_layers_over_the_same_rows_become_one_product() -> None:
    model = tiny_model("llama").bfloat16()
    if not can_pack([model.lm_head]):
        pytest.skip("this processor has no bfloat16 products")
    ids, others = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[9, 3]])
    with torch.inference_mode():
        expected, of_others = model(ids).logits, model(others).logits
        with siblings(model) as groups:
            model(ids)
        assert sorted(len(group) for group in groups) == [1] * 3 * 2 + [1] + [2] * 3 + [3] * 3
        assert pack_linears(model, groups) == 3 * 7 + 1
        products = [module for module in model.modules() if isinstance(module, PackedLinear)]
        assert len(products) == 3 * 4 + 1
        for _ in range(2):
            torch.testing.assert_close(model(ids).logits, expected, rtol=2e-2, atol=2e-2)
            torch.testing.assert_close(model(others).logits, of_others, rtol=2e-2, atol=2e-2)
    parts = [module for module in model.modules() if isinstance(module, LinearPart)]
    assert len(parts) == 3 * 5 and all(part._shared.product is None for part in parts), "a product is still held"


def test_leaves_float32_alone() -> None:
    model = tiny_model("llama")
    assert pack_linears(model) == 0
    assert not any(isinstance(module, PackedLinear) for module in model.modules())


def test_weights_lie_behind_each_other_in_blocks() -> None:
    memory, block = LargePages(), 64 << 20
    small = [torch.randn(3, 5).bfloat16() for _ in range(3)]
    large = torch.arange(block // 4 + 1, dtype=torch.int32)
    copies = [memory.copy(tensor) for tensor in (*small, large, small[0])]
    assert all(map(torch.equal, copies, (*small, large, small[0])))
    starts = [copy.data_ptr() for copy in copies]
    assert starts[1] - starts[0] == starts[2] - starts[1] == mmap.PAGESIZE, "not in one block, a page each"
    del copies[0], copies[1]
    assert torch.equal(copies[0], small[1]), "what is left of a block is kept"
