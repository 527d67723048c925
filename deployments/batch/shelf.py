"""Uploaded files and batches of the endpoint on disk: what is told to a client outlives a restart.

``files/ID.json`` and ``files/ID.data``; ``batches/ID.json``, written by whoever holds ``batches/ID.lock``;
``batches/ID.cancel``, made by whoever is asked to cancel; ``batches/ID.records``, a line for each finished request.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock

from deployments.errors import ApiError, ConfigError
from racer.paths import write_whole

Json = dict[str, Any]

ENDED = ("completed", "failed", "expired", "cancelled")
_CUT_OFF_S = 900
_BLOCK = 4096  # bytes that the smallest file takes on a disk
_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")


class Shelf:
    """A folder of files and batches. Several processes may use it at once. Raises ConfigError where it cannot be."""

    def __init__(self, folder: str) -> None:
        self._files, self._batches = Path(folder).expanduser() / "files", Path(folder).expanduser() / "batches"
        try:
            for path in (self._files, self._batches):
                path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"batches.folder {folder}: cannot be made ({error.strerror}); name another") from None

    # --- files

    def data(self, file_id: str) -> Path:
        """Where a file's content is."""
        return self._files / f"{file_id}.data"

    def add_file(self, file_id: str, owner: str, name: str, purpose: str, expires_s: int | None) -> Json:
        """Describe a file whose content is in its place."""
        now = int(time.time())
        described = {
            "id": file_id,
            "object": "file",
            "bytes": self.data(file_id).stat().st_size,
            "created_at": now,
            "expires_at": None if expires_s is None else now + expires_s,
            "filename": name,
            "purpose": purpose,
            "status": "processed",
            "owner": owner,
        }
        _write(self._files / f"{file_id}.json", described)
        return described

    def file(self, file_id: str, owner: str) -> Json:
        """A file's description. Raises ApiError: there is none of this owner's."""
        found = _read(self._files / f"{file_id}.json") if _ID.fullmatch(file_id) else None
        if found is None or found["owner"] != owner or _expired(found):
            raise ApiError(404, f"there is no file {file_id!r}; see /v1/files", code="not_found", param="file_id")
        return found

    def files(self, owner: str) -> list[Json]:
        """An owner's files, the newest first."""
        return _newest_first(found for found in _all(self._files) if found["owner"] == owner and not _expired(found))

    def remove_file(self, file_id: str) -> None:
        """Delete a file."""
        (self._files / f"{file_id}.json").unlink(missing_ok=True)
        self.data(file_id).unlink(missing_ok=True)

    def remove_expired(self, used: set[str]) -> None:
        """Delete files whose time is over; ``used``: names of those that are still needed."""
        for found in list(_all(self._files)):
            if _expired(found) and found["id"] not in used:
                self.remove_file(found["id"])

    def remove_cut_off(self) -> None:
        """Delete what a killed process left half written; what another process may be writing now stays."""
        old_s = time.time() - _CUT_OFF_S
        for folder in (self._files, self._batches):
            for path in [*folder.glob("*.data"), *folder.glob("*.tmp")]:
                with suppress(FileNotFoundError):  # another process may do the same
                    if path.stat().st_mtime < old_s and not path.with_suffix(".json").exists():
                        path.unlink()

    def check_room(self, owner: str, size: int, quota: int) -> None:
        """Raise ApiError (413) if an owner's files with one more of ``size`` bytes are larger than ``quota`` bytes."""
        taken = sum(max(found["bytes"], _BLOCK) for found in self.files(owner))
        if taken + max(size, _BLOCK) > quota:
            told = (
                f"the file's {size} bytes do not fit: your files have {taken} of {quota} bytes (each at least {_BLOCK})"
            )
            raise ApiError(413, f"{told}; delete some, or let them expire", "quota_exceeded", "file")

    # --- batches

    def save_batch(self, batch: Json) -> None:
        """Write a batch's state. Only who made it, then who holds its lock."""
        _write(self._batches / f"{batch['id']}.json", batch)

    def batch(self, batch_id: str, owner: str) -> Json:
        """A batch's state. Raises ApiError: there is none of this owner's."""
        found = _read(self._batches / f"{batch_id}.json") if _ID.fullmatch(batch_id) else None
        if found is None or found["owner"] != owner:
            raise ApiError(404, f"there is no batch {batch_id!r}; see /v1/batches", code="not_found", param="batch_id")
        return self._with_cancel(found)

    def batches(self, owner: str) -> list[Json]:
        """An owner's batches, the newest first."""
        return _newest_first(self._with_cancel(found) for found in _all(self._batches) if found["owner"] == owner)

    def unfinished(self, ended: set[str]) -> list[Json]:
        """Batches that have not ended. ``ended``: names of those known to have, which are not read; more are added."""
        found = []
        for path in self._batches.glob("*.json"):
            batch = None if path.stem in ended else _read(path)
            if batch is not None and batch["status"] in ENDED:
                ended.add(path.stem)
            elif batch is not None:
                found.append(batch)
        return found

    def user_of(self, file_id: str, owner: str) -> str | None:
        """Name of a batch of this owner's that has not ended and reads the file."""
        for batch in self.batches(owner):
            if batch["input_file_id"] == file_id and batch["status"] not in ENDED:
                return str(batch["id"])
        return None

    def cancel(self, batch_id: str) -> None:
        """Ask whoever runs the batch to end it."""
        (self._batches / f"{batch_id}.cancel").touch()

    def _with_cancel(self, batch: Json) -> Json:
        marker = self._batches / f"{batch['id']}.cancel"
        if batch["status"] in ENDED or not marker.exists():
            return batch
        return batch | {"status": "cancelling", "cancelling_at": int(marker.stat().st_mtime)}

    def lock(self, batch_id: str) -> FileLock:
        """Held by the one process that runs the batch; the system frees it when that ends, however it ends."""
        return FileLock(self._batches / f"{batch_id}.lock", timeout=0, thread_local=False)

    def records(self, batch_id: str) -> Path:
        """Where the records of finished requests are."""
        return self._batches / f"{batch_id}.records"


def new_id(kind: str) -> str:
    """A name for a file or a batch."""
    return f"{kind}{secrets.token_hex(12)}"


def new_batch(asked: Json, owner: str, endpoint: str, window_s: int, output_expires_s: int | None) -> Json:
    """A batch as it begins; ``asked``: what of the request it repeats."""
    now = int(time.time())
    times = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
    return {
        "id": new_id("batch_"),
        "object": "batch",
        "endpoint": endpoint,
        "errors": None,
        "status": "validating",
        "output_file_id": None,
        "error_file_id": None,
        "created_at": now,
        "expires_at": now + window_s,
        **{f"{name}_at": None for name in times},
        "request_counts": {"total": 0, "completed": 0, "failed": 0},
        "usage": None,
        "owner": owner,
        "output_expires_s": output_expires_s,
    } | asked


def public(described: Json) -> Json:
    """What a client may see."""
    return {name: value for name, value in described.items() if name != "owner"}


def _expired(described: Json) -> bool:
    return described["expires_at"] is not None and described["expires_at"] <= time.time()


def _newest_first(found: Iterator[Json]) -> list[Json]:
    return sorted(found, key=lambda one: (one["created_at"], one["id"]), reverse=True)


def _all(folder: Path) -> Iterator[Json]:
    for path in folder.glob("*.json"):
        found = _read(path)
        if found is not None:
            yield found


def _read(path: Path) -> Json | None:
    try:
        found: Json = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return found


def _write(path: Path, value: Json) -> None:
    def write(file: Any) -> None:
        file.write(json.dumps(value).encode())
        file.flush()
        os.fsync(file.fileno())

    write_whole(path, write)
