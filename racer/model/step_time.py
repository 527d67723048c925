"""Measures how long a model's step takes on this machine, once, and keeps the result on disk."""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch

from racer.model.layout import Segment
from racer.model.loader import LoadedModel
from racer.model.runner import ModelRunner
from racer.model.topk import top_k
from racer.paths import cache_path, one_at_a_time, write_whole
from racer.step_curve import StepCurve, monotone

_FORMAT = 1
_TOKENS = (1, 64, 16, 32, 33, 256, 8, 128, 65, 24, 48, 4, 96, 97, 2, 192, 512, 12, 384, 1024)
"""Token counts in the order in which they tell most; as many are measured as time allows, the first three always.
Matrix products take rows in blocks, so that the one that opens a block can cost more than all before it."""
_REQUESTS = (16, 4, 64)
_PASSES = 3
_LIMIT_S = 6.0

_log = logging.getLogger(__name__)

Step = Callable[[int, int], None]
"""Runs a step over so many tokens of so many requests."""


def model_step_curve(loaded: LoadedModel, runner: ModelRunner, max_running: int, k: int) -> StepCurve:
    """Step times of this model on this machine: from the cache folder, or measured in a few seconds and kept there.

    Needs the runner's pool to be empty. A file that is damaged, or a folder that cannot be written, costs the
    measurement only.
    """
    kind = [] if runner.graphs is None else ["graphs"]
    names = [loaded.fingerprint, str(loaded.dtype), *_machine(runner.device), str(max_running), *kind]
    path = curve_path(cache_path(), names)
    with one_at_a_time(path):  # together they would measure each other
        curve = load_curve(path)
        if curve is None:
            _log.info("measuring step times, once per model and machine (some %d seconds)", round(_LIMIT_S))
            step = _dummy_step(runner, k)
            for count in _TOKENS if runner.graphs is not None else ():
                step(min(count, runner.pool.places), 1)  # recording takes longer than all there is to measure
            curve = measure_curve(step, max_running, runner.pool.places)
            try:
                save_curve(path, curve)
            except OSError as error:
                _log.warning("step times cannot be kept at %s (%s)", path, error)
    return curve


def _machine(device: torch.device) -> list[str]:
    """What decides the speed besides the model: processor, threads, and the code of the forward."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    code = hashlib.sha256()
    for file in sorted(path for path in Path(__file__).parent.rglob("*") if path.suffix in (".py", ".cpp", ".h")):
        code.update(file.read_bytes())
    return [str(device), name, str(torch.get_num_threads()), torch.__version__, code.hexdigest()]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _dummy_step(runner: ModelRunner, k: int) -> Step:
    rng = np.random.default_rng(0)

    def step(tokens: int, requests: int) -> None:
        segments, start = [], 0
        for request in range(requests):
            nodes = tokens // requests + (request < tokens % requests)
            parents = (np.arange(nodes, dtype=np.int32) - 1) // 2  # a binary tree
            drafts = rng.integers(0, runner.vocab_size, nodes).astype(np.int32)
            segments.append(Segment(drafts, parents, start, cached=0))
            start += nodes
        top_k(runner.run(segments), k)

    return step


def measure_curve(
    step: Step,
    max_running: int,
    places: int,
    *,
    limit_s: float = _LIMIT_S,
    clock: Callable[[], float] = time.perf_counter,
) -> StepCurve:
    """Time ``step`` at several sizes of at most ``places`` tokens, in about ``limit_s`` seconds.

    Each size runs once uncounted; then all take turns, so that a machine whose speed drifts is the same for all, and
    the median of a size counts.
    """
    started = clock()
    tokens: list[int] = []
    spent_s = 0.0
    for count in _TOKENS:
        if count <= places and (len(tokens) < 3 or spent_s < limit_s / (2 + _PASSES)):
            spent_s += _timed(step, count, 1, clock)  # first calls are slow
            tokens.append(count)
    sizes = [(count, 1) for count in tokens]
    pairs = [(2 * requests, requests) for requests in _REQUESTS if requests <= max_running and 2 * requests <= places]
    for tokens_of_many, requests in pairs:
        if clock() - started < limit_s / 2:
            _timed(step, tokens_of_many, requests, clock)
            sizes.append((tokens_of_many, requests))
    times: dict[tuple[int, int], list[float]] = {size: [] for size in sizes}
    for _ in range(_PASSES):
        for size in sizes:
            times[size].append(_timed(step, *size, clock) * 1e3)
    return _curve({size: float(np.median(passes)) for size, passes in times.items()})


def _timed(step: Step, tokens: int, requests: int, clock: Callable[[], float]) -> float:
    started = clock()
    step(tokens, requests)
    return clock() - started


def _curve(ms: dict[tuple[int, int], float]) -> StepCurve:
    alone = _points((tokens, value) for (tokens, requests), value in ms.items() if requests == 1)
    curve = StepCurve(alone)
    extra = [(1.0, 0.0)]
    for (tokens, requests), value in ms.items():
        if requests > 1:
            extra.append((float(requests), max(0.0, value - float(curve.alone_ms(np.array([tokens]))[0]))))
    return StepCurve(alone, _points(extra))


def _points(points: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    ordered = sorted(points)
    values = monotone(np.array([value for _, value in ordered]))
    return tuple((float(at), float(value)) for (at, _), value in zip(ordered, values, strict=True))


def curve_path(directory: Path, parts: list[str]) -> Path:
    """Where the curve of this model on this machine is kept; ``parts`` tell both apart from others."""
    name = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return directory / f"step-times-v{_FORMAT}-{name}.json"


def load_curve(path: Path) -> StepCurve | None:
    """The curve on disk, or None where there is none that makes sense."""
    try:
        data = json.loads(path.read_bytes())
        return StepCurve(*(tuple((float(at), float(ms)) for at, ms in data[name]) for name in ("alone", "extra")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.warning("step times in %s cannot be read (%s); they are measured again", path, error)
        return None


def save_curve(path: Path, curve: StepCurve) -> None:
    """Keep the curve on disk, whole or not at all."""
    text = json.dumps({"alone": curve.alone, "extra": curve.extra})
    write_whole(path, lambda file: file.write(text.encode()))
