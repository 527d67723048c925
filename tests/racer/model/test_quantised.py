"""The method sits on top of quantisation: a quantised model decodes its own greedy tokens, with drafts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from racer import Engine, EngineConfig
from racer.model.attention import ATTENTION
from racer.model.loader import LoadedModel, load
from tests.racer.engine.helpers import answer, prompt
from tests.racer.model.test_gguf import written

__all__ = ["written"]

NEW_TOKENS = 40


def generated(loaded: LoadedModel, tokens: tuple[int, ...]) -> list[int]:
    """What ``model.generate`` decodes, with its usual attention."""
    model: Any = loaded.model
    model.set_attn_implementation("eager")
    row = model.generate(
        torch.tensor([tokens]), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0
    )[0, len(tokens) :].tolist()
    model.set_attn_implementation(ATTENTION)
    return list(row)


def assert_decodes_its_own_tokens(folder: Path) -> None:
    config = EngineConfig(model=str(folder), dtype="float32", prior=False, compile=False, cache_bytes=1 << 23)
    loaded = load(config, ATTENTION)
    engine = Engine(config, loaded=loaded)
    for tokens in (prompt(12, 1) * 3, prompt(30, 2)):
        drafted = answer(engine, tokens, max_tokens=NEW_TOKENS, ignore_eos=True)
        assert drafted.token_ids == generated(loaded, tokens)
        assert sum(drafted.stats.drafted.values()) > NEW_TOKENS


@pytest.mark.parametrize("bits", [4, 8])
def test_bitsandbytes(bits: int, tiny_folder: Path, tmp_path: Path) -> None:
    make_config: Any = BitsAndBytesConfig
    settings: dict[str, Any] = {"load_in_8bit": True}
    if bits == 4:
        settings = {
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_compute_dtype": torch.float32,
        }
    quantised: Any = AutoModelForCausalLM.from_pretrained(
        tiny_folder, quantization_config=make_config(**settings), dtype=torch.float32
    )
    quantised.requires_grad_(False)
    target = Path(shutil.copytree(tiny_folder, tmp_path / "quantised"))
    (target / "model.safetensors").unlink()
    quantised.save_pretrained(target)
    assert_decodes_its_own_tokens(target)


def test_gguf(written: tuple[Path, Any]) -> None:
    assert_decodes_its_own_tokens(written[0])
