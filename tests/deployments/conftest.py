"""An endpoint over a tiny model, shared by the tests that only read from it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import openai
import pytest

from tests.deployments.local import Served, chat_engine, serving


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(chat_engine(max_context=512)) as server:
        yield server


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.root, timeout=30) as client:
        yield client


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=served.url, api_key="none", max_retries=0) as made:
        yield made
