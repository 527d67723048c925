"""Fixtures of all tests. Models are loaded once for a session, and only if a test asks for them."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from racer.config import EngineConfig
from racer.model.demo import demo_folder
from racer.model.loader import LoadedModel, load
from tests.skips import pytest_make_collect_report, pytest_runtest_makereport
from tests.tiny import TinyModel, byte_tokenizer, tiny_model

# A shell without job control starts what it puts in the background deaf to Ctrl-C, and what a test starts inherits
# that: ``serve run`` would never end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

__all__ = ["pytest_make_collect_report", "pytest_runtest_makereport"]


@pytest.fixture(scope="session")
def demo_model_dir() -> Path:
    """Folder of the demo model, in the cache of whoever runs the tests."""
    return demo_folder()


@pytest.fixture(scope="session")
def demo_float32() -> LoadedModel:
    return load(EngineConfig(model="demo", dtype="float32"))


@pytest.fixture(scope="session")
def demo_bfloat16() -> LoadedModel:
    return load(EngineConfig(model="demo", dtype="bfloat16"))


@pytest.fixture(scope="session")
def demo_tokenizer(demo_model_dir: Path) -> PreTrainedTokenizerBase:
    """The demo model's tokenizer, without the weights."""
    return AutoTokenizer.from_pretrained(demo_model_dir)


@pytest.fixture(scope="session", name="tiny_model")
def tiny_model_factory() -> TinyModel:
    """``tiny_model(family, **config values)``: random weights in a tiny configuration of that family."""
    return tiny_model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama with a byte-level tokenizer, saved as transformers saves a model. Copy before changing it."""
    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = byte_tokenizer()
    model = tiny_model("llama", vocab_size=len(tokenizer), eos_token_id=1, intermediate_size=128)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
