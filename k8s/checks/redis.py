"""Memory of the Redis servers."""

from __future__ import annotations

from collections.abc import Iterator

from k8s.checks.world import World, quantity

_UNITS = {"kb": 1024, "mb": 1024**2, "gb": 1024**3}
_MOST = 0.8
"""Part of the container's memory that data may take: connections, replies and fragmentation need the rest."""


def redis_is_bounded(world: World) -> Iterator[str]:
    """``maxmemory`` and its policy are set, and well below the container's limit."""
    for pod in world.pods:
        server = next((c for c in pod.containers if c["image"].split(":")[0] in ("redis", "valkey/valkey")), None)
        if server is None:
            continue
        settings = _settings(world, pod.spec.get("volumes", []))
        bound = settings.get("maxmemory", "")
        if bound[-2:] not in _UNITS or "maxmemory-policy" not in settings:
            yield f"{pod.role}: redis.conf must set maxmemory (in mb or gb) and maxmemory-policy"
            continue
        limit = quantity(server["resources"]["limits"]["memory"])
        if int(bound[:-2]) * _UNITS[bound[-2:]] > _MOST * limit:
            yield (
                f"{pod.role}: maxmemory {bound} is more than {_MOST:.0%} of the limit "
                f"{server['resources']['limits']['memory']}"
            )


def _settings(world: World, volumes: list[dict[str, object]]) -> dict[str, str]:
    text = ""
    for config in world.of("ConfigMap"):
        if config["metadata"]["name"] in str(volumes):
            text = config.get("data", {}).get("redis.conf", text)
    lines = (line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#"))
    return {words[0]: words[1] for words in lines if len(words) == 2}
