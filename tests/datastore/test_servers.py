"""The servers that the other tests rely on are what they claim to be."""

from __future__ import annotations

import subprocess

import pytest
import redis

from tests.datastore.conftest import ACL_PASSWORD, ACL_USER, Pair
from tests.datastore.servers import REDIS_62, VALKEY, Server, program_of


def test_each_server_is_what_its_name_says(
    redis_single: Server, redis_tls: Server, redis_acl: Server, redis_cluster: list[Server], redis_sentinel: Pair
) -> None:
    assert redis_single.client().info("server")["redis_mode"] == "standalone"
    assert redis_tls.client().ping()
    assert redis_acl.client(username=ACL_USER, password=ACL_PASSWORD).ping()
    assert redis_cluster[1].client().info("server")["redis_mode"] == "cluster"
    assert redis_sentinel.replica.client().info("replication")["role"] == "slave"


@pytest.mark.may_skip("a package has no server for this machine")
@pytest.mark.parametrize(("build", "says"), [(REDIS_62, "v=6.2."), (VALKEY, "Valkey server v=")])
def test_each_build_is_what_its_name_says(build: str, says: str) -> None:
    told = subprocess.run([program_of(build), "--version"], capture_output=True, text=True, check=True)
    assert says in told.stdout


def test_the_acl_server_lets_nobody_else_in(redis_acl: Server) -> None:
    try:
        redis_acl.client().ping()
    except redis.AuthenticationError:
        return
    raise AssertionError("the default user was let in")
