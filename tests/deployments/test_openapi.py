"""Requests made from the endpoint's own description: whatever is sent, no answer is a 5xx."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error

from deployments.config import AppConfig
from tests.deployments.local import Served, chat_engine, serving

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = str(tmp_path_factory.mktemp("batches"))
    config = AppConfig.model_validate({"models": [{"name": "tiny"}], "batches": {"folder": folder}})
    with serving(chat_engine(max_context=256), config) as server:
        yield server


_SETTINGS = hypothesis.settings(
    max_examples=60, deadline=None, suppress_health_check=list(hypothesis.HealthCheck), derandomize=True, database=None
)
_FEWER = hypothesis.settings(_SETTINGS, max_examples=15)


def test_no_request_is_a_server_error(small: Served) -> None:
    schema = schemathesis.openapi.from_url(f"{small.root}/openapi.json")
    operations: list[Any] = [found.ok() for found in list[Any](schema.get_all_operations())]
    assert len(operations) >= 16
    for operation in operations:

        @(_FEWER if operation.path.startswith(("/v1/files", "/v1/batches")) else _SETTINGS)
        @hypothesis.given(case=operation.as_strategy())
        def check(case: Any) -> None:
            case.call_and_validate(checks=[not_a_server_error], timeout=60)

        check()


def test_description_lists_every_field(small: Served) -> None:
    document = small.app.openapi()
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/health", "/ready", "/metrics"} <= set(
        document["paths"]
    )
    fields = document["components"]["schemas"]["ChatRequest"]["properties"]
    assert {"messages", "drafts", "budget", "return_stats", "top_k", "max_completion_tokens"} <= set(fields)
