"""Finding a shared n-gram store by its URL.

This package knows no store. One that is installed announces the URL schemes it serves as entry points of the group
``racer.ngram_sources``, each named as a scheme (with ``.`` for ``+``, which names may not hold) and naming a factory
``(url, *, namespace, tokenizer_json) -> StoreSource`` that raises ValueError for a URL or a namespace it cannot use. A
factory may have an attribute ``check``, called as ``(url, *, namespace)``, which raises the same before there is a
tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from racer.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from racer.draft.sources import Continuation, Ints, StoreSource

GROUP = "racer.ngram_sources"

DEFAULT_NAMESPACE = "default"


def check_source(url: str, namespace: str = DEFAULT_NAMESPACE) -> None:
    """Find out what is wrong with a store's URL or namespace before a model is loaded, connecting to nothing.

    Raises:
        ConfigError: as :func:`open_source`, as far as it can be told without a tokenizer.
    """
    check = getattr(_factory(url), "check", None)
    if check is not None:
        with _told():
            check(url, namespace=namespace)


def open_source(url: str, tokenizer: PreTrainedTokenizerBase, namespace: str = DEFAULT_NAMESPACE) -> StoreSource:
    """The store at ``url`` for this tokenizer's tokens, through whatever installed package serves its scheme.

    A server that cannot be reached is no error: the store then gives nothing until it can.

    Raises:
        ConfigError: no package serves the scheme, the URL is wrong, or the tokenizer cannot be described to a store.
    """
    factory = _factory(url)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ConfigError("this model's tokenizer has no tokenizer.json, by which a store tells tokenizers apart")
    with _told():
        return factory(url, namespace=namespace, tokenizer_json=backend.to_str())


@contextmanager
def _told() -> Iterator[None]:
    """A factory says in one sentence what is wrong."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _factory(url: str) -> Callable[..., StoreSource]:
    scheme, colon, _ = url.partition(":")
    points = {point.name.replace(".", "+"): point for point in entry_points(group=GROUP)}
    if not colon or scheme not in points:
        known = ", ".join(sorted(points))
        raise ConfigError(
            f"store {scheme + colon!r}: "
            + (
                f"use a URL that begins with one of {known}"
                if known
                else "no installed package provides n-gram stores; install one"
            )
        )
    point = points[scheme]
    try:
        factory: Callable[..., StoreSource] = point.load()
    except ImportError as error:
        raise ConfigError(
            f"the package that provides {point.name} stores cannot be loaded ({error}); install what it needs"
        ) from error
    return factory


class SwitchedSource:
    """A store whose reading and learning an experiment turns on and off.

    ``reads``, ``learns``: what is let through. Both are off at first.
    """

    def __init__(self, store: StoreSource) -> None:
        self.store = store
        self.reads = False
        self.learns = False

    def lookup(self, contexts: Sequence[Ints], deadline_ms: float) -> list[list[Continuation]]:
        """See :class:`NgramSource`; all misses while reading is off."""
        return self.store.lookup(contexts, deadline_ms) if self.reads else [[] for _ in contexts]

    def learn(self, tokens: Ints, prompt_tokens: int = 0) -> None:
        """See :class:`NgramSource`; nothing while learning is off."""
        if self.learns:
            self.store.learn(tokens, prompt_tokens)
