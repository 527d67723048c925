"""Bad input: one sentence on stderr, exit 2, nothing on stdout, no traceback."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor

import racer.commands.generate
from racer.commands import main
from racer.model.topk import top_k
from tests.racer.commands.conftest import SETTINGS, Command, Done

Write = Callable[..., str]


def refused(done: Done, *parts: str) -> None:
    sentences = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert done.code == 2 and done.out.strip() == "" and len(sentences) == 1, done
    assert all(part in sentences[0] for part in parts), sentences
    assert "Traceback" not in done.err


@pytest.mark.parametrize("command", [("generate", "--prompt", "x"), ("run",)])
def test_no_such_model(racer: Command, command: tuple[str, ...]) -> None:
    refused(racer(*command, model="/no/such/model"), "model '/no/such/model'", "no such file or folder")


@pytest.mark.parametrize("command", [("generate", "--prompt", "x"), ("run",)])
@pytest.mark.parametrize(
    "options, parts",
    [
        (("--store", "htp://x"), ("store 'htp:'", "use a URL that begins with one of", "redis")),
        (("--store", "redis://localhost:port"), ("'localhost:port'", "is not host or host:port")),
        (("--store", "redis://:hunter2@h?verify=no"), ("redis://:***@h", "does not know the option 'verify'")),
        (("--store", "redis://[h"), ("the store's URL cannot be read",)),
        (("--store", "memory://", "--namespace", "a b"), ("namespace 'a b' is not a name",)),
    ],
)
def test_a_wrong_store_is_told_before_a_model_is_loaded(
    racer: Command, command: tuple[str, ...], options: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    refused(racer(*command, *options, model="/no/such/model"), *parts)


def test_a_wrong_store_costs_no_earlier_output(racer: Command, jsonl: Write, tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text("kept")
    output = ("--output", str(tmp_path / "out.jsonl"), "--overwrite")
    done = racer("generate", "--input", jsonl({"prompt": "a"}), *output, "--store", "x")
    refused(done, "store 'x': use a URL that begins with")
    assert (tmp_path / "out.jsonl").read_text() == "kept"
    assert "store" in racer("bench", "--data", jsonl({"prompt": "a"}), "--store", "htp://x", model="/none").err


def test_unsupported_architecture(racer: Command, tmp_path: Path) -> None:
    from transformers import MambaConfig, MambaForCausalLM

    from tests.tiny import byte_tokenizer

    config = MambaConfig(vocab_size=260, hidden_size=16, state_size=4, num_hidden_layers=2, expand=1)
    MambaForCausalLM(config).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    refused(racer("generate", "--prompt", "x", model=str(tmp_path)), "'mamba' cannot be verified with drafts")


@pytest.mark.parametrize("command, option", [("generate", "--input"), ("bench", "--data")])
def test_file_missing_empty_or_a_folder(
    racer: Command, jsonl: Write, tmp_path: Path, command: str, option: str
) -> None:
    refused(racer(command, option, "/no/such.jsonl"), "/no/such.jsonl: cannot be read (No such file or directory)")
    refused(racer(command, option, str(tmp_path)), f"{tmp_path}: cannot be read (Is a directory)")
    for lines in ((), ("", "  ")):
        source = jsonl(*lines)
        refused(racer(command, option, source), f"{source}: the file is empty")


@pytest.mark.parametrize("command", [("generate", "--prompt"), ("run", "--prompt")])
def test_prompt_over_the_context(racer: Command, command: tuple[str, ...]) -> None:
    done = racer(*command, "long " * 200)
    refused(done, "tokens, but the context of 512 leaves room", "shorten the prompt")


@pytest.mark.parametrize("command", [("generate", "--prompt", "x"), ("run",), ("bench", "--data", "x.jsonl")])
@pytest.mark.parametrize(
    "option, value, reason",
    [
        ("--budget", "0", "must be auto or an integer from 1 to 1024"),
        ("--budget", "many", "must be auto or an integer from 1 to 1024"),
        ("--tree", "oak", "'best', 'paper' or 'chain'"),
        ("--drafts", "magic", "'magic' is not valid"),
        ("--dtype", "int3", "'auto', 'bfloat16', 'float16' or 'float32'"),
        ("--max-tokens", "0", "greater than or equal to 1"),
    ],
)
def test_value_out_of_range(racer: Command, command: tuple[str, ...], option: str, value: str, reason: str) -> None:
    refused(racer(*command, option, value), f"argument {option}", repr(value), reason)


@pytest.mark.parametrize(
    "options, parts",
    [
        (("--top-p", "2"), ("argument --top-p: '2' is not valid", "less than or equal to 1")),
        (("--temperature", "-1"), ("argument --temperature: '-1'",)),
        (("--temperature", "nan"), ("argument --temperature: 'nan'",)),
        (("--concurrency", "0"), ("argument --concurrency/--max-running: '0'",)),
        (("--stop", ""), ("error: --stop ", "stop string must not be empty")),
        (("--device", "gpu"), ("error: --device 'gpu' is no torch device",)),
        (("--max-tokens", "9999"), ("--max-tokens asks for 9999", "ask for at most")),
        (("--max-tokens", "3", "--min-tokens", "5"), ("error: --min-tokens 5 exceeds --max-tokens 3; lower",)),
        (("--max-context", "9999"), ("--max-context 9999 exceeds this model's context",)),
        (("--cache-bytes", "1"), ("error: --cache-bytes 1 holds fewer",)),
        (
            ("--cache-bytes", "999999999999999"),
            ("key-value cache of 9999999", "cannot be had on cpu", "set --cache-bytes lower"),
        ),
        (("--colour",), ("there is no option --colour (try python -m racer generate --help)",)),
        (("--budge", "3"), ("there is no option --budge, did you mean --budget?",)),
    ],
)
def test_generate_options(racer: Command, options: tuple[str, ...], parts: tuple[str, ...]) -> None:
    refused(racer("generate", "--prompt", "x", *options), *parts)


def test_bench_and_prompt_combinations(racer: Command, jsonl: Write) -> None:
    source = jsonl({"prompt": "a"})
    refused(racer("bench", "--data", source, "--drafts", "off,,racer"), "argument --drafts", "''")
    refused(racer("bench", "--data", source, "--drafts", "generate", "--concurrency", "1,2"), "--concurrency 1")
    refused(
        racer("bench", "--data", jsonl({"prompt": "a"}, "{", name="bad.jsonl")), "bad.jsonl:2: the line is not JSON"
    )
    refused(racer("generate", "--prompt", ""), "--prompt must not be empty")
    refused(racer("run", "--prompt", "\udcff"), "--prompt holds half of a surrogate pair")
    refused(racer("generate", "--prompt", "a", "--input", source), "not allowed with argument --prompt")
    refused(racer("generate", "--input", source, "--chat"), "--chat goes with --prompt")
    refused(racer("generate"), "one of the arguments --prompt --input is required")
    refused(racer("generate", "--input", source, "--output", source), "input and output are the same file")
    assert json.loads(Path(source).read_text()) == {"prompt": "a"}


def test_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    refused(Done(2, *capsys.readouterr()), "COMMAND")
    assert main(["--colour", "run"]) == 2
    refused(Done(2, *capsys.readouterr()), "there is no option --colour (try python -m racer --help)")


def test_output_that_cannot_be_written(
    racer: Command, jsonl: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = jsonl({"prompt": "a"})
    full = racer("generate", "--input", source, "--output", "/dev/full", "--max-tokens", "2")
    refused(full, "/dev/full: cannot be written (No space left on device); free space or name another file")

    def never(*_: Any) -> None:
        raise AssertionError("an output that cannot be opened is noticed before the model is loaded")

    monkeypatch.setattr(racer_generate, "open_engine", never)
    target = str(tmp_path / "none" / "out.jsonl")
    reason = f"error: {target}: cannot be written (No such file or directory); name another file"
    refused(racer("generate", "--input", source, "--output", target), reason)


racer_generate = racer.commands.generate


def test_logits_that_are_not_finite(racer: Command, jsonl: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(logits: Tensor, k: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        tokens, probs = top_k(logits, k)
        return tokens, probs * np.float32("nan")

    monkeypatch.setattr("racer.engine.top_k", damaged)
    source = jsonl({"prompt": "a"}, {"prompt": "b"})
    done = racer("generate", "--input", source, "--json")
    assert done.code == 2 and all("logits are not finite" in record["error"] for record in done.records)
    for command in (("run", "--prompt", "a"), ("bench", "--data", source)):
        done = racer(*command)
        assert done.code == 1 and "Traceback" not in done.err
        assert "error: the model's logits are not finite" in done.err.splitlines()[-1]


def test_a_terminal_that_lacks_the_texts_characters(racer: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = racer("generate", "--prompt", "a", "--max-tokens", "6").out
    assert not expected.isascii()
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    done = racer("generate", "--prompt", "a", "--max-tokens", "6")
    assert done.code == 0 and written.getvalue().decode() == expected


@pytest.mark.parametrize("model", ["demo", None])
def test_a_cache_folder_that_cannot_be_made(
    chat_folder: Path, model: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The demo model cannot be had then; another model only goes without keeping its prior table."""
    monkeypatch.setenv("RACER_CACHE", "/dev/null/cache")
    options = ["--prompt", "a", "--max-tokens", "3", "--no-compile", "--dtype", "float32"]
    code = main(["generate", "--model", model or str(chat_folder), *options])
    out, err = capsys.readouterr()
    if model:
        refused(
            Done(code, out, err), "the cache folder /dev/null/cache cannot be made (Not a directory)", "RACER_CACHE"
        )
    else:
        assert code == 0 and out and "prior table cannot be kept" in err


def test_interrupt_while_the_libraries_are_imported(tmp_path: Path) -> None:
    for library in ("torch", "numpy", "pydantic"):  # whichever comes first
        (tmp_path / f"{library}.py").write_text("raise KeyboardInterrupt")
    done = subprocess.run(
        [sys.executable, "-m", "racer", "run"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


LIGHT = """
import sys
from racer.commands import main
code = main(sys.argv[1:])
heavy = {"torch", "transformers", "numpy", "numba"} & set(sys.modules)
sys.exit(f"loaded {heavy}" if heavy else code)
"""


@pytest.mark.parametrize(
    "code, words, said",
    [
        (0, ("--help",), "COMMAND"),
        (0, ("generate", "--help"), "--temperature"),
        (0, ("bench", "--help"), "--limit-per-category"),
        (0, ("run", "--help"), "--prompt"),
        (2, ("generate", "--prompt", "x", "--colour"), "no option --colour"),
        (2, ("run", "--top-p", "2"), "--top-p"),
        (2, ("generate", "--prompt", "x", "--max-tokens", "3", "--min-tokens", "5"), "exceeds"),
        (2, ("generate", "--input", "/no/such.jsonl"), "cannot be read"),
        (2, ("generate", "--prompt", "x", "--output", "/no/such/out.jsonl"), "cannot be written"),
        (2, ("bench", "--data", "/no/such.jsonl"), "cannot be read"),
    ],
)
def test_help_and_mistakes_are_told_without_loading_the_libraries(code: int, words: tuple[str, ...], said: str) -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT, *words], capture_output=True, text=True, check=False)
    assert done.returncode == code and said in done.stdout + done.stderr, done


def spawn(folder: Path, *options: str, **streams: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "racer", *options, "--model", str(folder), *SETTINGS]
    return subprocess.Popen(command, text=True, stderr=subprocess.PIPE, **streams)


def test_stdout_full_or_closed(chat_folder: Path, jsonl: Write) -> None:
    """In processes of their own: the interpreter's last flush must not complain either."""
    ask = ("generate", "--prompt", "x", "--max-tokens", "4")
    with open("/dev/full", "w") as full:
        to_full = spawn(chat_folder, *ask, stdout=full)
    reader, writer = os.pipe()
    os.close(reader)
    to_nobody = spawn(chat_folder, *ask, stdout=writer)
    os.close(writer)
    errors = to_full.communicate()[1]
    assert to_full.returncode == 2
    assert errors.splitlines()[-1] == "error: the output cannot be written (No space left on device)"
    errors = to_nobody.communicate()[1]
    assert to_nobody.returncode == 141 and "error" not in errors.lower() and "Traceback" not in errors


def test_a_failed_start_leaves_an_existing_output_alone(racer: Command, jsonl: Write, tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"
    kept.write_text("results of yesterday\n")
    words = ("generate", "--input", jsonl({"prompt": "x"}), "--output", str(kept))
    done = racer(*words, "--overwrite", model="/no/such/model")
    assert done.code == 2 and "/no/such/model" in done.err
    assert kept.read_text() == "results of yesterday\n"
    kept.unlink()
    assert racer(*words, model="/no/such/model").code == 2
    assert not kept.exists()  # else the next try would be refused


def test_an_existing_output_is_replaced_on_demand_only(racer: Command, jsonl: Write, tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"
    kept.write_text("results of yesterday\n")
    words = ("generate", "--input", jsonl({"prompt": "x"}), "--output", str(kept), "--max-tokens", "2")
    refused(racer(*words), f"error: --output {kept}: exists; name another, or give --overwrite")
    assert kept.read_text() == "results of yesterday\n"
    assert racer(*words, "--overwrite").code == 0
    assert [len(json.loads(line)["token_ids"]) for line in kept.read_text().splitlines()] == [2]
    assert racer(*words[:4], "/dev/null", "--max-tokens", "2").code == 0
