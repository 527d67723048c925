"""A mistyped option of any command is named, and the one that was meant."""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest

from racer.commandline import OneSentenceParser


def refusal(main: Callable[[Sequence[str]], object], words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    try:
        code = main(words)
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "") and err.count("\n") == 1
    return err.removesuffix("\n")


@pytest.mark.parametrize(
    "module, words, told",
    [
        ("racer", "generate --inptu x.jsonl", "no option --inptu, did you mean --input? (try P generate --help)"),
        ("racer", "generate --inptu=x.jsonl", "no option --inptu, did you mean --input? (try P generate --help)"),
        ("racer", "bench --dat x.jsonl", "no option --dat, did you mean --data? (try P bench --help)"),
        ("racer", "run --zzz", "no option --zzz (try P run --help)"),
        ("racer", "--zzz run", "no option --zzz (try P --help)"),
        ("datastore", "ingest --url memory:// --tokeniser demo x", "no option --tokeniser, did you mean --tokenizer?"),
        ("datastore", "purge --ulr redis://x", "no option --ulr, did you mean --url? (try P purge --help)"),
        ("deployments", "serve --confg x", "no option --confg, did you mean --config? (try P serve --help)"),
        ("deployments", "batch --inptu x", "no option --inptu, did you mean --input? (try P batch --help)"),
        ("loadtest", "run --worklod chat", "no option --worklod, did you mean --workload? (try P run --help)"),
        ("loadtest", "plan --trafic 3", "no option --trafic, did you mean --traffic? (try P plan --help)"),
        ("k8s", "check --hepl", "no option --hepl, did you mean --help? (try P check --help)"),
    ],
)
def test_every_package_names_the_option(module: str, words: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    main = importlib.import_module(f"{module}.commands").main
    sentence = refusal(main, words.split(), capsys)
    assert sentence.startswith("error: there is ") and told.replace("P ", f"python -m {module} ") in sentence


@pytest.mark.parametrize("module", ["racer", "datastore", "deployments", "loadtest", "k8s"])
def test_help_loads_nothing_that_takes_seconds(module: str) -> None:
    code = f"""
import sys
from {module}.commands import main
try:
    main(["--help"])
finally:
    print(sorted({{"torch", "transformers", "ray", "scipy", "numba", "locust", "pyarrow"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "[]", done


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = OneSentenceParser(prog="it")
    parser.add_argument("--level", type=float, required=True)
    parser.add_argument("--text")
    parser.add_argument("word", nargs="*")
    return parser.parse_args(words)


@pytest.mark.parametrize(
    "words, told",
    [
        (("--text", "x"), "the following arguments are required: --level"),
        (("--lev", "1"), "there is no option --lev, did you mean --level?"),  # no abbreviations
        (("--level", "one", "--txt"), "there is no option --txt, did you mean --text?"),
        (("--level", "-x"), "there is no option -x"),
        (("--level", "one", "-1", "--text", "- a"), "argument --level: invalid float value: 'one'"),
        (("--level", "one", "--", "--txt"), "argument --level: invalid float value: 'one'"),
    ],
)
def test_only_what_cannot_be_a_value_is_an_option(
    words: Sequence[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refusal(parse, words, capsys) == f"error: {told} (try it --help)"


def test_values_that_begin_with_a_dash_stay_values() -> None:
    found = parse(("--level", "-1", "--text=-x", "--", "--txt"))
    assert (found.level, found.text, found.word) == (-1.0, "-x", ["--txt"])
