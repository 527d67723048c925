"""Tiny models with random weights, one for each family of architectures, and a tokenizer of bytes."""

from __future__ import annotations

from typing import Any, Protocol, cast

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

_COMMON: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
    "tie_word_embeddings": False,  # tied, a random model mostly repeats its input
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "num_local_experts": 4}
_LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"sliding_window": 16, "use_sliding_window": True, "layer_types": _LAYERS},
    "mistral": {"sliding_window": 16},
    "gemma2": {"sliding_window": 16, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 5.0},
    "gemma3_text": {"sliding_window": 16, "query_pre_attn_scalar": 16, "layer_types": _LAYERS},
    "phi3": {"sliding_window": 16},
    "gpt_neox": {},
    "granite": {},
    "olmo2": {},
    "starcoder2": {"sliding_window": 16},
    "stablelm": {},
    "cohere": {},
    "glm": {},
    "gpt2": {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_inner": 96, "n_positions": 512},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "mixtral": _EXPERTS,
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
    "gpt_oss": {**_EXPERTS, "sliding_window": 16, "layer_types": _LAYERS, "rope_parameters": {"rope_type": "default"}},
}


class TinyModel(Protocol):
    """The signature of ``tiny_model``, for tests that take it as a fixture."""

    def __call__(
        self, family: str, *, seed: int = 0, attn_implementation: str = "eager", **values: Any
    ) -> PreTrainedModel: ...


def tiny_config(family: str, **values: Any) -> PreTrainedConfig:
    """A configuration of ``family`` small enough for tests; ``values`` override."""
    own = FAMILIES[family]
    if family == "gpt2":  # takes its own names only
        own = own | {name: _COMMON[name] for name in ("vocab_size", "initializer_range", "tie_word_embeddings")}
        own = own | {"bos_token_id": None, "eos_token_id": None}
    else:
        own = _COMMON | own
    return AutoConfig.for_model(family, **(own | values))


def tiny_model(family: str, *, seed: int = 0, attn_implementation: str = "eager", **values: Any) -> PreTrainedModel:
    """Random weights for ``tiny_config(family, **values)``, float32, in evaluation mode; the same for a seed."""
    config = tiny_config(family, **values)
    from_config: Any = AutoModelForCausalLM.from_config
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = from_config(config, attn_implementation=attn_implementation, dtype=torch.float32)
    return cast(PreTrainedModel, model.eval())


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """260 tokens: <bos> 0, <eos> 1, <pad> 2, then the 256 bytes, then one merge, "th"."""
    tokens = ["<bos>", "<eos>", "<pad>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "th"]
    backend = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[("t", "h")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    make: Any = PreTrainedTokenizerFast
    return cast(
        PreTrainedTokenizerFast,
        make(tokenizer_object=backend, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>"),
    )
