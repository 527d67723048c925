"""Text in and out of token ids: chat templates, incremental detokenising, stop strings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from racer.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_HELD_TOKENS = 8  # more than any character needs, which is four
_CONTEXT_TOKENS = 8


def render_chat(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Token ids of ``messages`` in the model's chat template, ready for the assistant's answer.

    The template alone decides about a beginning-of-sequence token: the tokenizer adds none of its own, so there are
    never two.

    Raises:
        InputError: the tokenizer has no chat template, or the template refuses the messages.
    """
    if not tokenizer.chat_template:
        raise InputError("this model has no chat template; give it a plain prompt instead of messages")
    try:
        text = tokenizer.apply_chat_template(
            [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
        )
    except Exception as error:  # a template is a program of the model's author: it raises what it likes
        raise InputError(f"the model's chat template refuses these messages ({error}); change them") from error
    return list(tokenizer.encode(text, add_special_tokens=False))


class _Vocabulary:
    """What detokenising needs of a tokenizer, through its fast backend where it has one."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self.special: frozenset[int]
        self.decode: Callable[[list[int]], str]
        self.token_of: Callable[[int], str | None]
        if backend is not None:
            added = backend.get_added_tokens_decoder().items()
            self.special = frozenset(token_id for token_id, token in added if token.special)
            self.decode = partial(backend.decode, skip_special_tokens=False)
            self.token_of = backend.id_to_token
        else:
            self.special = frozenset(tokenizer.all_special_ids)
            self.decode = lambda ids: str(tokenizer.decode(ids, clean_up_tokenization_spaces=False))
            self.token_of = str  # every id counts as known; decoding decides


@lru_cache(maxsize=8)
def _vocabulary(tokenizer: PreTrainedTokenizerBase) -> _Vocabulary:
    """Made once for a tokenizer: listing thousands of added tokens takes milliseconds."""
    return _Vocabulary(tokenizer)


class IncrementalDetokenizer:
    """Text of one growing sequence of tokens, released as soon as it is final.

    Everything released, joined, equals the tokenizer's text of all tokens at once (without its optional clean-up of
    spaces, which rewrites text already shown). A character split over tokens is held until it is whole. Bytes that
    never form a character come out as U+FFFD, as the tokenizer would show them; only tokenizers with byte fallback
    may count them differently next to a valid character.

    Each push decodes a window of the newest tokens, so its cost does not grow with the sequence. (tokenizers'
    ``DecodeStream`` has the same idea, but raises over invalid bytes and holds a run of them for ever, at quadratic
    cost: docs/log.md.)
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, skip_special_tokens: bool = True) -> None:
        vocabulary = _vocabulary(tokenizer)
        self._decode, self._token_of = vocabulary.decode, vocabulary.token_of
        self._skipped = vocabulary.special if skip_special_tokens else frozenset()
        self._window: list[int] = []
        self._context = 0  # leading tokens of the window whose text is released; they only give the rest its spacing
        self._released = 0  # characters of the window's text that are released

    def push(self, token_ids: Iterable[int]) -> str:
        """Take the next tokens; return the text that became final."""
        shown = [token for token in token_ids if self._is_shown(token)]
        return "".join(self._push_some(shown[i : i + _HELD_TOKENS]) for i in range(0, len(shown), _HELD_TOKENS))

    def _push_some(self, token_ids: list[int]) -> str:
        text = self._decode(self._window + token_ids)
        if len(token_ids) == 1 or not text.endswith(_REPLACEMENT):
            return self._release(token_ids, text)
        # A character is open, or bytes form none: how many are held depends on each token.
        return "".join(self._push_some([token]) for token in token_ids)

    def flush(self) -> str:
        """Release what is held, at the end of the sequence: an incomplete character shows as U+FFFD."""
        text = self._decode(self._window)[self._released :] if self._window else ""
        self._window, self._context, self._released = [], 0, 0
        return text

    def _is_shown(self, token_id: int) -> bool:
        return token_id not in self._skipped and self._token_of(token_id) is not None  # None: models pad vocabularies

    def _release(self, token_ids: list[int], text: str) -> str:
        """Put ``token_ids`` behind the window, which is ``text`` then; return what of it became final."""
        self._window += token_ids
        final = len(text)
        if text.endswith(_REPLACEMENT):
            if len(self._window) - self._context <= _HELD_TOKENS:
                return ""
            final -= 1  # invalid bytes; the last of them may still begin a character
        if final <= self._released:
            return ""
        piece = text[self._released : final]
        if final == len(text) and len(self._window) <= _CONTEXT_TOKENS:
            self._context, self._released = len(self._window), final
        else:
            self._slide(held=len(text) - final)
        return piece

    def _slide(self, held: int) -> None:
        """Forget tokens that no longer matter; ``held`` characters at the end of the text are not released."""
        keep = self._window[self._context :] if not held else self._window[-_CONTEXT_TOKENS:]
        self._window = keep
        self._context = len(keep)
        self._released = len(self._decode(keep)) - held


class StopStrings:
    """Watches a text that arrives in pieces for stop strings, and holds back what may become one.

    The match that ends first counts; of those that end together, the longest. The answer does not depend on where the
    pieces are cut. Cost: one small step for each character and stop string (Knuth-Morris-Pratt).
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(dict.fromkeys(stops))
        self._failures = [_failure_links(stop) for stop in self._stops]
        self._states = [0] * len(self._stops)  # characters of each stop string that the text ends with
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str, armed: bool = True) -> str:
        """Take the next piece; return the text that is safe to show.

        After a match, ``matched`` names the stop string, the text before it has been returned, and nothing more
        comes. With ``armed`` false, stop strings that end inside this piece pass as ordinary text.
        """
        if not self._stops:
            return text
        if self.matched is not None:
            return ""
        held = self._held + text
        for end, character in enumerate(text, start=len(self._held) + 1):
            stop = self._advance(character)
            if stop is not None and armed:
                self.matched, self._held = stop, ""
                return held[: end - len(stop)]
        keep = max(self._states)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """Release what is held, at the end of the text."""
        text, self._held = self._held, ""
        self._states = [0] * len(self._stops)
        return text

    def _advance(self, character: str) -> str | None:
        """Feed one character to every stop string; return the longest that it completes."""
        completed = ""
        for index, (stop, failure) in enumerate(zip(self._stops, self._failures, strict=True)):
            state = self._states[index]
            while state and stop[state] != character:
                state = failure[state - 1]
            state += stop[state] == character
            if state == len(stop):
                completed = max(completed, stop, key=len)
                state = failure[state - 1]
            self._states[index] = state
        return completed or None


def _failure_links(stop: str) -> list[int]:
    """For each prefix of ``stop``, the length of its longest proper suffix that is a prefix too."""
    links = [0] * len(stop)
    length = 0
    for position in range(1, len(stop)):
        while length and stop[length] != stop[position]:
            length = links[length - 1]
        length += stop[length] == stop[position]
        links[position] = length
    return links


@dataclass(frozen=True)
class TextDelta:
    """What some tokens added: ``text`` safe to show, the stop string that ended it, and how many tokens count.

    ``consumed`` is the number of tokens up to and including the one whose text completed the stop string; without a
    stop, all of them.
    """

    text: str
    consumed: int
    stop: str | None = None


@dataclass
class OutputText:
    """The visible text of one choice: detokeniser and stop strings in a row."""

    tokenizer: PreTrainedTokenizerBase
    stop: Sequence[str] = ()
    skip_special_tokens: bool = True
    _detokenizer: IncrementalDetokenizer = field(init=False, repr=False)
    _stops: StopStrings = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._detokenizer = IncrementalDetokenizer(self.tokenizer, self.skip_special_tokens)
        self._stops = StopStrings(self.stop)

    def push(self, token_ids: Sequence[int], unarmed: int = 0) -> TextDelta:
        """Take a step's tokens in order; stop strings completed by the first ``unarmed`` of them do not count."""
        if not self.stop:
            return TextDelta(self._detokenizer.push(token_ids), len(token_ids))
        pieces: list[str] = []
        for index, token_id in enumerate(token_ids):
            pieces.append(self._stops.push(self._detokenizer.push((token_id,)), armed=index >= unarmed))
            if self._stops.matched is not None:
                return TextDelta("".join(pieces), index + 1, self._stops.matched)
        return TextDelta("".join(pieces), len(token_ids))

    def flush(self) -> str:
        """The rest, once the sequence has ended without a stop string; empty after one."""
        if self._stops.matched is not None:
            return ""
        return self._stops.push(self._detokenizer.flush(), armed=False) + self._stops.flush()
