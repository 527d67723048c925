"""CSV and Parquet files as lines: one JSON object a row, in a temporary file, so that all that follows reads lines."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any, BinaryIO

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from deployments.batch.locations import Location
from deployments.errors import ConfigError

DEFAULT_COLUMN = "prompt"
ID_COLUMN = "custom_id"
_ROWS = 4096
_FIELD = 1 << 26  # characters: of a longer one a quote was not closed


def write_lines(place: Location, column: str | None, target: BinaryIO) -> None:
    """Write each row's prompt, and its ``custom_id`` where there is such a column, as one line.

    Raises:
        ConfigError: the file is none of its kind, has no such column, or no texts in it.
    """
    wanted = column or DEFAULT_COLUMN
    rows = _parquet(place, wanted) if place.name.lower().endswith(".parquet") else _csv(place, wanted)
    try:
        for row in rows:
            target.write(orjson.dumps(row) + b"\n")
    except (csv.Error, pa.ArrowException, UnicodeDecodeError) as error:
        raise ConfigError(f"--input {place.text}: cannot be read as a table ({error}); correct the file") from None
    except orjson.JSONEncodeError as error:
        raise ConfigError(
            f"--input {place.text}: column {wanted!r} or {ID_COLUMN!r} holds what is no text ({error}); "
            "convert it to text"
        ) from None


def _parquet(place: Location, column: str) -> Iterator[dict[str, Any]]:
    with place.filesystem.open_input_file(place.path) as stream:
        file = pq.ParquetFile(stream)
        names = _columns(place, file.schema_arrow.names, column)
        for batch in file.iter_batches(batch_size=_ROWS, columns=names):
            yield from (_row(dict(zip(names, values, strict=True)), column) for values in _values(batch, names))


def _values(batch: Any, names: list[str]) -> Iterator[tuple[Any, ...]]:
    return zip(*(batch.column(name).to_pylist() for name in names), strict=True)


def _csv(place: Location, column: str) -> Iterator[dict[str, Any]]:
    with place.filesystem.open_input_stream(place.path) as stream:
        text = io.TextIOWrapper(io.BufferedReader(stream), encoding="utf-8-sig", newline="")
        delimiter = "\t" if place.name.lower().endswith(".tsv") else ","
        csv.field_size_limit(_FIELD)
        reader = csv.DictReader(text, delimiter=delimiter, strict=True)
        _columns(place, list(reader.fieldnames or ()), column)
        for row in reader:
            yield _row(row, column)


def _columns(place: Location, names: list[str], column: str) -> list[str]:
    if column not in names:
        shown = ", ".join(map(str, names)) or "none"
        raise ConfigError(f"--input {place.text}: there is no column {column!r} (there are: {shown}); give --column")
    return [name for name in (column, ID_COLUMN) if name in names]


def _row(values: dict[str, Any], column: str) -> dict[str, Any]:
    row = {DEFAULT_COLUMN: values[column]}
    return row if values.get(ID_COLUMN) in (None, "") else row | {ID_COLUMN: values[ID_COLUMN]}
