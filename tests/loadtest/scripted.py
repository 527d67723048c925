"""A server that speaks OpenAI's protocol and does what a script says: what it delivers is known to the token."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]
Step = tuple[float, bytes]
"""Seconds to wait, then bytes to send."""


@dataclass
class Reply:
    """How a request is answered. ``cut``: the connection is closed in the middle of the stream."""

    steps: list[Step]
    status: int = 200
    cut: bool = False


def event(body: Body) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def piece(text: str, finish: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]})


def usage(prompt: int, completion: int, **racer: Any) -> bytes:
    told: Body = {"prompt_tokens": prompt, "completion_tokens": completion}
    return event({"choices": [], "usage": told | ({"racer": racer} if racer else {})})


DONE = b"data: [DONE]\n\n"
ROLE = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})


def answer(first_s: float = 0.0, *, pieces: int = 3, gap_s: float = 0.0, tokens: int = 6, prompt: int = 10) -> Reply:
    """A whole answer: the role at once, the first piece after ``first_s``."""
    texts = [(first_s if place == 0 else gap_s, piece(f"w{place} ")) for place in range(pieces)]
    stats = {"steps": pieces - 1, "mat": 2.5, "drafted": {"logits": 8}, "accepted": {"logits": 3}}
    return Reply([(0.0, ROLE), *texts, (0.0, piece("", "stop")), (0.0, usage(prompt, tokens, **stats)), (0.0, DONE)])


@dataclass
class Scripted:
    """A running server; ``seen`` holds the bodies of requests and when they came."""

    url: str = ""
    metrics: str = ""
    seen: list[tuple[float, Body]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    most_open: int = 0
    open: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextlib.contextmanager
def scripted(script: Callable[[int, Body], Reply], models: tuple[str, ...] = ("toy",)) -> Iterator[Scripted]:
    """Serve ``script``, which gets a request's number and body, until the block ends."""
    state = Scripted()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            listed = json.dumps({"data": [{"id": name} for name in models]}).encode()
            known = {"/v1/models": listed, "/metrics": state.metrics.encode()}
            body = known.get(self.path, b"")
            self.send_response(200 if self.path in known else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with state.lock:
                number = len(state.seen)
                state.seen.append((time.monotonic(), body))
                state.headers.append(dict(self.headers))
                state.open += 1
                state.most_open = max(state.most_open, state.open)
            try:
                self._reply(script(number, body))
            except OSError:  # the client has gone
                self.close_connection = True
            finally:
                with state.lock:
                    state.open -= 1

        def _reply(self, reply: Reply) -> None:
            self.send_response(reply.status)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for wait_s, data in reply.steps:
                if wait_s:
                    time.sleep(wait_s)
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            if reply.cut:
                self.close_connection = True
            else:
                self.wfile.write(b"0\r\n\r\n")

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256

    server = Server(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
