"""What an engine plugs in: a client of the store that a URL names, for the engine's tokenizer.

The engine's package finds :data:`open_source` through the entry points of the group ``racer.ngram_sources`` in
``pyproject.toml``, one for each URL scheme; neither package imports the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from datastore.address import parse
from datastore.client import ClientConfig, StoreClient
from datastore.connect import open_store
from datastore.embedded import EmbeddedServer, find_binary
from datastore.errors import UserError
from datastore.fingerprint import fingerprint, parse_tokenizer
from datastore.keys import check_namespace
from datastore.store import NgramStore

EMBEDDED = "embedded:"
"""URL of a server that is started for this client alone, and stopped with it."""


class SourceFactory:
    """Opens sources. What it raises is a ValueError, told in one sentence."""

    def check(self, url: str, *, namespace: str) -> None:
        """Raise what :meth:`__call__` would, as far as that can be told without a tokenizer. Nothing is connected."""
        with _user_errors():
            check_namespace(namespace)
            if url == EMBEDDED:
                find_binary()
            else:
                parse(url)

    def __call__(self, url: str, *, namespace: str, tokenizer_json: str, config: ClientConfig | None = None) -> Source:
        """A client of the store at ``url``, for the tokens of the tokenizer with this ``tokenizer.json``.

        A server that cannot be reached is no error: the client gives nothing until it can.

        Raises:
            ValueError: the URL, the namespace or the tokenizer cannot be used.
        """
        with _user_errors():
            tokens = fingerprint(parse_tokenizer(tokenizer_json))
            if url == EMBEDDED:
                server = EmbeddedServer()
                return Source(open_store(server.url, namespace=namespace, fingerprint=tokens), config, server)
            return Source(open_store(url, namespace=namespace, fingerprint=tokens), config)


open_source = SourceFactory()


@contextmanager
def _user_errors() -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise ValueError(str(error)) from error


class Source(StoreClient):
    """A client with the names that an engine's package knows, and perhaps with a server of its own."""

    def __init__(
        self, store: NgramStore, config: ClientConfig | None = None, server: EmbeddedServer | None = None
    ) -> None:
        super().__init__(store, config)
        self._server = server

    def counters(self) -> dict[str, Any]:
        """What was counted so far (:class:`datastore.counters.ClientStats`), as JSON can hold it."""
        return asdict(self.stats())

    def close(self, timeout_s: float = 2.0) -> None:
        """Close the client, then stop its own server."""
        super().close(timeout_s)
        if self._server is not None:
            self._server.close()
