"""How much memory a model takes, how many requests a device holds, and how large the shared store should be.

    weights    parameters x bytes of one
    token      layers x key-value heads x (key + value dimension) x bytes of one: what a token takes in the cache
    cache      share x (device - weights - reserve): the engine takes 80% of what the loaded model leaves free
    requests   cache / (context x token): requests at full length; shorter ones share the places
    store      contexts x bytes of one: a token of text makes about one context (docs/datastore.md)

Shapes come from the model's configuration alone; its weights are not loaded.
"""

from __future__ import annotations

from dataclasses import dataclass

from deployments.errors import ConfigError

GIB = 1 << 30

GPUS_GIB = {
    "t4": 16,
    "v100": 32,
    "a10g": 24,
    "l4": 24,
    "a40": 48,
    "l40s": 48,
    "a100-40": 40,
    "a100": 80,
    "h100": 80,
    "h200": 141,
    "b200": 180,
}
"""Memory of GPUs as sold."""

_USABLE = 0.95
"""Part of a GPU's memory that is left beside driver and context."""
_RESERVE_BYTES = GIB // 2
"""Logits, activations and compiled code of a step."""
CUDA_SHARE = 0.8
"""racer.model.runner.CUDA_CACHE_SHARE, which a test compares."""
_CPU_CACHE_BYTES = GIB
_CPU_PROCESS_BYTES = 3 * GIB // 2
"""A replica's process without weights and cache: torch, tables, buffers."""
_HOST_PROCESS_BYTES = 4 * GIB
"""The same beside a GPU: also the driver's own, and the file that the weights are read from."""
STORE_BYTES_A_CONTEXT = 48
"""Bytes of Redis memory a context: 57 with short contexts alone, 34 a token measured (docs/datastore.md)."""
STORE_SHARE = 1.5
"""maxmemory over data: eviction finds better candidates with room; the container's limit is half as much again."""


@dataclass(frozen=True)
class ModelShape:
    """What memory depends on.

    parameters     of the whole model; tied ones count once
    token_bytes    of one token's keys and values over all layers
    context        longest text, in tokens
    dtype_bytes    bytes of one number
    """

    parameters: int
    token_bytes: int
    context: int
    dtype_bytes: int

    @property
    def weights_bytes(self) -> int:
        """Memory of the weights."""
        return self.parameters * self.dtype_bytes


@dataclass(frozen=True)
class Size:
    """What a replica needs and holds; bytes.

    cache         of the key-value cache
    requests      at full context at once
    host          memory of the pod: what requests and limits should say
    store         Redis' maxmemory for the contexts that are to be kept
    """

    weights: int
    token: int
    cache: int
    requests: int
    host: int
    store: int
    store_limit: int


def size(shape: ModelShape, device_bytes: int | None, context: int, contexts: int, cache_bytes: int | None) -> Size:
    """The size of one replica; ``device_bytes``: memory of its GPU, None on the processor.

    Raises:
        ConfigError: the model, or one request, does not fit.
    """
    if context > shape.context:
        raise ConfigError(f"--context {context} exceeds this model's context; use at most {shape.context}")
    if device_bytes is None:
        cache = cache_bytes or _CPU_CACHE_BYTES
        host = shape.weights_bytes + cache + _CPU_PROCESS_BYTES
    else:
        room = int(_USABLE * device_bytes) - shape.weights_bytes - _RESERVE_BYTES
        cache = cache_bytes or int(CUDA_SHARE * room)
        if room <= 0 or cache > room:
            needed = (shape.weights_bytes + _RESERVE_BYTES + (cache_bytes or GIB)) / _USABLE
            raise ConfigError(
                f"the model's weights take {shape.weights_bytes / GIB:.1f} GiB, too much for a GPU of "
                f"{device_bytes / GIB:.0f} GiB with a cache; use one of at least {needed / GIB:.0f} GiB"
            )
        host = shape.weights_bytes + _HOST_PROCESS_BYTES
    requests = cache // (context * shape.token_bytes)
    if requests < 1:
        raise ConfigError(
            f"one request of {context} tokens takes {context * shape.token_bytes / GIB:.2f} GiB of cache, and there is "
            f"room for {cache / GIB:.2f}; lower --context, or give more memory"
        )
    store = int(STORE_SHARE * contexts * STORE_BYTES_A_CONTEXT)
    return Size(shape.weights_bytes, shape.token_bytes, cache, requests, host, store, store * 3 // 2)
