"""The scripts beside the packages: the plot of a run, and the check on a GPU."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch

BENCH = Path(__file__).parents[1] / "bench"


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_plot_has_a_bar_for_each_mode_of_each_suite(tmp_path: Path) -> None:
    rows = [
        {"category": category, "drafts": drafts, "tree": tree, "budget": 8, "speedup": speedup, "mat": 2.0}
        for category in ("one", "one/part", "all")
        for drafts, tree, speedup in (("off", None, 1.0), ("lookup", None, 1.5), ("racer", "best", 3.0))
    ]
    source, out = tmp_path / "run.json", tmp_path / "run.svg"
    source.write_text("a table\n" + json.dumps({"rows": rows}))
    done = run("plot.py", str(source), str(out))
    assert done.returncode == 0, done.stderr
    bars = ElementTree.parse(out).findall("{http://www.w3.org/2000/svg}rect")
    widths = [float(bar.get("width", 0)) for bar in bars]
    assert len(widths) == 2 * 3 and widths[:3] == pytest.approx([widths[2] / 3, widths[2] / 2, widths[2]], abs=0.2)
    assert "racer, budget 8" in out.read_text()


def test_plot_refuses_what_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    done = run("plot.py", str(tmp_path / "empty"), str(tmp_path / "out.svg"))
    assert done.returncode == 2 and "is no output of racer bench" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_memory_levels_off_below_its_caps() -> None:
    """Fault 17, shorter: the server holds a part of what it is taught, the process no more than halfway through."""
    done = run("many_requests.py", "--requests", "2000", "--redis-mb", "2")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["levelled"] and len(report["series"]) == 20 and report["series"][-1]["requests"] == 2000
    assert report["series"][-1]["evicted_keys"] > 0 == report["tokens_dropped"]


def test_memory_that_grows_on_is_told() -> None:
    verdict = runpy.run_path(str(BENCH / "many_requests.py"))["verdict"]
    level = [{"process_bytes": 700 << 20, "redis_bytes": 2 << 20, "evicted_keys": 5 * i} for i in range(20)]
    assert verdict(level, 2 << 20)["levelled"]
    growing = [point | {"process_bytes": point["process_bytes"] + i * (2 << 20)} for i, point in enumerate(level)]
    above = [point | {"redis_bytes": 4 << 20} for point in level]
    roomy = [point | {"evicted_keys": 0} for point in level]
    assert [verdict(series, 2 << 20)["levelled"] for series in (growing, above, roomy)] == [False, False, False]
    assert verdict(growing, 2 << 20)["process_grown_in_second_half"] == 9 * (2 << 20)


@pytest.mark.may_skip("there is a GPU, and make test-gpu is the test")
def test_gpu_check_says_so_where_there_is_none() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU: run make test-gpu")
    done = run("gpu_check.py")
    assert done.returncode == 0 and json.loads(done.stdout)["device"] is None


def test_gpu_check_compares_ids_with_generate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own functions, on the processor: none differs, and some do where the engine is given other prompts."""
    check = runpy.run_path(str(BENCH / "gpu_check.py"))
    cpu = torch.device("cpu")
    assert check["differing"]("llama", cpu) == {"eager": 0}
    good = {"differing": {"llama": {"eager": 0, "graphs": 0}}, "graphs": True}
    assert check["passed"](good, torch.device("cuda")) and check["passed"](good | {"graphs": False}, cpu)
    assert not check["passed"](good | {"graphs": False}, torch.device("cuda"))
    for wrong in ({"eager": 1}, {"eager": 0, "graphs": None}):
        assert not check["passed"](good | {"differing": {"llama": wrong}}, torch.device("cuda"))
    names = check["differing"].__globals__
    request = names["Request"]
    monkeypatch.setitem(names, "Request", lambda prompt, params: request(prompt[::-1], params))
    assert check["differing"]("llama", cpu)["eager"] > 0
