"""The Redis configurations of the manifests, run by real servers as their pods would run them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import redis

from datastore.connect import open_store
from datastore.errors import StoreUnavailableError
from tests.datastore.servers import certificate, free_ports, wait_for
from tests.k8s.conftest import Overlay
from tests.k8s.pods import PASSWORD, Pod, config_of

Get = Callable[[str], Overlay]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def learn_and_find(url: str) -> None:
    """What one store was taught, another finds."""
    tokens = np.arange(100, 200, dtype=np.int32)
    with ExitStack() as stack:
        teacher, asker = (open_store(url, namespace="test", fingerprint="abcd") for _ in range(2))
        stack.callback(teacher.close)
        stack.callback(asker.close)
        teacher.learn([tokens])
        (found,) = asker.lookup([tokens[:50]], deadline_s=2.0)
    assert found and found[0].tokens[:3] == (150, 151, 152)


def test_datastore_serves_its_user_alone_within_bounds(overlay: Get, tmp_path: Path, stack: ExitStack) -> None:
    (port,) = free_ports(1)
    pod = Pod(config_of(overlay("dev"), "redis-config"), tmp_path, port).start()
    stack.callback(pod.stop)
    learn_and_find(f"redis://racer:{PASSWORD}@127.0.0.1:{port}")
    info = pod.client("racer").info()
    assert (info["maxmemory"], info["maxmemory_policy"]) == (512 * 2**20, "allkeys-lfu")
    assert info["rdb_changes_since_last_save"] >= 0 and info["aof_enabled"] == 0
    for user, password in (("default", ""), ("default", PASSWORD), ("racer", "wrong")):
        with pytest.raises(redis.AuthenticationError):
            pod.client(user, password).ping()
    for refused in (["CONFIG", "GET", "*"], ["FLUSHALL"], ["SET", "other", "1"], ["SHUTDOWN"], ["ACL", "LIST"]):
        with pytest.raises(redis.exceptions.NoPermissionError):
            pod.client("racer").execute_command(*refused)
    with pytest.raises(redis.exceptions.NoPermissionError):
        pod.client("probe", "none").execute_command("GET", "ng1:x")
    assert PASSWORD.encode() not in pod.memory() and PASSWORD not in (pod.run / "users.acl").read_text()
    pod.stop()
    assert pod.probe() != 0


@pytest.mark.parametrize("anew", [False, True], ids=["container", "pod"])
def test_datastore_forgets_when_it_is_restarted_and_is_taught_again(
    overlay: Get, tmp_path: Path, stack: ExitStack, anew: bool
) -> None:
    """It is a cache, on no disk: the same client misses, learns and finds again, scripts included."""
    (port,) = free_ports(1)
    pod = Pod(config_of(overlay("dev"), "redis-config"), tmp_path, port).start()
    stack.callback(pod.stop)
    store = open_store(f"redis://racer:{PASSWORD}@127.0.0.1:{port}", namespace="test", fingerprint="abcd")
    stack.callback(store.close)
    tokens = np.arange(100, 200, dtype=np.int32)
    store.learn([tokens])
    assert store.lookup([tokens[:50]], 2.0)[0]
    pod.stop()
    pod.start(anew=anew)

    def answers() -> bool:
        try:
            assert store.lookup([tokens[:50]], 2.0) == [[]]
        except StoreUnavailableError:  # connections of before
            return False
        return True

    wait_for(answers, "an answer of the new server")
    assert store.stats().contexts == 0
    store.learn([tokens])
    assert store.lookup([tokens[:50]], 2.0)[0][0].tokens[:3] == (150, 151, 152)


def test_datastore_evicts_and_goes_on_when_memory_is_full(overlay: Get, tmp_path: Path, stack: ExitStack) -> None:
    """The manifest's configuration with less memory: no write is refused, memory levels off, the newest is there."""
    (port,) = free_ports(1)
    pod = Pod(config_of(overlay("dev"), "redis-config"), tmp_path, port).start("--maxmemory", "6mb")
    stack.callback(pod.stop)
    store = open_store(f"redis://racer:{PASSWORD}@127.0.0.1:{port}", namespace="test", fingerprint="abcd")
    stack.callback(store.close)
    chance, used = np.random.default_rng(0), []
    for _ in range(8):
        store.learn([chance.integers(0, 50_000, 10_000).astype(np.int32)])
        used.append(pod.client("racer").info("memory")["used_memory"])
    tokens = np.arange(100, 400, dtype=np.int32)
    store.learn([tokens])
    stats = pod.client("racer").info("stats")
    assert store.stats().evicted_keys >= stats["evicted_keys"] > 0
    assert max(used) <= 6.5 * 2**20 and min(used[4:]) > 5 * 2**20
    found = store.lookup([tokens[:i] for i in range(20, 290)], 5.0)
    assert sum(bool(one) for one in found) >= 200


def test_cluster_state_survives_and_evicts_nothing(overlay: Get, tmp_path: Path, stack: ExitStack) -> None:
    """Killed and started again on its volume it has what was written a second before, whatever may not be written."""
    (port,) = free_ports(1)
    pod = Pod(config_of(overlay("dev"), "gcs-redis-config"), tmp_path, port).start()
    stack.callback(pod.stop)
    info = pod.client("gcs").info()
    assert (info["maxmemory_policy"], info["aof_enabled"]) == ("noeviction", 1)
    pod.client("gcs").hset("RAYstate@NODE", "a", "b")
    time.sleep(1.5)  # appendfsync everysec
    pod.stop()
    pod.start("--maxmemory", "1mb", anew=False)
    assert pod.client("gcs").hgetall("RAYstate@NODE") == {b"a": b"b"}
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        pod.client("gcs").hset("RAYstate@NODE", "c", "d" * 2**20)
    assert pod.client("gcs").hgetall("RAYstate@NODE") == {b"a": b"b"}
    for refused in (["CONFIG", "GET", "*"], ["ACL", "LIST"], ["SHUTDOWN"]):
        with pytest.raises(redis.exceptions.NoPermissionError):
            pod.client("gcs").execute_command(*refused)
    with pytest.raises(redis.AuthenticationError):
        pod.client("default", "").ping()


def authority(folder: Path) -> dict[str, str]:
    """A certificate for 127.0.0.1, as the Secret redis-tls holds one."""
    certificate(folder)
    pem = (folder / "cert.pem").read_text()
    return {"tls.crt": pem, "ca.crt": pem, "tls.key": (folder / "key.pem").read_text()}


def test_store_over_tls(overlay: Get, tmp_path: Path, stack: ExitStack) -> None:
    (port,) = free_ports(1)
    config = config_of(overlay("multi-gpu"), "redis-config")
    config["data"] |= authority(tmp_path / "ca")
    config["data"]["cluster.conf"] = "cluster-enabled no\n"
    pod = Pod(config, tmp_path / "pod", port).start()
    stack.callback(pod.stop)
    learn_and_find(f"rediss://racer:{PASSWORD}@127.0.0.1:{port}?ssl_ca_certs={pod.config}/ca.crt")
    with pytest.raises(redis.ConnectionError):
        redis.Redis(host="127.0.0.1", port=port, username="racer", password=PASSWORD).ping()


@pytest.mark.slow
def test_cluster_joins_by_itself_and_heals(overlay: Get, tmp_path: Path, stack: ExitStack) -> None:
    """Three pods become a cluster; one that is replaced by an empty one takes its slots again."""
    ports = free_ports(3)
    config = config_of(overlay("multi-gpu"), "redis-config")
    config["data"] |= authority(tmp_path / "ca")
    pods = [Pod(config, tmp_path / str(port), port) for port in ports]
    peers = " ".join(f"127.0.0.1:{port}" for port in ports)
    for number, pod in enumerate(pods):
        pod.start("--cluster-announce-hostname", "127.0.0.1")
        stack.callback(pod.stop)
        environment = pod.environment | {"NUMBER": str(number), "PEERS": peers, "PAUSE_S": "0.3"}
        log = stack.enter_context((tmp_path / f"join{number}").open("wb"))
        joining = subprocess.Popen(
            ["/bin/sh", str(pod.config / "join.sh")], env=environment, stderr=log, start_new_session=True
        )
        stack.callback(joining.wait)
        stack.callback(os.killpg, joining.pid, signal.SIGKILL)

    def whole() -> bool:
        told = [pod.client("join", "none").execute_command("CLUSTER", "INFO").decode() for pod in pods]
        wanted = ("cluster_state:ok", "cluster_slots_ok:16384", "cluster_known_nodes:3")
        return all(line in info.split() for info in told for line in wanted)

    url = f"rediss+cluster://racer:{PASSWORD}@{','.join(f'127.0.0.1:{port}' for port in ports)}"
    url += f"?ssl_ca_certs={pods[0].config}/ca.crt"
    wait_for(whole, "three servers to be one cluster", 40)
    learn_and_find(url)
    pods[1].stop()
    pods[1].start("--cluster-announce-hostname", "127.0.0.1")
    wait_for(whole, "the empty server to take its slots again", 60)
    learn_and_find(url)
