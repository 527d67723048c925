"""The HTTP side over an engine in this process, on a real server of a loopback port, without Ray."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from deployments.answering import Answerer, Record
from deployments.calls import Call, Piece
from deployments.config import AppConfig, KeyConfig, ModelConfig
from deployments.http import make_api
from deployments.keys import KeyRing
from racer.async_engine import AsyncEngine
from racer.draft.sources import NgramSource
from racer.engine import Engine
from tests.racer.engine.helpers import tiny_engine
from tests.tiny import byte_tokenizer

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "


def chat_engine(**settings: Any) -> Engine:
    """A tiny random model over bytes, with a chat template."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return tiny_engine(
        "llama",
        model={"vocab_size": len(tokenizer), "max_position_embeddings": 4096},
        tokenizer=tokenizer,
        context_length=4096,
        **settings,
    )


@dataclass
class LocalBackend:
    """Answers with one engine. ``sources``: stores by namespace."""

    engine: AsyncEngine
    models: dict[str, ModelConfig] = field(default_factory=lambda: {"tiny": ModelConfig(name="tiny")})
    limits: tuple[int, int] = (128, 128)
    sources: dict[str | None, NgramSource] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    state: str = "ready"

    def __post_init__(self) -> None:
        self.answerer = Answerer(self.engine, *self.limits)

    def answer(self, model: str, call: Call) -> AsyncGenerator[Piece]:
        return self.answerer.answer(call, self.sources.get(call.namespace), self.records.append)

    async def ready(self) -> dict[str, str]:
        return dict.fromkeys(self.models, self.state)

    async def metrics(self) -> str:
        return ""


@dataclass
class Served:
    """A running server: ``url`` ends in ``/v1``."""

    root: str
    backend: LocalBackend
    app: Any

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    @property
    def engine(self) -> Engine:
        return self.backend.engine.engine


@contextlib.contextmanager
def serving(
    engine: Engine, config: AppConfig | None = None, keys: list[KeyConfig] | None = None, **backend: Any
) -> Iterator[Served]:
    """Serve ``engine`` on a free port until the block ends."""
    config = config or AppConfig()
    asynchronous = AsyncEngine(engine)
    local = LocalBackend(asynchronous, limits=(config.limits.prompts, config.limits.choices), **backend)
    app = make_api(config, KeyRing(keys or []), lambda: local)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on"))
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        wait_until(lambda: server.started, "the server starts")
        try:
            yield Served(f"http://127.0.0.1:{listener.getsockname()[1]}", local, app)
        finally:
            server.should_exit = True
            thread.join(10)
            asynchronous.close()


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = 10.0) -> None:
    """Poll until ``condition`` holds; fail naming ``what`` otherwise.

    Ever more seldom: who asks a Ray cluster for its state all the time takes a processor from what is awaited.
    """
    started = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - started
        assert waited_s < timeout_s, f"not within {timeout_s:g} s: {what}"
        time.sleep(min(max(0.01, waited_s / 20), 0.5))
