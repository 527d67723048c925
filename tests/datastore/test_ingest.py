from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from datastore import ingest as module
from datastore.errors import StoreUnavailableError
from datastore.fingerprint import fingerprint
from datastore.ingest import DONE, Progress, ingest
from datastore.memory_store import MemoryStore
from datastore.reading import SourceFile, find_files
from datastore.store import Ints
from tests.tiny import byte_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """A token for each byte."""
    loaded: Tokenizer = byte_tokenizer().backend_tokenizer
    return loaded


class Watched(MemoryStore):
    """Notes what it is taught, and fails or ends the world at a batch of the test's choice."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__("test", fingerprint(tokenizer))
        self.taught: list[str] = []
        self.events: list[str] = []
        self.before_learning: Callable[[int], None] = lambda batch: None
        self._tokenizer = tokenizer

    def learn(self, runs: Sequence[Ints], weight: int = 1) -> None:
        self.events.append("learn")
        self.before_learning(self.events.count("learn"))
        self.taught += [self._tokenizer.decode(run.tolist(), skip_special_tokens=False) for run in runs]
        super().learn(runs, weight)

    def write_marks(self, marks: Mapping[str, str]) -> None:
        self.events.append("mark")
        super().write_marks(marks)


@pytest.fixture
def store(tokenizer: Tokenizer) -> Watched:
    return Watched(tokenizer)


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twelve files of twenty lines, batches of about two files."""
    monkeypatch.setattr(module, "BATCH_CHARACTERS", 600)
    monkeypatch.setattr("datastore.reading.PIECE_CHARACTERS", 128)
    folder = tmp_path / "corpus"
    folder.mkdir()
    for i in range(12):
        (folder / f"{i:02}.txt").write_text("".join(f"file {i} line {j}\n" for j in range(20)))
    return folder


def run(
    store: Watched, tokenizer: Tokenizer, *paths: Path, stop_after: int | None = None, again: bool = False
) -> Progress:
    reports: list[int] = []

    def report(progress: Progress) -> None:
        reports.append(progress.bytes_done)
        assert progress.bytes_done <= progress.bytes_total

    progress = ingest(
        store,
        tokenizer,
        find_files([str(path) for path in paths]),
        text_field="text",
        again=again,
        report=report,
        stopping=lambda: stop_after is not None and len(reports) >= stop_after,
    )
    assert reports == sorted(reports)
    return progress


def whole(corpus: Path) -> str:
    return "".join(path.read_text() for path in sorted(corpus.iterdir()))


def test_everything_is_learned_once_in_order(store: Watched, tokenizer: Tokenizer, corpus: Path) -> None:
    progress = run(store, tokenizer, corpus)
    assert "".join(store.taught) == whole(corpus)
    assert (progress.files_done, progress.tokens, progress.problems) == (12, len(whole(corpus)), [])
    assert progress.bytes_done == progress.bytes_total == len(whole(corpus))
    assert store.stats().tokens_learned == progress.tokens and set(store.read_marks().values()) == {DONE}
    found = store.lookup([np.array(tokenizer.encode("file 3 line 1", add_special_tokens=False).ids, np.int32)], 1.0)
    assert found[0][0].count >= 1


def test_a_second_run_learns_nothing_unless_asked_to(store: Watched, tokenizer: Tokenizer, corpus: Path) -> None:
    run(store, tokenizer, corpus)
    moved = corpus.rename(corpus.with_name("moved"))
    (moved / "new.txt").write_text("a new one\n")
    progress = run(store, tokenizer, moved)
    assert (progress.files_done, progress.files_known, progress.tokens) == (1, 12, len("a new one\n"))
    taught = len(store.taught)
    assert run(store, tokenizer, moved, again=True).files_done == 13 and len(store.taught) == 2 * taught


@pytest.mark.parametrize("stop_after", [1, 2, 5])
def test_a_stopped_run_goes_on_where_it_was(
    store: Watched, tokenizer: Tokenizer, corpus: Path, stop_after: int
) -> None:
    first = run(store, tokenizer, corpus, stop_after=stop_after)
    assert 0 < first.tokens < len(whole(corpus))
    second = run(store, tokenizer, corpus)
    assert "".join(store.taught) == whole(corpus) and first.tokens + second.tokens == len(whole(corpus))


class Killed(BaseException):
    pass


@pytest.mark.parametrize("batch", [1, 3, 6])
def test_a_killed_run_leaves_out_one_batch_and_counts_nothing_twice(
    store: Watched, tokenizer: Tokenizer, corpus: Path, batch: int
) -> None:
    def die(number: int) -> None:
        if number == batch:
            raise Killed

    store.before_learning = die
    with pytest.raises(Killed):
        run(store, tokenizer, corpus)
    store.before_learning = lambda number: None
    run(store, tokenizer, corpus)
    expected, taught = whole(corpus).splitlines(), "".join(store.taught).splitlines()
    assert len(set(taught)) == len(taught)  # every line is unique, so none was counted twice
    missing = [line for line in expected if line not in set(taught)]
    assert 0 < sum(len(line) + 1 for line in missing) <= 600 + 128  # a batch, and the piece that filled it
    start = expected.index(missing[0])
    assert missing == expected[start : start + len(missing)]


def test_a_batch_is_claimed_before_it_is_learned(store: Watched, tokenizer: Tokenizer, corpus: Path) -> None:
    run(store, tokenizer, corpus)
    assert store.events[:4] == ["mark", "learn"] * 2
    assert store.events.index("learn") > store.events.index("mark")


def test_a_store_that_fails_ends_the_run_with_its_error(store: Watched, tokenizer: Tokenizer, corpus: Path) -> None:
    def fail(number: int) -> None:
        if number == 2:
            raise StoreUnavailableError("gone")

    store.before_learning = fail
    with pytest.raises(StoreUnavailableError):
        run(store, tokenizer, corpus)
    assert store.events == ["mark", "learn"] * 2


def test_what_cannot_be_read_is_told_and_the_rest_is_learned(
    store: Watched, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    (folder / "a.bin").write_bytes(b"\0\1\2")
    (folder / "b.txt").write_bytes(b"\xff broken")
    (folder / "c.jsonl").write_text('{"text": "good"}\n{"body": "bad"}\n')
    (folder / "d.txt").write_text("last")
    progress = run(store, tokenizer, folder)
    assert store.taught == ["good", "last"] and (progress.files_done, progress.files_binary) == (2, 1)
    assert [problem.partition(": ")[0] for problem in progress.problems] == [
        str(folder / "b.txt"),
        f"{folder / 'c.jsonl'}:2",
    ]
    named = run(store, tokenizer, folder / "a.bin")
    assert named.problems == [f"{folder / 'a.bin'}: not text; leave it out, or name text, .jsonl or .parquet files"]


def test_a_file_that_vanishes_is_told(
    store: Watched, tokenizer: Tokenizer, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = find_files([str(corpus)])
    sizes = module._sizes

    def vanish(files: Sequence[SourceFile]) -> list[int]:
        found = sizes(files)
        files[0].path.unlink()
        return found

    monkeypatch.setattr(module, "_sizes", vanish)
    progress = ingest(store, tokenizer, files, text_field="text", report=lambda progress: None, stopping=lambda: False)
    assert progress.files_done == 11 and "No such file" in progress.problems[0]
