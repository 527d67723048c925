"""A watched call is repeated with other rows, or refused where it does not show how."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from racer.model.attention import ShapeProbe, stepping
from racer.model.replay import WATCHED_ROWS, NotRepeatableError, ReplayedLayer, watchable


class Layer(nn.Module):
    """Rows times a weight, plus a shift from a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0]), requires_grad=False)

    def forward(self, rows: Tensor, shifts: tuple[Tensor, Tensor]) -> Tensor:
        return rows * self.weight + shifts[1]


def compiled(layer: Layer, code: Callable[[list[Any]], list[Any]]) -> Callable[..., Any]:
    """What a compiler would make of it: gathers the inputs in an order of its own, as numbers too."""
    run = watchable(code)

    def call(rows: Tensor, shifts: tuple[Tensor, Tensor]) -> Any:
        return run([layer.weight, rows.shape[1], shifts[1], torch.tensor(0.5), rows])[-1]

    return call


def code(inputs: list[Any]) -> list[Any]:
    weight, count, shift, half, rows = inputs
    inputs.clear()
    assert rows.shape[1] == count
    return [None, rows * weight + shift + half]


def repeatable(layer: Layer, call: Callable[..., Any]) -> ReplayedLayer:
    made = ReplayedLayer(layer, call)
    with stepping(ShapeProbe()):
        for rows in (WATCHED_ROWS, 1):
            made(torch.zeros(1, rows, 1), shifts=(torch.ones(1), torch.ones(1)))
    made.replays = True
    return made


@pytest.mark.parametrize("rows", [1, 2, 30])
def test_other_rows_and_arguments_are_filled_in(rows: int) -> None:
    layer = Layer()
    made = repeatable(layer, compiled(layer, code))
    given, shift = torch.randn(1, rows, 1), torch.randn(1)
    with stepping(ShapeProbe()):
        assert torch.equal(made(given, shifts=(torch.ones(1), shift)), given * 2.0 + shift + 0.5)


def test_outside_of_our_steps_the_layer_runs_as_written() -> None:
    layer = Layer()
    made = repeatable(layer, compiled(layer, code))
    assert made(torch.ones(1, 3, 1), (torch.ones(1), torch.ones(1))).flatten().tolist() == [3.0] * 3


def test_weights_are_read_anew() -> None:
    layer = Layer()
    made = repeatable(layer, compiled(layer, code))
    layer.weight.fill_(5.0)
    with stepping(ShapeProbe()):
        assert float(made(torch.ones(1, 1, 1), shifts=(torch.ones(1), torch.zeros(1)))) == 5.5


def test_an_input_of_unknown_origin_is_refused() -> None:
    layer, foreign = Layer(), torch.ones(3)
    run = watchable(lambda inputs: [inputs[0] * foreign.sum()])
    made = ReplayedLayer(layer, lambda rows: run([rows, foreign])[0])
    with stepping(ShapeProbe()), pytest.raises(NotRepeatableError, match="neither an argument nor a weight"):
        made(torch.ones(1, WATCHED_ROWS, 1))


def test_a_result_that_the_code_did_not_make_is_refused() -> None:
    layer = Layer()
    run = watchable(lambda inputs: [inputs[0]])
    made = ReplayedLayer(layer, lambda rows: run([rows])[0] + 1)
    with stepping(ShapeProbe()), pytest.raises(NotRepeatableError, match="no output of its code"):
        made(torch.ones(1, 1, 1))


def test_several_pieces_of_code_are_refused() -> None:
    layer = Layer()
    run = watchable(lambda inputs: [inputs[0] * 2])
    made = ReplayedLayer(layer, lambda rows: run(list(run([rows])))[0])
    with stepping(ShapeProbe()), pytest.raises(NotRepeatableError, match="2 pieces of code"):
        made(torch.ones(1, 1, 1))
