"""How long drafting takes: microseconds a step, and for one request after prompts of several lengths.

    python bench/draft_speed.py [--budget 32] [--steps 500]

A step is learn_text (3 tokens), propose, and learn_tree (a row for every node), on made-up text with the frequencies
of natural text. Times are processor time of this thread, so that other load on the machine does not count.
The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

from racer.config import Drafts, EngineConfig, TreeShape
from racer.draft.drafter import Drafter
from racer.draft.prior import PriorTable

VOCAB, TOP_K = 49_152, 8


def measure(drafter: Drafter, tree: TreeShape, prompt: int, budget: int, steps: int) -> dict[str, float]:
    """Median and 99th percentile of one step, and of its parts, after a prompt of so many tokens."""
    rng = np.random.default_rng(prompt)
    rows, probs = drafter.prior.tokens, drafter.prior.probs

    def text(tokens: int) -> np.ndarray:
        return np.minimum(rng.zipf(1.2, tokens), VOCAB - 1).astype(np.int32)

    request = drafter.open(Drafts.RACER, tree)
    start = time.thread_time()
    ids = text(prompt)
    request.learn_text(ids)
    request.learn_prompt(ids, rows[ids], probs[ids])
    prefill = time.thread_time() - start
    times = np.empty((steps, 3))
    for step in times:
        new = text(3)
        marks = [time.thread_time()]
        request.learn_text(new)
        marks.append(time.thread_time())
        grown = request.propose(budget)
        marks.append(time.thread_time())
        tops, top_probs = rows[grown.tokens], probs[grown.tokens]
        marks.append(time.thread_time())
        request.learn_tree(grown, [0, 1], tops, top_probs)
        step[:] = marks[1] - marks[0], marks[2] - marks[1], time.thread_time() - marks[3]
    medians = np.median(times, axis=0)
    return {
        "prompt_ms": prefill * 1e3,
        "text": medians[0] * 1e6,
        "propose": medians[1] * 1e6,
        "tree": medians[2] * 1e6,
        "step": float(np.median(times.sum(1))) * 1e6,
        "step_p99": float(np.quantile(times.sum(1), 0.99)) * 1e6,
    }


def main() -> None:
    """Measure every tree shape."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=int, default=32, help="draft budget in nodes (default 32)")
    parser.add_argument("--steps", type=int, default=500, help="steps measured for each figure (default 500)")
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    probs = -np.sort(-rng.dirichlet([0.3] * TOP_K, VOCAB).astype(np.float32), axis=1)
    tokens = np.minimum(rng.zipf(1.2, (VOCAB, TOP_K)), VOCAB - 1).astype(np.int32)
    drafter = Drafter(EngineConfig(), VOCAB, PriorTable(tokens, probs))
    drafter.warm_up()
    report: dict[str, object] = {"budget": arguments.budget}
    for tree in TreeShape:
        for prompt in (300, 2000, 30_000):
            figures = measure(drafter, tree, prompt, arguments.budget, arguments.steps)
            report[f"{tree}_{prompt}"] = {name: round(value, 1) for name, value in figures.items()}
            print(f"{tree:6} prompt {prompt:6}:", *(f"{name} {value:.1f}" for name, value in figures.items()))
    print(json.dumps(report))


if __name__ == "__main__":
    main()
