"""lm-evaluation-harness through its client for completion endpoints, on a small task of its own."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.deployments.local import Served

pytestmark = pytest.mark.slow


def test_small_task_is_scored_as_the_engine_scores(served: Served, tmp_path: Path) -> None:
    from lm_eval.evaluator import evaluate
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    from lm_eval.tasks import get_task_dict

    served.engine.tokenizer.save_pretrained(tmp_path / "tokenizer")
    rows = [
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
    assert len(scores) == 4 and all(score < 0 and math.isfinite(score) for score in scores)
    assert found["results"]["letters"]["acc,none"] in (0.0, 0.5, 1.0)
