"""The application: one deployment for each model behind one HTTP deployment.

``import_path: deployments.app:build_app`` with ``args`` as :class:`deployments.config.AppConfig` has them.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, BackpressureConfig, RequestRouterConfig
from ray.serve.schema import LoggingConfig

from deployments.autoscaling import EnginePolicy
from deployments.backend import Backend
from deployments.config import AppConfig, ModelConfig, parse_config
from deployments.http import make_api
from deployments.keys import KeyRing, load_keys
from deployments.replica import EngineReplica, replica_settings
from deployments.routing import ConversationRouter

INGRESS = "ingress"

_HEALTH_PERIOD_S = 5.0
_METRICS_INTERVAL_S = 1.0
_LOOK_BACK_S = 5.0
_INGRESS_ONGOING = 10_000


def build_app(args: dict[str, Any]) -> Application:
    """The application for ``args``; its ingress answers at ``/``.

    Raises:
        ConfigError: an argument is unknown or wrong; told in one sentence.
    """
    config = parse_config(args)
    load_keys(config)
    models = [_model_deployment(model, config) for model in config.models]
    ingress = serve.deployment(
        serve.ingress(_api_builder(config))(),
        name=INGRESS,
        num_replicas=config.ingress_replicas,
        max_ongoing_requests=_INGRESS_ONGOING,
        ray_actor_options={"num_cpus": config.ingress_cpus, "resources": config.ingress_resources},
        health_check_period_s=_HEALTH_PERIOD_S,
        graceful_shutdown_timeout_s=max(model.drain_s for model in config.models),
        logging_config=_logging(config),
    )
    return ingress.bind(*models)


def deployment_name(model: ModelConfig) -> str:
    """Name of a model's deployment; Serve's names are file names too."""
    return "model-" + "".join(
        character if character.isalnum() or character in "._-" else "-" for character in model.name
    )


def policy_settings(model: ModelConfig) -> dict[str, Any]:
    """What :class:`deployments.autoscaling.EnginePolicy` is made with."""
    scaling = model.autoscaling
    return {
        "target_running": scaling.target_running or model.engine_config().max_running,
        "target_waiting_tokens": scaling.target_waiting_tokens,
        "target_cache_use": scaling.target_cache_use,
        "target_step_ms": scaling.target_step_ms,
        "slowdown": scaling.slowdown,
    }


def _api_builder(config: AppConfig) -> Any:
    def build() -> FastAPI:
        """Called in the replica that serves the routes: it reads the keys there."""
        made: list[Backend] = []

        def backend() -> Backend:
            if not made:
                handles = {model.name: serve.get_deployment_handle(deployment_name(model)) for model in config.models}
                made.append(Backend(handles, config.models))
            return made[0]

        return make_api(config, KeyRing(load_keys(config)), backend, behind_proxy=True)

    return build


def _model_deployment(model: ModelConfig, config: AppConfig) -> Application:
    scaling, engine = model.autoscaling, model.engine_config()
    # OpenMP reads its variable when torch loads it, and Ray sets another value: before the replica's first line.
    environment = {"OMP_NUM_THREADS": str(model.replica_threads)} | model.environment
    actor: dict[str, Any] = {
        "num_cpus": model.num_cpus,
        "num_gpus": model.num_gpus,
        "resources": model.resources,
        "runtime_env": {"env_vars": environment},
    }
    options: dict[str, Any] = {}
    if config.affinity:
        options["request_router_config"] = RequestRouterConfig(
            request_router_class=ConversationRouter, request_router_kwargs={"slack": config.affinity_slack}
        )
    deployment = serve.deployment(
        EngineReplica,
        name=deployment_name(model),
        autoscaling_config=AutoscalingConfig(
            min_replicas=scaling.min_replicas,
            max_replicas=scaling.max_replicas,
            upscale_delay_s=scaling.upscale_delay_s,
            downscale_delay_s=scaling.downscale_delay_s,
            metrics_interval_s=_METRICS_INTERVAL_S,
            look_back_period_s=_LOOK_BACK_S,
            policy=AutoscalingPolicy(policy_function=EnginePolicy, policy_kwargs=policy_settings(model)),
        ),
        max_ongoing_requests=2 * engine.max_running,
        max_queued_requests=model.max_queued,
        backpressure_config=BackpressureConfig(status_code=503, retry_after_s=1),
        user_config=replica_settings(model, config),
        ray_actor_options=actor,
        health_check_period_s=_HEALTH_PERIOD_S,
        health_check_timeout_s=max(2 * _HEALTH_PERIOD_S, model.stall_s),
        graceful_shutdown_timeout_s=model.drain_s,
        logging_config=_logging(config),
        **options,
    )
    return deployment.bind(config.model_dump(mode="json"), model.name)


def _logging(config: AppConfig) -> LoggingConfig:
    return LoggingConfig(encoding="JSON", log_level=config.log_level.upper(), enable_access_log=False)
