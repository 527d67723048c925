"""The typed ``args`` of the application: what a configuration file may say. Unknown fields are refused by name.

Every field changes something observable; ``tests/deployments/test_settings.py`` names the test of each.
"""

from __future__ import annotations

import os
import re
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from datastore.address import parse
from datastore.errors import StoreConfigError
from datastore.keys import check_namespace
from deployments.errors import ConfigError
from racer.config import EngineConfig, one_sentence
from racer.errors import UserError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
EMBEDDED = "embedded:"
"""URL of a store whose server the serve and the batch command start, for as long as they run."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Autoscaling(_Section):
    """How many replicas of a model there are, and when that changes."""

    min_replicas: int = Field(1, ge=0, description="0: none while nobody asks; the first request then waits for one")
    max_replicas: int = Field(1, ge=1, description="most replicas")
    target_step_ms: float | None = Field(
        None, gt=0.0, description="more replicas when steps take longer than this; None: steps may take what they take"
    )
    target_cache_use: float = Field(0.8, gt=0.0, le=1.0, description="part of the key-value cache in use, at most")
    target_waiting_tokens: int = Field(
        2048, ge=1, description="tokens a replica may have waiting: prompts not begun, and the answers asked for"
    )
    target_running: int | None = Field(
        None, ge=1, description="requests a replica should have under way; None: as many as its max_running"
    )
    slowdown: float = Field(
        4.0,
        ge=1.0,
        description="how many times as long an answer takes in a replica at its targets as alone, rather too much than "
        "too little: a replica goes only if the others can take its work even so",
    )
    upscale_delay_s: float = Field(5.0, ge=0.0, description="how long more must be wanted before it is done")
    downscale_delay_s: float = Field(60.0, ge=0.0, description="how long fewer must be wanted before it is done")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas={self.min_replicas} exceeds max_replicas={self.max_replicas}")
        return self


class ModelConfig(_Section):
    """One model behind the endpoint."""

    name: str = Field("demo", description="what clients put into the field model")
    engine: dict[str, Any] = Field(default_factory=dict, description="settings of the engine, as `racer` names them")
    num_cpus: float = Field(1.0, ge=0.0, description="logical processors that Ray reserves for a replica")
    num_gpus: float = Field(0.0, ge=0.0, description="GPUs that Ray reserves for a replica")
    resources: dict[str, float] = Field(default_factory=dict, description="custom resources a replica reserves")
    threads: int | None = Field(None, ge=1, description="torch's threads in a replica; None: num_cpus, at least 1")
    environment: dict[str, str] = Field(default_factory=dict, description="environment variables of a replica")
    autoscaling: Autoscaling = Field(default_factory=Autoscaling, description="number of replicas")
    max_queued: int = Field(
        256, ge=1, description="requests that may wait for a replica with a place; more get 503 and Retry-After"
    )
    stall_s: float = Field(60.0, gt=0.0, description="a step that takes longer means that the replica hangs")
    drain_s: float = Field(60.0, ge=0.0, description="how long a stopping replica lets its answers finish")

    @field_validator("name")
    @classmethod
    def _usable_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError("use letters, digits and . _ : / - only")
        return name

    @field_validator("engine")
    @classmethod
    def _known_settings(cls, engine: dict[str, Any]) -> dict[str, Any]:
        try:
            EngineConfig(**engine)
        except UserError as error:
            raise ValueError(str(error)) from None
        return engine

    def engine_config(self) -> EngineConfig:
        """The engine's own configuration."""
        return EngineConfig(**self.engine)

    @property
    def replica_threads(self) -> int:
        """Threads of a replica."""
        return self.threads or max(1, int(self.num_cpus))


class StoreConfig(_Section):
    """The n-gram store that the replicas share."""

    url: str | None = Field(
        None, description="as `racer --store` takes it; $NAME stands for an environment variable of the replica"
    )
    namespace: str = Field("default", description="namespace of requests whose key names no other")
    learn: Literal["all", "answers", "none"] = Field(
        "all", description="what finished requests teach: prompts and answers, answers alone, or nothing"
    )
    max_namespaces: int = Field(16, ge=1, description="namespaces a replica keeps open; the least used goes first")

    @field_validator("namespace")
    @classmethod
    def _usable_namespace(cls, namespace: str) -> str:
        return _namespace(namespace)


class Limits(_Section):
    """What one request may ask for."""

    body_bytes: int = Field(4 << 20, ge=1024, description="size of a request's body")
    prompts: int = Field(128, ge=1, description="prompts in one completion request")
    choices: int = Field(128, ge=1, description="prompts times n")
    timeout_s: float = Field(600.0, gt=0.0, description="time until the last token; longer answers end with an error")
    first_token_timeout_s: float = Field(300.0, gt=0.0, description="time until the first token; else 504")


class BatchConfig(_Section):
    """Batches of the endpoint: ``/v1/files`` and ``/v1/batches``."""

    folder: str | None = Field(
        None, description="where files and batches are kept, seen by all replicas of the HTTP side; None: no batches"
    )
    file_bytes: int = Field(200 << 20, ge=1024, description="size of an uploaded file")
    quota_bytes: int = Field(
        10 << 30, ge=1024, description="size of all files of a key (without keys: of all callers), 4 KiB each at least"
    )
    max_requests: int = Field(50_000, ge=1, description="requests in one batch")
    max_in_flight: int = Field(
        32, ge=1, description="requests of all batches that each replica of the HTTP side has under way"
    )
    window_s: int = Field(86_400, ge=1, description="what completion_window 24h means; then a batch expires")


class KeyConfig(_Section):
    """What an API key allows. The key itself is never kept, only compared."""

    key: str = Field(min_length=8, repr=False, description="the secret a client sends as bearer token")
    namespace: str | None = Field(None, description="namespace of the store; None: the store's")
    learn: Literal["all", "answers", "none"] | None = Field(None, description="None: the store's")
    models: list[str] | None = Field(None, description="models it may use; None: all")
    max_concurrent: int | None = Field(None, ge=1, description="open requests of this key; more get 429")

    @field_validator("namespace")
    @classmethod
    def _usable_namespace(cls, namespace: str | None) -> str | None:
        return None if namespace is None else _namespace(namespace)


class AppConfig(_Section):
    """Everything the application is built from."""

    models: Annotated[list[ModelConfig], Field(min_length=1)] = Field(default_factory=lambda: [ModelConfig()])
    store: StoreConfig = Field(default_factory=StoreConfig)
    limits: Limits = Field(default_factory=Limits)
    batches: BatchConfig = Field(default_factory=BatchConfig)
    keys_file: str | None = Field(None, description="YAML or JSON list of API keys, read by the ingress")
    keys_env: str = Field("RACER_API_KEYS", description="environment variable with the same list, or with KEY,KEY")
    ingress_replicas: int = Field(1, ge=1, description="replicas of the HTTP side")
    ingress_cpus: float = Field(0.0, ge=0.0, description="logical processors that Ray reserves for each")
    ingress_resources: dict[str, float] = Field(
        default_factory=dict, description="custom resources each reserves: keeps them off nodes that come and go"
    )
    affinity: bool = Field(True, description="a conversation goes to the replica that answered it before")
    affinity_slack: int = Field(
        4, ge=0, description="requests by which that replica may be busier than the least busy one"
    )
    stream_interval_ms: float = Field(
        0.0, ge=0.0, description="a stream's chunks come at least this far apart, the first one at once"
    )
    metrics_by_namespace: bool = Field(False, description="metrics carry the namespace")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="of the JSON logs")

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [model.name for model in self.models]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"models: the name {twice[0]!r} is used twice; give each model a name of its own")
        return self


def parse_config(values: Any, where: str = "args") -> AppConfig:
    """``values`` as a configuration.

    Raises:
        ConfigError: they are none; the sentence begins with ``where`` and names the field.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: a mapping of settings is expected, not {type(values).__name__}")
    try:
        config = AppConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{where}: {one_sentence(error)[0]}") from None
    if config.store.url is not None:
        check_store_url(config.store.url, f"{where}: store.url")
    return config


def expand_environment(text: str) -> str:
    """``text`` with ``$NAME`` and ``${NAME}`` replaced by environment variables.

    Raises:
        ConfigError: a variable is not set.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in os.environ:
            raise ConfigError(f"the environment variable {name} is not set; set it, or take ${name} out of the setting")
        return os.environ[name]

    return _VARIABLE.sub(value, text)


def check_store_url(url: str, where: str = "store.url") -> None:
    """Find out whether ``url`` can name a store. One that begins with a variable can name anything.

    Raises:
        ConfigError: it names none, whatever its variables stand for. The sentence shows no password.
    """
    if url != EMBEDDED and not _VARIABLE.match(url):
        try:
            parse(_VARIABLE.sub("1", url))  # a user, a password, a host, a port and a database may all be that
        except StoreConfigError as error:
            raise ConfigError(f"{where}: {error}") from None


def _namespace(namespace: str) -> str:
    try:
        check_namespace(namespace)
    except StoreConfigError as error:
        raise ValueError(str(error)) from None
    return namespace
