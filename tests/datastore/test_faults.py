"""A client of a server that stops, dies, is demoted, or refuses.

In all of them a lookup is a miss within its deadline, the counters say what happened, and it recovers by itself.
"""

from __future__ import annotations

import signal
from pathlib import Path

from datastore.breaker import BreakerState
from tests.datastore.conftest import Pair, cluster
from tests.datastore.faulty import DEADLINE_MS, TEXT, Client, OwnRedis, ask, gives_up, works
from tests.datastore.servers import wait_for


def test_a_server_that_hangs(client: Client, own_redis: OwnRedis) -> None:
    server = own_redis()
    ours = client(server.url)
    works(ours)
    server.signal(signal.SIGSTOP)
    gives_up(ours)
    assert ours.stats().late >= 1
    ours.learn(TEXT)
    server.signal(signal.SIGCONT)
    works(ours)


def test_a_server_that_is_killed_and_started_again_empty(client: Client, own_redis: OwnRedis) -> None:
    server = own_redis()
    ours = client(server.url)
    works(ours)
    server.kill()
    gives_up(ours)
    assert ours.stats().failed.keys() == {"StoreUnavailableError"}
    server.start()

    def learned_anew() -> bool:
        ours.learn(TEXT)  # scripts are gone as well as data
        ours.flush()
        return ask(ours)

    wait_for(learned_anew, "the server to be filled again")
    works(ours)


def test_no_server_at_first(client: Client, own_redis: OwnRedis) -> None:
    server = own_redis()
    server.kill()
    ours = client(server.url)
    gives_up(ours)
    assert ours.stats().write_failed == {"StoreUnavailableError": len(TEXT)}
    server.start()
    with server.client() as plain:
        assert plain.ping()
    other = client(server.url)
    works(other)
    works(ours)


def test_a_demoted_primary_refuses_writes_and_still_answers(client: Client, own_redis: OwnRedis) -> None:
    first, second = own_redis(), own_redis()
    ours = client(first.url)
    works(ours)
    wait_for(lambda: second.client().replicaof("127.0.0.1", first.port), "a replica")
    wait_for(lambda: second.client().info("replication")["master_link_status"] == "up", "replication")
    second.client().replicaof("no", "one")
    first.client().replicaof("127.0.0.1", second.port)
    ours.learn(TEXT)
    assert ours.flush()
    assert ours.stats().write_failed == {"StoreUnavailableError": len(TEXT)}
    works(ours)
    first.client().replicaof("no", "one")
    before = ours.stats().learned

    def writes_again() -> bool:
        ours.learn(TEXT)
        ours.flush()
        return ours.stats().learned > before

    wait_for(writes_again, "writes")
    assert ours.stats().write_breaker is BreakerState.CLOSED


def test_a_failover_under_sentinel(client: Client, redis_pair: Pair) -> None:
    ours = client(f"redis+sentinel://127.0.0.1:{redis_pair.sentinel.port}/mymaster")
    works(ours)
    sentinel = redis_pair.sentinel.client()
    wait_for(lambda: bool(sentinel.execute_command("SENTINEL", "FAILOVER", "mymaster")), "a replica fit to promote")
    wait_for(lambda: redis_pair.replica.client().info("replication")["role"] == "master", "the failover")

    def written_to_the_new_one() -> bool:
        ours.learn(TEXT[:100] + 5000)
        ours.flush()
        found = ours.lookup([TEXT[:50] + 5000], DEADLINE_MS)[0]
        return bool(found) and found[0].tokens[0] == 5150 and ours.stats().learned > len(TEXT)

    wait_for(written_to_the_new_one, "writes to the new primary")
    assert redis_pair.replica.client().dbsize() > 0
    works(ours)


def test_a_wrong_password(client: Client, own_redis: OwnRedis) -> None:
    server = own_redis("--requirepass", "right")
    ours = client(f"redis://:wrong@127.0.0.1:{server.port}")
    gives_up(ours)
    assert ours.stats().failed.keys() == {"StoreUnavailableError"}
    assert ours.stats().write_failed.keys() == {"StoreUnavailableError"}
    server.client(password="right").config_set("requirepass", "wrong")
    works(client(f"redis://:wrong@127.0.0.1:{server.port}"))
    works(ours)


def test_a_master_of_a_cluster_dies(client: Client, tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        ours = client("redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes))
        works(ours)
        nodes[2].kill()
        gives_up(ours)
        assert ours.stats().failed.keys() <= {"StoreUnavailableError", "StoreTimeoutError"}
        nodes[2].start()

        def learned_anew() -> bool:
            ours.learn(TEXT)
            ours.flush()
            return ask(ours)

        wait_for(learned_anew, "the cluster to work again")
