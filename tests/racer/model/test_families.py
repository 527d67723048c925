"""Every family of decoder-only models with plain attention decodes as ``model.generate`` does; others are refused."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from racer import Engine, EngineConfig, Request, SamplingParams
from racer.errors import UnsupportedModelError
from tests.racer.engine.helpers import decode, loaded, prompt, tiny_engine
from tests.tiny import tiny_model

# Text reaches past the windows of 16, prompts of 5, 14 and 40 share steps, chunks of 16 split the longest prompt.
PROMPTS = [prompt(5, 1), prompt(14, 2), prompt(40, 3)]
NEW_TOKENS = 40

CASES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": {},
    "gemma2": {"final_logit_softcapping": 3.0},
    "gemma3_text": {},
    "phi3": {},
    "gpt_neox": {},
    "granite": {},
    "olmo2": {},
    "starcoder2": {},
    "cohere": {},
    "glm": {},
    "gpt2": {},
    "opt": {},
    "mixtral": {},
    "qwen3_moe": {},
    "gpt_oss": {},
}


@pytest.mark.parametrize("family", CASES)
@pytest.mark.parametrize("tree", ["best", "paper"])
def test_ids_equal_generate(family: str, tree: str) -> None:
    model = tiny_model(family, **CASES[family])
    expected = [
        model.generate(  # type: ignore[operator]
            torch.tensor([tokens]), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0
        )[0, len(tokens) :].tolist()
        for tokens in PROMPTS
    ]
    engine = tiny_engine(family, model=CASES[family], prefill_chunk=16, tree=tree)
    requests = [Request(tokens, SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True)) for tokens in PROMPTS]
    answers = decode(engine, requests)
    assert [choices[0].token_ids for choices in answers] == expected
    drafted = sum(sum(choices[0].stats.drafted.values()) for choices in answers)
    assert drafted > NEW_TOKENS, "the trees were empty: nothing was verified"


REFUSED: dict[str, dict[str, Any]] = {
    "mamba": {"state_size": 4},
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 1, "state_size": 8},
    "qwen3_next": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
    "bloom": {"n_head": 4, "n_layer": 3},
}


def random_model(family: str, **values: Any) -> PreTrainedModel:
    build: Any = AutoModelForCausalLM.from_config
    model: PreTrainedModel = build(AutoConfig.for_model(family, **values)).eval()
    return model


@pytest.mark.parametrize("family", REFUSED)
def test_state_that_cannot_be_rolled_back_is_refused_in_one_line(family: str) -> None:
    values = {"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 3, "head_dim": 16} | REFUSED[family]
    model = random_model(family, **values)
    with pytest.raises(UnsupportedModelError) as refusal:
        Engine(EngineConfig(prior=False, compile=False, cache_bytes=1 << 20), loaded=loaded(model))
    assert family in str(refusal.value) and "\n" not in str(refusal.value)


def test_chunked_attention_caps_the_context() -> None:
    values = {
        "attention_chunk_size": 32,
        "num_local_experts": 2,
        "intermediate_size_mlp": 64,
        "interleave_moe_layer_step": 1,
        "num_experts_per_tok": 1,
    }
    common = {"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 4, "head_dim": 16, "intermediate_size": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    model = random_model("llama4_text", **common, **heads, **values)
    engine = Engine(EngineConfig(prior=False, compile=False, cache_bytes=1 << 22), loaded=loaded(model))
    assert engine.context_length == 32
