"""Compiles the layers of a model with torch's compiler: one piece of code for all layers and row counts.

Between the products of a decoding step lie some fifty small operations a layer. Run one by one they cost as much as the
products; compiled they are seven loops. Attention and the packed products stay operators that the compiler calls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from racer.model.replay import ReplayedLayer, watchable

_OPTIONS: dict[str, bool] = {
    "emulate_precision_casts": True,  # round where the model's own code rounds: its text, at every near tie it can be
    "size_asserts": False,  # shapes are the compiler's own; checking them costs a tenth of a layer's Python
    "fx_graph_cache": True,
    # Instructions are those that the processor says it has. To try first whether the compiler knows each of them takes
    # as long as to compile a layer, and some seconds at every start; one that does not know them compiles nothing.
    "cpp.vec_isa_ok": True,
}

_log = logging.getLogger(__name__)


def compile_layers(model: nn.Module, attention: Iterable[nn.Module]) -> list[ReplayedLayer]:
    """Compile, at their first call, the blocks that hold the ``attention`` modules; returns what stands in for them.

    The code is kept in torch's cache folder (``TORCHINDUCTOR_CACHE_DIR``), so that a later start loads it.
    """
    reason = _why_not(next(model.parameters()).device)
    if reason:
        _log.warning("layers run without compilation, which is slower: %s", reason)
        return []
    blocks = repeated_blocks(model, attention)
    if not blocks:
        _log.warning("layers run without compilation, which is slower: no list of layers holds this model's attention")
    layers = []
    for block in blocks:
        block.compile(dynamic=True, backend=_backend)
        call: Any = block._compiled_call_impl
        layers.append(ReplayedLayer(block, call))
        block._compiled_call_impl = layers[-1]
    return layers


def _backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
    from torch._functorch import config
    from torch._inductor.compile_fx import compile_fx

    with config.patch(enable_autograd_cache=False):  # what comes from there goes by _watchable
        made: Any = compile_fx(graph, inputs, inner_compile=_watchable, config_patches=_OPTIONS)
    return made  # type: ignore[no-any-return]


def _watchable(*args: Any, **kwargs: Any) -> Any:
    """The compiler's last stage, whose code can be watched."""
    from torch._inductor.compile_fx import compile_fx_inner

    made: Any = compile_fx_inner(*args, **kwargs)
    made.current_callable = watchable(made.current_callable)
    return made


def many_versions() -> AbstractContextManager[None]:
    """Inside, models of a process may compile as they need: torch counts the versions of what they share together."""
    patch: Callable[..., AbstractContextManager[None]] = torch._dynamo.config.patch
    return patch(recompile_limit=256, fail_on_recompile_limit_hit=True)


def undo(model: nn.Module) -> None:
    """Let every layer run as it was written."""
    for module in model.modules():
        module._compiled_call_impl = None


def repeated_blocks(model: nn.Module, attention: Iterable[nn.Module]) -> list[nn.Module]:
    """The decoder layers: members of the first ``ModuleList`` in which all ``attention`` modules lie."""
    wanted = set(attention)
    for blocks in model.modules():
        if isinstance(blocks, nn.ModuleList) and wanted <= set(blocks.modules()):
            return list(blocks)
    return []


def _why_not(device: torch.device) -> str | None:
    """What keeps torch's compiler from working here, or None."""
    if device.type != "cpu":
        return f"it is not used on {device.type}"
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        get_cpp_compiler()
    except Exception as error:  # its own InvalidCxxCompiler, a RuntimeError
        return f"no C++ compiler was found ({type(error).__name__}); on Debian: apt-get install g++"
    return None
