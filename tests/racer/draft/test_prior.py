"""The prior table: computed in chunks, kept on disk, computed again when the file is no good."""

from pathlib import Path

import numpy as np
import pytest

from racer.draft.prior import PriorTable, cached_prior, compute_prior, load_prior, prior_path, save_prior

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
    assert [path.suffix for path in tmp_path.iterdir()] == [".npz"]


def test_another_model_or_k_has_a_file_of_its_own(tmp_path: Path) -> None:
    cached(tmp_path, FakeModel(), "one/../model")
    other, wider = FakeModel(), FakeModel()
    cached(tmp_path, other, "another")
    cached(tmp_path, wider, "another", 2)
    assert other.calls and wider.calls
    assert len(list(tmp_path.iterdir())) == 3


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

    monkeypatch.setattr("racer.draft.prior.np.savez", full)
    table = cached(tmp_path, FakeModel())
    assert table.vocab_size == VOCAB
    assert list(tmp_path.iterdir()) == []
