"""Inputs in all their forms and places, the journal, and what becomes of them when a write is cut off."""

from __future__ import annotations

import io
import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deployments.batch.answers import Result, Tally
from deployments.batch.journal import Journal, table_of
from deployments.batch.locations import Location, expand
from deployments.batch.outputs import Outputs
from deployments.batch.plan import Plan, lines_of
from deployments.batch.progress import Reporter
from deployments.batch.requests import Item
from deployments.errors import ConfigError, DeploymentError
from tests.deployments.batch.helpers import batch_line, journal_of, plan_of, write_lines
from tests.deployments.local import wait_until


def items(plan: Plan) -> list[Item]:
    """All requests of a plan, read chunk by chunk as workers do."""
    found = []
    for chunk in plan.chunks:
        file = plan.files[chunk.file]
        read = lines_of(chunk, file)
        assert [request for request, _, _ in read] == list(range(chunk.first, chunk.first + chunk.count))
        found += [file.reading.read(raw, line) for _, line, raw in read]
    return found


def prompts(plan: Plan) -> list[Any]:
    return [item.body["prompt"] for item in items(plan)]


@pytest.mark.parametrize("lines", [1, 3, 100])
def test_chunks_cover_every_line_once(tmp_path: Path, lines: int) -> None:
    one = write_lines(tmp_path / "a.jsonl", [{"prompt": f"a{i}"} for i in range(7)])
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfb0\r\n\n   \nb1\nb2")  # a BOM, blank lines, no newline at the end
    plan = plan_of(one, tmp_path / "b.txt", lines=lines)
    assert plan.requests == 10 and prompts(plan) == [f"a{i}" for i in range(7)] + ["b0", "b1", "b2"]
    assert [item.custom_id for item in items(plan)][-2:] == ["b.txt:4", "b.txt:5"]
    assert all(chunk.count <= lines for chunk in plan.chunks)


def test_tables_are_read_by_column(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('prompt,custom_id,other\n"two\nlines",x,1\nplain,,2\n')
    (tmp_path / "a.tsv").write_text("q\tz\nhello, you\t1\n")
    pq.write_table(pa.table({"text": ["one", None, "three"], "custom_id": [1, 2, 3]}), tmp_path / "a.parquet")
    plan = plan_of(tmp_path / "a.csv", lines=1, folder=tmp_path)
    assert [(item.custom_id, item.body["prompt"]) for item in items(plan)] == [
        ("x", "two\nlines"),
        ("a.csv:2", "plain"),
    ]
    assert prompts(plan_of(tmp_path / "a.tsv", column="q", folder=tmp_path)) == ["hello, you"]
    parquet = plan_of(tmp_path / "a.parquet", column="text", folder=tmp_path)
    assert parquet.requests == 3
    with pytest.raises(ConfigError, match=r"no column 'prompt' \(there are: text, custom_id\); give --column"):
        plan_of(tmp_path / "a.parquet", folder=tmp_path)
    (tmp_path / "b.parquet").write_text("none")
    with pytest.raises(ConfigError, match=r"b\.parquet"):
        plan_of(tmp_path / "b.parquet", folder=tmp_path)


def test_tables_by_any_spelling_of_their_suffix_and_with_long_cells(tmp_path: Path) -> None:
    long = "word " * 60_000
    (tmp_path / "A.CSV").write_text(f'prompt\n"{long}"\nshort\n')
    (tmp_path / "A.TSV").write_text("prompt\tz\nhello, you\t1\n")
    pq.write_table(pa.table({"prompt": ["one"]}), tmp_path / "A.PARQUET")
    assert prompts(plan_of(tmp_path / "A.CSV", folder=tmp_path)) == [long, "short"]
    assert prompts(plan_of(tmp_path / "A.TSV", folder=tmp_path)) == ["hello, you"]
    assert prompts(plan_of(tmp_path / "A.PARQUET", folder=tmp_path)) == ["one"]


@pytest.mark.parametrize("value", [b"bytes", Decimal("1.5")])
def test_table_that_holds_no_texts_is_one_sentence(tmp_path: Path, value: Any) -> None:
    pq.write_table(pa.table({"prompt": [value]}), tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match=r"a\.parquet: column 'prompt'.*no text.*convert it") as wrong:
        plan_of(tmp_path / "a.parquet", folder=tmp_path)
    assert "\n" not in str(wrong.value)


def test_double_ids_are_found_across_files(tmp_path: Path) -> None:
    one = write_lines(tmp_path / "a.jsonl", [batch_line("x", "1"), batch_line("y", "1")])
    two = write_lines(
        tmp_path / "b.jsonl", [batch_line("z", "1"), {"custom_id": "x", "url": "?"}, batch_line("x", "3")]
    )
    plan = plan_of(one, two)
    assert [chunk.twice for chunk in plan.chunks] == [(), ((3, f"{one}:1"), (4, f"{one}:1"))]


def test_globs_and_wrong_paths(tmp_path: Path) -> None:
    for name in ("a/1.jsonl", "a/2.jsonl", "a/b/3.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        write_lines(path, [{"prompt": name}])
    assert [place.name for place in expand([f"{tmp_path}/a/*.jsonl"])] == ["1.jsonl", "2.jsonl"]
    assert [place.name for place in expand([f"{tmp_path}/**/*.jsonl", f"{tmp_path}/a/1.jsonl"])] == [
        "1.jsonl",
        "2.jsonl",
        "3.jsonl",
    ]
    assert [place.name for place in expand([f"file://{tmp_path}/a/*.jsonl"])] == ["1.jsonl", "2.jsonl", "3.jsonl"]
    (tmp_path / "empty.jsonl").write_text("\n\n")
    (tmp_path / "x.jsonl.gz").write_text("x")
    for text, word in (
        (f"{tmp_path}/none.jsonl", "no such file"),
        (f"{tmp_path}/*.none", "no file matches"),
        (f"{tmp_path}/a", "is a folder"),
        (f"{tmp_path}/empty.jsonl", "is empty"),
        (f"{tmp_path}/x.jsonl.gz", "compressed"),
        ("nonsense://x/y", "no file system"),
        (
            "s3://bucket/key?nonsense=1",
            r"no URI of its file system \(Unexpected query parameter in S3 URI: 'nonsense'\)",
        ),
    ):
        with pytest.raises(ConfigError, match=word) as wrong:
            plan_of(text)
        assert "\n" not in str(wrong.value) and text in str(wrong.value)
    with pytest.raises(ConfigError, match=r"hdfs://nobody:1/x: its file system cannot be reached \("):
        Location.of("hdfs://nobody:1/x")  # pyarrow's own, which finds no Java here
    assert plan_of(tmp_path / "a/1.jsonl", tmp_path / "empty.jsonl").empty == (f"{tmp_path}/empty.jsonl",)


def test_fsspec_reads_and_writes() -> None:
    import fsspec

    fsspec.filesystem("memory").pipe("/in/a.jsonl", b'{"prompt": "x"}\n')
    assert prompts(plan_of("memory://in/*.jsonl")) == ["x"]
    place = Location.of("memory://out/b.jsonl")
    with place.writing() as stream:
        stream.write(b"abc")
    assert place.read() == b"abc" and place.exists()
    place.remove()
    assert not place.exists()


def test_s3_reads_writes_and_resumes(bucket: str) -> None:
    for name in ("in/a.jsonl", "in/b.jsonl"):
        Location.of(bucket.format(name)).write(b'{"prompt": "x"}\n{"prompt": "y"}\n')
    plan = plan_of(bucket.format("in/*.jsonl"), lines=1)
    assert prompts(plan) == ["x", "y", "x", "y"]
    outputs = Outputs(bucket.format("out/"))
    assert outputs.answers.path == "bucket/out/output.jsonl" and outputs.errors.path == "bucket/out/output.errors.jsonl"
    job = {"inputs": plan.fingerprint}
    with outputs.opened(job, 4, resume=False, overwrite=False) as journal:
        assert journal is not None
        journal.add(table([0, 1], failed=[1]))
        journal.flush()
    with outputs.opened(job, 4, resume=True, overwrite=False) as journal:
        assert journal is not None and journal.done.tolist() == [True, True, False, False]
        journal.add(table([2, 3]))
        journal.flush()
        outputs.finish(journal, {"job": job}, ordered=True)
    assert outputs.answers.read() == b"record 0\nrecord 2\nrecord 3\n" and outputs.errors.read() == b"record 1\n"
    assert not outputs.parts.child("job.json").exists()
    with outputs.opened(job, 4, resume=True, overwrite=False) as journal:
        assert journal is None  # all is done


def table(requests: list[int], failed: list[int] | None = None, text: str = "record") -> pa.Table:
    tally = Tally(1, 2, 3, 4, {"retrieval": 0, "logits": 1, "store": 2})
    results = [(i, Result(f"{text} {i}".encode(), i in (failed or []), tally)) for i in requests]
    return table_of(results)


def test_first_record_is_kept_and_parts_outlive_the_process(tmp_path: Path) -> None:
    plan = plan_of(write_lines(tmp_path / "a.jsonl", [{"prompt": str(i)} for i in range(6)]))
    journal = journal_of(tmp_path / "out.jsonl", plan)
    assert journal.add(table([5, 1, 1])) == 2
    journal.spent = {"elapsed_s": 5.0, "replica_s": 9.0}
    journal.flush()
    assert journal.add(table([1, 3], text="later")) == 1
    journal.flush()
    journal.add(table([0]))  # not flushed: lost with the process
    resumed = journal_of(tmp_path / "out.jsonl", plan)
    assert resumed.done.tolist() == [False, True, False, True, False, True]
    assert resumed.totals.requests == 3 and resumed.totals.tally.completion_tokens == 6
    assert resumed.totals.tally.accepted == {"retrieval": 0, "logits": 3, "store": 6}
    assert resumed.earlier == {"elapsed_s": 5.0, "replica_s": 9.0}
    assert resumed.add(table([0, 1, 2, 4, 5], text="last")) == 3
    resumed.flush()
    assert [record for _, record in resumed.records(ordered=True)] == [
        b"last 0",
        b"record 1",
        b"last 2",
        b"later 3",
        b"last 4",
        b"record 5",
    ]
    assert [record for _, record in resumed.records(ordered=False)][:3] == [b"record 1", b"record 5", b"later 3"]


def test_part_that_is_cut_off_is_done_again(tmp_path: Path) -> None:
    plan = plan_of(write_lines(tmp_path / "a.jsonl", [{"prompt": str(i)} for i in range(4)]))
    journal = journal_of(tmp_path / "out.jsonl", plan)
    for request in (0, 1):
        journal.add(table([request]))
        journal.flush()
    part = Path(journal.parts()[1].path)
    part.write_bytes(part.read_bytes()[:-20])
    resumed = journal_of(tmp_path / "out.jsonl", plan)
    assert resumed.done.tolist() == [True, False, False, False]
    resumed.add(table([1, 2, 3]))
    resumed.flush()
    assert len(list(resumed.records(ordered=True))) == len(list(resumed.records(ordered=False))) == 4


def test_full_disk_is_told_and_what_was_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(write_lines(tmp_path / "a.jsonl", [{"prompt": str(i)} for i in range(4)]))
    journal = journal_of(tmp_path / "out.jsonl", plan)
    journal.add(table([0]))
    journal.flush()
    journal.add(table([1]))

    def full(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch, pytest.raises(DeploymentError, match=r"No space left.*--resume"):
        patch.setattr(pq, "write_table", full)
        journal.flush()
    assert len(journal.parts()) == 1
    journal.flush()  # there is space again: nothing was lost
    assert journal_of(tmp_path / "out.jsonl", plan).done.tolist() == [True, True, False, False]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_bar_or_lines(tmp_path: Path) -> None:
    plan = plan_of(write_lines(tmp_path / "a.jsonl", [{"prompt": str(i)} for i in range(4)]))
    journal = journal_of(tmp_path / "out.jsonl", plan)
    terminal, log = Terminal(), io.StringIO()
    with Reporter(journal, 0.02, log) as lines, Reporter(journal, 0.02, terminal):
        journal.add(table([0, 1], failed=[1]))
        wait_until(lambda: log.getvalue().count("\n") > 1, "lines come")
        state = lines.state()
    assert state["done"] == 2 and state["requests"] == 4 and state["errors"] == 1 and state["mat"] == round(8 / 6, 3)
    assert state["requests_per_s"] > 0 and state["tokens_per_s"] > 0 and state["left_s"] is not None
    assert json.loads(log.getvalue().splitlines()[-1])["done"] == 2
    shown = terminal.getvalue()
    assert "2/4" in shown and "tok/s, MAT 1.33, 1 errors, 0:00:" in shown and "left" in shown


def test_output_is_whole_or_not_there(tmp_path: Path) -> None:
    place = Location.of(str(tmp_path / "x"))
    with pytest.raises(RuntimeError), place.writing() as stream:
        stream.write(b"half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_outputs_are_on_the_disk_before_their_parts_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    fsync, discard = os.fsync, Journal.discard

    def synced(handle: int) -> None:
        happened.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        fsync(handle)

    def discarded(journal: Journal) -> None:
        happened.append("parts are deleted")
        discard(journal)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Journal, "discard", discarded)
    outputs = Outputs(str(tmp_path / "out.jsonl"))
    with outputs.opened({}, 2, resume=False, overwrite=False) as journal:
        assert journal is not None
        happened.clear()
        journal.add(table([0, 1], failed=[1]))
        journal.flush()
        assert happened == ["part-000-0000000.parquet.tmp", "out.jsonl.parts"]
        happened.clear()
        outputs.finish(journal, {}, ordered=True)
    files = ["out.errors.jsonl.tmp", "out.jsonl.tmp", "out.summary.json.tmp"]
    assert happened == [*(name for file in files for name in (file, tmp_path.name)), "parts are deleted"]


def test_outputs_are_not_replaced_unasked(tmp_path: Path) -> None:
    outputs, job = Outputs(str(tmp_path / "out.jsonl")), {"inputs": "a", "chat": False}

    def opened(now: dict[str, Any] = job, **flags: bool) -> Journal | None:
        with outputs.opened(now, 2, **({"resume": False, "overwrite": False} | flags)) as journal:
            return journal

    assert opened() is not None
    with pytest.raises(ConfigError, match="unfinished run"):
        opened()
    with pytest.raises(ConfigError, match="inputs hold something else"):
        opened(job | {"inputs": "b"}, resume=True)
    with pytest.raises(ConfigError, match="chat was false and is true"):
        opened(job | {"chat": True}, resume=True)
    with outputs.opened(job, 2, resume=True, overwrite=False) as journal:
        assert journal is not None
        with pytest.raises(ConfigError, match="another process"), outputs.opened(job, 2, resume=True, overwrite=False):
            pass
        journal.add(table([0, 1]))
        journal.flush()
        outputs.finish(journal, {"job": job}, ordered=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "out.summary.json"]
    with pytest.raises(ConfigError, match="exists"):
        opened()
    assert opened(resume=True) is None
    with pytest.raises(ConfigError, match="inputs hold something else"):
        opened(job | {"inputs": "b"}, resume=True)
    assert opened(overwrite=True) is not None and not (tmp_path / "out.jsonl").exists()
    (tmp_path / "folder").mkdir()
    assert Outputs(str(tmp_path / "folder")).answers.path == str(tmp_path / "folder" / "output.jsonl")
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ConfigError, match="cannot be written"),
        Outputs(str(tmp_path / "file/x/out.jsonl")).opened(job, 2, resume=False, overwrite=False),
    ):
        pass
