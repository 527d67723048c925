"""Linear layers whose weights are laid out once for the processor's matrix instructions.

torch lays a bfloat16 weight out anew at each call (oneDNN's reorder), which for the few rows of a decoding step costs
as much as the product. The packed layer calls the same oneDNN product on weights laid out beforehand.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_ROWS = 16
"""Rows the layout is chosen for; any number works."""


class PackedLinear(nn.Module):
    """``nn.Linear`` for inference in bfloat16 on a processor. The values are those of the layer it replaces."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight: Tensor
        self.bias: Tensor | None
        self.register_buffer("weight", torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _ROWS), False)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach(), False)

    def forward(self, rows: Tensor) -> Tensor:
        """``[..., in_features]`` to ``[..., out_features]``."""
        result: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self.weight, self.bias, "none", [], "")
        return result


def can_pack() -> bool:
    """This build of torch and this processor have the packed product."""
    return bool(torch._C._has_mkldnn) and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack_linears(model: nn.Module) -> int:
    """Replace the model's bfloat16 ``nn.Linear`` layers on the processor; returns how many it replaced.

    Subclasses (quantised layers, low-rank adapters) stay as they are. Works in place: the replaced weights are freed
    as they go, unless they are tied to an embedding.
    """
    if not can_pack():
        return 0
    packed = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child.weight.dtype == torch.bfloat16 and child.weight.device.type == "cpu":
                setattr(parent, name, PackedLinear(child))
                packed += 1
    return packed
