"""Measuring step times with an injected clock, and keeping them on disk."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from racer.model import step_time
from racer.model.step_time import curve_path, load_curve, measure_curve, model_step_curve, save_curve
from racer.step_curve import StepCurve
from tests.racer.engine.helpers import tiny_engine

CURVE = StepCurve(alone=((1.0, 20.0), (64.0, 38.0)), extra=((1.0, 0.0), (16.0, 7.5)))


class Clocked:
    """A step that takes ``10 + tokens + requests`` ms of a clock of its own, and ten times that when it is new."""

    def __init__(self, scale: float = 1.0) -> None:
        self.now_s, self.scale = 0.0, scale
        self.calls: list[tuple[int, int]] = []

    def step(self, tokens: int, requests: int) -> None:
        new = (tokens, requests) not in self.calls
        self.now_s += self.scale * (10 + tokens + requests) / 1e3 * (10 if new else 1)
        self.calls.append((tokens, requests))

    def clock(self) -> float:
        return self.now_s


def test_first_calls_do_not_count() -> None:
    clocked = Clocked()
    curve = measure_curve(clocked.step, 64, 4096, limit_s=100.0, clock=clocked.clock)
    assert curve.alone_ms(np.array([1, 24, 256, 1024])) == pytest.approx([12.0, 35.0, 267.0, 1035.0])
    assert [curve.extra_ms(requests) for requests in (1, 4, 16, 64)] == pytest.approx([0.0, 3.0, 15.0, 63.0])


@pytest.mark.parametrize(("scale", "places", "largest"), [(1.0, 64, 64), (1.0, 600, 512), (1000.0, 4096, 64)])
def test_no_more_is_measured_than_places_and_time_allow(scale: float, places: int, largest: int) -> None:
    clocked = Clocked(scale)
    curve = measure_curve(clocked.step, 8, places, limit_s=1e3 if scale == 1.0 else 4.0, clock=clocked.clock)
    assert curve.alone[-1][0] == largest and len(curve.alone) >= 3
    assert max(tokens for tokens, _ in clocked.calls) == largest
    assert all(requests <= 8 for _, requests in clocked.calls)


def test_round_trip(tmp_path: Path) -> None:
    path = curve_path(tmp_path / "new", ["model", "machine"])
    assert load_curve(path) is None
    save_curve(path, CURVE)
    assert load_curve(path) == CURVE
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert path != curve_path(tmp_path / "new", ["model", "other"]) != curve_path(tmp_path / "new", ["modelother"])


@pytest.mark.parametrize("name", ["runner.py", "kernels/kernels.cpp", "kernels/vectors.h"])
def test_another_code_of_the_forward_is_measured_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(Path(step_time.__file__).parent, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(step_time, "__file__", str(folder / "step_time.py"))
    before = step_time._machine(torch.device("cpu"))
    assert step_time._machine(torch.device("cpu")) == before
    with (folder / name).open("a") as file:
        file.write("\n")
    assert step_time._machine(torch.device("cpu")) != before


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"alone": [[1, 2]]}', b'{"alone": [[1, 2], [2, 1]], "extra": [[1, 0]]}', b"\xff\xfe\x00",
     b'{"alone": 3, "extra": [[1, 0]]}', b'{"alone": [[1, NaN]], "extra": [[1, 0]]}'],
)  # fmt: skip
def test_a_damaged_file_is_no_curve(tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes) -> None:
    path = tmp_path / "step-times.json"
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert load_curve(path) is None
    assert "they are measured again" in caplog.text


def test_measured_once_then_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RACER_CACHE", str(tmp_path))
    engine = tiny_engine()
    first = model_step_curve(engine.loaded, engine.runner, 4, 8)
    (path,) = tmp_path.glob("*.json")

    def refuse(*_: object) -> None:
        raise AssertionError("measured again")

    with monkeypatch.context() as patch:
        patch.setattr("racer.model.step_time.measure_curve", refuse)
        assert model_step_curve(engine.loaded, engine.runner, 4, 8) == first
    path.write_bytes(b"damaged")
    model_step_curve(engine.loaded, engine.runner, 4, 8)
    assert load_curve(path) is not None
