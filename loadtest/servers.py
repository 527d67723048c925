"""Servers that a sweep starts and stops: this project's, or any other by its command line."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from loadtest.errors import ServerError, UserError
from loadtest.files import read_mapping
from loadtest.grid import ServerSpec, Variant

_EMBEDDED = "embedded:"
_KEYS = "RACER_API_KEYS"
_STOP_S = 90.0
_POLL_S = 0.2


@dataclass(frozen=True)
class Key:
    """An API key of one run: its namespace of the store is the run's own."""

    secret: str
    namespace: str
    learn: str | None = None

    def to_config(self) -> dict[str, Any]:
        """As the endpoint's list of keys has it."""
        found = {"key": self.secret, "namespace": self.namespace}
        return found if self.learn is None else found | {"learn": self.learn}


@dataclass(frozen=True)
class Instance:
    """One resolved server: variants with equal instances share a process and take turns on it."""

    server: str
    args: str | None
    """JSON of the application's args; None for a command or a URL."""
    spec: ServerSpec = field(compare=False)


def instance_of(spec: ServerSpec, variant: Variant) -> Instance:
    """``spec`` with a variant's own settings put in.

    Raises:
        UserError: the configuration cannot be read, or has several models.
    """
    if spec.config is None:
        return Instance(variant.server, None, spec)
    args = _args(Path(spec.config)) if isinstance(spec.config, str) else dict(spec.config)
    models = [dict(model) for model in args.get("models") or [{}]]
    if len(models) > 1:
        raise UserError("servers: a sweep needs a configuration with one model")
    model = models[0]
    if variant.budget is not None:
        model["engine"] = dict(model.get("engine") or {}) | {"budget": variant.budget}
    if variant.replicas is not None:
        scaling = {"min_replicas": variant.replicas, "max_replicas": variant.replicas}
        model["autoscaling"] = dict(model.get("autoscaling") or {}) | scaling
    args["models"] = [model]
    store = dict(args.get("store") or {})
    if variant.store == "off":
        store["url"] = None
    elif variant.store in ("cold", "warm") and not store.get("url"):
        store["url"] = _EMBEDDED
    args["store"] = store
    return Instance(variant.server, json.dumps(args, sort_keys=True), spec)


def _args(path: Path) -> dict[str, Any]:
    values = read_mapping(path)
    applications = values.get("applications")
    if not isinstance(applications, list) or len(applications) != 1 or not isinstance(applications[0], dict):
        raise UserError(f"{path}: one application is expected, as `deployments serve --config` takes it")
    return dict(applications[0].get("args") or {})


@dataclass
class RunningServer:
    """A server while the block runs.

    Raises:
        ServerError: it does not start; the sentence ends with what it said last.
    """

    instance: Instance
    keys: list[Key]
    log: Path
    url: str = ""
    pid: int | None = None
    _process: subprocess.Popen[bytes] | None = None
    _folder: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False)

    def __enter__(self) -> Self:
        spec = self.instance.spec
        if spec.url is not None:
            self.url = spec.url
            return self
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = int(free.getsockname()[1])
        self.url = f"http://127.0.0.1:{port}/v1"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(port),
                env=os.environ | self._environment() | spec.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is the sweep's to handle
            )
        self.pid = self._process.pid
        try:
            self._wait(spec.ready_timeout_s)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _command(self, port: int) -> list[str]:
        spec = self.instance.spec
        if spec.command is not None:
            return [part.replace("{port}", str(port)) for part in spec.command]
        self._folder = tempfile.TemporaryDirectory(prefix="loadtest-")
        path = Path(self._folder.name) / "serve.yaml"
        args = json.loads(self.instance.args or "{}")
        path.write_text(
            yaml.safe_dump({"applications": [{"import_path": "deployments.app:build_app", "args": args}]}),
            encoding="utf-8",
        )
        return [sys.executable, "-m", "deployments", "serve", "--config", str(path), "--port", str(port)]

    def _environment(self) -> dict[str, str]:
        return {_KEYS: json.dumps([key.to_config() for key in self.keys])} if self.keys else {}

    def _wait(self, most_s: float) -> None:
        assert self._process is not None
        own = self.instance.spec.command is None
        probe = self.url.removesuffix("/v1") + "/ready" if own else f"{self.url}/models"
        until = time.monotonic() + most_s
        while time.monotonic() < until:
            if self._process.poll() is not None:
                raise ServerError(f"the server ended at its start: {self._last_words()}")
            if _answers(probe):
                return
            time.sleep(_POLL_S)
        raise ServerError(f"the server is not ready within {most_s:g} s; its output is in {self.log}")

    def _last_words(self) -> str:
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return f"{lines[-1].strip()} (all of it: {self.log})" if lines else f"without a word ({self.log})"

    def _stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        if self._folder is not None:
            self._folder.cleanup()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
