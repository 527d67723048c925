"""What schemas miss: whether the objects of an overlay fit each other.

A check takes a :class:`k8s.checks.world.World` and yields a sentence for each problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from k8s.checks.addresses import addresses_exist, names_can_be_resolved, ports_exist, routes_lead_to_services
from k8s.checks.network import networks_are_closed
from k8s.checks.redis import redis_is_bounded
from k8s.checks.references import mounts_exist, references_exist, variables_exist
from k8s.checks.resources import images_agree, limits_cover_requests
from k8s.checks.scaling import bounds_are_ordered, deployments_fit, drains_end_in_time, packed_replicas_need_two_nodes
from k8s.checks.security import accounts_have_no_rights, containers_are_confined, operator_accepts
from k8s.checks.selectors import budgets_can_be_kept, names_differ, selectors_match
from k8s.checks.storage import results_outlive_deletion, storage_covers_volumes
from k8s.checks.world import World
from k8s.render import Manifest

Check = Callable[[World], Iterator[str]]

CHECKS: tuple[Check, ...] = (
    names_differ,
    selectors_match,
    budgets_can_be_kept,
    ports_exist,
    addresses_exist,
    names_can_be_resolved,
    routes_lead_to_services,
    networks_are_closed,
    references_exist,
    mounts_exist,
    variables_exist,
    images_agree,
    limits_cover_requests,
    storage_covers_volumes,
    results_outlive_deletion,
    bounds_are_ordered,
    deployments_fit,
    packed_replicas_need_two_nodes,
    drains_end_in_time,
    redis_is_bounded,
    containers_are_confined,
    accounts_have_no_rights,
    operator_accepts,
)


def problems(manifests: Sequence[Manifest], external: Sequence[Manifest] = ()) -> list[str]:
    """What is wrong with ``manifests``, one sentence each; ``external`` objects exist already."""
    world = World(manifests, external)
    return [f"{check.__name__}: {problem}" for check in CHECKS for problem in check(world)]
