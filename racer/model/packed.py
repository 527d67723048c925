"""Linear layers whose weights are laid out once for the processor's matrix instructions.

torch lays a bfloat16 weight out anew at each call (oneDNN's reorder), which for the few rows of a decoding step costs
as much as the product. The packed layer multiplies weights that were laid out beforehand, by a kernel of ours where
one suits the processor and the sizes, else by oneDNN. Layers that multiply the same rows (queries, keys and values;
gate and up) become one product, of which each takes its columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from racer.model.native import LargePages, load_kernels, suits_kernels

_ROWS = 16
"""Rows the layout is chosen for; any number works."""

_LIBRARY = torch.library.Library("racer", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("packed_linear(Tensor rows, Tensor weight, Tensor? bias) -> Tensor")  # type: ignore[no-untyped-call]


def _packed_linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """An operator of our own around oneDNN's: torch's compiler takes that one with constant weights only."""
    return torch.ops.mkldnn._linear_pointwise.default(rows, weight, bias, "none", [], "")  # type: ignore[no-any-return]


def _like_packed_linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return rows.new_empty((*rows.shape[:-1], weight.shape[0]))


_LIBRARY.impl("packed_linear", _packed_linear, "MkldnnCPU")  # type: ignore[no-untyped-call]
torch.library.register_fake("racer::packed_linear", _like_packed_linear, lib=_LIBRARY)


class PackedLinear(nn.Module):
    """``nn.Linear`` layers over the same rows for inference in bfloat16 on a processor, side by side in one product.

    The values are those of the layers it replaces. Our own product runs where the processor and the sizes suit it;
    there a row's values do not depend on the other rows.
    """

    def __init__(self, layers: Sequence[nn.Linear], memory: LargePages) -> None:
        super().__init__()
        self.weight: Tensor
        self.bias: Tensor | None
        weight = (
            layers[0].weight.detach() if len(layers) == 1 else torch.cat([layer.weight for layer in layers]).detach()
        )
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        if _by_kernel(*weight.shape):
            packed = memory.copy(torch.ops.racer.pack_weight(weight))
            self._product = torch.ops.racer.block_linear.default
        else:
            packed = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
            self._product = torch.ops.racer.packed_linear.default
        self.register_buffer("weight", packed, False)
        self.register_buffer("bias", torch.cat(biases) if biases else None, False)

    def forward(self, rows: Tensor) -> Tensor:
        """``[..., in_features]`` to ``[..., out_features]``."""
        result: Tensor = self._product(rows, self.weight, self.bias)
        return result


class _SharedProduct:
    """The product that the parts of a :class:`PackedLinear` take their columns from, from the first to the last."""

    def __init__(self, parts: int) -> None:
        self.parts = parts
        self.left = 0
        self.rows: Tensor | None = None
        self.product: Tensor | None = None


class LinearPart(nn.Module):
    """Columns ``start .. stop`` of a :class:`PackedLinear`, in the place of the layer they come from."""

    def __init__(self, whole: PackedLinear, shared: _SharedProduct, start: int, stop: int) -> None:
        super().__init__()
        self.whole, self.start, self.stop = whole, start, stop
        self._shared = shared

    @property
    def weight(self) -> Tensor:
        """The packed weight of the whole: models ask its dtype and device."""
        return self.whole.weight

    def forward(self, rows: Tensor) -> Tensor:
        """``[..., in_features]`` to ``[..., stop - start]``, a view."""
        shared = self._shared
        if shared.rows is not rows or shared.product is None:
            shared.rows, shared.product, shared.left = rows, self.whole(rows), shared.parts
        columns = shared.product[..., self.start : self.stop]
        shared.left -= 1
        if shared.left == 0:
            shared.rows = shared.product = None
        return columns


def can_pack(layers: Sequence[nn.Linear]) -> bool:
    """There is a packed product for these layers side by side: a kernel of ours, or oneDNN's on this processor."""
    sizes = sum(layer.out_features for layer in layers), layers[0].in_features
    return _by_kernel(*sizes) or (bool(torch._C._has_mkldnn) and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()))


def _by_kernel(outputs: int, inputs: int) -> bool:
    return suits_kernels(outputs, inputs) and load_kernels()


def kernels_suit(model: nn.Module) -> bool:
    """Every product of the model can be a kernel of ours; the model may be one without weights."""
    weights = ((module, weight) for module in model.modules() for weight in module.parameters(recurse=False))
    return (
        all(
            type(module) is nn.Embedding or (type(module) is nn.Linear and suits_kernels(*weight.shape))
            for module, weight in weights
            if weight.ndim > 1
        )
        and load_kernels()
    )


@contextmanager
def siblings(model: nn.Module) -> Iterator[list[list[nn.Linear]]]:
    """Fills the list with the linear layers that are given the very same rows in the forwards made inside."""
    calls: dict[int, tuple[Tensor, list[nn.Linear]]] = {}  # holds the tensors, so that no two have the same id

    def note(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if inputs and isinstance(layer, nn.Linear):
            calls.setdefault(id(inputs[0]), (inputs[0], []))[1].append(layer)

    hooks = [layer.register_forward_pre_hook(note) for layer in model.modules() if _packable(layer)]
    groups: list[list[nn.Linear]] = []
    try:
        yield groups
    finally:
        for hook in hooks:
            hook.remove()
    groups.extend(group for _, group in calls.values())


def pack_linears(model: nn.Module, groups: Sequence[Sequence[nn.Linear]] = ()) -> int:
    """Replace the model's bfloat16 ``nn.Linear`` layers on the processor; returns how many it replaced.

    ``groups``: layers that are always given the same rows, see :func:`siblings`. Subclasses (quantised layers, low-rank
    adapters) stay as they are. Works in place: the replaced weights are freed as they go, unless they are tied to an
    embedding.
    """
    packed, memory = 0, LargePages()
    for parent in list(model.modules()):
        names = {
            child: name for name, child in parent.named_children() if isinstance(child, nn.Linear) and _packable(child)
        }
        for group in [*groups, *([layer] for layer in names)]:
            layers = [layer for layer in dict.fromkeys(group) if layer in names]
            if len({layer.bias is None for layer in layers}) == 1 and can_pack(layers):
                _replace(parent, {names.pop(layer): layer for layer in layers}, memory)
                packed += len(layers)
    return packed


def _packable(layer: nn.Module) -> bool:
    return type(layer) is nn.Linear and layer.weight.dtype == torch.bfloat16 and layer.weight.device.type == "cpu"


def _replace(parent: nn.Module, layers: dict[str, nn.Linear], memory: LargePages) -> None:
    whole = PackedLinear(list(layers.values()), memory)
    if len(layers) == 1:
        setattr(parent, next(iter(layers)), whole)
        return
    shared, start = _SharedProduct(len(layers)), 0
    for name, layer in layers.items():
        setattr(parent, name, LinearPart(whole, shared, start, start + layer.out_features))
        start += layer.out_features
