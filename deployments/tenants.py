"""One client of the store for each namespace that requests come under."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, cast

from datastore.client import ClientConfig
from datastore.counters import ClientStats
from datastore.source import Source, open_source
from deployments.calls import Learn
from deployments.config import StoreConfig, expand_environment
from deployments.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from racer.draft.sources import NgramSource


class Tenants:
    """Sources by namespace, opened when first asked for; the least recently used is closed when there are too many.

    What one namespace's text has taught is never looked up for another's.
    """

    def __init__(self, config: StoreConfig, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raises ConfigError: the URL, a namespace or the tokenizer cannot be used."""
        self._config = config
        self._open: OrderedDict[tuple[str, Learn], Source] = OrderedDict()
        self._url = None if config.url is None else expand_environment(config.url)
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if self._url is not None and backend is None:
            raise ConfigError("store.url: this model's tokenizer has no tokenizer.json, by which a store knows tokens")
        self._tokenizer_json = backend.to_str() if backend is not None and self._url is not None else ""
        self.source(None, None)  # what is wrong is told at the start

    def source(self, namespace: str | None, learn: Learn | None) -> NgramSource | None:
        """The source of this namespace; None where there is no store."""
        # The engine's package knows a store by its methods only: the continuations have the same fields, not one type.
        return cast("NgramSource | None", self._client(namespace, learn))

    def _client(self, namespace: str | None, learn: Learn | None) -> Source | None:
        if self._url is None:
            return None
        key = (namespace or self._config.namespace, learn or self._config.learn)
        found = self._open.get(key)
        if found is None:
            try:
                found = open_source(
                    self._url,
                    namespace=key[0],
                    tokenizer_json=self._tokenizer_json,
                    config=ClientConfig(learn=key[1]),
                )
            except ValueError as error:
                raise ConfigError(f"store: {error}") from error
            self._open[key] = found
            while len(self._open) > self._config.max_namespaces:
                _, oldest = self._open.popitem(last=False)
                oldest.close(0.0)
        self._open.move_to_end(key)
        return found

    def stats(self) -> list[tuple[str, Learn, ClientStats]]:
        """What each client has counted, with its namespace and what it learns. From any thread."""
        return [(namespace, learn, source.stats()) for (namespace, learn), source in list(self._open.items())]

    def close(self) -> None:
        """Write what waits, and close all."""
        for source in self._open.values():
            source.close()
        self._open.clear()
