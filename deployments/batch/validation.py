"""Whether a file may be a batch of the endpoint: OpenAI's rule is that one wrong line refuses all, and tells which."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deployments.batch.plan import SeenIds
from deployments.batch.requests import LineError, Reading

_MOST_ERRORS = 100


@dataclass
class Validated:
    """Number of requests; what is wrong, in the form of a batch's ``errors.data``."""

    requests: int = 0
    errors: list[dict[str, Any]] = field(default_factory=list)

    def refuse(self, code: str, message: str, line: int | None = None, param: str | None = None) -> None:
        """Note what is wrong."""
        self.errors.append({"code": code, "message": message, "line": line, "param": param})


def validate(path: Path, reading: Reading, most: int) -> Validated:
    """Read the file at ``path``. ``most``: requests that it may hold. Bodies are checked as they are answered."""
    found = Validated()
    try:
        file = path.open("rb")
    except OSError:
        found.refuse("invalid_input_file", "the input file is not there any more", param="input_file_id")
        return found
    with file, SeenIds() as seen:
        for line, raw in enumerate(file, start=1):
            if not raw.strip():
                continue
            found.requests += 1
            try:
                item = reading.read_batch(raw)
            except LineError as error:
                found.refuse(error.code, error.message, line, error.param)
            else:
                earlier = seen.add(item.custom_id, f"line {line}")
                if earlier is not None:
                    message = f"custom_id {item.custom_id!r} stands in {earlier} already; give each line its own"
                    found.refuse("duplicate_custom_id", message, line, "custom_id")
            if len(found.errors) >= _MOST_ERRORS:
                return found
    if not found.requests:
        found.refuse("empty_file", "the input file is empty; give it one request a line", param="input_file_id")
    if found.requests > most:
        found.refuse("too_many_requests", f"{found.requests} requests are more than the limit of {most}")
    return found
