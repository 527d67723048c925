"""A TCP proxy that delays what the server says."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Generator


class SlowProxy:
    """Passes bytes to ``port`` on loopback; each piece of an answer first waits ``delay_s``, which may be changed."""

    def __init__(self, port: int) -> None:
        self.delay_s = 0.0
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self._open += [near, far]
                threading.Thread(target=self._pass_on, args=(near, far, False), daemon=True).start()
                threading.Thread(target=self._pass_on, args=(far, near, True), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, slow: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if slow and self.delay_s:
                    time.sleep(self.delay_s)
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for one in [self._listener, *self._open]:
            one.close()


@contextlib.contextmanager
def slow_proxy(port: int) -> Generator[SlowProxy]:
    proxy = SlowProxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
