from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import dequantize, quantize
from transformers import LlamaConfig, LlamaForCausalLM

from racer.config import EngineConfig
from racer.errors import ModelError
from racer.model.loader import load
from tests.tiny import byte_tokenizer, tiny_model

GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def gguf_name(name: str) -> str:
    """The name a GGUF file gives to llama's weight ``name``."""
    name = name.replace("model.layers.", "blk.")
    for ours, theirs in GGUF_NAMES.items():
        name = name.replace(ours, theirs)
    return name


def rotary_order(weight: np.ndarray, heads: int) -> np.ndarray:
    """GGUF keeps the rows of q and k in the order of the original llama code."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LlamaForCausalLM]:
    """An 8-bit GGUF file of a tiny llama, and the model with the weights rounded as the file rounds them."""
    tokenizer = byte_tokenizer()
    model = tiny_model("llama", vocab_size=len(tokenizer))
    assert isinstance(model, LlamaForCausalLM)
    config = model.config
    assert isinstance(config, LlamaConfig)
    path = tmp_path_factory.mktemp("gguf") / "tiny.Q8_0.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads or config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL] * 3 + [TokenType.NORMAL] * 257)
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    eight_bit = GGMLQuantizationType.Q8_0
    for name, parameter in model.state_dict().items():
        weight = parameter.numpy()
        if weight.ndim == 2:
            packed = quantize(weight, eight_bit)
            parameter.copy_(torch.from_numpy(dequantize(packed, eight_bit)))
            if "q_proj" in name or "k_proj" in name:
                heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
                packed = quantize(rotary_order(weight, int(heads or 0)), eight_bit)
            writer.add_tensor(gguf_name(name), packed, raw_dtype=eight_bit)
        else:
            writer.add_tensor(gguf_name(name), weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, model


def test_gguf_gives_the_files_weights_and_tokenizer(written: tuple[Path, LlamaForCausalLM]) -> None:
    path, expected = written
    loaded = load(EngineConfig(model=str(path), dtype="float32"), attn_implementation="eager")
    assert (loaded.vocab_size, loaded.context_length) == (260, 512)
    assert loaded.eos_token_ids == {1}
    for name, weight in expected.state_dict().items():
        assert torch.allclose(loaded.model.state_dict()[name], weight, atol=1e-6), name
    ids = torch.arange(3, 60)[None]
    assert torch.allclose(loaded.model(ids).logits, expected(ids).logits, atol=1e-4)
    text = "the naïve 世界 <eos>"
    assert loaded.tokenizer.encode(text) == byte_tokenizer().encode(text)
    assert loaded.tokenizer.decode(loaded.tokenizer.encode(text)) == text


def test_gguf_in_bfloat16(written: tuple[Path, LlamaForCausalLM]) -> None:
    path, expected = written
    loaded = load(EngineConfig(model=str(path), dtype="bfloat16"))
    weight = loaded.model.state_dict()["model.layers.0.mlp.up_proj.weight"]
    assert torch.equal(weight, expected.state_dict()["model.layers.0.mlp.up_proj.weight"].bfloat16())


@pytest.mark.parametrize("cut", [6, 100, -2000])
def test_broken_gguf_is_refused(cut: int, written: tuple[Path, LlamaForCausalLM], tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(written[0].read_bytes()[:cut])
    with pytest.raises(ModelError, match=r"broken\.gguf' cannot be loaded") as caught:
        load(EngineConfig(model=str(broken)))
    assert "\n" not in str(caught.value)


def test_gguf_of_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "novel.gguf", "novel_net")
    writer.add_block_count(1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match="novel_net"):
        load(EngineConfig(model=str(tmp_path / "novel.gguf")))
