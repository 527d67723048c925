"""The prior table: computed in chunks, kept on disk, computed again when the file is no good."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from racer.draft.prior import FreeRun, PriorTable, compute_prior, with_free_run
from racer.draft.prior_file import cached_prior, load_prior, prior_path, save_prior

VOCAB, TOP_K, NEWLINE = 1000, 4, 11


class FakeModel:
    """After (prefix, t) come t+1, t+2, ... with probabilities that depend on both."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, prefix_token: int, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        assert prefix_token == NEWLINE and tokens.dtype == np.int32
        self.calls.append(len(tokens))
        top = (tokens[:, None] + np.arange(1, 7)) % VOCAB
        return top.astype(np.int32), np.float32(0.5) ** np.arange(1, 7, dtype=np.float32)[None].repeat(len(tokens), 0)


def cached(folder: Path, model: FakeModel, fingerprint: str = "m", top_k: int = TOP_K) -> PriorTable:
    return cached_prior(folder, fingerprint, model, VOCAB, top_k, NEWLINE, chunk=300)


def test_values_chunks_and_progress() -> None:
    model, progress = FakeModel(), []
    table = compute_prior(
        model, VOCAB, TOP_K, NEWLINE, chunk=300, progress=lambda done, total: progress.append((done, total))
    )
    assert model.calls == [300, 300, 300, 100]
    assert progress == [(300, 1000), (600, 1000), (900, 1000), (1000, 1000)]
    assert (table.vocab_size, table.top_k) == (VOCAB, TOP_K)
    assert table.tokens[998].tolist() == [999, 0, 1, 2]
    assert table.probs[5].tolist() == [0.5, 0.25, 0.125, 0.0625]


def test_the_second_time_it_is_read_from_disk(tmp_path: Path) -> None:
    first = cached(tmp_path, FakeModel())
    again = FakeModel()
    second = cached(tmp_path, again)
    assert again.calls == []
    assert np.array_equal(first.tokens, second.tokens) and np.array_equal(first.probs, second.probs)
    assert second.probs.dtype == np.float32
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".lock", ".npz"]


def test_who_comes_together_computes_it_once(tmp_path: Path) -> None:
    class SlowModel(FakeModel):
        def __call__(self, prefix_token: int, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            time.sleep(0.05)
            return super().__call__(prefix_token, tokens)

    models = [SlowModel() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        tables = list(pool.map(lambda model: cached(tmp_path, model), models))
    assert sorted(sum(model.calls) for model in models) == [0, 0, 0, VOCAB]
    assert all(np.array_equal(table.tokens, tables[0].tokens) for table in tables)


def test_a_folder_that_cannot_be_written_makes_nobody_wait(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert cached(tmp_path / "file" / "folder", FakeModel()).vocab_size == VOCAB


def test_another_model_or_k_has_a_file_of_its_own(tmp_path: Path) -> None:
    cached(tmp_path, FakeModel(), "one/../model")
    other, wider = FakeModel(), FakeModel()
    cached(tmp_path, other, "another")
    cached(tmp_path, wider, "another", 2)
    assert other.calls and wider.calls
    assert len(list(tmp_path.glob("*.npz"))) == 3


@pytest.mark.parametrize(
    "damage", ["empty", "garbage", "truncated", "other arrays", "wrong shape", "ids off the vocabulary"]
)
def test_a_file_that_is_no_good_is_computed_again(tmp_path: Path, damage: str) -> None:
    good = cached(tmp_path, FakeModel())
    path = prior_path(tmp_path, "m", TOP_K)
    if damage == "empty":
        path.write_bytes(b"")
    elif damage == "garbage":
        path.write_bytes(b"not a zip file" * 100)
    elif damage == "truncated":
        path.write_bytes(path.read_bytes()[:-2000])
    elif damage == "other arrays":
        with path.open("wb") as file:
            np.savez(file, tokens=good.tokens)
    elif damage == "wrong shape":
        save_prior(path, PriorTable(good.tokens[:-1], good.probs[:-1]))
    else:
        save_prior(path, PriorTable(good.tokens + 1, good.probs))
    assert load_prior(path, VOCAB, TOP_K) is None
    model = FakeModel()
    table = cached(tmp_path, model)
    assert sum(model.calls) == VOCAB
    assert np.array_equal(table.tokens, good.tokens)
    assert load_prior(path, VOCAB, TOP_K) is not None


def test_a_failed_write_leaves_no_file_and_loses_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("racer.draft.prior_file.np.savez", full)
    table = cached(tmp_path, FakeModel())
    assert table.vocab_size == VOCAB
    assert [file.suffix for file in tmp_path.iterdir()] == [".lock"]


def free_run(seed: int = 0, sequences: int = 3, length: int = 40, width: int = 5) -> FreeRun:
    rng = np.random.default_rng(seed)
    rows = (sequences, length)
    tops = np.stack([rng.permutation(12)[:width] for _ in range(sequences * length)]).reshape(*rows, width)
    probs = -np.sort(-rng.dirichlet([0.5] * (width + 1), rows).astype(np.float32), axis=-1)[..., :width]
    return FreeRun(np.array([3, 1], np.int32), rng.integers(0, 6, rows).astype(np.int32), tops.astype(np.int32), probs)


def test_free_rows_are_averaged_by_their_last_tokens() -> None:
    run, table = free_run(), compute_prior(FakeModel(), VOCAB, TOP_K, NEWLINE)
    averaged = with_free_run(table, run)
    sums: dict[tuple[int, ...], list[dict[int, float]]] = {}
    for line, tops, probs in zip(run.tokens.tolist(), run.top_tokens.tolist(), run.top_probs.tolist(), strict=True):
        text = [*run.prefix.tolist(), *line]
        for i in range(len(line)):
            for count in (1, 2, 3):
                if i + 2 >= count:
                    key = tuple(text[i + 2 - count : i + 2])
                    sums.setdefault(key, []).append(dict(zip(tops[i], probs[i], strict=True)))
    for token in range(VOCAB):
        if (token,) in sums:
            sums[token,].append(dict(zip(table.tokens[token].tolist(), table.probs[token].tolist(), strict=True)))
    assert averaged.free is not None
    assert len(averaged.free) == sum(len(key) > 1 for key in sums)
    for key, rows in sums.items():
        mean = {token: sum(row.get(token, 0.0) for row in rows) / len(rows) for row in rows for token in row}
        best = sorted(mean.values(), reverse=True)[:TOP_K]
        found = averaged.free.get(*key) if len(key) > 1 else (averaged.tokens[key[0]], averaged.probs[key[0]])
        assert found is not None
        assert found[1].tolist() == pytest.approx(best, abs=1e-6)
        assert [mean[token] for token in found[0].tolist()] == pytest.approx(best, abs=1e-6)
    untouched = [token for token in range(VOCAB) if (token,) not in sums]
    assert np.array_equal(averaged.tokens[untouched], table.tokens[untouched])


def test_free_rows_are_kept_on_disk_too(tmp_path: Path) -> None:
    def cached_free(model: FakeModel) -> PriorTable:
        return cached_prior(tmp_path, "m", model, VOCAB, TOP_K, NEWLINE, free_run=free_run)

    first, again = cached_free(FakeModel()), FakeModel()
    second = cached_free(again)
    assert again.calls == [] and first.free is not None and second.free is not None
    assert len(second.free) == len(first.free) > 100
    used = len(first.free)
    for name in ("keys", "tokens", "probs"):
        assert np.array_equal(getattr(first.free, name)[:used], getattr(second.free, name)[:used])


@pytest.mark.parametrize("prefix", [[], [7]])
def test_a_short_prefix_has_fewer_rows_of_two_and_three(prefix: list[int]) -> None:
    run = free_run(length=2)
    run = FreeRun(np.array(prefix, np.int32), run.tokens, run.top_tokens, run.top_probs)
    averaged = with_free_run(compute_prior(FakeModel(), VOCAB, TOP_K, NEWLINE), run)
    assert averaged.free is not None
    longest = [key for key in averaged.free.keys[: len(averaged.free)].tolist() if key[0] >= 0]
    assert bool(longest) == (len(prefix) > 1)
