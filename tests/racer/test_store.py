from __future__ import annotations

from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from racer import store
from racer.draft.sources import Continuation
from racer.errors import ConfigError
from racer.store import SwitchedSource, check_source, open_source
from tests.tiny import byte_tokenizer

opened: list[tuple[str, dict[str, Any]]] = []


def factory(url: str, **values: Any) -> Any:
    if "wrong" in url:
        raise ValueError("the URL is wrong; correct it")
    opened.append((url, values))
    return SimpleNamespace(url=url)


def points(monkeypatch: pytest.MonkeyPatch, **targets: str) -> None:
    found = [EntryPoint(name.replace("_", "."), target, store.GROUP) for name, target in targets.items()]
    monkeypatch.setattr(store, "entry_points", lambda group: found if group == store.GROUP else [])


def test_the_scheme_chooses_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    points(monkeypatch, redis="no.such:thing", redis_cluster=f"{__name__}:factory")
    tokenizer = byte_tokenizer()
    source: Any = open_source("redis+cluster://host:1", tokenizer, "tenant")
    assert source.url == "redis+cluster://host:1"
    assert opened.pop() == (
        "redis+cluster://host:1",
        {"namespace": "tenant", "tokenizer_json": tokenizer.backend_tokenizer.to_str()},
    )


@pytest.mark.parametrize(
    "url, sentence",
    [
        ("ftp://host", "store 'ftp:': use a URL that begins with one of memory, redis"),
        ("host:6379", "store 'host:': use a URL"),
        ("", "store '': use a URL"),
        ("memory://wrong", "the URL is wrong; correct it"),
        ("redis://host", r"the package that provides redis stores cannot be loaded \(No module named 'no'\)"),
    ],
)
def test_a_store_that_cannot_be_had_is_one_sentence(monkeypatch: pytest.MonkeyPatch, url: str, sentence: str) -> None:
    points(monkeypatch, redis="no.such:thing", memory=f"{__name__}:factory")
    with pytest.raises(ConfigError, match=sentence):
        open_source(url, byte_tokenizer(), "n")


def test_what_is_wrong_is_told_before_there_is_a_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    points(monkeypatch, memory=f"{__name__}:factory", redis="datastore.source:open_source")
    check_source("memory://wrong")  # a factory need not be able to tell
    check_source("redis://host", "n")
    with pytest.raises(ConfigError, match="'host:port' in 'redis://host:port' is not host or host:port"):
        check_source("redis://host:port")
    with pytest.raises(ConfigError, match="namespace 'a:b' is not a name"):
        check_source("redis://host", "a:b")
    with pytest.raises(ConfigError, match="store 'ftp:': use a URL"):
        check_source("ftp://host")


def test_without_any_package_the_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    points(monkeypatch)
    with pytest.raises(ConfigError, match="no installed package provides n-gram stores"):
        open_source("redis://host", byte_tokenizer(), "n")


def test_a_password_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    points(monkeypatch)
    with pytest.raises(ConfigError) as caught:
        open_source("redis://:hunter2@host", byte_tokenizer(), "n")
    assert "hunter2" not in str(caught.value)


def test_a_tokenizer_without_json_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    points(monkeypatch, memory=f"{__name__}:factory")
    slow: PreTrainedTokenizerBase = SimpleNamespace()  # type: ignore[assignment]
    with pytest.raises(ConfigError, match=r"no tokenizer\.json"):
        open_source("memory://", slow, "n")


class Recorder:
    """A store that knows one continuation and notes what it is taught."""

    def __init__(self) -> None:
        self.learned: list[list[int]] = []

    def lookup(self, contexts: Any, deadline_ms: float) -> list[list[Continuation]]:
        return [[Continuation((7,), 1, 2)] for _ in contexts]

    def learn(self, tokens: Any, prompt_tokens: int = 0) -> None:
        self.learned.append(tokens.tolist())

    def flush(self, timeout_s: float) -> bool:
        return True

    def counters(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass


def test_a_switch_lets_through_what_is_on() -> None:
    recorder = Recorder()
    switch = SwitchedSource(recorder)
    contexts = [np.array([1, 2], np.int32)] * 2
    assert switch.lookup(contexts, 1.0) == [[], []]
    switch.learn(contexts[0])
    switch.reads = True
    assert switch.lookup(contexts, 1.0) == [[Continuation((7,), 1, 2)]] * 2
    switch.reads, switch.learns = False, True
    switch.learn(contexts[0])
    assert switch.lookup(contexts, 1.0) == [[], []] and recorder.learned == [[1, 2]]
