"""Faults that users of this field reported elsewhere, over HTTP: what the engine's tests hold, held to the end."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from scipy import stats
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from datastore.breaker import BreakerState
from datastore.connect import open_store
from datastore.source import Source
from deployments.config import AppConfig
from racer import Request, SamplingParams
from racer.draft.sources import MemoryNgramSource
from racer.step_curve import StepCurve
from tests.datastore.faulty import FAST, LIMITS
from tests.datastore.servers import Server, free_ports
from tests.deployments.local import Served, chat_engine, serving, wait_until
from tests.deployments.test_api import decoded
from tests.racer.engine.helpers import tiny_engine

GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0, "ignore_eos": True, "return_stats": True}


def complete(http: httpx.Client, **body: Any) -> dict[str, Any]:
    answer = http.post("/v1/completions", json=GREEDY | body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def tokens(answer: dict[str, Any]) -> list[str]:
    found: list[str] = answer["choices"][0]["logprobs"]["tokens"]
    return found


def test_repeated_word(http: httpx.Client) -> None:  # fault 1
    plain, drafted = (
        complete(http, prompt="word " * 48, max_tokens=32, logprobs=0, drafts=drafts) for drafts in ("off", "racer")
    )
    assert tokens(drafted) == tokens(plain) and len(tokens(plain)) == 32
    assert drafted["usage"]["racer"]["steps"] < plain["usage"]["racer"]["steps"]


def test_stop_inside_an_accepted_run() -> None:  # fault 7
    """The whole answer is known by heart, so that the stop lies inside a run that one step accepts."""
    with (
        serving(chat_engine(), sources={None: MemoryNgramSource()}) as server,
        httpx.Client(base_url=server.root, timeout=30) as http,
    ):
        known = tokens(complete(http, prompt="abcabc", max_tokens=40, logprobs=0))
        again = complete(http, prompt="abcabc", max_tokens=40, logprobs=0)
        assert tokens(again) == known and again["usage"]["racer"]["mat"] > 3
        prompt = tuple(server.engine.tokenizer("abcabc").input_ids)
        ids = decoded(server, Request(prompt, SamplingParams(max_tokens=40, ignore_eos=True)))
        at = next(i for i in range(3, 40) if ids[i] not in ids[:i])
        for cap, length, reason in ((at + 5, at, "stop"), (at - 1, at - 1, "length"), (at, at, "length")):
            body = {"prompt": "abcabc", "max_tokens": cap, "stop_token_ids": [ids[at]], "logprobs": 0}
            found = complete(http, **body)
            assert tokens(found) == known[:length] and found["choices"][0]["finish_reason"] == reason
            assert found["usage"]["completion_tokens"] == length


@pytest.mark.slow
def test_draws_follow_the_models_distribution() -> None:  # fault 13
    """20,736 draws, three an answer, from a model of 5 tokens through branching trees; chi-square over the triples."""
    make: Any = PreTrainedTokenizerFast  # untyped
    letters = make(tokenizer_object=Tokenizer(BPE({letter: i for i, letter in enumerate("abcde")}, [])))
    many: dict[str, Any] = {"max_running": 512, "prefill_chunk": 4096, "cache_bytes": 1 << 26}
    engine = tiny_engine(model={"vocab_size": 5}, tokenizer=letters, budget=8, **many)
    start = [3, 4, 3, 3, 4]
    expected = {"": 1.0}
    model = engine.runner.model
    model.set_attn_implementation("eager")
    for _ in range(3):
        rows = torch.tensor([start + ["abcde".index(letter) for letter in text] for text in expected])
        with torch.inference_mode():
            following = torch.softmax(model(rows).logits[:, -1].double(), -1).tolist()
        expected = {
            text + letter: before * share
            for (text, before), row in zip(expected.items(), following, strict=True)
            for letter, share in zip("abcde", row, strict=True)
        }
    model.set_attn_implementation("racer")
    body = {"prompt": [start] * 27, "n": 128, "max_tokens": 3, "temperature": 1}
    config = AppConfig.model_validate({"limits": {"prompts": 27, "choices": 27 * 128}})
    found: list[dict[str, Any]] = []
    with serving(engine, config) as server, httpx.Client(base_url=server.root, timeout=120) as http:
        found += [complete(http, **body) for _ in range(2)]
    texts = Counter(choice["text"].replace(" ", "") for one in found for choice in one["choices"])
    of_drafts = [one["usage"]["racer"] for one in found]
    accepted, drafted = (sum(sum(one[name].values()) for one in of_drafts) for name in ("accepted", "drafted"))
    assert 3 * texts.total() == 20_736 and set(texts) <= set(expected)
    assert accepted > 1_000 and drafted > accepted, "drafts were not both accepted and rejected"
    common = [text for text in expected if expected[text] * texts.total() > 5]  # the others count as one
    counts, wanted = ([values[text] for text in common] for values in (texts, expected))
    counts.append(texts.total() - sum(counts))
    wanted.append(1 - sum(wanted))
    assert len(common) > 50
    assert stats.chisquare(counts, np.array(wanted) * texts.total()).pvalue > 1e-3


@pytest.mark.parametrize("users", [1, 8, 32])
def test_no_drafts_where_they_do_not_pay(users: int, monkeypatch: pytest.MonkeyPatch) -> None:  # fault 19
    """Where step times grow with tokens each step is plain decoding's; loadtest's workload prose measures the times."""
    monkeypatch.setattr("racer.step_time.StepTimes.observe", lambda *_: None)  # the curve stays as it is given
    prose = np.random.default_rng(users).integers(3, 250, (users, 60)).tolist()
    engine = chat_engine(budget="auto", step_curve=StepCurve(alone=((1.0, 1.0), (2.0, 1000.0))))
    found: list[dict[str, Any]] = []
    with serving(engine) as server, httpx.Client(base_url=server.root, timeout=60) as http:

        def ask(prompt: list[int]) -> None:
            found.append(complete(http, prompt=prompt, max_tokens=12)["usage"]["racer"])

        threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in prose]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == users
    assert {sum(one["drafted"].values()) for one in found} == {0} and {one["mat"] for one in found} == {1.0}


class Shared:
    """An endpoint over a Redis server of the test's own, with a client that gives up and comes back soon."""

    def __init__(self, server: Server, source: Source, http: httpx.Client, served: Served) -> None:
        self.server, self.source, self.http, self.served = server, source, http, served
        self.text = self.ask()[0]

    def ask(self) -> tuple[str, int]:
        """The answer, and how many of its tokens the store foresaw."""
        found = complete(self.http, prompt="abcabcabc", max_tokens=32)
        return found["choices"][0]["text"], found["usage"]["racer"]["accepted"]["store"]

    def helps(self) -> bool:
        """The store is asked and has learned; the text is the same in any case."""
        text, foreseen = self.ask()
        assert text == self.text
        return foreseen > 0 and self.source.stats().breaker is BreakerState.CLOSED

    def is_given_up(self) -> bool:
        text, _ = self.ask()
        assert text == self.text
        return self.source.stats().breaker is BreakerState.OPEN


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    redis = Server(tmp_path, free_ports(1)[0])
    redis.start()
    source = Source(open_store(redis.url, namespace="faults", fingerprint="abcd", limits=LIMITS), FAST)
    try:
        with (
            serving(chat_engine(source_deadline_ms=50.0), sources={None: source}) as served,
            httpx.Client(base_url=served.root, timeout=60) as http,
        ):
            one = Shared(redis, source, http, served)
            wait_until(one.helps, "the store helps", 30)
            yield one
    finally:
        source.close(0.5)
        redis.kill()


def test_redis_that_hangs(shared: Shared) -> None:  # fault 22
    shared.server.signal(signal.SIGSTOP)
    wait_until(shared.is_given_up, "the breaker opens", 30)
    shared.server.signal(signal.SIGCONT)
    wait_until(shared.helps, "it recovers", 30)


def test_redis_that_refuses_connections(shared: Shared) -> None:  # fault 22
    shared.server.kill()
    wait_until(shared.is_given_up, "the breaker opens", 30)
    shared.server.start()  # empty: it learns anew
    wait_until(shared.helps, "it recovers", 30)


def test_redis_with_another_password(shared: Shared) -> None:  # fault 22
    with shared.server.client() as admin:
        admin.config_set("requirepass", "another")
        admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        wait_until(shared.is_given_up, "the breaker opens", 30)
        admin.execute_command("AUTH", "another")
        admin.config_set("requirepass", "")
    wait_until(shared.helps, "it recovers", 30)


def test_redis_that_is_demoted(shared: Shared) -> None:  # fault 22
    """It still answers; what it refuses are writes, until it is a primary again."""

    def refused() -> bool:
        assert shared.ask()[0] == shared.text
        return shared.source.stats().write_failed.get("StoreUnavailableError", 0) > 0

    def learns() -> bool:
        assert shared.ask()[0] == shared.text
        return shared.source.stats().learned > before

    with shared.server.client() as admin:
        admin.replicaof("127.0.0.1", free_ports(1)[0])  # of a primary that is not there
        wait_until(refused, "writes are refused", 30)
        before = shared.source.stats().learned
        admin.replicaof("no", "one")
    wait_until(learns, "it learns again", 30)
    wait_until(shared.helps, "it helps", 30)
