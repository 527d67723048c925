"""What the users of the manifests' Redis servers may do: all that the service asks of them, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import redis

from datastore.connect import open_store
from datastore.limits import Limits
from tests.datastore.conftest import documented_rights
from tests.datastore.servers import free_ports
from tests.k8s.conftest import Overlay
from tests.k8s.pods import PASSWORD, Pod, config_of

Get = Callable[[str], Overlay]

ADMIN = "watcher"
"""A user of the test's own, beside the manifest's, who looks at the others."""

TEXT = np.arange(100, 400, dtype=np.int32)


@pytest.fixture(scope="module")
def pod(overlay: Get, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    (port,) = free_ports(1)
    config = config_of(overlay("dev"), "redis-config")
    config["data"]["users.acl"] += f"user {ADMIN} on >{PASSWORD} ~* &* +@all\n"
    pod = Pod(config, tmp_path_factory.mktemp("pod"), port).start()
    yield pod
    pod.stop()


def url_of(pod: Pod) -> str:
    return f"redis://racer:{PASSWORD}@127.0.0.1:{pod.port}"


def test_the_service_can_do_all_that_it_does(pod: Pod) -> None:
    """Look up, learn, mark, tell, dump, load, purge: by the user of the manifest, and no command of it was refused."""
    pod.client(ADMIN).execute_command("ACL", "LOG", "RESET")
    with ExitStack() as stack:
        store, copy = (
            open_store(url_of(pod), namespace=name, fingerprint="abcd", limits=Limits(contexts=1 << 14))
            for name in ("mine", "copy")
        )
        stack.callback(store.close)
        stack.callback(copy.close)
        for repeat in range(60):  # enough for buckets to be full: the script makes room
            store.learn([TEXT, np.random.default_rng(repeat).integers(0, 1 << 14, 2000).astype(np.int32)])
        assert store.lookup([TEXT[:50]], 5.0)[0][0].tokens[:3] == (150, 151, 152)
        store.write_marks({"file": "12"})
        assert store.read_marks() == {"file": "12"}
        stats = store.stats()
        assert stats.contexts > 1000 and stats.memory_bytes > 0 and stats.evicted_keys == 0
        copy.load(store.dump())
        assert copy.lookup([TEXT[:50]], 5.0) == store.lookup([TEXT[:50]], 5.0)
        assert store.purge() > 0 and store.stats().contexts == 0 and copy.stats().contexts > 1000
        copy.purge()
    refused = pod.client(ADMIN).execute_command("ACL", "LOG")
    assert refused == []


def test_the_user_may_what_the_docs_say_and_nothing_else(pod: Pod) -> None:
    documented = {right.removeprefix("+") for right in documented_rights() if right.startswith("+")}
    assert "flushall" in granted(pod, ADMIN) and len(granted(pod, ADMIN)) > 300
    assert granted(pod, "racer") == documented
    assert granted(pod, "probe") == {"ping"} and granted(pod, "default") == set()


def test_the_user_of_a_cluster_has_the_rights_that_the_docs_say(overlay: Get) -> None:
    """That they are enough, three servers that join show (test_redis.py)."""
    users = config_of(overlay("multi-gpu"), "redis-config")["data"]["users.acl"].splitlines()
    (words,) = (line.split() for line in users if line.startswith("user racer "))
    assert words[2:5] == ["on", "#PASSWORD_HASH", "resetchannels"]
    assert words[5:] == documented_rights(of_a_cluster=True)


def granted(pod: Pod, user: str) -> set[str]:
    """Of all commands and subcommands of the server, those that it would let ``user`` run."""
    admin = pod.client(ADMIN)
    admin.response_callbacks.clear()  # replies as they come
    found = set()
    for entry in admin.execute_command("COMMAND"):
        for name, arity, flags, *_ in entry[9] or [entry]:  # the subcommands, where there are any
            words = [*name.decode().split("|"), *["ng1:x"] * abs(arity)][: abs(arity)]
            if b"no_auth" not in flags and _may(admin, user, words):
                found.add(name.decode())
    return found


def _may(admin: Any, user: str, words: list[str]) -> bool:
    """Whether it is for the command itself that the server would refuse; arguments that make no sense do not count."""
    try:
        told = admin.execute_command("ACL", "DRYRUN", user, *words)
    except redis.ResponseError:
        return True
    return b"has no permissions to run the" not in told


def test_keys_outside_the_store_are_out_of_reach(pod: Pod) -> None:
    admin = pod.client(ADMIN)
    admin.set("other", "x")
    for words in (["HGET", "other", "f"], ["DEL", "other"], ["HSET", "other", "f", "v"], ["MEMORY", "USAGE", "other"]):
        assert dry_run(admin, "racer", *words) is not None
        assert dry_run(admin, "racer", words[0], *[word.replace("other", "ng1:x") for word in words[1:]]) is None


def dry_run(admin: Any, user: str, *words: str) -> str | None:
    """Why the server would refuse the command; None if it would not."""
    told = admin.execute_command("ACL", "DRYRUN", user, *words)
    return None if told in (b"OK", "OK") else str(told)
