"""Options that several commands share, and what they stand for. Libraries are loaded on use: ``--help`` is quick."""

from __future__ import annotations

import argparse
import json
import os
from typing import TYPE_CHECKING, Any

from datastore.errors import StoreConfigError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from datastore.store import NgramStore

URL_VARIABLE = "DATASTORE_URL"
DEFAULT_NAMESPACE = "default"


def add_store_options(parser: argparse.ArgumentParser, *, tokenizer: bool = True) -> None:
    """Add the options that name a namespace of a store, and with ``tokenizer`` that name one."""
    group = parser.add_argument_group("store")
    group.add_argument(
        "--url",
        metavar="URL",
        help="redis://[user:password@]host:port/db, rediss:// (TLS), redis+sentinel://, redis+cluster://, "
        f"rediss+cluster:// or valkey://; default: ${URL_VARIABLE}, which unlike an option shows no password in a "
        "list of processes",
    )
    group.add_argument(
        "--namespace", metavar="NAME", default=DEFAULT_NAMESPACE, help=f"whose n-grams (default: {DEFAULT_NAMESPACE})"
    )
    if tokenizer:
        group.add_argument(
            "--tokenizer",
            metavar="NAME",
            required=True,
            help="the model's: demo, a model's folder, a tokenizer.json, or a Hub id",
        )


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def store_url(args: argparse.Namespace) -> str:
    """The URL given, or the environment's, once it is clear that it is one: what follows may take long.

    Raises:
        StoreConfigError: there is none, or it or the namespace is malformed.
    """
    from datastore.address import parse
    from datastore.keys import check_namespace

    url: str | None = args.url or os.environ.get(URL_VARIABLE)
    if not url:
        raise StoreConfigError(f"no store is named; use --url redis://HOST:PORT, or set {URL_VARIABLE}")
    parse(url)
    check_namespace(args.namespace)
    return url


def open_with(args: argparse.Namespace) -> tuple[Tokenizer, NgramStore]:
    """The tokenizer that the options name, and the store for its tokens.

    Raises what :func:`store_url` raises, before the tokenizer is loaded, and what
    :func:`datastore.fingerprint.load_tokenizer` raises.
    """
    url = store_url(args)
    from datastore.connect import open_store
    from datastore.fingerprint import fingerprint, load_tokenizer

    tokenizer = load_tokenizer(args.tokenizer)
    return tokenizer, open_store(url, namespace=args.namespace, fingerprint=fingerprint(tokenizer))


def print_result(args: argparse.Namespace, values: dict[str, Any], sentence: str) -> None:
    """``values`` as one JSON object where asked for, else ``sentence``."""
    print(json.dumps(values, ensure_ascii=False) if args.json else sentence, flush=True)
