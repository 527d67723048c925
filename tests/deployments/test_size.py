"""``python -m deployments size``: its formulas are the engine's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deployments.commands import main
from deployments.errors import ConfigError
from deployments.shape import model_shape
from deployments.sizing import CUDA_SHARE, GIB, ModelShape, size
from racer.cache.pool import KVPool
from racer.config import EngineConfig
from racer.engine import Engine
from racer.model.runner import CUDA_CACHE_SHARE, DEFAULT_CPU_CACHE_BYTES
from tests.tiny import byte_tokenizer, tiny_model

SHAPE = ModelShape(parameters=8_000_000_000, token_bytes=147_456, context=40_960, dtype_bytes=2)


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt2", "phi3", "qwen3_moe"])
def test_shape_without_weights_is_the_loaded_models(family: str, tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    model = tiny_model(family, vocab_size=len(tokenizer))
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    config = EngineConfig(model=str(tmp_path), dtype="float32", prior=False, compile=False, budget=8, device="cpu")
    shape, engine = model_shape(config), Engine(config)
    pool = engine.runner.pool
    assert shape.token_bytes == KVPool.bytes_per_place(pool.shapes, engine.loaded.dtype)
    assert shape.weights_bytes == sum(p.numel() * p.element_size() for p in engine.loaded.model.parameters())
    assert shape.context == engine.loaded.context_length
    assert size(shape, None, 64, 1, None).cache // shape.token_bytes == pool.places


def test_constants_are_the_engines() -> None:
    assert CUDA_SHARE == CUDA_CACHE_SHARE
    assert size(SHAPE, None, 4096, 1, None).cache == DEFAULT_CPU_CACHE_BYTES


def test_gpu_holds_what_weights_leave() -> None:
    found = size(SHAPE, 80 * GIB, 4096, 1 << 23, None)
    room = 0.95 * 80 * GIB - 16e9 - GIB / 2
    assert found.cache == pytest.approx(0.8 * room, rel=1e-6)
    assert found.requests == found.cache // (4096 * 147_456)
    assert size(SHAPE, 80 * GIB, 8192, 1 << 23, None).requests == pytest.approx(found.requests / 2, abs=1)
    assert size(SHAPE, 80 * GIB, 4096, 1 << 24, None).store == 2 * found.store
    assert size(SHAPE, 80 * GIB, 4096, 1 << 23, 4 * GIB).cache == 4 * GIB
    assert found.host > found.weights


@pytest.mark.parametrize(
    ("device", "context", "cache", "told"),
    [
        (16 * GIB, 4096, None, "use one of at least"),
        (24 * GIB, 4096, 20 * GIB, "use one of at least"),
        (24 * GIB, 40_961, None, "use at most 40960"),
        (24 * GIB, 40_960, 1 << 30, "lower --context"),
    ],
)
def test_what_does_not_fit_is_told(device: int, context: int, cache: int | None, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        size(SHAPE, device, context, 1 << 23, cache)


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(["size", *args])
    told = capsys.readouterr()
    return code, told.out, told.err


def test_command(capsys: pytest.CaptureFixture[str], tiny_folder: Path) -> None:
    code, out, _ = run(capsys, "--model", str(tiny_folder), "--gpu", "l4", "--context", "512", "--json")
    assert code == 0
    found: dict[str, Any] = json.loads(out)
    assert found["cache"] > 15 * GIB and found["replicas"] is None and found["context"] == 512
    code, out, _ = run(capsys, "--model", str(tiny_folder), "--context", "512", "--requests", "1000000")
    assert code == 0 and "requests of 512 tokens" in out and "replicas" in out
    for args, told in (
        (["--gpu", "abacus"], "abacus"),
        (["--context", "0"], "--context"),
        (["--model", "/nowhere"], "/nowhere"),
        (["--model", str(tiny_folder), "--context", "513"], "use at most 512"),
    ):
        code, _, err = run(capsys, *args)
        assert code == 2 and told in err and err.count("\n") == 1, err
