"""Attaching the shared n-gram store that the options name."""

from __future__ import annotations

import argparse
from types import TracebackType
from typing import TYPE_CHECKING, Any

from racer.store import DEFAULT_NAMESPACE, SwitchedSource, check_source, open_source
from racer.types import DRAFT_SOURCES, OWN_SOURCES, Source

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from racer.draft.sources import StoreSource


def add_store_options(parser: argparse.ArgumentParser) -> Any:
    """Add ``--store`` and ``--namespace``; returns their group."""
    group = parser.add_argument_group("shared n-gram store")
    group.add_argument(
        "--store",
        metavar="URL",
        help="draft from this store and teach it, as redis://HOST:PORT; embedded: a server for this run alone",
    )
    group.add_argument(
        "--namespace",
        metavar="NAME",
        default=DEFAULT_NAMESPACE,
        help=f"whose n-grams of the store (default: {DEFAULT_NAMESPACE})",
    )
    return group


_FLUSH_S = 10.0
"""Wait at the end for what was learned to be written."""


class AttachedStore:
    """The store that the options name, if they do; a context manager that closes it.

    ``source`` is None until :meth:`attach`, and where no store is asked for.

    Raises:
        ConfigError: the URL or the namespace is wrong; told here, as loading a model takes a while.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.url: str | None = args.store
        self.namespace: str = args.namespace
        self.source: StoreSource | None = None
        self.switch: SwitchedSource | None = None
        if self.url is not None:
            check_source(self.url, self.namespace)

    def attach(self, tokenizer: PreTrainedTokenizerBase) -> StoreSource | None:
        """Open the store for this tokenizer's tokens.

        Raises ConfigError as :func:`racer.store.open_source` does.
        """
        if self.url is not None:
            self.source = open_source(self.url, tokenizer, self.namespace)
        return self.source

    def attach_switched(self, tokenizer: PreTrainedTokenizerBase) -> SwitchedSource | None:
        """As :meth:`attach`, behind a switch, which is ``switch`` then: at first nothing is read or learned."""
        source = self.attach(tokenizer)
        self.switch = None if source is None else SwitchedSource(source)
        return self.switch

    @property
    def sources(self) -> tuple[Source, ...]:
        """What is drafted from: the store only where one is attached. Reports tell of these."""
        return OWN_SOURCES if self.source is None else DRAFT_SOURCES

    def report(self, **settings: Any) -> dict[str, Any] | None:
        """Which namespace it is, ``settings``, and what happened so far, for JSON; None without a store."""
        if self.source is None:
            return None
        return {"namespace": self.namespace, **settings, "counters": dict(self.source.counters())}

    def __enter__(self) -> AttachedStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.source is not None:
            if kind is None:
                self.source.flush(_FLUSH_S)
            self.source.close()
