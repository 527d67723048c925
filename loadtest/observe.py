"""What the server tells during a run, through ``/metrics``, and how much memory its processes hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import psutil
from prometheus_client.parser import text_string_to_metric_families

_REPLICA_GAUGE = "ray_racer_open_requests"
_REPLICA_LABELS = ("replica", "ReplicaId", "WorkerId")
_GAUGES = {
    "running": ("ray_racer_running_sequences", "vllm:num_requests_running"),
    "waiting": ("ray_racer_waiting_sequences", "vllm:num_requests_waiting"),
}
_COUNTERS = {
    "generated": ("vllm:generation_tokens",),
    "accepted": ("vllm:spec_decode_num_accepted_tokens",),
}
_STORE = "ray_racer_store_contexts"
_STORE_RESULTS = {
    "hit": "store_hits",
    "miss": "store_misses",
    "late": "store_unanswered",
    "failed": "store_unanswered",
    "refused": "store_unanswered",
}

UNANSWERED = 0.2
"""From this part on, it is worth telling that the store did not answer in time."""


@dataclass(frozen=True)
class Reading:
    """One look at the server, ``at_s`` seconds after the load began. None: the server does not tell.

    replicas             replicas that tell of themselves
    running, waiting     sequences over all replicas
    memory_bytes         proportional set size of the watched process and its children
    generated, accepted  tokens, and accepted draft tokens, since the server began (vLLM tells these only here)
    store_hits, store_misses, store_unanswered   contexts that the n-gram store knew, did not know, and did not answer
                         for in time (late, failed, or not asked as it had been late before), since the server began
    """

    at_s: float
    replicas: int | None = None
    running: float | None = None
    waiting: float | None = None
    memory_bytes: int | None = None
    generated: float | None = None
    accepted: float | None = None
    store_hits: float | None = None
    store_misses: float | None = None
    store_unanswered: float | None = None

    def to_json(self) -> dict[str, Any]:
        """As one object, without what is not told."""
        found = {name: value for name, value in asdict(self).items() if value is not None}
        return found | {"at_s": round(self.at_s, 2)}


def read(page: str, at_s: float, memory_bytes: int | None = None) -> Reading:
    """``page`` is in Prometheus' text format; an empty one tells nothing."""
    sums: dict[str, float] = defaultdict(float)
    replicas: set[str] = set()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if family.name == _REPLICA_GAUGE:
                replicas.add("/".join(sample.labels.get(label, "") for label in _REPLICA_LABELS))
            if sample.name.endswith("_created"):
                continue
            metric = family.name.removesuffix("_total")
            if metric == _STORE and (result := _STORE_RESULTS.get(sample.labels.get("result", ""))):
                sums[result] += sample.value
            for name, sources in (_GAUGES | _COUNTERS).items():
                if metric in sources:
                    sums[name] += sample.value
    return Reading(at_s, len(replicas) or None, memory_bytes=memory_bytes, **sums)


def store_results(readings: Sequence[Reading]) -> dict[str, int] | None:
    """Contexts asked of the store from the first reading to the last, by result; None if it was not asked.

    Where replicas have gone meanwhile, theirs are gone too.
    """
    if not readings:
        return None
    first, last = readings[0], readings[-1]
    found = {
        result: max(0, round((getattr(last, f"store_{result}") or 0) - (getattr(first, f"store_{result}") or 0)))
        for result in ("hits", "misses", "unanswered")
    }
    return found if any(found.values()) else None


def memory_of(pid: int) -> int | None:
    """Bytes that a process and its children hold, shared pages counted once; None if it has ended."""
    try:
        family = [psutil.Process(pid)]
        family += family[0].children(recursive=True)
    except psutil.NoSuchProcess:
        return None
    return sum(_held(process) for process in family)


def _held(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0


def mean_replicas(readings: Iterable[Reading], begin_s: float, end_s: float) -> float | None:
    """Replicas, averaged over a time; None if the server never told. Each reading holds until the next."""
    told = [reading for reading in readings if reading.replicas is not None]
    if not told:
        return None
    total = 0.0
    for place, reading in enumerate(told):
        begin = begin_s if place == 0 else max(begin_s, reading.at_s)
        end = end_s if place + 1 == len(told) else min(end_s, told[place + 1].at_s)
        total += max(0.0, end - begin) * (reading.replicas or 0)
    return total / (end_s - begin_s) if end_s > begin_s else None
