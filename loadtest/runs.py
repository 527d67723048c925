"""``runs.jsonl``: the runs that a sweep has made, one JSON line each, whatever interrupted it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from loadtest.errors import UserError

RUNS = "runs.jsonl"

Json = dict[str, Any]


def _warn(sentence: str) -> None:
    print(f"warning: {sentence}", file=sys.stderr)


def read_runs(folder: Path, say: Callable[[str], None] = _warn) -> list[Json]:
    """The records of a sweep's folder, of each run the latest; empty if there are none.

    A last line that was cut off while it was written, by a kill or a full disk, is left out, and ``say`` told.

    Raises:
        UserError: the file cannot be read, or another line is no record.
    """
    path = folder / RUNS
    try:
        lines = path.read_bytes().removesuffix(b"\n").split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); name the folder of a sweep") from None
    found: dict[str, Json] = {}
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line.decode())
        except ValueError:  # no JSON, or no UTF-8
            if number < len(lines):
                raise UserError(f"{path}:{number}: not JSON; remove the line") from None
            if line:
                say(f"{path}:{number} was cut off while it was written and is left out; the sweep makes that run again")
            continue
        if not isinstance(record, dict) or "id" not in record:
            raise UserError(f"{path}:{number}: no record of a run; remove the line")
        found[record["id"]] = record
    return list(found.values())


def read_sweeps(folders: Sequence[Path]) -> list[Json]:
    """The records of several folders as those of one sweep, whose baseline is the first folder's.

    Raises:
        UserError: as read_runs; or two folders hold the same run, of which one would hide the other.
    """
    origins: dict[str, Path] = {}
    found: list[Json] = []
    for folder in folders:
        for record in read_runs(folder):
            first = origins.setdefault(record["id"], folder)
            if first != folder:
                raise UserError(
                    f"{first} and {folder} both hold the run {record['id']}; name its variant differently in one of "
                    "the two grids, or make a report of each folder"
                )
            found.append(record | ({"baseline": found[0]["baseline"]} if found and "baseline" in found[0] else {}))
    return found


def append_run(folder: Path, record: Json) -> None:
    """Write one more record, in the place of a last line that was cut off."""
    line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
    with (folder / RUNS).open("ab+") as file:
        file.seek(0)
        written = file.read()
        whole = written.rfind(b"\n") + 1
        if whole < len(written):
            if _is_record(written[whole:]):  # all but its end was written
                line = b"\n" + line
            else:
                file.truncate(whole)
        file.write(line)


def _is_record(line: bytes) -> bool:
    try:
        json.loads(line.decode())
    except ValueError:
        return False
    return True
