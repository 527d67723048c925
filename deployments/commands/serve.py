"""``serve``: start the endpoint on this machine, or on a running Ray cluster, and stop it again on Ctrl-C."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deployments.config import EMBEDDED, AppConfig, check_store_url, expand_environment, parse_config
from deployments.errors import ConfigError, DeploymentError
from deployments.files import CONFIGS, read_args
from deployments.reports import Reports
from racer.commands.opening import notices
from racer.paths import cache_path

if TYPE_CHECKING:
    from ray.serve.schema import ServeStatus

SUMMARY = "start the OpenAI-compatible endpoint"
DESCRIPTION = (
    "Start the endpoint with the models of a configuration file (Ray Serve's form; without one: the demo model), wait "
    "until every model has decoded a token, and serve until Ctrl-C."
)

_log = logging.getLogger("racer.replicas")

APP = "racer"
STORE_URL = "RACER_STORE_URL"
_POLL_S = 0.5
_BYTES_A_REPLICA = 3 << 30
_CORES_A_REPLICA = 2
# docs/serving.md says what each gives; set before Ray is imported, and handed on to the processes it starts.
RAY_ENVIRONMENT = {
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    "RAY_worker_niceness": "0",
    "RAY_SERVE_FREEZE_GC_ON_STARTUP": "1",
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "deployments.proxy:middlewares",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "GOMP_SPINCOUNT": "30000",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--config", metavar="FILE.yaml", type=Path, help="what to serve (default: the demo model)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=_port, default=8000, help="port to listen on (default: 8000)")
    parser.add_argument("--address", metavar="HOST:PORT", help="a running Ray cluster to serve on (default: a new one)")
    parser.add_argument("--ready-timeout-s", type=float, default=1800.0, help="give up if not ready by then")


def _port(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not valid: it must be a number from 1 to 65535")
    return int(text)


def execute(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    config = _config(args.config)
    _check_port(args.host, args.port)
    for name, value in RAY_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    check_store(config, args.address)
    with ExitStack() as stack:
        config = with_embedded_store(config, stack)
        ready, stopped = threading.Event(), threading.Event()
        reports = _start(config, args, stack, ready)
        with notices(), reports.shown(_log):
            _wait_until_ready(args)
        ready.set()
        _announce(config, args)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stopped.set())
        while not stopped.wait(_POLL_S):
            pass
        print("stopping", file=sys.stderr, flush=True)
    return 0


def _config(path: Path | None) -> AppConfig:
    if path is not None:
        return parse_config(read_args(path), str(path))
    values = read_args(CONFIGS / "demo.yaml")
    values["batches"] = {"folder": str(cache_path() / "batches")}
    replicas, threads = fitting(os.cpu_count() or 1, _memory_bytes())
    model = values["models"][0]
    model |= {
        "num_cpus": threads,
        "autoscaling": {"min_replicas": replicas, "max_replicas": replicas},
    }
    return parse_config(values, "demo configuration")


def fitting(cores: int, memory_bytes: int) -> tuple[int, int]:
    """Replicas of the demo model for a machine, at most two, and the threads of each.

    Two on one core each would each be slower than one on both: a step waits for its slower thread.
    """
    replicas = 2 if cores >= 2 * _CORES_A_REPLICA and memory_bytes >= 2 * _BYTES_A_REPLICA else 1
    return replicas, max(1, cores // replicas)


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _check_port(host: str, port: int) -> None:
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        raise ConfigError(
            f"{host}:{port} cannot be listened on ({error.strerror or error}); choose another --port or --host"
        ) from None


def check_store(config: AppConfig, address: str | None) -> None:
    """Before Ray is started: the store's URL with its variables, which a cluster of this machine takes from here.

    Raises:
        ConfigError: a variable is not set, or the URL names no store.
    """
    if config.store.url is not None and not address:
        check_store_url(expand_environment(config.store.url))


def with_embedded_store(config: AppConfig, stack: ExitStack) -> AppConfig:
    """One server for all replicas in the place of ``embedded:``, until the stack closes.

    Its password travels in the environment.
    """
    if config.store.url != EMBEDDED:
        return config
    from datastore.embedded import EmbeddedServer
    from datastore.errors import UserError

    try:
        server = stack.enter_context(EmbeddedServer())
    except UserError as error:
        raise ConfigError(f"store.url embedded: {error}") from error
    os.environ[STORE_URL] = server.url
    return config.model_copy(update={"store": config.store.model_copy(update={"url": f"${STORE_URL}"})})


def start_ray(address: str | None, stack: ExitStack, **options: Any) -> None:
    """Join the cluster at ``address``, or start one with ``options``, until the stack closes.

    Raises:
        DeploymentError: that fails.
    """
    import ray

    print("starting Ray", file=sys.stderr, flush=True)
    try:
        if address:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        else:
            ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR", **options)
        stack.callback(ray.shutdown)
    except Exception as error:
        raise DeploymentError(f"Ray does not start ({str(error).strip().splitlines()[0]})") from error


def _start(config: AppConfig, args: argparse.Namespace, stack: ExitStack, ready: threading.Event) -> Reports:
    from ray import serve

    from deployments.app import build_app

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    app = build_app(config.model_dump(mode="json"))
    start_ray(args.address, stack)
    names = ", ".join(model.name for model in config.models)
    print(f"loading {names} (half a minute; some minutes at the first start)", file=sys.stderr, flush=True)
    serve.start(http_options={"host": args.host, "port": args.port})

    def stop() -> None:
        # Serve itself ends with a cluster of our own: serve.shutdown() waits for a call that its killed controller
        # never answers, which Ray tells as a failure. Until all is ready nothing has to be finished, and a replica
        # that is loading would be waited for.
        if args.address or ready.is_set():
            serve.delete(APP)

    stack.callback(stop)
    reports = Reports(Path(_log_folder()))
    serve.run_many([serve.RunTarget(app, APP, "/")], wait_for_applications_running=False)
    return reports


def _wait_until_ready(args: argparse.Namespace) -> None:
    """Wait for ``/ready``; an application that fails to start is told at once."""
    from urllib.error import URLError
    from urllib.request import urlopen

    from ray import serve

    deadline = time.monotonic() + args.ready_timeout_s
    while time.monotonic() < deadline:
        _raise_failure(serve.status())
        try:
            with urlopen(f"http://{_loopback(args.host)}:{args.port}/ready", timeout=60) as answer:
                if answer.status == 200:
                    return
        except (URLError, OSError):
            pass
        time.sleep(_POLL_S)
    raise DeploymentError(f"not ready within {args.ready_timeout_s:g} s; see the logs in {_log_folder()}")


def _raise_failure(status: ServeStatus) -> None:
    application = status.applications.get(APP)
    if application is None or application.status != "DEPLOY_FAILED":
        return
    told = [application.message, *(deployment.message for deployment in application.deployments.values())]
    lines = [line.strip() for text in told for line in text.splitlines() if "Error" in line and ":" in line]
    raise DeploymentError(
        f"a replica does not start ({lines[-1] if lines else told[0]}); see the logs in {_log_folder()}"
    )


def _log_folder() -> str:
    import ray

    context: Any = ray._private.worker._global_node
    return f"{context.get_session_dir_path()}/logs/serve" if context is not None else "Ray's session folder"


def _loopback(host: str) -> str:
    return "127.0.0.1" if host == "0.0.0.0" else f"[{host}]" if ":" in host else host


def _announce(config: AppConfig, args: argparse.Namespace) -> None:
    url, name = f"http://{_loopback(args.host)}:{args.port}", config.models[0].name
    print(f"ready: {url}/v1 ({', '.join(model.name for model in config.models)}); Ctrl-C stops it", file=sys.stderr)
    print(
        f"curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d "
        f"""'{{"model": "{name}", "stream": true, "messages": [{{"role": "user", "content": "Tell me a joke."}}]}}'""",
        flush=True,
    )
