"""``python -m deployments serve``: starts in one command, says what is wrong in one sentence, leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.deployments.local import wait_until


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "deployments", *args], capture_output=True, text=True, timeout=120, check=False
    )


def test_mistakes_are_one_sentence_and_exit_2(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("applications: [{import_path: 'deployments.app:build_app', args: {modles: []}}]")
    stores = {"scheme": "htp://x", "port": "redis://:hunter2@$HOST:port", "variable": "$RACER_NO_SUCH_STORE"}
    for name, url in stores.items():
        application = {"import_path": "deployments.app:build_app", "args": {"store": {"url": url}}}
        served = {"applications": [application]}
        (tmp_path / f"{name}.yaml").write_text(json.dumps(served))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        cases = [
            (["serve", "--config", str(tmp_path / "scheme.yaml")], "store.url: 'htp://x' is no URL of a store"),
            (["serve", "--config", str(tmp_path / "port.yaml")], "redis://:***@1:port' is not host or host:port"),
            (["serve", "--config", str(tmp_path / "variable.yaml")], "RACER_NO_SUCH_STORE is not set"),
            (
                ["batch", "--input", "none", "--output", "none", "--config", str(tmp_path / "scheme.yaml")],
                "store.url: 'htp://x' is no URL of a store",
            ),
            (["serve", "--config", str(wrong)], "modles"),
            (["serve", "--config", str(tmp_path / "none.yaml")], "none.yaml"),
            (["serve", "--port", "0"], "65535"),
            (["serve", "--port", str(taken.getsockname()[1])], "--port"),
            (["serve", "--nonsense"], "--nonsense"),
            ([], "COMMAND"),
        ]
        for args, word in cases:
            done = run(*args)
            assert done.returncode == 2 and word in done.stderr, done.stderr
            assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
            assert "hunter2" not in done.stderr
    assert run("--help").returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_one_command_serves_and_ctrl_c_ends_it(tmp_path: Path, free_port: int) -> None:
    config = tmp_path / "c.yaml"
    engine = {"model": "demo", "prior": False, "compile": False, "budget": 16}
    args = {"models": [{"name": "demo", "engine": engine, "num_cpus": 1}], "store": {"url": "embedded:"}}
    config.write_text(json.dumps({"applications": [{"import_path": "deployments.app:build_app", "args": args}]}))
    process = subprocess.Popen(
        [sys.executable, "-m", "deployments", "serve", "--port", str(free_port), "--config", str(config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("curl "), process.stderr.read()
        answer = subprocess.run(line, shell=True, capture_output=True, text=True, check=True).stdout
        assert answer.rstrip().endswith("data: [DONE]") and answer.count("data: {") > 1
        assert httpx.get(f"http://127.0.0.1:{free_port}/ready", timeout=30).json()["models"] == {"demo": "ready"}
        children = descendants(process.pid)
        assert len(children) > 5 and any("redis-server" in name for name in children.values())
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        told = process.stderr.read()
        assert process.stdout.read() == ""  # Ray tells there what fails
        assert "ready:" in told and told.rstrip().endswith("stopping") and "Traceback" not in told
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), "all have ended", 30)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        process.stderr.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_replica_that_cannot_start_is_told(tmp_path: Path, free_port: int) -> None:
    config = tmp_path / "c.yaml"
    args = {"models": [{"name": "demo", "engine": {"model": str(tmp_path / "nothing")}}]}
    config.write_text(json.dumps({"applications": [{"import_path": "deployments.app:build_app", "args": args}]}))
    done = run("serve", "--port", str(free_port), "--config", str(config))
    assert done.returncode == 1, done.stderr
    assert re.search(r"error: a replica does not start \(.*nothing.*\)", done.stderr), done.stderr


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def descendants(pid: int) -> dict[int, str]:
    """Command lines of the processes below ``pid``."""
    children: dict[int, list[int]] = {}
    names: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                names[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found: dict[int, str] = {}
    queue = [pid]
    while queue:
        for child in children.get(queue.pop(), []):
            found[child] = names[child]
            queue.append(child)
    return found
