from __future__ import annotations

from racer.commands.modes import PLAIN, Mode, all_modes, rotated
from racer.config import TreeShape


def test_modes_take_turns() -> None:
    modes = all_modes(["racer", "off", "generate"], [TreeShape.BEST, TreeShape.CHAIN], [4])
    assert modes == [PLAIN, Mode("racer", TreeShape.BEST, 4), Mode("racer", TreeShape.CHAIN, 4), Mode("generate")]
    assert [rotated(modes, turn)[0] for turn in range(5)] == [*modes, PLAIN]
    assert all(set(rotated(modes, turn)) == set(modes) for turn in range(4))
