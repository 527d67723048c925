"""Calls a layer's compiled code without what torch's compiler puts around it.

Before each call of a compiled layer the compiler checks what the code depends on, gathers the layer's weights, and goes
through several wrappers: that takes as long as the layer's own loops. Here nothing that it checks can change between
two steps: weights stay, and of the arguments only the rows differ. So one call of each version of the code, for one row
and for several, is watched; later ones hand the code what it was seen to take: the layer's own tensors, and the
arguments from the same places.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from racer.model.attention import in_step

Code = Callable[[list[Any]], Sequence[Any]]
"""What the compiler made of a layer: graph inputs in (it empties the list), graph outputs out."""

WATCHED_ROWS = 7
"""Rows of the watched call for several: no size of a model, so that an input of 7 is the number of rows."""


class NotRepeatableError(Exception):
    """A watched call does not show where its code's inputs come from."""


@dataclass(frozen=True)
class _Seen:
    """One call of compiled code."""

    code: Code
    inputs: tuple[Any, ...]
    outputs: Sequence[Any]


class _Thread(threading.local):
    """Calls seen in this thread, while somebody watches."""

    seen: list[_Seen] | None = None


_thread = _Thread()


def watchable(code: Code) -> Code:
    """The same code, whose calls can be watched."""

    def run(inputs: list[Any]) -> Sequence[Any]:
        if _thread.seen is None:
            return code(inputs)
        given = tuple(inputs)
        outputs = code(inputs)
        _thread.seen.append(_Seen(code, given, outputs))
        return outputs

    return run


@contextmanager
def _watching() -> Iterator[list[_Seen]]:
    seen: list[_Seen] = []
    _thread.seen = seen
    try:
        yield seen
    finally:
        _thread.seen = None


_Place = tuple[int | str, int | None]
"""Where an argument is found: position or keyword, and the place in it if it is a tuple."""


@dataclass(frozen=True)
class _Version:
    """How to repeat a call: ``inputs`` with those of the arguments, and the rows, filled in."""

    code: Code
    inputs: list[Any]
    filled: tuple[tuple[int, _Place], ...]
    rows_at: tuple[int, ...]
    output: int

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        inputs = self.inputs.copy()
        for at, (name, part) in self.filled:
            value = args[name] if isinstance(name, int) else kwargs[name]
            inputs[at] = value if part is None else value[part]
        for at in self.rows_at:
            inputs[at] = args[0].shape[1]
        return self.code(inputs)[self.output]


class ReplayedLayer:
    """Stands in for the compiled call of ``layer``, whose first argument is ``[1, rows, ...]``, in our steps.

    ``call`` is the compiler's. Its calls are watched; from when ``replays`` is set, they are repeated.
    """

    def __init__(self, layer: nn.Module, call: Callable[..., Any]) -> None:
        self.replays = False
        self._layer, self._call = layer, call
        self._as_written: Callable[..., Any] = layer._call_impl
        self._versions: dict[bool, _Version] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's output. Raises NotRepeatableError if a watched call does not show how to repeat it."""
        if not in_step():  # somebody else's forward, with another attention
            return self._as_written(*args, **kwargs)
        if self.replays:
            return self._versions[args[0].shape[1] == 1](args, kwargs)
        with _watching() as seen:
            result = self._call(*args, **kwargs)
        if len(seen) != 1 or not args or not isinstance(args[0], Tensor):
            raise NotRepeatableError(f"the layer is {len(seen)} pieces of code")
        rows = args[0].shape[1]
        if any(isinstance(value, float) for value in (*args, *kwargs.values())):
            raise NotRepeatableError("an argument is a number that may change")
        if rows in (1, WATCHED_ROWS):
            self._versions[rows == 1] = self._version(seen[0], args, kwargs, result, rows)
        elif seen[0].code is not self._versions[False].code:
            raise NotRepeatableError(f"{rows} rows have code of their own")
        return result

    def _version(self, seen: _Seen, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, rows: int) -> _Version:
        own = {id(tensor) for tensor in (*self._layer.parameters(), *self._layer.buffers())}
        places = {id(tensor): place for tensor, place in _tensors(args, kwargs)}
        filled = []
        for at, value in enumerate(seen.inputs):
            if isinstance(value, Tensor) and id(value) not in own and not _is_number(value, places):
                if id(value) not in places:
                    raise NotRepeatableError(f"input {at} of its code is neither an argument nor a weight")
                filled.append((at, places[id(value)]))
        output = next((i for i, value in enumerate(seen.outputs) if value is result), None)
        if output is None:
            raise NotRepeatableError("its result is no output of its code")
        rows_at = tuple(at for at, value in enumerate(seen.inputs) if isinstance(value, int) and value == rows > 1)
        inputs = list(seen.inputs)
        for at, _ in filled:
            inputs[at] = None  # keeps nothing of the watched step alive
        return _Version(seen.code, inputs, tuple(filled), rows_at, output)


def _is_number(value: Tensor, places: dict[int, _Place]) -> bool:
    """A number that the layer keeps, an epsilon for example: the compiler passes it as a tensor made for the call."""
    return value.dim() == 0 and id(value) not in places


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[Tensor, _Place]]:
    """Tensors among the arguments, and in tuples of them, with their places."""
    named: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    for name, value in named:
        if isinstance(value, Tensor):
            yield value, (name, None)
        elif isinstance(value, tuple):
            for part, inner in enumerate(value):
                if isinstance(inner, Tensor):
                    yield inner, (name, part)
