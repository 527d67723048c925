from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, BertConfig, BitsAndBytesConfig, T5Config

from racer.config import EngineConfig
from racer.errors import ConfigError, ModelError
from racer.model.loader import LoadedModel, context_length, load, pick_device, pick_dtype
from racer.model.native import load_kernels
from tests.tiny import tiny_config

OWN_CODE = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM
Path({marker!r}).write_text("ran")
class OwnConfig(LlamaConfig):
    model_type = {kind!r}
class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
"""


@pytest.fixture
def folder(tiny_folder: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model's folder, to be damaged."""
    return Path(shutil.copytree(tiny_folder, tmp_path / "model"))


def edit_json(path: Path, **values: object) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in (content | values).items() if v is not None}))


def refusal(model: Path | str, **settings: object) -> str:
    """The sentence with which loading ``model`` is refused; one line, and it names the model."""
    with pytest.raises(ModelError) as caught:
        load(EngineConfig(model=str(model), **settings))
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert repr(str(model)) in sentence
    return sentence


# --- what comes back


def test_demo_is_the_instruct_model(demo_float32: LoadedModel) -> None:
    loaded = demo_float32
    assert (loaded.name, loaded.vocab_size, loaded.context_length) == ("demo", 49152, 8192)
    assert loaded.eos_token_ids == {2}
    assert (loaded.dtype, loaded.device) == (torch.float32, torch.device("cpu"))
    assert not loaded.model.training
    assert not any(p.requires_grad for p in loaded.model.parameters())
    assert "You are a helpful AI assistant named SmolLM" in str(loaded.tokenizer.chat_template)
    model: Any = loaded.model
    ids = loaded.tokenizer("The capital of France is", return_tensors="pt")
    answer = model.generate(**ids, max_new_tokens=1, do_sample=False)[0, -1:]
    assert loaded.tokenizer.decode(answer) == " Paris"


def test_demo_in_both_dtypes_has_the_same_weights(demo_float32: LoadedModel, demo_bfloat16: LoadedModel) -> None:
    assert demo_bfloat16.dtype is torch.bfloat16
    single, half = demo_float32.model.state_dict(), demo_bfloat16.model.state_dict()
    assert single.keys() == half.keys()
    for name, weight in single.items():
        assert weight.dtype is torch.float32
        assert half[name].dtype is torch.bfloat16
        assert torch.equal(weight, half[name].float()), name


def test_fingerprint_names_weights_and_dtype_not_the_place(tiny_folder: Path, folder: Path) -> None:
    original = load(EngineConfig(model=str(tiny_folder), dtype="float32")).fingerprint
    assert load(EngineConfig(model=str(folder), dtype="float32")).fingerprint == original
    assert load(EngineConfig(model=str(folder), dtype="bfloat16")).fingerprint != original
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][3] += 0.5
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert load(EngineConfig(model=str(folder), dtype="float32")).fingerprint != original


def test_ends_are_united(folder: Path) -> None:
    edit_json(folder / "generation_config.json", eos_token_id=[7, 9])
    assert load(EngineConfig(model=str(folder))).eos_token_ids == {1, 7, 9}


def test_attention_implementation_is_passed_on(tiny_folder: Path) -> None:
    for name in ("eager", "sdpa"):
        loaded = load(EngineConfig(model=str(tiny_folder)), attn_implementation=name)
        assert loaded.model.config._attn_implementation == name


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (tiny_config("llama", max_position_embeddings=77), 77),
        (tiny_config("gpt2", n_positions=88), 88),
        (AutoConfig.for_model("mpt", max_seq_len=99), 99),
        (AutoConfig.for_model("bloom"), None),
    ],
)
def test_context_length(config: transformers.PreTrainedConfig, expected: int | None) -> None:
    assert context_length(config) == expected


def test_settings_of_the_libraries_return(tiny_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    logs = transformers.utils.logging
    before = logs.get_verbosity(), logs.is_progress_bar_enabled()
    load(EngineConfig(model=str(tiny_folder)))
    assert (logs.get_verbosity(), logs.is_progress_bar_enabled()) == before
    assert capfd.readouterr() == ("", "")


# --- device and dtype


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_dtype_by_name(name: str, tiny_folder: Path) -> None:
    loaded = load(EngineConfig(model=str(tiny_folder), dtype=name))
    assert loaded.model(torch.tensor([[3, 4, 5]])).logits.dtype is getattr(torch, name)


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"avx2": True, "avx512_bf16": False}, torch.float32),
        ({"avx512_bf16": True}, torch.bfloat16),
        ({"amx_bf16": True}, torch.bfloat16),
        ({"bf16": True}, torch.bfloat16),
        ({}, torch.float32),
    ],
)
def test_dtype_auto_follows_the_processor(
    capabilities: dict[str, bool], expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert pick_dtype("auto", torch.device("cpu"), tiny_model_of_odd_sizes) is expected


def tiny_model_of_odd_sizes() -> nn.Module:
    return nn.Linear(33, 64)


@pytest.mark.may_skip("a processor without AVX2 runs torch's own products")
@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([nn.Embedding(33, 7), nn.Linear(96, 64)], torch.bfloat16),
        ([nn.Linear(96, 64), nn.Linear(64, 50)], torch.float32),
        ([nn.Linear(96, 64), nn.Conv1d(32, 32, 1)], torch.float32),
    ],
)
def test_dtype_auto_is_bfloat16_where_kernels_widen_it(
    layers: list[nn.Module], expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels for vectors need no bfloat16 instructions, but all of the model's products in whole blocks."""
    if not load_kernels():
        pytest.skip("this processor has none of AMX, AVX-512 and AVX2")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, "fma3": True})
    assert pick_dtype("auto", torch.device("cpu"), lambda: nn.Sequential(*layers)) is expected


@pytest.mark.parametrize("supported", [True, False])
def test_dtype_auto_follows_the_gpu(supported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: supported)
    assert pick_dtype("auto", torch.device("cuda:0"), nn.Module) is (torch.bfloat16 if supported else torch.float32)


def fake_accelerator(monkeypatch: pytest.MonkeyPatch, kind: str | None, count: int = 2) -> None:
    device = torch.device(kind) if kind else None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: kind == "cuda")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: device)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        (None, "auto", "cpu"),
        (None, "cpu", "cpu"),
        ("cuda", "cpu", "cpu"),
        ("cuda", "auto", "cuda:0"),
        ("cuda", "cuda", "cuda:0"),
        ("cuda", "cuda:1", "cuda:1"),
        ("mps", "mps", "mps:0"),
        ("mps", "auto", "cpu"),
    ],
)
def test_device(kind: str | None, name: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_accelerator(monkeypatch, kind)
    assert pick_device(name) == torch.device(expected)


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        (None, "cuda", "only a cpu"),
        (None, "tpu9", "no torch device"),
        (None, "meta", "only a cpu"),
        ("mps", "cuda", "cpu and mps"),
        ("cuda", "cuda:2", "2 of that kind"),
    ],
)
def test_device_refused(kind: str | None, name: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_accelerator(monkeypatch, kind)
    with pytest.raises(ConfigError, match=words) as caught:
        pick_device(name)
    assert repr(name) in str(caught.value)


# --- code from the model's folder


def bring_own_code(folder: Path, marker: Path, kind: str) -> None:
    (folder / "own.py").write_text(OWN_CODE.format(marker=str(marker), kind=kind))
    auto_map = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    edit_json(folder / "config.json", model_type=kind, auto_map=auto_map, architectures=["OwnModel"])


def test_own_code_runs_only_if_trusted(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    marker = tmp_path / "marker"
    bring_own_code(folder, marker, "own_kind")
    assert "--trust-remote-code" in refusal(folder)
    assert not marker.exists()
    loaded = load(EngineConfig(model=str(folder), trust_remote_code=True))
    assert marker.read_text() == "ran"
    assert type(loaded.model).__name__ == "OwnModel"


def test_own_code_of_a_known_family_is_not_needed(folder: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    bring_own_code(folder, marker, "llama")
    assert type(load(EngineConfig(model=str(folder))).model) is transformers.LlamaForCausalLM
    assert not marker.exists()


def test_own_tokenizer_code_runs_only_if_trusted(folder: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    (folder / "own_tokenizer.py").write_text(f"open({str(marker)!r}, 'w')")
    auto_map = {"AutoTokenizer": ["own_tokenizer.OwnTokenizer", None]}
    edit_json(folder / "tokenizer_config.json", tokenizer_class="OwnTokenizer", auto_map=auto_map)
    (folder / "tokenizer.json").unlink()
    assert "--trust-remote-code" in refusal(folder)
    assert not marker.exists()


# --- quantised models


def test_quantised_folder_loads_as_transformers_loads_it(tiny_folder: Path, tmp_path: Path) -> None:
    make_config: Any = BitsAndBytesConfig
    four_bit = make_config(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    quantised = AutoModelForCausalLM.from_pretrained(
        tiny_folder, quantization_config=four_bit, dtype=torch.float32, attn_implementation="eager"
    )
    quantised.requires_grad_(False)  # its kernels differ with gradients
    target = Path(shutil.copytree(tiny_folder, tmp_path / "quantised"))
    (target / "model.safetensors").unlink()
    quantised.save_pretrained(target)
    loaded = load(EngineConfig(model=str(target), dtype="float32"), attn_implementation="eager")
    assert type(loaded.model.model.layers[0].mlp.up_proj).__name__ == "Linear4bit"
    ids = torch.arange(3, 40)[None]
    plain = load(EngineConfig(model=str(tiny_folder), dtype="float32"), attn_implementation="eager")
    expected = quantised(ids).logits
    assert torch.allclose(loaded.model(ids).logits, expected, atol=1e-5)
    assert not torch.allclose(plain.model(ids).logits, expected, atol=1e-2)


# --- refusals


def test_missing_folder() -> None:
    assert "no such file or folder" in refusal("/no/such/folder")


def test_folder_without_config(tmp_path: Path) -> None:
    assert "config.json" in refusal(tmp_path)


def test_config_that_is_not_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    assert "JSONDecodeError" in refusal(folder)


def test_unknown_model_type(folder: Path) -> None:
    edit_json(folder / "config.json", model_type="novel_net")
    assert "'novel_net'" in refusal(folder)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (T5Config(d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2), "t5 is an encoder-decoder"),
        (BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2), "bert is an encoder"),
        (AutoConfig.for_model("vit"), "vit has no causal language model"),
    ],
)
def test_not_decoder_only(config: transformers.PreTrainedConfig, words: str, folder: Path) -> None:
    config.save_pretrained(folder)
    assert words in refusal(folder)


def test_missing_tokenizer(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()
    assert "tokenizer" in refusal(folder)


def test_missing_weights_file(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "model.safetensors" in refusal(folder)


def test_truncated_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    assert "whole" in refusal(folder)


def test_one_weight_missing(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert "lack 1 weights (model.layers.1.mlp.up_proj.weight" in refusal(folder)


def test_weight_of_another_shape(folder: Path) -> None:
    edit_json(folder / "config.json", intermediate_size=80)
    assert "cannot be loaded" in refusal(folder)


def test_long_reasons_are_cut(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("long\n\nreason " * 100)

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", fail)
    assert len(refusal(folder)) < 600
