"""What a choice of tree sizes would be worth: recorded trees of 64 nodes, cut anew, with a given step time.

    python bench/tree_sizes.py --data FILE.jsonl [--data ...] [--max-tokens 100]
        [--curve 1:22,16:24.5,32:28,33:32,64:38]

Each question's first turn is decoded alone with trees of 64 nodes; of each tree it is noted which nodes were accepted.
Then: one size for all steps; the budget controller with what it learns on the way; a constant price of a millisecond,
the best of several; and foresight, which takes the accepted nodes that pay and the nodes before them. ``--curve``: node
counts and milliseconds of a step, linear between. Figures are tokens a step, nodes a step and tokens over plain
decoding's in the same time, the forward alone. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from racer import Engine, EngineConfig, Request, SamplingParams
from racer.budget import BudgetController, plan_step
from racer.draft.drafter import RequestDrafts
from racer.draft.reliability import Reliability
from racer.draft.tree import DraftTree
from racer.step_curve import StepCurve
from racer.step_time import StepTimes
from racer.text import render_chat

NODES = 64
SIZES = (8, 16, 24, 32, 48, 64)
PRICES = (0.08, 0.09, 0.1, 0.11, 0.12)


@dataclass(frozen=True)
class Verified:
    """A tree of a step, and its accepted nodes without the root, int [a]."""

    tree: DraftTree
    accepted: NDArray[np.int32]

    def decided(self, size: int) -> int:
        """Tokens that the first ``size`` nodes would have brought."""
        return 1 + int((self.accepted < size).sum())


def record(engine: Engine, questions: list[str], max_tokens: int) -> list[Verified]:
    """Decode the questions one by one; the trees of all steps."""
    found: list[Verified] = []
    feedback = RequestDrafts.feedback

    def noting(self: RequestDrafts, tree: DraftTree, accepted_nodes: ArrayLike) -> None:
        nodes = np.asarray(accepted_nodes, np.int32)
        found.append(Verified(tree, nodes[nodes > 0]))
        feedback(self, tree, accepted_nodes)

    RequestDrafts.feedback = noting  # type: ignore[method-assign]
    try:
        for question in questions:
            prompt = tuple(render_chat(engine.tokenizer, [{"role": "user", "content": question}]))
            for _ in engine.generate([Request(prompt, SamplingParams(max_tokens=max_tokens))]):
                pass
    finally:
        RequestDrafts.feedback = feedback  # type: ignore[method-assign]
    return found


def controlled(steps: list[Verified], curve: StepCurve) -> list[int]:
    """Sizes that the budget controller chooses, told what became of them."""
    reliability = Reliability()
    controller = BudgetController(StepTimes(curve), reliability, NODES)
    sizes = []
    for step in steps:
        (size,) = controller.choose([step.tree.prefix(controller.limit)])
        reliability.observe(step.tree.prefix(size), step.accepted[step.accepted < size])
        sizes.append(size)
    return sizes


def priced(steps: list[Verified], curve: StepCurve, price: float) -> list[int]:
    """Sizes where each millisecond is worth ``price`` tokens."""
    reliability, sizes = Reliability(), []
    for step in steps:
        probs = reliability.calibrated(step.tree.sources[1:], step.tree.probs[1:])
        plan = plan_step([probs], lambda tokens, _: curve.alone_ms(tokens))
        size = 1 + int(np.argmax(plan.gain - price * plan.ms))
        reliability.observe(step.tree.prefix(size), step.accepted[step.accepted < size])
        sizes.append(size)
    return sizes


def foreseen(steps: list[Verified], curve: StepCurve, price: float) -> list[int]:
    """Sizes of one who knows what will be accepted."""
    choices = [[1, *(int(node) + 1 for node in step.accepted)] for step in steps]
    return [
        max(sizes, key=lambda size: step.decided(size) - price * float(curve.alone_ms(np.array([size]))[0]))
        for step, sizes in zip(steps, choices, strict=True)
    ]


def worth(steps: list[Verified], sizes: list[int], curve: StepCurve) -> dict[str, float]:
    """Tokens and nodes a step, and tokens over plain decoding's in the same time."""
    tokens = sum(step.decided(size) for step, size in zip(steps, sizes, strict=True))
    ms, plain_ms = curve.alone_ms(np.array(sizes)).sum(), float(curve.alone_ms(np.array([1]))[0])
    return {
        "tokens": round(tokens / len(steps), 3),
        "nodes": round(sum(sizes) / len(steps), 1),
        "speedup": round(float(tokens * plain_ms / ms), 3),
    }


def main() -> None:
    """Record, cut, and tell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", action="append", required=True, help="questions with turns; several times")
    parser.add_argument("--max-tokens", type=int, default=100, help="tokens of an answer (default 100)")
    parser.add_argument("--curve", default="1:22,16:24.5,32:28,33:32,64:38", help="NODES:MS, comma-separated")
    arguments = parser.parse_args()
    points = [part.split(":") for part in arguments.curve.split(",")]
    curve = StepCurve(tuple((float(nodes), float(ms)) for nodes, ms in points))
    lines = [line for name in arguments.data for line in Path(name).read_text().splitlines()]
    engine = Engine(EngineConfig(budget=NODES))
    engine.drafter.warm_up()
    steps = record(engine, [json.loads(line)["turns"][0] for line in lines], arguments.max_tokens)
    rows: dict[str, Any] = {
        f"{size} nodes": worth(steps, [min(size, len(step.tree)) for step in steps], curve) for size in SIZES
    }
    rows["controller"] = worth(steps, controlled(steps, curve), curve)
    for name, choose in (("best constant price", priced), ("foresight", foreseen)):
        tried = [worth(steps, choose(steps, curve, price), curve) for price in PRICES]
        rows[name] = max(tried, key=lambda row: row["speedup"])
    for name, row in rows.items():
        print(f"{name:20} tokens {row['tokens']:.2f}, nodes {row['nodes']:.1f}, {row['speedup']:.2f} times plain")
    print(json.dumps({"questions": len(lines), "steps": len(steps), "rows": rows}))


if __name__ == "__main__":
    main()
