"""Tokenizers: which one is meant, and which tokens it gives.

A store's keys carry the tokenizer's fingerprint, so that two models whose token ids mean different strings never read
each other's. The engine has a tokenizer already and hands over its JSON; the commands here read one from disk.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from datastore.errors import StoreConfigError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

DEMO = "demo"
_DEMO_MODULE = "racer.model.demo"
_FILE = "tokenizer.json"
_DIGITS = 16


def fingerprint(tokenizer: Tokenizer) -> str:
    """16 hexadecimal digits that tell which string each token id stands for, added tokens included.

    Padding, truncation and how a text is split do not count: ids mean the same with and without them.
    """
    digest = hashlib.sha256()
    for token, token_id in sorted(tokenizer.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1]):
        digest.update(f"{token_id} {len(token)} {token}\n".encode(errors="surrogatepass"))
    return digest.hexdigest()[:_DIGITS]


def parse_tokenizer(tokenizer_json: str) -> Tokenizer:
    """A tokenizer from the text of its ``tokenizer.json``.

    Raises:
        StoreConfigError: the text is none.
    """
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(tokenizer_json)
    except Exception as error:  # the library raises bare Exception
        raise StoreConfigError(f"this is no tokenizer that the tokenizers library reads ({error})") from error


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer called ``name``: "demo", a model's folder, a ``tokenizer.json``, or a Hub id.

    The weights are neither needed nor read.

    Raises:
        StoreConfigError: there is none of that name, or it is not in the format of the tokenizers library.
    """
    from tokenizers import Tokenizer

    path = _demo_folder() if name == DEMO else Path(name).expanduser()
    if name and path.is_dir():
        path /= _FILE
        if not path.is_file():
            raise StoreConfigError(
                f"tokenizer {name!r}: the folder holds no {_FILE}; write one with transformers' "
                "AutoTokenizer.from_pretrained(...).save_pretrained(...)"
            )
    elif not path.is_file():
        path = _from_hub(name)
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise StoreConfigError(f"tokenizer {name!r}: {path} cannot be read ({error}); name a {_FILE}") from error


def _demo_folder() -> Path:
    """The demo model's folder, made if absent; by the engine's own program, as this package does not import it."""
    told = subprocess.run([sys.executable, "-m", _DEMO_MODULE], stdout=subprocess.PIPE, text=True, check=False)
    if told.returncode:  # it said why on stderr
        raise StoreConfigError(f"the demo model's tokenizer cannot be had: python -m {_DEMO_MODULE} failed")
    return Path(told.stdout.strip().splitlines()[-1])


def _from_hub(name: str) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HFValidationError

    wrong = f"tokenizer {name!r}: no such file or folder"
    if name.startswith(("/", ".", "~")) or name.endswith(".json"):
        raise StoreConfigError(f"{wrong}; correct the path or use '{DEMO}'")
    try:
        return Path(hf_hub_download(name, _FILE, etag_timeout=10.0))
    except HFValidationError:
        raise StoreConfigError(f"{wrong}; correct the path or use '{DEMO}'") from None
    except Exception as error:  # of requests, of the Hub, of the disk
        raise StoreConfigError(
            f"{wrong}, and the Hub does not give its {_FILE} ({type(error).__name__}); correct it or use '{DEMO}'"
        ) from error
