"""What an engine plugs in: a client of the store that a URL names, for the engine's tokenizer.

The engine's package finds :func:`open_source` through the entry points of the group ``racer.ngram_sources`` in
``pyproject.toml``, one for each URL scheme; neither package imports the other.
"""

from __future__ import annotations

from datastore.client import StoreClient
from datastore.connect import open_store
from datastore.embedded import EmbeddedServer
from datastore.errors import UserError
from datastore.fingerprint import fingerprint, parse_tokenizer

EMBEDDED = "embedded:"
"""URL of a server that is started for this client alone, and stopped with it."""


def open_source(url: str, *, namespace: str, tokenizer_json: str) -> StoreClient:
    """A client of the store at ``url``, for the tokens of the tokenizer with this ``tokenizer.json``.

    A server that cannot be reached is no error: the client gives nothing until it can.

    Raises:
        ValueError: the URL, the namespace or the tokenizer cannot be used; told in one sentence.
    """
    try:
        tokens = fingerprint(parse_tokenizer(tokenizer_json))
        if url == EMBEDDED:
            return OwnServerClient(namespace, tokens)
        return StoreClient(open_store(url, namespace=namespace, fingerprint=tokens))
    except UserError as error:
        raise ValueError(str(error)) from error


class OwnServerClient(StoreClient):
    """A client with a server of its own."""

    def __init__(self, namespace: str, fingerprint: str) -> None:
        self._server = EmbeddedServer()
        super().__init__(open_store(self._server.url, namespace=namespace, fingerprint=fingerprint))

    def close(self) -> None:
        """Close the client, then stop the server."""
        super().close()
        self._server.close()
