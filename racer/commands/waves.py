"""Decoding waves of questions in every mode, the modes taking turns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from racer.commands.conversations import encode, item_id
from racer.commands.inputs import Message
from racer.commands.measure import Measured, measure, measure_transformers
from racer.commands.modes import PLAIN, TRANSFORMERS, Mode, rotated
from racer.commands.suites import Question
from racer.commands.table import Result
from racer.commands.ties import compare
from racer.engine import Engine
from racer.errors import InputError, UserError
from racer.model.loader import LoadedModel
from racer.store import SwitchedSource
from racer.text import render_chat

Prompt = tuple[int, ...]
Asked = tuple[Prompt, dict[str, Any]]
"""A prompt with its line's sampling parameters."""
_WARM_UP_TOKENS = 8
_FLUSH_S = 60.0
_REFILLS = 4


class Bench:
    """Runs waves of questions in every mode."""

    def __init__(
        self,
        engine: Engine,
        modes: list[Mode],
        max_tokens: int,
        reference: LoadedModel | None = None,
        store: SwitchedSource | None = None,
        store_learns: bool = False,
        repeat: int = 1,
    ) -> None:
        """``store``: what the modes with a store draft from, and with ``store_learns`` teach.

        ``repeat``: how often each wave is decoded in each mode; the run of median time counts.
        """
        self.engine = engine
        self.modes = modes
        self.max_tokens = max_tokens
        self.skipped: list[dict[str, Any]] = []
        self._reference = reference
        self._store = store
        self._store_learns = store_learns
        self._repeat = repeat
        self._turn = 0

    def warm_up(self) -> None:
        """Decode a few tokens in every mode, uncounted: first calls are slow."""
        prompt = tuple(encode(self.engine.tokenizer, "To warm up, a few words: to warm up, a few words"))
        for mode in self.modes:
            self._measure(mode, [(prompt, {})], _WARM_UP_TOKENS, 1, teach=False)

    def teach_store(self, wave: list[Question], concurrency: int, all_turns: bool) -> None:
        """Decode a wave once, uncounted, for the store to learn it; conversations go on with these answers."""
        mode = next(mode for mode in self.modes if mode.store)
        answers: list[list[str]] = [[] for _ in wave]
        for turn in range(_rounds(wave, all_turns)):
            prompts = self._prompts(wave, turn, answers)
            asked = [(prompt, wave[i].item.params) for i, prompt in prompts.items()]
            taught = self._measure(mode, asked, self.max_tokens, concurrency, teach=True)
            for i, one in zip(prompts, taught, strict=True):
                answers[i].append(one.text)

    def run(self, wave: list[Question], concurrency: int, all_turns: bool) -> list[Result]:
        """Every mode over the same prompts; conversations go on with plain decoding's answers."""
        answers: list[list[str]] = [[] for _ in wave]
        results = []
        for turn in range(_rounds(wave, all_turns)):
            prompts = self._prompts(wave, turn, answers)
            if not prompts:
                break
            asked = [(prompt, wave[i].item.params) for i, prompt in prompts.items()]
            runs = self._measure_all(asked, concurrency)
            measured = {mode: of_mode[(self._repeat - 1) // 2] for mode, of_mode in runs.items()}
            for place, (i, prompt) in enumerate(prompts.items()):
                plain = measured[PLAIN][place]
                answers[i].append(plain.text)
                for mode in self.modes:
                    one = measured[mode][place]
                    params = PLAIN.params(self.max_tokens, wave[i].item.params)
                    ids = [run[place].token_ids for run in runs[mode]]
                    found = [compare(self.engine, prompt, plain.token_ids, one_run, params) for one_run in ids]
                    # Of several that differ the one that is told is an error, if there is one.
                    different = [difference for difference in found if difference is not None]
                    difference = min(different, key=lambda other: other.near_tie, default=None)
                    results.append(Result(wave[i], mode, concurrency, one, difference))
        return results

    def _measure_all(self, asked: list[Asked], concurrency: int) -> dict[Mode, list[list[Measured]]]:
        """Each mode's ``repeat`` runs, in which the modes take turns, the fastest first."""
        runs: dict[Mode, list[list[Measured]]] = {mode: [] for mode in self.modes}
        for _ in range(self._repeat):
            for mode in rotated(self.modes, self._turn):
                runs[mode].append(self._measure(mode, asked, self.max_tokens, concurrency, teach=self._store_learns))
            self._turn += 1
        for of_mode in runs.values():
            of_mode.sort(key=lambda run: sum(one.busy_s for one in run))
        return runs

    def _measure(
        self, mode: Mode, asked: list[Asked], max_tokens: int, concurrency: int, *, teach: bool
    ) -> list[Measured]:
        if self._store is not None:
            self._store.reads, self._store.learns = mode.store, mode.store and teach
        prompts = [prompt for prompt, _ in asked]
        caps = [min(max_tokens, self.engine.context_length - len(prompt)) for prompt in prompts]
        if self._reference is not None and mode.drafts in TRANSFORMERS:
            return measure_transformers(self._reference, TRANSFORMERS[mode.drafts], prompts, caps)
        params = [mode.params(cap, own) for cap, (_, own) in zip(caps, asked, strict=True)]
        measured = measure(self.engine, mode, prompts, params, concurrency)
        if self._store is not None and self._store.learns:
            self._store.store.flush(_FLUSH_S)  # outside the time measured: what follows finds it learned
        return measured

    def _prompts(self, wave: list[Question], turn: int, answers: list[list[str]]) -> dict[int, Prompt]:
        """Prompts of the questions that have this turn, by their place in the wave.

        One that cannot be asked, as it exceeds the context, is noted in ``skipped``, and so ends its conversation.
        """
        prompts: dict[int, Prompt] = {}
        for i, question in enumerate(wave):
            if turn < _turns(question) and len(answers[i]) == turn:
                try:
                    prompts[i] = self._prompt(question, turn, answers[i])
                except UserError as error:
                    note = {"id": item_id(question.item), "turn": turn + 1, "reason": str(error)}
                    if note not in self.skipped:
                        self.skipped.append(note)
        return prompts

    def _prompt(self, question: Question, turn: int, answers: list[str]) -> Prompt:
        """The turn's prompt behind the conversation so far; plain text where the model has no chat template."""
        item, tokenizer = question.item, self.engine.tokenizer
        messages: list[Message] = list(item.messages)
        if item.prompt is not None:
            return self._checked(encode(tokenizer, item.prompt))
        for text, answer in zip(item.turns, answers, strict=False):
            messages += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]
        if item.turns:
            messages.append({"role": "user", "content": item.turns[turn]})
        if not tokenizer.chat_template:
            return self._checked(encode(tokenizer, "\n".join(str(message["content"]) for message in messages)))
        return self._checked(render_chat(tokenizer, messages))

    def _checked(self, prompt: list[int]) -> Prompt:
        limit = self.engine.context_length
        if not 0 < len(prompt) < limit:
            raise InputError(f"the prompt has {len(prompt)} tokens; a context of {limit} takes 1 to {limit - 1}")
        return tuple(prompt)


def waves(questions: list[Question], concurrency: int, *, apart: bool = False) -> Iterator[list[Question]]:
    """The questions in order, as many at a time as the modes take turns over.

    One at a time where one is decoded at a time. Else enough to keep the engine at ``concurrency`` for most of a wave:
    an answer that ends makes room for the next question, as in service. ``apart``: none beside one of another category.
    """
    size = 1 if concurrency == 1 else _REFILLS * concurrency
    by_category: dict[tuple[str, ...], list[Question]] = {}
    for question in questions:
        by_category.setdefault(question.groups if apart else (), []).append(question)
    for alike in by_category.values():
        yield from (alike[start : start + size] for start in range(0, len(alike), size))


def _rounds(wave: list[Question], all_turns: bool) -> int:
    return max(_turns(question) for question in wave) if all_turns else 1


def _turns(question: Question) -> int:
    return max(1, len(question.item.turns))
