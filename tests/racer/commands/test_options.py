from __future__ import annotations

import argparse
from typing import Any

import pytest

from racer.commands.options import (
    ENGINE_FLAGS,
    SAMPLING_FLAGS,
    add_engine_options,
    add_sampling_options,
    comma_list,
    engine_config,
    sampling_values,
    value_type,
    with_flags,
)
from racer.config import EngineConfig, TreeShape
from racer.types import SamplingParams

ENGINE_VALUES: dict[str, tuple[str, Any]] = {
    "model": ("m", "m"),
    "dtype": ("float32", "float32"),
    "device": ("cpu", "cpu"),
    "trust_remote_code": ("", True),
    "drafts": ("logits", "logits"),
    "tree": ("chain", "chain"),
    "budget": ("7", 7),
    "max_budget": ("9", 9),
    "ngram": ("5", 5),
    "top_k": ("4", 4),
    "min_depth": ("3", 3),
    "max_automaton_nodes": ("100", 100),
    "compile": ("--no-compile", False),
    "prior": ("--no-prior", False),
    "prior_limit_s": ("9", 9.0),
    "cache_bytes": ("1000", 1000),
    "max_context": ("99", 99),
    "max_running": ("2", 2),
    "prefill_chunk": ("16", 16),
    "source_deadline_ms": ("2.5", 2.5),
    "seed": ("3", 3),
}


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(exit_on_error=False)
    add_engine_options(made)
    add_sampling_options(made)
    return made


def test_every_engine_setting_has_a_flag() -> None:
    assert set(ENGINE_VALUES) == set(EngineConfig.model_fields) == set(ENGINE_FLAGS)


@pytest.mark.parametrize("name", ENGINE_VALUES)
def test_flag_sets_its_setting_and_no_other(name: str) -> None:
    text, value = ENGINE_VALUES[name]
    words = [text] if text.startswith("--") else [ENGINE_FLAGS[name], *([text] if text else [])]
    config = engine_config(parser().parse_args(words))
    assert config == EngineConfig(**{name: value}) != EngineConfig()


@pytest.mark.parametrize("name", SAMPLING_FLAGS)
def test_flag_sets_its_sampling_parameter(name: str) -> None:
    value = {"stop": "0.5", "ignore_eos": ""}.get(name, "1" if name in ("max_tokens", "min_tokens", "top_k") else "0.5")
    values = sampling_values(parser().parse_args([SAMPLING_FLAGS[name], *([value] if value else [])]))
    assert list(values) == [name] and SamplingParams(**values) != SamplingParams()


def test_nothing_given_changes_nothing() -> None:
    args = parser().parse_args([])
    assert engine_config(args) == EngineConfig() and sampling_values(args) == {}
    assert engine_config(args, budget=3).budget == 3


def test_errors_name_settings_by_their_flags() -> None:
    told = {
        "max_context=9 does not fit; raise cache_bytes": "--max-context 9 does not fit; raise --cache-bytes",
        "device='gpu' is no torch device": "--device 'gpu' is no torch device",
        "top_k=-1 is not valid": "--top-k -1 is not valid",
        "model 'my_max_tokens': no seed for this tree": "model 'my_max_tokens': no seed for this tree",
    }
    assert {sentence: with_flags(sentence) for sentence in told} == told


def test_lists() -> None:
    trees = comma_list(value_type(EngineConfig, "tree"))
    assert trees("best, paper,best") == [TreeShape.BEST, TreeShape.PAPER]
    with pytest.raises(argparse.ArgumentTypeError, match="'' is not valid: input should be 'best', 'paper' or 'chain'"):
        trees("best,")


def test_help_names_limits_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    parser().print_help()
    text = " ".join(capsys.readouterr().out.split())
    assert "--tree best|paper|chain how the draft tree is grown (default: best)" in text
    assert "--budget N|auto" in text and "--max-budget N" in text
    assert "--no-prior" in text and "--logits-top-k N" in text
