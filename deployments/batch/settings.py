"""What of a configuration the batch command heeds: the file is the endpoint's too, and says things about it alone."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from deployments.config import AppConfig

HEEDED = frozenset(
    {
        "models.name",
        "models.engine",
        "models.num_cpus",
        "models.num_gpus",
        "models.resources",
        "models.threads",
        "models.environment",
        "models.autoscaling.min_replicas",
        "models.autoscaling.max_replicas",
        "models.stall_s",
        "store.url",
        "store.namespace",
        "store.learn",
        "limits.prompts",
        "limits.choices",
    }
)
"""Settings that change what the command does; all others are the endpoint's alone."""


def unheeded(config: AppConfig) -> list[str]:
    """Settings that the configuration gives and the batch command does not heed, in the file's order."""
    return list(dict.fromkeys(name for name in _given(config) if name not in HEEDED))


def _given(section: BaseModel, prefix: str = "") -> Iterator[str]:
    for name in type(section).model_fields:
        if name not in section.model_fields_set:
            continue
        value = getattr(section, name)
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, BaseModel):
                yield from _given(inner, f"{prefix}{name}.")
            else:
                yield prefix + name
