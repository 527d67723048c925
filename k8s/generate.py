"""Writes what the manifests take from elsewhere: configurations, Ray's environment, the dashboard.

One source for each: ``deployments/configs/*.yaml`` for what an overlay serves, the serve command for Ray's settings,
:mod:`k8s.dashboard` for the panels. ``python -m k8s generate`` writes the files, and a test compares them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from deployments.commands.serve import RAY_ENVIRONMENT
from deployments.config import parse_config
from deployments.files import CONFIGS
from k8s.dashboard import dashboard

ROOT = Path(__file__).parent
MADE = "made by `python -m k8s generate`; do not edit"

_ON_INGRESS_NODES: dict[str, Any] = {"ingress_cpus": 0, "ingress_resources": {"ingress": 1}}
"""The HTTP side goes to the ingress group, whose nodes have this resource and no processors for anything else."""

_DRAINED_S = 540
"""The longest answer, and how long a replica that ends lets its answers finish. The pods' sleep is longer, and with
their end they take the ten minutes that autoscalers of nodes wait at most."""

_WHOLE_ANSWERS: dict[str, Any] = {"limits": {"timeout_s": _DRAINED_S}}

_CONTAINER = {
    "HOME": "/tmp",
    "RACER_CACHE": "/cache",
    "HF_HOME": "/cache/huggingface",
    "NUMBA_CACHE_DIR": "/cache/numba",
    "TORCHINDUCTOR_CACHE_DIR": "/cache/inductor",
    "TRITON_CACHE_DIR": "/cache/triton",
}
"""Where a container whose root file system is read-only writes."""


@dataclass(frozen=True)
class Overlay:
    """What an overlay serves.

    config   file in deployments/configs
    app      arguments of the application that Kubernetes sets
    models   settings of every model that Kubernetes sets
    """

    config: str
    app: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, Any] = field(default_factory=dict)


SERVED = {
    "dev": Overlay(
        "demo.yaml",
        _ON_INGRESS_NODES | _WHOLE_ANSWERS | {"store": {"url": "$REDIS_URL"}},
        {
            "drain_s": _DRAINED_S,
            "num_cpus": 2,
            "autoscaling": {"min_replicas": 1, "max_replicas": 2, "target_running": 16},
        },
    ),
    "gpu": Overlay("gpu.yaml", _ON_INGRESS_NODES | _WHOLE_ANSWERS, {"drain_s": _DRAINED_S}),
    "multi-gpu": Overlay(
        "redis-cluster.yaml",
        _ON_INGRESS_NODES | _WHOLE_ANSWERS | {"ingress_replicas": 4},
        {
            "drain_s": _DRAINED_S,
            # nodes of eight GPUs are paid for whole: at rest two of them are full
            "autoscaling": {"min_replicas": 16, "max_replicas": 32, "target_running": 32, "downscale_delay_s": 300},
        },
    ),
}
BATCH = Overlay("gpu.yaml")


def serve_config(overlay: Overlay) -> dict[str, Any]:
    """The Serve configuration of ``overlay``: its file's, with what Kubernetes sets.

    Raises:
        ConfigError: the result is no configuration of ours.
    """
    values: dict[str, Any] = yaml.safe_load((CONFIGS / overlay.config).read_text(encoding="utf-8"))
    (application,) = values["applications"]
    args = application["args"] = application["args"] | dict(overlay.app)
    args["models"] = [model | dict(overlay.models) for model in args["models"]]
    parse_config(args, overlay.config)
    return values


def generated() -> dict[Path, str]:
    """Content of every generated file."""
    environment = _environment(RAY_ENVIRONMENT | _CONTAINER)
    files = {
        ROOT / "base/serving/ray.env": environment,
        ROOT / "overlays/batch/ray.env": environment,
        ROOT / "overlays/batch/batch.yaml": f"# {MADE}\n{_dump(serve_config(BATCH))}",
        ROOT / "components/monitoring/files/racer-serve.json": json.dumps(dashboard(), indent=1) + "\n",
    }
    for name, overlay in SERVED.items():
        patch = {
            "apiVersion": "ray.io/v1",
            "kind": "RayService",
            "metadata": {"name": "racer"},
            "spec": {"serveConfigV2": _Block(_dump(serve_config(overlay)))},
        }
        note = f"# deployments/configs/{overlay.config}, {MADE}\n"
        files[ROOT / f"overlays/{name}/serve.yaml"] = note + _dump(patch)
    return files


def write() -> list[Path]:
    """Write the generated files; returns those that changed."""
    changed = []
    for path, text in generated().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            changed.append(path)
    return changed


def _environment(variables: Mapping[str, str]) -> str:
    return f"# {MADE}\n" + "".join(f"{name}={value}\n" for name, value in sorted(variables.items()))


class _Block(str):
    """Text that YAML holds as a literal block."""


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indent lists below their key, as the manifests do."""
        super().increase_indent(flow, False)


_Dumper.add_representer(
    _Block, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style="|")
)


def _dump(values: Any) -> str:
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, width=1000)
