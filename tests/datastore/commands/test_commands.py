"""The commands against real servers."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.datastore.commands.conftest import Command, Done
from tests.datastore.servers import Server

TEXT = "".join(f"def function_{i}(self):\n    return self.value_{i}\n" for i in range(40))


@pytest.fixture
def filled(datastore: Command, redis_single: Server, tmp_path: Path) -> Callable[..., Done]:
    """Commands in a namespace that has learned ``TEXT``."""
    (tmp_path / "code.py").write_text(TEXT)
    done = datastore("ingest", str(tmp_path / "code.py"), url=redis_single.url)
    assert done.code == 0, done.err

    def call(command: str, *options: str, tokenizer: bool = True) -> Done:
        return datastore(command, *options, url=redis_single.url, tokenizer=tokenizer)

    return call


def test_ingest_tells_what_it_did(datastore: Command, redis_single: Server, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.pyc").write_bytes(b"\0\0")
    (tmp_path / "c.jsonl").write_text('{"body": "one two three"}\n')
    done = datastore("ingest", str(tmp_path), "--field", "body", "--json", url=redis_single.url)
    result = done.json
    assert done.code == 0 and "error" not in done.err  # on a cold start there may be lines of progress
    assert result.pop("elapsed_s") > 0 < result.pop("tokens_per_s")
    tokens = result.pop("tokens")
    assert len(TEXT) * 0.9 < tokens < len(TEXT) + 20  # a token is a byte, but for one pair of letters
    assert result == {
        "files": 3,
        "files_done": 2,
        "files_known": 0,
        "files_binary": 1,
        "problems": 0,
        "interrupted": False,
    }
    again = datastore("ingest", str(tmp_path), "--field", "body", url=redis_single.url)
    assert again.code == 0 and again.out.startswith("0 tokens of 0 files learned in ")
    assert again.out.endswith(
        "; 2 files learned before left out (--again counts them once more); 1 file without text left out\n"
    )
    stats = datastore("stats", "--json", url=redis_single.url).json
    assert stats["tokens_learned"] == tokens and 0 < stats["contexts"] <= 3 * tokens


def test_ingest_says_how_far_it_is(
    datastore: Command, redis_single: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Share, tokens, rate and time left: a line now and then where stderr is no terminal."""
    monkeypatch.setattr("datastore.ingest.BATCH_CHARACTERS", 4096)
    monkeypatch.setattr("datastore.commands.bar.LINE_S", 0.0)
    for i in range(20):
        (tmp_path / f"{i:02}.txt").write_text("".join(f"file {i} line {j}\n" for j in range(200)))
    done = datastore("ingest", str(tmp_path), url=redis_single.url)
    lines = [line for line in done.err.splitlines() if "tokens/s" in line]
    shown = re.compile(r"(\d+)%: ([\d,]+) tokens, [\d,]+ tokens/s(, \d+:\d\d:\d\d left)?")
    found = [shown.fullmatch(line) for line in lines]
    assert len(found) >= 10 and all(found), lines
    shares = [int(one[1]) for one in found if one]
    assert shares == sorted(shares) and shares[0] < 20 and shares[-1] == 100
    assert sum(one[3] is not None for one in found if one) >= len(found) - 1
    assert f"{found[-1][2]} tokens of 20 files learned" in done.out  # type: ignore[index]


def test_ingest_names_what_it_cannot_read_and_exits_2(datastore: Command, redis_single: Server, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.jsonl").write_text("broken\n" * 9)
    done = datastore("ingest", str(tmp_path), url=redis_single.url)
    assert done.code == 2 and done.err.count("error: ") == 6 and "error: 4 more could not be read" in done.err
    assert "b.jsonl:1: not JSON" in done.err and " of 2 files learned" in done.out


def test_stats_as_text(filled: Command) -> None:
    lines = dict(line.rsplit("  ", 1) for line in filled("stats").out.splitlines())
    names = {name.strip() for name in lines}
    assert {"namespace", "fingerprint", "schema", "contexts", "memory bytes", "tokens learned"} <= names


def test_lookup_shows_each_length_with_readable_continuations(filled: Command) -> None:
    matches = filled("lookup", "--text", "def function_", "--json").json["matches"]
    lengths = [match["matched"] for match in matches]
    assert lengths == sorted(lengths, reverse=True) and len(lengths) >= 2
    for match in matches:
        assert "def function_".endswith(match["context"]) and len(match["context"]) == match["matched"]
        counts = [one["count"] for one in match["continuations"]]
        assert counts == sorted(counts, reverse=True)
        assert all(match["context"] + one["text"] in TEXT for one in match["continuations"])
    text = filled("lookup", "--text", "def function_").out
    assert text.splitlines()[0] == f"{lengths[0]} tokens matched: {matches[0]['context']!r}"
    best = matches[0]["continuations"][0]
    assert f"{best['count']:6,} x {best['text']!r}" in text
    nothing = filled("lookup", "--text", "QQ@@QQ@@")
    assert (nothing.code, nothing.out) == (0, "nothing is known behind 'QQ@@QQ@@'\n")
    assert filled("lookup", "--text", "").err == "error: --text is empty; give it the text before the continuation\n"


def test_purge_asks_on_a_terminal_only(filled: Command, monkeypatch: pytest.MonkeyPatch, namespace: str) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    before = filled("stats", "--json").json["contexts"]
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    done = filled("purge", tokenizer=False)
    assert done.code == 2 and done.err.endswith("; add --yes\n")
    for answer in ("\n", "n\n", ""):
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        done = filled("purge", tokenizer=False)
        assert done.code == 2 and f"Remove all of namespace {namespace!r}? [y/N] " in done.err
    assert filled("stats", "--json").json["contexts"] == before > 0
    monkeypatch.setattr("sys.stdin", Terminal("yes\n"))
    assert filled("purge", tokenizer=False).code == 0
    assert filled("stats", "--json").json["contexts"] == 0


def test_purge_forgets_the_marks_too(filled: Command, tmp_path: Path) -> None:
    done = filled("purge", "--yes", "--json", tokenizer=False)
    assert done.json["keys_removed"] > 1
    assert filled("ingest", str(tmp_path / "code.py"), "--json").json["files_done"] == 1


def test_a_store_goes_from_one_server_to_a_cluster_and_back(
    filled: Command, datastore: Command, redis_single: Server, redis_cluster: list[Server], tmp_path: Path
) -> None:
    cluster = f"redis+cluster://127.0.0.1:{redis_cluster[0].port}"
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    told = filled("export", first, "--json").json
    assert told == {"file": first, "records": told["records"], "bytes": Path(first).stat().st_size}
    assert datastore("import", first, url=cluster).out == f"{told['records']:,} records merged\n"
    asked = ("lookup", "--text", "def function_", "--json")
    assert datastore(*asked, url=cluster).json == filled(*asked).json
    assert datastore("export", second, url=cluster).code == 0
    other = ("--namespace", "back-again")
    assert datastore("import", second, *other, url=redis_single.url).code == 0
    assert datastore(*asked, *other, url=redis_single.url).json == filled(*asked).json
    for url, names in ((cluster, ()), (redis_single.url, other)):
        assert datastore("purge", "--yes", *names, url=url, tokenizer=False).code == 0


def test_import_adds_counts(filled: Command, tmp_path: Path) -> None:
    asked = ("lookup", "--text", "def function_", "--json")
    before = filled(*asked).json["matches"][-1]["continuations"]
    assert filled("export", str(tmp_path / "x")).code == 0 == filled("import", str(tmp_path / "x")).code
    after = {tuple(one["token_ids"]): one["count"] for one in filled(*asked).json["matches"][-1]["continuations"]}
    first = before[0]
    assert after[tuple(first["token_ids"])] == 2 * first["count"]


def test_import_refuses_another_tokenizers_file(filled: Command, tmp_path: Path, demo_model_dir: Path) -> None:
    path = str(tmp_path / "x")
    assert filled("export", path).code == 0
    done = filled("import", path, "--tokenizer", str(demo_model_dir))
    assert done.code == 2 and "made with another tokenizer (" in done.err and done.err.count("\n") == 1


def test_import_merges_nothing_of_a_damaged_file(filled: Command, tmp_path: Path) -> None:
    path = tmp_path / "x"
    assert filled("export", str(path)).code == 0
    path.write_bytes(path.read_bytes()[:-9])
    before = filled("stats", "--json").json
    done = filled("import", str(path))
    assert done.code == 2 and str(path) in done.err and done.err.count("\n") == 1
    assert filled("lookup", "--text", "def function_", "--json").code == 0
    assert filled("stats", "--json").json["contexts"] == before["contexts"]


def test_bench_measures_a_given_server_and_cleans_up(redis_single: Server, datastore: Command) -> None:
    done = datastore("bench", "--tokens", "2000", "--lookups", "5", "--json", url=redis_single.url, tokenizer=False)
    assert done.code == 0 and done.json["tokens"] == 2000 and done.json["plain"]["tokens"] == 1000
    assert set(done.json["lookup_ms"]) >= {"p50", "p99"}
    assert datastore("stats", "--json", url=redis_single.url).json["contexts"] == 0


def test_bench_starts_a_server_where_none_is_named(datastore: Command) -> None:
    done = datastore("bench", "--tokens", "1000", "--lookups", "3", tokenizer=False)
    assert done.code == 0 and "plain layout" in done.out and "memory bytes per token" in done.out
