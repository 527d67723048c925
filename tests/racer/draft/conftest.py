"""Shared by the draft tests."""

import pytest

from racer.config import EngineConfig
from racer.draft.drafter import Drafter


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """Compile once, before hypothesis starts to time examples."""
    Drafter(EngineConfig(), 8).warm_up()
