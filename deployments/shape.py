"""The shape of a model from its configuration: a model without weights is built and asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deployments.errors import ConfigError
from deployments.sizing import ModelShape
from racer.config import EngineConfig
from racer.errors import UserError


def model_shape(engine: EngineConfig) -> ModelShape:
    """Shape of ``engine.model``, on torch's device without memory.

    Raises:
        ConfigError: there is no such model, or its form is not known.
    """
    import torch
    from transformers import AutoConfig

    from racer.cache.pool import KVPool
    from racer.model.attention import ATTENTION
    from racer.model.loader import context_length, pick_dtype, without_weights
    from racer.model.locate import locate
    from racer.model.quiet import quiet_libraries
    from racer.model.runner import layer_shapes

    device = torch.device("cuda" if engine.device.startswith("cuda") else "cpu")
    try:
        options: dict[str, Any] = {"trust_remote_code": engine.trust_remote_code}
        source: Any = engine.model  # of a Hub id only the configuration is fetched
        if engine.model == "demo" or Path(engine.model).expanduser().exists():
            checkpoint = locate(engine.model)
            source = checkpoint.folder
            options |= {"gguf_file": checkpoint.gguf_file} if checkpoint.gguf_file else {}
        with quiet_libraries():
            config = AutoConfig.from_pretrained(source, **options)
            model = without_weights(config, attn_implementation=ATTENTION, trust_remote_code=engine.trust_remote_code)
        shapes = layer_shapes(model)
        on_gpu = engine.dtype == "auto" and device.type == "cuda"  # which may not be on this machine
        dtype = torch.bfloat16 if on_gpu else pick_dtype(engine.dtype, device, lambda: model)
    except UserError as error:
        raise ConfigError(str(error)) from error
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(f"model {engine.model!r}: its shape cannot be read ({reason})") from error
    text = model.config.get_text_config(decoder=True)
    return ModelShape(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        token_bytes=KVPool.bytes_per_place(shapes, dtype),
        context=context_length(text) or 1 << 20,
        dtype_bytes=dtype.itemsize,
    )
