"""Which replica gets a request: the one that knows its conversation, unless that one is busy."""

from __future__ import annotations

import hashlib
from typing import Any

from ray.serve.request_router import LocalityMixin, MultiplexMixin, PendingRequest, RequestRouter, RunningReplica

from deployments.calls import Call


class ConversationRouter(LocalityMixin, MultiplexMixin, RequestRouter):
    """Sends the requests of a conversation to one replica, whose n-grams of it are near.

    Rendezvous hashing names the replica: when replicas come or go, few conversations move. Where it has more than
    ``slack`` requests more than the least busy replica, the least busy one gets the request.
    """

    def initialize_state(self, slack: int = 4) -> None:
        """Called by Ray Serve with ``request_router_kwargs``."""
        self._slack = slack

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Replicas in order of preference, each in a rank of its own."""
        by_load = sorted(candidate_replicas, key=self._load)
        call = _call_of(pending_request)
        if call is None or len(by_load) < 2:
            return [[replica] for replica in by_load]
        home = max(candidate_replicas, key=lambda replica: score(call.conversation, str(replica.replica_id.unique_id)))
        if self._load(home) <= self._load(by_load[0]) + self._slack:
            by_load.remove(home)
            by_load.insert(0, home)
        return [[replica] for replica in by_load]

    def _load(self, replica: RunningReplica) -> int:
        """Requests the replica has, as far as this router knows."""
        return self.replica_queue_len_cache.get(replica.replica_id) or 0


def score(conversation: str, replica: str) -> bytes:
    """A number that only these two decide; the replica with the largest is the conversation's home."""
    return hashlib.blake2b(f"{replica}\0{conversation}".encode(errors="surrogatepass"), digest_size=8).digest()


def _call_of(request: Any) -> Call | None:
    first = request.args[0] if request is not None and request.args else None
    return first if isinstance(first, Call) else None
