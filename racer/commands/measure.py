"""Timing one mode over one wave of prompts."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch

from racer.commands.modes import Mode
from racer.engine import Engine
from racer.model.loader import LoadedModel
from racer.types import Request, RequestStats, SamplingParams


@dataclass
class Measured:
    """One prompt decoded in one mode. Times are wall-clock.

    busy_s    its share of the wave's time: each step's time is divided equally among the requests it served
    step_ms, draft_ms, forward_ms  summed over the ``steps_timed`` steps that verified for it, whole steps, not shares
    """

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    stats: RequestStats = field(default_factory=RequestStats)
    busy_s: float = 0.0
    step_ms: float = 0.0
    draft_ms: float = 0.0
    forward_ms: float = 0.0
    steps_timed: int = 0


def measure(
    engine: Engine, mode: Mode, prompts: list[tuple[int, ...]], params: list[SamplingParams], concurrency: int
) -> list[Measured]:
    """Decode the prompts, ``concurrency`` at once: as one ends the next begins.

    The engine must be idle.

    Leaves the engine's budget as the mode's.
    """
    requests = [Request(prompt, own) for prompt, own in zip(prompts, params, strict=True)]
    results = {request.request_id: Measured() for request in requests}
    waiting = deque(requests)
    open_ids: set[str] = set()
    if mode.budget is not None:
        engine.budget = mode.budget
    started = time.perf_counter()
    while waiting or open_ids:
        while waiting and len(open_ids) < concurrency:
            engine.add(waiting[0])
            open_ids.add(waiting.popleft().request_id)
        outputs = engine.step()
        ended = time.perf_counter()
        served = [results[request_id] for request_id in open_ids]
        latest = engine.metrics.recent[-1]
        for result in served:
            result.busy_s += (ended - started) / len(served)
            if result.token_ids:  # before that it was being prefilled
                result.step_ms += latest.step_ms
                result.draft_ms += latest.draft_ms
                result.forward_ms += latest.forward_ms
                result.steps_timed += 1
        for output in outputs:
            if output.error is not None:
                raise output.error
            result = results[output.request_id]
            result.token_ids += output.token_ids
            result.text += output.text
            if output.finished:
                open_ids.remove(output.request_id)
            result.stats = output.stats or result.stats
        started = ended
    return list(results.values())


@torch.inference_mode()
def measure_transformers(
    loaded: LoadedModel, options: dict[str, int], prompts: list[tuple[int, ...]], caps: list[int]
) -> list[Measured]:
    """Decode the prompts one by one, each up to its cap, with ``model.generate`` and its ``options``, greedily."""
    results = []
    model: Any = loaded.model  # its generate() is untyped
    forwards = 0

    def count(*_: Any) -> None:
        nonlocal forwards
        forwards += 1

    stops = loaded.eos_token_ids
    for prompt, cap in zip(prompts, caps, strict=True):
        forwards = 0
        hook = model.register_forward_pre_hook(count)
        started = time.perf_counter()
        ids = torch.tensor([prompt], device=loaded.device)
        row = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=cap,
            do_sample=False,
            eos_token_id=sorted(stops) or None,
            pad_token_id=min(stops, default=0),
            **options,
        )[0, len(prompt) :].tolist()
        busy_s = time.perf_counter() - started
        hook.remove()
        token_ids = row[:-1] if row and row[-1] in stops else row
        steps = forwards - 1  # the first one reads the prompt
        stats = RequestStats(len(prompt), len(token_ids), decided=len(row), steps=steps)
        results.append(Measured(token_ids, "", stats, busy_s, step_ms=busy_s * 1e3, steps_timed=steps))
    return results
