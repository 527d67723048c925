from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, processors
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from racer.errors import InputError
from racer.model.demo import demo_folder
from racer.text import IncrementalDetokenizer, OutputText, StopStrings, render_chat
from tests.tiny import byte_tokenizer

TEXTS = st.text(
    st.sampled_from("abc .,\n'世界你好😀👩\u200d👧🏽é\u0301ñ\ufffdß") | st.characters(exclude_categories=["Cs"])
)
SAMPLES = [
    "plain words, and 3.14 numbers\n\n  indented",
    "床前明月光，疑是地上霜。举头望明月，低头思故乡。",
    "family 👩‍👩‍👧‍👦, flags 🇨🇳🇫🇷, skin 👍🏽, hearts ❤️",
    "mixed 中文 with café naïve Ελληνικά עברית हिन्दी",
]


def byte_fallback_tokenizer(strip: bool) -> PreTrainedTokenizerFast:
    """As llama's (``strip``) or gemma's: pieces with ▁ for a space, and a token for each byte."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdefgh世,", "▁a", "▁▁", "ab"]
    model = models.BPE(
        vocab={piece: i for i, piece in enumerate(pieces)},
        merges=[("▁", "a"), ("▁", "▁"), ("a", "b")],
        byte_fallback=True,
        unk_token="<unk>",
        fuse_unk=True,
    )
    backend = Tokenizer(model)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if strip else [])])
    make: Any = PreTrainedTokenizerFast
    made = make(tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    assert isinstance(made, PreTrainedTokenizerFast)
    return made


TOKENIZERS: dict[str, Callable[[], PreTrainedTokenizerBase]] = {
    "demo": lambda: AutoTokenizer.from_pretrained(demo_folder()),
    "bytes": byte_tokenizer,
    "llama-like": lambda: byte_fallback_tokenizer(strip=True),
    "gemma-like": lambda: byte_fallback_tokenizer(strip=False),
}
BYTE_LEVEL = ["demo", "bytes"]
_made: dict[str, PreTrainedTokenizerBase] = {}


def tokenizer_named(name: str) -> PreTrainedTokenizerBase:
    if name not in _made:
        _made[name] = TOKENIZERS[name]()
    return _made[name]


def whole(tokenizer: PreTrainedTokenizerBase, ids: list[int], skip: bool = True) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False))


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer.encode(text.replace(" ", "▁") if tokenizer.convert_tokens_to_ids("▁") else text))


def in_pieces(tokenizer: PreTrainedTokenizerBase, ids: list[int], cuts: list[int], skip: bool = True) -> list[str]:
    """What is released push by push, the tokens cut at ``cuts``; the flush last."""
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip)
    borders = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    pieces = [detokenizer.push(ids[a:b]) for a, b in pairwise(borders)]
    return [*pieces, detokenizer.flush()]


# --- incremental detokenising


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=TEXTS, cuts=st.lists(st.integers(0, 200)))
@settings(deadline=None)
def test_pieces_of_any_text_join_to_the_whole(name: str, text: str, cuts: list[int]) -> None:
    tokenizer = tokenizer_named(name)
    ids = encode(tokenizer, text)
    assert "".join(in_pieces(tokenizer, ids, cuts)) == whole(tokenizer, ids)


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("name", BYTE_LEVEL)
@given(data=st.data(), cuts=st.lists(st.integers(0, 200)))
@settings(deadline=None)
def test_pieces_of_any_ids_join_to_the_whole(name: str, skip: bool, data: st.DataObject, cuts: list[int]) -> None:
    tokenizer = tokenizer_named(name)
    few = st.integers(0, min(len(tokenizer), 300) - 1)  # special tokens and lone bytes have the lowest ids
    ids = data.draw(st.lists(few | st.integers(0, len(tokenizer) - 1), max_size=60))
    assert "".join(in_pieces(tokenizer, ids, cuts, skip)) == whole(tokenizer, ids, skip)


@pytest.mark.parametrize("name", ["llama-like", "gemma-like"])
@given(ids=st.lists(st.integers(0, 2) | st.integers(131, 273), max_size=60))
@settings(deadline=None)
def test_byte_fallback_loses_nothing_beside_invalid_bytes(name: str, ids: list[int]) -> None:
    """Special tokens, bytes above 127 and pieces. The tokenizer's whole text turns a valid character into U+FFFD when
    an invalid byte follows, which no one can foresee; everything else must come through."""
    tokenizer = tokenizer_named(name)
    released = "".join(in_pieces(tokenizer, ids, list(range(60))))
    expected = whole(tokenizer, ids)
    if "\ufffd" not in expected:
        assert released == expected
    assert [c for c in released if c.isascii()] == [c for c in expected if c.isascii()]


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("text", SAMPLES)
def test_a_character_is_held_until_whole(name: str, text: str) -> None:
    tokenizer = tokenizer_named(name)
    ids = encode(tokenizer, text)
    detokenizer = IncrementalDetokenizer(tokenizer)
    shown = ""
    for count, token_id in enumerate(ids, start=1):
        shown += detokenizer.push([token_id])
        so_far = whole(tokenizer, ids[:count])
        assert whole(tokenizer, ids).startswith(shown)
        assert so_far.endswith("\ufffd") or shown == so_far  # nothing whole is held
    assert shown == whole(tokenizer, ids)
    assert detokenizer.flush() == ""


def test_an_incomplete_character_at_the_end_shows_as_the_tokenizer_shows_it() -> None:
    tokenizer = byte_tokenizer()
    detokenizer = IncrementalDetokenizer(tokenizer)
    ids = tokenizer.encode("a世")[:-1]
    assert (detokenizer.push(ids), detokenizer.flush()) == ("a", "\ufffd")


def test_special_tokens_and_padded_ids_are_silent(demo_tokenizer: PreTrainedTokenizerBase) -> None:
    ids = [1, *demo_tokenizer.encode("one"), 2, 49_999, *demo_tokenizer.encode(" two"), 2]
    assert "".join(in_pieces(demo_tokenizer, ids, [3, 4])) == "one two"
    shown = "".join(in_pieces(demo_tokenizer, ids, [3, 4], skip=False))
    assert shown == "<|im_start|>one<|im_end|> two<|im_end|>"


@pytest.mark.parametrize("run", [[2], [49_999], [114], [114, 2], [28]], ids=["eos", "padded", "byte", "both", "word"])
def test_work_for_a_token_does_not_grow(run: list[int], demo_tokenizer: PreTrainedTokenizerBase) -> None:
    detokenizer = IncrementalDetokenizer(demo_tokenizer)
    longest = 0
    decode = detokenizer._decode

    def watched(ids: list[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return decode(ids)

    detokenizer._decode = watched
    ids = run * 3000
    assert detokenizer.push(ids) + detokenizer.flush() == whole(demo_tokenizer, ids)
    assert longest <= 24  # context, held, and those pushed at once


# --- stop strings


def naive_stop(text: str, stops: list[str], armed_from: int = 0) -> tuple[str, str | None]:
    """The text before the match that ends first, of those the longest; matches that end before ``armed_from`` pass."""
    for end in range(armed_from + 1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)], stop
    return text, None


ALPHABET = st.sampled_from("ab世")
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=5), min_size=1, max_size=4)


@given(pieces=st.lists(st.text(ALPHABET, max_size=4), max_size=12), stops=STOPS)
def test_stop_strings_do_not_care_where_pieces_are_cut(pieces: list[str], stops: list[str]) -> None:
    watcher = StopStrings(stops)
    text = shown = ""
    for piece in pieces:
        text += piece
        shown += watcher.push(piece)
        before, stop = naive_stop(text, stops)
        assert watcher.matched == stop
        if stop is not None:
            assert shown == before
        else:
            tails = [n for s in stops for n in range(1, len(s)) if text.endswith(s[:n])]
            assert shown == text[: len(text) - max(tails, default=0)]  # held: what may become a stop string, no more
    if watcher.matched is None:
        assert shown + watcher.flush() == text
    else:
        assert watcher.push("more") + watcher.flush() == ""


@given(
    early=st.lists(st.text(ALPHABET, max_size=3), max_size=4),
    late=st.lists(st.text(ALPHABET, max_size=3), max_size=6),
    stops=STOPS,
)
def test_unarmed_matches_pass_as_text(early: list[str], late: list[str], stops: list[str]) -> None:
    watcher = StopStrings(stops)
    shown = "".join(watcher.push(piece, armed=False) for piece in early)
    assert watcher.matched is None
    shown += "".join(watcher.push(piece) for piece in late)
    text = "".join(early + late)
    before, stop = naive_stop(text, stops, armed_from=len("".join(early)))
    assert watcher.matched == stop
    already = text[: len("".join(early))]
    if stop is None:
        assert shown + watcher.flush() == text
    else:
        assert shown == before
        assert before.startswith(already) or already.startswith(before)


def test_a_stop_string_split_over_chunks_never_leaks() -> None:
    watcher = StopStrings(["own fox"])
    shown = [watcher.push(piece) for piece in ["The quick br", "own", " f", "ox jumps", " over"]]
    assert shown == ["The quick br", "", "", "", ""]
    assert watcher.matched == "own fox"


def test_without_stop_strings_nothing_is_held() -> None:
    watcher = StopStrings([])
    assert (watcher.push("anything"), watcher.flush(), watcher.matched) == ("anything", "", None)


def test_long_stop_strings_cost_no_more() -> None:
    watcher = StopStrings(["a" * 50_000 + "b"])
    text = "a" * 200_000
    assert watcher.push(text) + watcher.flush() == text


# --- both together


def test_the_completing_token_is_named(demo_tokenizer: PreTrainedTokenizerBase) -> None:
    ids = demo_tokenizer.encode("one two STOP three four")
    until = next(n for n in range(len(ids)) if "STOP" in whole(demo_tokenizer, ids[:n]))
    output = OutputText(demo_tokenizer, ["STOP", "four"])
    delta = output.push(ids)
    assert (delta.text, delta.consumed, delta.stop) == ("one two ", until, "STOP")
    assert output.flush() == ""


@given(seed=st.integers(0, 10_000), stops=STOPS, steps=st.integers(1, 5), unarmed=st.integers(0, 6))
@settings(deadline=None)
def test_output_text_against_the_whole(seed: int, stops: list[str], steps: int, unarmed: int) -> None:
    tokenizer = tokenizer_named("bytes")
    rng = random.Random(seed)
    ids = list(tokenizer.encode("".join(rng.choices("ab世c", k=20))))
    output, shown, taken, stop = OutputText(tokenizer, stops), "", 0, None
    while taken < len(ids) and stop is None:
        delta = output.push(ids[taken : taken + steps], unarmed=max(0, unarmed - taken))
        shown, taken, stop = shown + delta.text, taken + delta.consumed, delta.stop
    shown += output.flush()
    early = len(whole(tokenizer, ids[:unarmed]).rstrip("\ufffd"))
    assert (shown, stop) == naive_stop(whole(tokenizer, ids), stops, armed_from=early)
    if stop is not None:
        assert whole(tokenizer, ids[:taken]) == shown + stop


def test_held_text_and_incomplete_character_come_with_the_flush() -> None:
    tokenizer = byte_tokenizer()
    output = OutputText(tokenizer, ["b世x"])
    ids = tokenizer.encode("ab世")
    assert output.push(ids[:-1]).text == "a"
    assert output.flush() == "b\ufffd"


# --- chats

MESSAGES = [{"role": "user", "content": "Hello 世界"}]


def test_the_demo_model_gets_its_own_template(demo_tokenizer: PreTrainedTokenizerBase) -> None:
    expected = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHello 世界<|im_end|>\n<|im_start|>assistant\n"
    )
    assert whole(demo_tokenizer, render_chat(demo_tokenizer, MESSAGES), skip=False) == expected
    own_system = [{"role": "system", "content": "Be brief."}, *MESSAGES]
    text = whole(demo_tokenizer, render_chat(demo_tokenizer, own_system), skip=False)
    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user")


@pytest.fixture
def bos_adding_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer that puts <bos> before whatever it encodes."""
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 0)]
    )
    assert tokenizer.encode("a")[0] == 0
    return tokenizer


@pytest.mark.parametrize("start", ["{{ bos_token }}", ""])
def test_bos_is_the_templates_affair(start: str, bos_adding_tokenizer: PreTrainedTokenizerFast) -> None:
    bos_adding_tokenizer.chat_template = start + "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    ids = render_chat(bos_adding_tokenizer, [{"role": "user", "content": "hi"}])
    body = bos_adding_tokenizer.encode("hi", add_special_tokens=False)
    assert ids == ([0] if start else []) + body


def test_no_template_is_refused(bos_adding_tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(InputError, match="no chat template"):
        render_chat(bos_adding_tokenizer, MESSAGES)


def test_a_template_that_refuses_is_quoted(bos_adding_tokenizer: PreTrainedTokenizerFast) -> None:
    bos_adding_tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(InputError, match="roles must alternate"):
        render_chat(bos_adding_tokenizer, MESSAGES)
