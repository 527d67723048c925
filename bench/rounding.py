"""How far rounding moves the gap of two logits: a draft tree's rows beside a forward over the whole text.

    python bench/rounding.py [--model demo] [--data bench/prose.jsonl] [--prompts 10] [--max-tokens 100]

Answers are sampled; then each position is scored in a tree of 21 nodes, five of them the answer's next tokens, each
behind three others, and once more in one forward over prompt and answer. The difference of the gap of the two
likeliest tokens is told in units in the last place of the larger logit. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from racer import Engine, EngineConfig, Request, SamplingParams
from racer.model.layout import Segment
from racer.text import render_chat

DEPTH, OTHERS = 5, 3


def chain(tokens: list[int], cached: int = 0, scored_from: int = 0) -> Segment:
    """Tokens behind each other."""
    return Segment(np.array(tokens, np.int32), np.arange(-1, len(tokens) - 1, dtype=np.int32), 0, cached, scored_from)


def tree(tokens: list[int], vocab: int, rng: np.random.Generator, cached: int) -> tuple[Segment, list[int]]:
    """The path ``tokens`` with other nodes before each, and where its nodes stand."""
    nodes, parents, path = [tokens[0]], [-1], [0]
    for token in tokens[1:]:
        nodes += [*rng.integers(0, vocab, OTHERS).tolist(), token]
        parents += [path[-1]] * (OTHERS + 1)
        path.append(len(nodes) - 1)
    return Segment(np.array(nodes, np.int32), np.array(parents, np.int32), 0, cached), path


def units(rows: Tensor, expected: Tensor) -> Tensor:
    """How far the gap of ``expected``'s two likeliest tokens differs in ``rows``, in units in the last place."""
    top = expected.topk(2, -1).indices
    first, second = expected.gather(1, top), rows.gather(1, top)
    unit = torch.finfo(torch.bfloat16).eps * 2.0 ** torch.floor(torch.log2(first.abs().max(-1).values))
    return ((first[:, 0] - first[:, 1]) - (second[:, 0] - second[:, 1])).abs() / unit


def main() -> None:
    """Measure all positions of all answers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo", help="as the engine's (default demo)")
    parser.add_argument("--data", default=str(Path(__file__).parent / "prose.jsonl"), help="questions with turns")
    parser.add_argument("--prompts", type=int, default=10, help="questions taken (default 10)")
    parser.add_argument("--max-tokens", type=int, default=100, help="tokens of an answer (default 100)")
    arguments = parser.parse_args()
    engine = Engine(EngineConfig(model=arguments.model, dtype="bfloat16", budget=8, prior=False))
    runner, rng = engine.runner, np.random.default_rng(0)
    params = SamplingParams(max_tokens=arguments.max_tokens, temperature=1.0, seed=1)
    found = []
    for line in Path(arguments.data).read_text().splitlines()[: arguments.prompts]:
        prompt = render_chat(engine.tokenizer, [{"role": "user", "content": json.loads(line)["turns"][0]}])
        ids = list(prompt)
        for output in engine.generate([Request(tuple(prompt), params)]):
            ids += output.token_ids
        whole = runner.run([chain(ids)]).float()
        for at in range(len(prompt), len(ids) - DEPTH - 1, DEPTH + 1):
            runner.run([chain(ids[:at], scored_from=at - 1)])
            segment, path = tree(ids[at : at + DEPTH + 1], runner.vocab_size, rng, at)
            found.append(units(runner.run([segment]).float()[path], whole[at : at + DEPTH + 1]))
    differences = torch.cat(found)
    report = {"positions": len(differences), "mean": round(float(differences.mean()), 3)}
    report |= {f"p{share}": round(float(differences.quantile(share / 100)), 2) for share in (50, 90, 99, 99.9)}
    print(json.dumps(report | {"most": round(float(differences.max()), 2)}))


if __name__ == "__main__":
    main()
