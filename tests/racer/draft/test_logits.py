"""The logits table against a dict."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from racer.draft.logits import LogitsTable


@given(st.lists(st.lists(st.integers(0, 40), max_size=30), max_size=12), st.integers(1, 4))
@settings(max_examples=50, deadline=None)
def test_later_rows_win(batches: list[list[int]], top_k: int) -> None:
    table, expected, serial = LogitsTable(top_k), {}, 0
    for batch in batches:
        tops = np.arange(serial, serial + len(batch) * top_k, dtype=np.int32).reshape(-1, top_k)
        probs = (tops / 1000).astype(np.float32)
        table.update(np.array(batch, np.int32).reshape(-1, 1), tops, probs)
        expected.update({token: (tops[i].tolist(), probs[i].tolist()) for i, token in enumerate(batch)})
        serial += tops.size
    assert len(table) == len(expected)
    for token in range(41):
        row = table.get(token)
        assert (row is None) == (token not in expected)
        if row is not None:
            assert (row[0].tolist(), row[1].tolist()) == expected[token]


def test_it_grows_by_doubling_with_the_distinct_tokens_only() -> None:
    table = LogitsTable(2)
    seen = np.random.default_rng(0).integers(0, 3000, 20_000).astype(np.int32)
    table.update(seen[:, None], np.stack([seen, seen + 1], 1), np.full((len(seen), 2), 0.5, np.float32))
    assert len(table) == len(set(seen.tolist()))
    assert len(table.keys) <= 4096
    for token in set(seen.tolist()):
        row = table.get(token)
        assert row is not None and row[0].tolist() == [token, token + 1]


def test_rows_narrower_or_wider_than_the_table() -> None:
    table = LogitsTable(3)
    table.update(np.array([[7]], np.int32), np.array([[1, 2]], np.int32), np.array([[0.6, 0.3]], np.float32))
    row = table.get(7)
    assert row is not None and row[0].tolist() == [1, 2, -1] and row[1].tolist()[2] == 0.0
    table.update(np.array([[7]], np.int32), np.array([[5, 6, 7, 8]], np.int32), np.full((1, 4), 0.25, np.float32))
    row = table.get(7)
    assert row is not None and row[0].tolist() == [5, 6, 7]


@given(st.lists(st.tuples(*[st.integers(0, 6)] * 3), max_size=150), st.integers(1, 3), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_a_full_table_forgets_the_row_made_longest_ago(keys: list[tuple[int, ...]], width: int, max_rows: int) -> None:
    table, expected = LogitsTable(1, max_rows), dict[tuple[int, ...], int]()
    for i, key in enumerate(keys):
        last = key[:width]
        if last not in expected and len(expected) == max_rows:
            del expected[next(iter(expected))]
        expected[last] = i
        table.update(np.array([last], np.int32), np.array([[i]], np.int32), np.ones((1, 1), np.float32))
    assert len(table) == len(expected)
    for key in {key[:width] for key in keys}:
        row = table.get(*key)
        assert (None if row is None else row[0].item()) == expected.get(key)
