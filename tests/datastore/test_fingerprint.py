from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerBase

from datastore.errors import StoreConfigError
from datastore.fingerprint import fingerprint, load_tokenizer, parse_tokenizer

WORDS = {"a": 0, "b": 1, "c": 2, "[UNK]": 3}


def words(vocab: dict[str, int] = WORDS) -> Tokenizer:
    tokenizer = Tokenizer(WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    return tokenizer


def test_ids_that_mean_other_strings_give_another_fingerprint() -> None:
    plain = fingerprint(words())
    swapped = fingerprint(words({"b": 0, "a": 1, "c": 2, "[UNK]": 3}))
    longer = fingerprint(words(WORDS | {"d": 4}))
    added = words()
    added.add_special_tokens([AddedToken("<end>", special=True)])
    renamed = words()
    renamed.add_special_tokens([AddedToken("<stop>", special=True)])
    assert len({plain, swapped, longer, fingerprint(added), fingerprint(renamed)}) == 5
    assert len(plain) == 16 and int(plain, 16) >= 0


def test_strings_cannot_run_into_each_other() -> None:
    assert fingerprint(words({"a\n1 1 b": 0, "[UNK]": 1})) != fingerprint(words({"a": 0, "b": 1, "[UNK]": 2}))


def test_what_does_not_change_the_ids_does_not_count() -> None:
    padded = words()
    padded.enable_padding(length=8)
    padded.enable_truncation(max_length=4)
    assert fingerprint(padded) == fingerprint(words()) == fingerprint(parse_tokenizer(padded.to_str()))


def test_the_engines_tokenizer_and_the_one_on_disk_agree(
    tiny_folder: Path, demo_model_dir: Path, demo_tokenizer: PreTrainedTokenizerBase
) -> None:
    """One side loads with transformers and hands over JSON, the other reads the file."""
    from transformers import AutoTokenizer

    for folder, of_engine in (
        (tiny_folder, AutoTokenizer.from_pretrained(tiny_folder)),
        (demo_model_dir, demo_tokenizer),
    ):
        handed = parse_tokenizer(of_engine.backend_tokenizer.to_str())
        assert fingerprint(handed) == fingerprint(load_tokenizer(str(folder)))
    assert fingerprint(load_tokenizer(str(tiny_folder))) != fingerprint(load_tokenizer(str(demo_model_dir)))


def test_demo_is_the_demo_models(demo_model_dir: Path) -> None:
    assert load_tokenizer("demo").to_str() == load_tokenizer(str(demo_model_dir / "tokenizer.json")).to_str()


def test_what_is_no_tokenizer_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(StoreConfigError, match=r"tokenizer.json cannot be read \(.*\); name a tokenizer.json"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreConfigError, match=r"the folder holds no tokenizer\.json; write one"):
        load_tokenizer(str(tmp_path / "empty"))
    for missing in ("/no/such/folder", "./none", "none.json", "a name with spaces", ""):
        with pytest.raises(StoreConfigError, match="no such file or folder"):
            load_tokenizer(missing)
    with pytest.raises(StoreConfigError, match="no tokenizer"):
        parse_tokenizer("{}")
