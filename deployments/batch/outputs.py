"""The files that a run makes, and whether it may: one of them may be there already."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pyarrow as pa
from filelock import FileLock, Timeout
from pyarrow import fs as pafs

from deployments.batch.journal import Journal, check_same
from deployments.batch.locations import Location, short
from deployments.errors import ConfigError, DeploymentError

_LOCK = "lock"


class Outputs:
    """``X.jsonl`` for the answers, ``X.errors.jsonl``, ``X.summary.json``, and ``X.jsonl.parts/`` until all is done."""

    def __init__(self, text: str) -> None:
        """``text``: the output's path, or a folder in which it is called ``output.jsonl``. Raises ConfigError."""
        place = Location.of(text)
        try:
            folder = text.partition("?")[0].endswith("/") or place.kind() == pafs.FileType.Directory
        except (OSError, pa.ArrowException) as error:
            raise self._unwritable(place, error) from None
        self.answers = place.child("output.jsonl") if folder else place
        self.errors = self.answers.with_suffix(".errors.jsonl")
        self.summary = self.answers.with_suffix(".summary.json")
        self.parts = self.answers.beside(".parts")

    @contextmanager
    def opened(self, job: dict[str, Any], requests: int, *, resume: bool, overwrite: bool) -> Iterator[Journal | None]:
        """The journal of a run that does ``job``; None where its output is complete already.

        Raises:
            ConfigError: an output is there and may not be replaced, was begun as another job, is being written by
                another process, or cannot be written.
        """
        journal = Journal(self.parts, requests)
        with ExitStack() as stack:
            try:
                kept = journal.job()
                self._refuse(kept, resume=resume, overwrite=overwrite)
                if resume and kept is None and self.answers.exists():
                    self._check_complete(job)
                    journal.discard()  # what is left of it, if its deletion was interrupted
                    yield None
                    return
                if resume and kept is not None:
                    check_same(kept, job, self.parts)
                self.parts.filesystem.create_dir(self.parts.path)
                self._lock(stack)
                if kept is None or not resume:
                    self._clear()
                    journal.begin(job)
                else:
                    journal.resume()
            except (OSError, pa.ArrowException) as error:
                raise self._unwritable(self.answers, error) from None
            yield journal

    def finish(self, journal: Journal, summary: dict[str, Any], *, ordered: bool) -> None:
        """Write answers, errors and summary from the journal's parts, and delete these.

        Raises:
            DeploymentError: a part cannot be read, or a file not be written; the parts are kept.
        """
        try:
            with ExitStack() as stack:
                answers = stack.enter_context(self.answers.writing())
                errors = stack.enter_context(self.errors.writing()) if journal.totals.errors else None
                for failed, record in journal.records(ordered=ordered):
                    (errors if errors is not None and failed else answers).write(record + b"\n")
            if errors is None:
                self.errors.remove()
            self.summary.write(json.dumps(summary, indent=1).encode() + b"\n")
            journal.folder.child("job.json").remove()  # from now on the output says that all is done
            journal.discard()
        except (OSError, pa.ArrowException) as error:
            raise DeploymentError(
                f"--output {self.answers.text}: cannot be made of the records in {self.parts.text} ({short(error)}); "
                "they are kept: mend it, then --resume"
            ) from error

    def _refuse(self, kept: dict[str, Any] | None, *, resume: bool, overwrite: bool) -> None:
        if resume or overwrite:
            return
        if kept is not None:
            raise ConfigError(
                f"--output {self.answers.text}: an unfinished run left {self.parts.text}; --resume goes on with it, "
                "--overwrite begins anew"
            )
        if self.answers.exists():
            raise ConfigError(
                f"--output {self.answers.text}: exists; name another, or give --overwrite, or --resume if it is of "
                "the same run"
            )

    def _check_complete(self, job: dict[str, Any]) -> None:
        try:
            kept = json.loads(self.summary.read())["job"]
        except (OSError, ValueError, KeyError):
            raise ConfigError(
                f"--resume: {self.answers.text} exists, and no {self.summary.text} says of what run it is; name "
                "another output, or give --overwrite"
            ) from None
        check_same(kept, job, self.answers)

    def _lock(self, stack: ExitStack) -> None:
        """Two processes must not write the same parts; where others can see the place too, nobody can tell."""
        if self.parts.local:
            try:
                stack.enter_context(FileLock(self.parts.child(_LOCK).path, timeout=0))
            except Timeout:
                raise ConfigError(f"--output {self.answers.text}: another process is writing it; wait for it") from None

    def _clear(self) -> None:
        for entry in self.parts.filesystem.get_file_info(pafs.FileSelector(self.parts.path)):
            if entry.base_name != _LOCK:
                self.parts.filesystem.delete_file(entry.path)
        for place in (self.answers, self.errors, self.summary):
            place.remove()

    def _unwritable(self, place: Location, error: Exception) -> ConfigError:
        return ConfigError(f"--output {place.text}: cannot be written ({short(error)}); name another place")
