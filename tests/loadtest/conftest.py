"""Free ports."""

from __future__ import annotations

import socket

import pytest


def _free() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.fixture
def free_port() -> int:
    return _free()


@pytest.fixture
def other_port() -> int:
    return _free()
