"""A sweep: the runs of a grid, in an order in which drift hits all variants alike, each written down as it ends."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from loadtest.errors import ServerError, UserError
from loadtest.grid import Grid, Variant, slug, variants_of
from loadtest.material import workload_of
from loadtest.observe import UNANSWERED
from loadtest.runs import append_run, read_runs
from loadtest.servers import Instance, Key, RunningServer, instance_of
from loadtest.settings import Load, RunSettings, parse

_WARM_SEED = 1_000_000
_API_KEY = "LOADTEST_API_KEY"

Json = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Planned:
    """One run of a sweep."""

    variant: Variant
    workload: str
    load: Load
    repeat: int

    @property
    def name(self) -> str:
        """What it is called in files; the same whenever the grid says the same."""
        workload = Path(self.workload).stem if self.workload.endswith(".jsonl") else self.workload
        return slug(f"{workload}_{self.load.label}_{self.variant.name}_r{self.repeat}")


def plan(grid: Grid) -> list[tuple[Instance, list[Planned]]]:
    """Blocks of runs, each on one server, in the order in which they are made.

    A repeat comes whole before the next one begins. On one server the variants take turns at each load, another one
    first each time; where servers differ, they take turns by repeats.

    Raises:
        UserError: a setting of a run or a server is wrong, a workload does not exist, or two runs would have one name.
    """
    variants = variants_of(grid)
    settings = [
        parse(RunSettings, _settings(grid, Planned(variants[0], workload, load, 0), "http://x/v1"), "run")
        for workload in grid.workloads
        for load in grid.loads
    ]
    instances: dict[Instance, list[Variant]] = {}
    for variant in variants:
        instances.setdefault(instance_of(grid.servers[variant.server], variant), []).append(variant)
    blocks: list[tuple[Instance, list[Planned]]] = []
    for repeat in range(grid.repeats):
        for instance, sharing in _rotated(list(instances.items()), repeat):
            runs = [
                Planned(variant, workload, load, repeat)
                for workload in grid.workloads
                for place, load in enumerate(grid.loads)
                for variant in _rotated(sharing, repeat + place)
            ]
            if blocks and blocks[-1][0] == instance:  # it need not start again
                blocks[-1][1].extend(runs)
            else:
                blocks.append((instance, runs))
    names = [run.name for _, runs in blocks for run in runs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"two runs would be called {twice[0]}; name files and variants apart")
    for one in settings:
        workload_of(one)
    return blocks


def _rotated(values: list[T], by: int) -> list[T]:
    by %= len(values)
    return values[by:] + values[:by]


class Sweep:
    """The runs of ``grid``, recorded in ``folder``. ``say`` gets a line about each."""

    def __init__(self, grid: Grid, folder: Path, say: Callable[[str], None]) -> None:
        self.grid, self.folder, self.say = grid, folder, say
        self.blocks = plan(grid)
        self.total = sum(len(runs) for _, runs in self.blocks)
        self.done = {record["id"] for record in read_runs(folder) if "error" not in record}
        self.failed = 0

    def carry_out(self) -> None:
        """Make all runs that are not recorded yet. A server that does not start fails its block's runs alone."""
        for instance, runs in self.blocks:
            missing = [run for run in runs if run.name not in self.done]
            if not missing:
                continue
            keys = {run.name: self.key_of(run) for run in missing} if instance.args is not None else {}
            log = self.folder / "servers.log"
            self.say(f"starting {', '.join(dict.fromkeys(run.variant.server for run in missing))}")
            try:
                with RunningServer(instance, [*keys.values(), *self._settling(instance)], log) as server:
                    self._settle(server, missing[0])
                    for run in missing:
                        self._make(run, server, keys.get(run.name))
            except ServerError as error:
                for run in missing:
                    if run.name not in self.done:
                        self._record(run, {"error": str(error)})
                self.say(f"failed: {error}")

    def key_of(self, run: Planned) -> Key:
        """A new key for a run, with a namespace of the store of its own."""
        learns = run.variant.store != "off" and run.variant.drafts not in ("off", "logits")
        return Key(f"sk-{secrets.token_hex(16)}", _namespace(run.name), None if learns else "none")

    # --- parts

    def _settling(self, instance: Instance) -> list[Key]:
        return [Key(f"sk-{secrets.token_hex(16)}", "settle", "none")] if instance.args is not None else []

    def _settle(self, server: RunningServer, run: Planned) -> None:
        if self.grid.settle:
            settings = _settings(self.grid, run, server.url) | {"max_conversations": self.grid.settle, "warmup_s": 0.0}
            settings |= {"load": {"users": 4}, "duration_s": 600.0}
            self._run(settings, server.keys[-1] if server.keys else None)

    def _make(self, run: Planned, server: RunningServer, key: Key | None) -> None:
        settings = _settings(self.grid, run, server.url) | {"watch_pid": server.pid}
        started = datetime.now(UTC).isoformat(timespec="seconds")
        told = self._warm(settings, key) if run.variant.store == "warm" else {}
        told = told or self._run(settings, key, self.folder / "samples" / run.name)
        self._record(run, told if "error" in told else {"started": started, **told})
        self.done.add(run.name)
        self.say(f"[{len(self.done)}/{self.total}] {run.name}: {_said(told)}")

    def _warm(self, settings: Json, key: Key | None) -> Json:
        """Teach the store of a run that will have these settings; what went wrong, or nothing."""
        warm = self.grid.warm
        teach = {"load": {"users": warm.users}, "max_conversations": warm.conversations, "first": warm.first}
        teach |= {"seed": settings["seed"] + _WARM_SEED, "duration_s": 3600.0, "warmup_s": 0.0}
        told = self._run(settings | teach, key)
        if "error" in told:
            return {"error": f"the store was not warmed: {told['error']}"}
        if failed := told["figures"]["failed"]:
            reason = next(iter(told["figures"]["errors"]))
            return {"error": f"the store was not warmed: {failed} requests failed, as with {reason}"}
        return {}

    def _run(self, settings: Json, key: Key | None, output: Path | None = None) -> Json:
        """One run in a process of its own, as locust changes the process it is imported in."""
        command = [sys.executable, "-m", "loadtest", "run", "--json", "--settings", "/dev/stdin"]
        command += [] if output is None else ["--output", str(output)]
        environment = os.environ | ({_API_KEY: key.secret} if key is not None else {})
        done = subprocess.run(
            command, input=json.dumps(settings), capture_output=True, text=True, env=environment, check=False
        )
        if done.returncode == 130:
            raise KeyboardInterrupt
        if done.returncode not in (0, 1) or not done.stdout:
            lines = done.stderr.strip().splitlines() or ["the run ended without a word"]
            return {"error": lines[-1].removeprefix("error: ")}
        told: Json = json.loads(done.stdout.rstrip("\n").split("\n")[-1])
        return told

    def _record(self, run: Planned, told: Json) -> None:
        if "error" in told:
            self.failed += 1
        record = {
            "id": run.name,
            "variant": run.variant.name,
            "options": run.variant.options(),
            "workload": run.workload,
            "load": run.load.label,
            "repeat": run.repeat,
            "baseline": self.grid.baseline or variants_of(self.grid)[0].name,
            **told,
        }
        append_run(self.folder, record)


def _settings(grid: Grid, run: Planned, url: str) -> Json:
    spec = grid.servers[run.variant.server]
    own: Json = {
        "url": url,
        "server": spec.kind,
        "model": spec.model,
        "workload": run.workload,
        "seed": grid.seed + run.repeat,
        "load": run.load.model_dump(mode="json", exclude_none=True),
        "drafts": run.variant.drafts,
    }
    return dict(grid.run) | own


def _namespace(name: str) -> str:
    """A namespace of the store for the run ``name``, which may be longer, and of other letters, than one may be."""
    return f"run-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def _said(told: Json) -> str:
    if "error" in told:
        return f"failed: {told['error']}"
    figures = told["figures"]
    ttft, per_token = figures["ttft_ms"] or {}, figures["time_per_token_ms"] or {}
    return (
        f"{figures['throughput']['output_tokens_per_s']:.1f} tokens/s, first token {ttft.get('p50', 0):.0f} ms, "
        f"then {per_token.get('p50', 0):.1f} ms, MAT {figures['mat'] or 0:.2f}, {figures['failed']} failed"
    ) + _store_said(figures["store"])


def _store_said(store: Json | None) -> str:
    """How much of what was asked the store did not answer in time, where that is much."""
    asked = sum(store.values()) if store else 0
    if store is None or store["unanswered"] <= UNANSWERED * asked:
        return ""
    return f"; the store did not answer {store['unanswered'] / asked:.0%} in time"
