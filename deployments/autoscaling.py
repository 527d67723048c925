"""How many replicas a model should have, from the engines' own signals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext


class EnginePolicy:
    """An autoscaling policy for Ray Serve, which applies delays and bounds to what it returns.

    As many replicas are wanted as bring the worst of the signals to its target: requests under way for each replica,
    tokens that wait, cache in use, time of a step. With nothing to do none is wanted; ``min_replicas`` decides then.

    The fewer replicas there are, the more requests each has at a time, the longer these take, and the more of them are
    under way: what is under way now says too little of what would be with fewer. ``slowdown`` says how many times as
    long an answer takes in a replica at its targets as alone; see :func:`enough`.
    """

    def __init__(
        self,
        target_running: float,
        target_waiting_tokens: float,
        target_cache_use: float,
        target_step_ms: float | None = None,
        slowdown: float = 1.0,
    ) -> None:
        self.target_running = target_running
        self.target_waiting_tokens = target_waiting_tokens
        self.target_cache_use = target_cache_use
        self.target_step_ms = target_step_ms
        self.slowdown = slowdown

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """The number of replicas wanted, and no state to keep."""
        replicas = max(1, context.current_num_replicas)
        return self.wanted(replicas, context.total_num_requests, context.aggregated_metrics or {}), {}

    def wanted(self, replicas: int, requests: float, metrics: Mapping[str, Mapping[Any, float]]) -> int:
        """``requests`` under way over all ``replicas``, those not handed to one yet included; ``metrics`` by replica.

        A signal's mean over the replicas, relative to its target, says by how much their number should change.
        """
        if requests <= 0:
            return 0
        wanted = [requests / self.target_running]
        targets = {
            "waiting_tokens": self.target_waiting_tokens,
            "cache_use": self.target_cache_use,
            "step_ms": self.target_step_ms,
        }
        for name, target in targets.items():
            values = [value for value in metrics.get(name, {}).values() if not math.isnan(value)]
            if target is not None and values:
                wanted.append(replicas * (sum(values) / len(values)) / target)
        return max(1, math.ceil(enough(max(wanted), replicas, self.slowdown) - 1e-9))


def enough(load: float, replicas: int, slowdown: float) -> float:
    """Replicas that suffice for what ``replicas`` carry now, if that is ``load`` times what one carries at its targets.

    Above the targets that is ``load``. Below, an answer takes ``1 + (slowdown - 1) * load / replicas`` times as long as
    alone now, and would take ``slowdown`` times as long at the targets: the work that comes is the same, so ``load``
    would grow by the ratio of the two. Without this the number swings: too few replicas are left, which makes more
    requests be under way, which asks for too many, which makes fewer be under way.
    """
    used = load / replicas
    return load if used >= 1.0 else load * slowdown / (1.0 + (slowdown - 1.0) * used)
