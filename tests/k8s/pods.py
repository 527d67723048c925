"""The Redis pods of the manifests as processes of this machine: their own start script, configuration and probe."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import redis

from k8s.render import Manifest
from tests.datastore.servers import require, wait_for
from tests.k8s.conftest import Overlay

PASSWORD = "a-password-of-the-tests"


class Pod:
    """A server as the pod's command starts it; ``folder`` stands for /etc/redis and /run/redis."""

    def __init__(self, config: Manifest, folder: Path, port: int) -> None:
        self.port = port
        self.config, self.run = folder / "etc", folder / "run"
        self.config.mkdir(parents=True, exist_ok=True)
        self._process: subprocess.Popen[bytes] | None = None
        self.tls = "tls-port" in config["data"].get("listen.conf", "")
        places = {"/etc/redis": str(self.config), "/run/redis": str(self.run), "dir /data": f"dir {self.run}"}
        for name, text in config["data"].items():
            for old, new in places.items():
                text = text.replace(old, new)
            (self.config / name).write_text(text.replace("port 6379", f"port {port}"))

    @property
    def environment(self) -> dict[str, str]:
        places = {"REDIS_CONFIG": str(self.config), "REDIS_RUN": str(self.run), "REDIS_PORT": str(self.port)}
        return {**os.environ} | places | {"REDIS_PASSWORD": PASSWORD}

    def start(self, *options: str, anew: bool = True) -> Pod:
        """Start the server: ``anew`` in a new pod, whose volumes are empty, else as a container that is restarted."""
        require("redis-server")
        if anew:
            shutil.rmtree(self.run, ignore_errors=True)
            self.run.mkdir()
        command = ["/bin/sh", str(self.config / "start.sh"), "--bind", "127.0.0.1", *options]
        with (self.run / "log").open("ab") as log:
            self._process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
        wait_for(lambda: self.probe() == 0, f"the server on port {self.port}", 20)
        return self

    def probe(self) -> int:
        """Exit code of the pod's probe."""
        command = ["/bin/sh", str(self.config / "probe.sh")]
        return subprocess.run(command, env=self.environment, capture_output=True, check=False).returncode

    def client(self, user: str, password: str = PASSWORD) -> Any:
        tls: dict[str, Any] = {"ssl": True, "ssl_ca_certs": str(self.config / "ca.crt")} if self.tls else {}
        return redis.Redis(host="127.0.0.1", port=self.port, username=user, password=password, **tls)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def memory(self) -> bytes:
        assert self._process is not None
        return Path(f"/proc/{self._process.pid}/environ").read_bytes()


def config_of(overlay: Overlay, name: str) -> Manifest:
    (found,) = (m for m in overlay.manifests if m["kind"] == "ConfigMap" and m["metadata"]["name"].startswith(name))
    return found
