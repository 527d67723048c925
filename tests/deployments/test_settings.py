"""Every setting does something: TESTS names the test of each, here are those that need no cluster."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import BaseModel
from transformers import PreTrainedTokenizerFast

from deployments.app import build_app
from deployments.config import AppConfig, Autoscaling, BatchConfig, KeyConfig, Limits, ModelConfig, StoreConfig
from deployments.errors import ConfigError
from deployments.keys import load_keys
from deployments.loading import load_engine
from deployments.routing import ConversationRouter
from deployments.tenants import Tenants
from tests.tiny import byte_tokenizer

HERE = "test_settings.py"
TESTS: dict[type[BaseModel], dict[str, str]] = {
    AppConfig: {
        "models": f"{HERE}::test_deployment_of_a_model",
        "store": f"{HERE}::test_store",
        "limits": "test_errors.py::test_limits_of_size",
        "batches": "batch/test_http.py::test_without_a_folder_there_is_none",
        "keys_file": "test_config.py::test_keys_come_from_file_and_environment",
        "keys_env": f"{HERE}::test_keys_env",
        "ingress_replicas": f"{HERE}::test_deployment_of_the_http_side",
        "ingress_cpus": f"{HERE}::test_deployment_of_the_http_side",
        "ingress_resources": f"{HERE}::test_deployment_of_the_http_side",
        "affinity": f"{HERE}::test_affinity",
        "affinity_slack": f"{HERE}::test_affinity",
        "stream_interval_ms": "test_replica.py::test_settings_change_while_it_runs",
        "metrics_by_namespace": "test_shared_store.py::test_metrics_carry_the_namespace",
        "log_level": f"{HERE}::test_log_level",
    },
    ModelConfig: {
        "name": f"{HERE}::test_deployment_of_a_model",
        "engine": "test_cluster.py::test_change_of_the_engine_loses_no_request",
        "num_cpus": f"{HERE}::test_deployment_of_a_model",
        "num_gpus": f"{HERE}::test_deployment_of_a_model",
        "resources": f"{HERE}::test_deployment_of_a_model",
        "threads": f"{HERE}::test_threads",
        "environment": f"{HERE}::test_deployment_of_a_model",
        "autoscaling": f"{HERE}::test_autoscaling",
        "max_queued": "test_shared_store.py::test_full_queue_is_asked_again",
        "stall_s": "test_replica.py::test_frozen_step_fails_the_health_check",
        "drain_s": f"{HERE}::test_deployment_of_a_model",
    },
    Autoscaling: dict.fromkeys(Autoscaling.model_fields, f"{HERE}::test_autoscaling"),
    StoreConfig: dict.fromkeys(StoreConfig.model_fields, f"{HERE}::test_store"),
    Limits: {
        "body_bytes": "test_errors.py::test_limits_of_size",
        "prompts": "test_errors.py::test_limits_of_size",
        "choices": "test_errors.py::test_limits_of_size",
        "timeout_s": "test_errors.py::test_too_long_an_answer_is_a_timeout",
        "first_token_timeout_s": "test_clients.py::test_first_token_in_time",
    },
    BatchConfig: {
        "folder": "batch/test_http.py::test_without_a_folder_there_is_none",
        "file_bytes": "batch/test_http.py::test_files_are_listed_read_deleted_and_expire",
        "quota_bytes": "batch/test_uploads.py::test_quota",
        "max_requests": "batch/test_http.py::test_wrong_files_fail_and_say_why",
        "max_in_flight": "batch/test_http.py::test_no_more_are_under_way_than_may_be",
        "window_s": "batch/test_http.py::test_expired_has_a_record_for_each_line",
    },
    KeyConfig: {
        "key": "test_errors.py::test_keys_identify_callers_and_limit_them",
        "namespace": "test_errors.py::test_keys_identify_callers_and_limit_them",
        "learn": f"{HERE}::test_store",
        "models": "test_errors.py::test_keys_identify_callers_and_limit_them",
        "max_concurrent": "test_errors.py::test_keys_identify_callers_and_limit_them",
    },
}


@pytest.mark.parametrize("section", TESTS, ids=lambda section: section.__name__)
def test_each_has_a_test(section: type[BaseModel]) -> None:
    named = TESTS[section]
    assert set(named) == set(section.model_fields)
    for place in named.values():
        file, _, name = place.partition("::")
        assert re.search(rf"^(async )?def {name}\(", (Path(__file__).parent / file).read_text(), re.MULTILINE), place


def ingress_of(**args: Any) -> Any:
    """The deployment of the HTTP side."""
    return build_app(args)._bound_deployment


def model_of(app: dict[str, Any] | None = None, **model: Any) -> Any:
    """The deployment of the one model."""
    return ingress_of(models=[model], **(app or {})).init_args[0]._bound_deployment


def test_deployment_of_the_http_side() -> None:
    made = ingress_of(ingress_replicas=3, ingress_cpus=0.25, ingress_resources={"stays": 0.5})
    assert made.num_replicas == 3
    assert (made.ray_actor_options["num_cpus"], made.ray_actor_options["resources"]) == (0.25, {"stays": 0.5})
    default = ingress_of()
    assert default.num_replicas == 1 and default.ray_actor_options["num_cpus"] == 0


def test_deployment_of_a_model() -> None:
    made = model_of(
        name="a/b", num_cpus=3, num_gpus=0.5, resources={"x": 2}, environment={"A": "b"}, drain_s=7, max_queued=9
    )
    actor = made.ray_actor_options
    assert made.name == "model-a-b" and made.max_queued_requests == 9
    assert (actor["num_cpus"], actor["num_gpus"], actor["resources"]) == (3, 0.5, {"x": 2})
    assert actor["runtime_env"]["env_vars"] == {"OMP_NUM_THREADS": "3", "A": "b"}
    assert made._deployment_config.graceful_shutdown_timeout_s == 7
    with pytest.raises(ConfigError, match=r"models\.0\.max_queued"):  # Serve would refuse every request
        model_of(max_queued=0)


def test_threads(tiny_folder: Path) -> None:
    """Torch's and OpenMP's threads, whatever Ray reserves."""
    assert model_of(num_cpus=4, threads=2).ray_actor_options["runtime_env"]["env_vars"]["OMP_NUM_THREADS"] == "2"
    before = torch.get_num_threads()
    engine = {"model": str(tiny_folder), "prior": False, "compile": False, "drafts": "off", "cache_bytes": 1 << 22}
    try:
        load_engine(ModelConfig(engine=engine, num_cpus=4, threads=3)).close()
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_autoscaling() -> None:
    given = {
        "min_replicas": 2,
        "max_replicas": 5,
        "target_step_ms": 70.0,
        "target_cache_use": 0.5,
        "target_waiting_tokens": 99,
        "target_running": 3,
        "slowdown": 2.5,
        "upscale_delay_s": 1.0,
        "downscale_delay_s": 2.0,
    }
    assert set(given) == set(Autoscaling.model_fields)
    found = model_of(autoscaling=given)._deployment_config.autoscaling_config
    names = ("min_replicas", "max_replicas", "upscale_delay_s", "downscale_delay_s")
    assert {name: getattr(found, name) for name in names} == {name: given[name] for name in names}
    assert found.policy.policy_kwargs == {name: value for name, value in given.items() if name not in names}
    default = model_of(engine={"max_running": 7})._deployment_config.autoscaling_config
    assert default.policy.policy_kwargs["target_running"] == 7


def test_log_level() -> None:
    app: dict[str, Any] = {"log_level": "error"}
    assert model_of(app).logging_config["log_level"] == ingress_of(**app).logging_config["log_level"] == "ERROR"
    assert model_of().logging_config["log_level"] == "INFO"


def test_keys_env(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RACER_API_KEYS", "key-of-the-default")
    monkeypatch.setenv("OTHER_KEYS", json.dumps([{"key": "key-of-another"}]))
    assert [key.key for key in load_keys(AppConfig(keys_env="OTHER_KEYS"))] == ["key-of-another"]
    assert [key.key for key in load_keys(AppConfig())] == ["key-of-the-default"]


def test_affinity() -> None:
    """Which router there is; test_autoscaling.py says what slack does to it."""
    found = model_of({"affinity_slack": 2})._deployment_config.request_router_config
    assert found.get_request_router_class() is ConversationRouter and found.request_router_kwargs == {"slack": 2}
    off = model_of({"affinity": False})._deployment_config.request_router_config
    assert off.get_request_router_class() is not ConversationRouter


def test_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERE", "memory://")
    opened = tenants(url="$WHERE", namespace="ours", learn="answers", max_namespaces=2)
    assert [(namespace, learn) for namespace, learn, _ in opened.stats()] == [("ours", "answers")]
    first = opened.source(None, None)
    assert opened.source("a", "none") is not first and opened.source(None, None) is first
    opened.source("b", None)  # one too many: the one that was used longest ago goes
    assert [(namespace, learn) for namespace, learn, _ in opened.stats()] == [("ours", "answers"), ("b", "answers")]
    opened.close()
    assert tenants(url=None).source(None, None) is None


def tenants(**store: Any) -> Tenants:
    tokenizer: PreTrainedTokenizerFast = byte_tokenizer()
    return Tenants(StoreConfig(**store), tokenizer)
