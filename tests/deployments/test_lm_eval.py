"""lm-evaluation-harness through its client for completion endpoints, on a small task of its own."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from racer import Request, SamplingParams, StepOutput
from tests.deployments.local import Served

pytestmark = pytest.mark.slow


def test_small_task_is_scored_as_the_engine_scores(served: Served, tmp_path: Path) -> None:
    from lm_eval.evaluator import evaluate
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    from lm_eval.tasks import get_task_dict

    served.engine.tokenizer.save_pretrained(tmp_path / "tokenizer")
    rows: list[dict[str, Any]] = [
        {"text": "abc abc ab", "choices": ["c", "z"], "gold": 0},
        {"text": "xyxyx", "choices": ["y", "q"], "gold": 0},
    ]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task: dict[str, Any] = {
        "task": "letters",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "data.jsonl")}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{text}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{gold}}",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}],
    }
    lm = LocalCompletionsAPI(
        base_url=f"{served.url}/completions", model="tiny", tokenizer=str(tmp_path / "tokenizer"), num_concurrent=2
    )
    found = evaluate(lm=lm, task_dict=get_task_dict([task]), log_samples=True, bootstrap_iters=0)
    samples = found["samples"]["letters"]
    scores = [float(response[0][0]) for sample in samples for response in sample["resps"]]
    expected = [scored(served, str(row["text"]) + choice) for row in rows for choice in row["choices"]]
    assert scores == pytest.approx(expected, abs=1e-3)
    right = sum(expected[2 * i] > expected[2 * i + 1] for i in range(len(rows)))
    assert found["results"]["letters"]["acc,none"] == right / len(rows)


def scored(served: Served, text: str) -> float:
    """The engine's own log-probability of the text's last token."""
    ids = tuple(served.engine.tokenizer(text).input_ids)
    request = Request(ids, SamplingParams(max_tokens=1, prompt_logprobs=0, drafts="off"))

    async def run() -> list[StepOutput]:
        return [output async for output in served.backend.engine.generate(request)]

    found = next(output.prompt_logprobs for output in asyncio.run(run()) if output.prompt_logprobs is not None)
    assert found[-1] is not None
    return found[-1].logprob
