"""Loads a decoder-only model with its tokenizer; refuses what cannot be decoded here, in one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.models.auto import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

from racer.config import EngineConfig
from racer.errors import ConfigError, ModelError, RacerError
from racer.model.locate import Checkpoint, locate
from racer.model.native import target
from racer.model.packed import kernels_suit
from racer.model.quiet import quiet_libraries

_CONTEXT_FIELDS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run: in evaluation mode, on ``device``, without gradients.

    ``context_length`` is the longest sequence the model was made for, in tokens; None if it names no limit.
    ``eos_token_ids`` unites what the generation configuration and the tokenizer call an end.
    ``fingerprint`` names weights, tokenizer and dtype: the key of files kept per model.
    """

    model: transformers.PreTrainedModel
    tokenizer: transformers.PreTrainedTokenizerBase
    name: str
    dtype: torch.dtype
    device: torch.device
    vocab_size: int
    context_length: int | None
    eos_token_ids: frozenset[int]
    fingerprint: str


def load(config: EngineConfig, attn_implementation: str | None = None) -> LoadedModel:
    """Load ``config.model`` in ``config.dtype`` on ``config.device``.

    Args:
        config: ``model``, ``dtype``, ``device`` and ``trust_remote_code`` are read.
        attn_implementation: name registered in transformers' ``AttentionInterface``; None: transformers' choice.

    Raises:
        ConfigError: the device is unknown or not on this machine.
        ModelError: the model cannot be found or loaded, or is not a decoder-only language model.
    """
    device = pick_device(config.device)
    checkpoint = locate(config.model)
    with quiet_libraries(f"loading model {config.model!r}"), _one_sentence(checkpoint):
        options: dict[str, Any] = {"trust_remote_code": config.trust_remote_code, "local_files_only": True}
        if checkpoint.gguf_file:
            options["gguf_file"] = checkpoint.gguf_file
        else:
            _require_known_type(checkpoint, config.trust_remote_code)
        model_config = AutoConfig.from_pretrained(checkpoint.folder, **options)
        _require_decoder_only(checkpoint, model_config)
        tokenizer = AutoTokenizer.from_pretrained(checkpoint.folder, **options)
        dtype = pick_dtype(
            config.dtype,
            device,
            lambda: without_weights(
                model_config, attn_implementation=attn_implementation, trust_remote_code=config.trust_remote_code
            ),
        )
        model = _load_weights(checkpoint, dtype, device, attn_implementation, options)
    text_config = model.config.get_text_config(decoder=True)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        name=config.model,
        dtype=dtype,
        device=device,
        vocab_size=text_config.vocab_size,
        context_length=context_length(text_config),
        eos_token_ids=eos_token_ids(model, tokenizer),
        fingerprint=f"{checkpoint.fingerprint()}-{str(dtype).removeprefix('torch.')}",
    )


def pick_device(name: str) -> torch.device:
    """The torch device called ``name``; ``auto`` is cuda where there is one, else cpu. Indices are filled in."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device={name!r} is no torch device; use 'auto', 'cpu', 'cuda' or 'cuda:N'") from error
    if device.type == "cpu":
        return torch.device("cpu")
    present = torch.accelerator.current_accelerator(check_available=True)
    if present is None or present.type != device.type:
        has = f"cpu and {present.type}" if present else "only a cpu"
        raise ConfigError(f"device={name!r} is not on this machine, which has {has}; use 'auto' or 'cpu'")
    index = torch.accelerator.current_device_index() if device.index is None else device.index
    count = torch.accelerator.device_count()
    if index >= count:
        raise ConfigError(f"device={name!r}: this machine has {count} of that kind, numbered from 0")
    return torch.device(device.type, index)


def pick_dtype(name: str, device: torch.device, shape: Callable[[], nn.Module]) -> torch.dtype:
    """The torch dtype called ``name``; ``auto`` is bfloat16 where that is fast, else float32.

    It is where ``device`` has instructions for it, or kernels of ours widen it as they read: half the memory to read.
    ``shape`` makes the model without weights; it is asked for only where its products decide.
    """
    if name != "auto":
        return getattr(torch, name)  # type: ignore[no-any-return]  # EngineConfig admits names of dtypes only
    if device.type == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    elif device.type == "cpu":
        capabilities = torch.cpu.get_capabilities()
        fast = any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))
        fast = fast or (target() is not None and kernels_suit(shape()))
    else:
        fast = True
    return torch.bfloat16 if fast else torch.float32


def without_weights(
    config: transformers.PreTrainedConfig, *, attn_implementation: str | None, trust_remote_code: bool
) -> transformers.PreTrainedModel:
    """The model that ``config`` describes, in bfloat16 on torch's device "meta", which has no memory.

    (In bfloat16 whatever is served: some operators have shapes for nothing else.)
    """
    from_config: Any = AutoModelForCausalLM.from_config  # untyped
    with torch.device("meta"):
        model: transformers.PreTrainedModel = from_config(
            config,
            dtype=torch.bfloat16,
            attn_implementation=attn_implementation,
            trust_remote_code=trust_remote_code,
        )
    return model


def context_length(text_config: transformers.PreTrainedConfig) -> int | None:
    """The longest sequence the configuration allows, in tokens; None where it names no limit."""
    values = (getattr(text_config, field, None) for field in _CONTEXT_FIELDS)
    return next((value for value in values if isinstance(value, int) and value > 0), None)


def eos_token_ids(
    model: transformers.PreTrainedModel, tokenizer: transformers.PreTrainedTokenizerBase
) -> frozenset[int]:
    """Every id that ends an answer, as the generation configuration, the configuration or the tokenizer says."""
    found: set[int] = set()
    for owner in (model.generation_config, model.config.get_text_config(decoder=True), tokenizer):
        ids = getattr(owner, "eos_token_id", None)
        found.update(ids if isinstance(ids, list | tuple) else () if ids is None else (ids,))
    return frozenset(found)


def _require_known_type(checkpoint: Checkpoint, trusted: bool) -> None:
    """Refuse a folder whose architecture only its own code knows, unless that code is trusted."""
    raw = json.loads((checkpoint.folder / "config.json").read_text(encoding="utf-8"))
    kind = raw.get("model_type")
    if kind in CONFIG_MAPPING or (trusted and "auto_map" in raw):
        return
    if "auto_map" in raw:
        raise _needs_own_code(checkpoint)
    raise ModelError(
        f"model {checkpoint.name!r}: model_type {kind!r} in its config.json is unknown to transformers "
        f"{transformers.__version__}; choose a model this release supports"
    )


def _require_decoder_only(checkpoint: Checkpoint, config: transformers.PreTrainedConfig) -> None:
    own_code = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    known = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING or own_code
    encoder = type(config) in MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False)
    if config.is_encoder_decoder:
        problem = "is an encoder-decoder model"
    elif encoder:
        problem = "is an encoder"
    elif not known:
        problem = "has no causal language model in transformers"
    else:
        return
    raise ModelError(f"model {checkpoint.name!r}: {config.model_type} {problem}; only decoder-only models are served")


def _load_weights(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    attn_implementation: str | None,
    options: dict[str, Any],
) -> transformers.PreTrainedModel:
    if checkpoint.gguf_file:
        options = options | {"quantization_config": GgufConfig(dequantize=True)}
    if attn_implementation:
        options = options | {"attn_implementation": attn_implementation}
    if device.type != "cpu":
        options = options | {"device_map": {"": str(device)}}
    from_pretrained: Any = AutoModelForCausalLM.from_pretrained  # typed as if it returned the model alone
    model, report = from_pretrained(checkpoint.folder, dtype=dtype, output_loading_info=True, **options)
    missing = sorted(report["missing_keys"])
    if missing:  # transformers fills these with random numbers and goes on
        raise ModelError(
            f"model {checkpoint.name!r}: its files lack {len(missing)} weights ({missing[0]} is the first); "
            "fetch the model again"
        )
    return model.eval().requires_grad_(False)  # type: ignore[no-any-return]


def _needs_own_code(checkpoint: Checkpoint) -> ModelError:
    return ModelError(
        f"model {checkpoint.name!r} needs Python code from its own repository, which is not run unless you trust it; "
        "read that code, then pass --trust-remote-code"
    )


@contextmanager
def _one_sentence(checkpoint: Checkpoint) -> Iterator[None]:
    """Turn whatever the libraries raise over a checkpoint into a ModelError; they raise nearly every kind there is."""
    try:
        yield
    except RacerError:
        raise
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise _needs_own_code(checkpoint) from error
        reason = " ".join(str(error).split())
        reason = reason if len(reason) <= 300 else reason[:300] + "…"
        raise ModelError(
            f"model {checkpoint.name!r} cannot be loaded ({type(error).__name__}: {reason or 'no reason given'}); "
            "check that its files are whole and that transformers supports them"
        ) from error
