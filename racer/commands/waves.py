"""Decoding waves of questions in every mode, the modes taking turns."""

from __future__ import annotations

from collections.abc import Iterator

from racer.commands.conversations import encode, item_id
from racer.commands.inputs import Message
from racer.commands.measure import Measured, measure, measure_transformers
from racer.commands.modes import PLAIN, TRANSFORMERS, Mode, rotated
from racer.commands.suites import Question
from racer.commands.table import Result
from racer.commands.ties import compare
from racer.engine import Engine
from racer.model.loader import LoadedModel
from racer.text import render_chat

Prompt = tuple[int, ...]


class Bench:
    """Runs waves of questions in every mode."""

    def __init__(self, engine: Engine, modes: list[Mode], max_tokens: int, reference: LoadedModel | None) -> None:
        self.engine = engine
        self.modes = modes
        self.max_tokens = max_tokens
        self._reference = reference
        self._turn = 0

    def warm_up(self, question: Question) -> None:
        """Decode a few tokens in every mode, uncounted: first calls are slow."""
        prompt = self._prompt(question, 0, [])
        for mode in self.modes:
            self._measure(mode, [prompt], 8)

    def run(self, wave: list[Question], concurrency: int, all_turns: bool) -> list[Result]:
        """Every mode over the same prompts; conversations go on with plain decoding's answers."""
        answers: list[list[str]] = [[] for _ in wave]
        results = []
        for turn in range(max(_turns(question) for question in wave) if all_turns else 1):
            speaking = [i for i, question in enumerate(wave) if turn < _turns(question)]
            prompts = [self._prompt(wave[i], turn, answers[i]) for i in speaking]
            measured = {mode: self._measure(mode, prompts, self.max_tokens) for mode in rotated(self.modes, self._turn)}
            self._turn += 1
            for place, i in enumerate(speaking):
                plain = measured[PLAIN][place]
                answers[i].append(plain.text)
                for mode in self.modes:
                    one = measured[mode][place]
                    difference = compare(self.engine, prompts[place], plain.token_ids, one.token_ids)
                    results.append(Result(item_id(wave[i].item), wave[i].groups, mode, concurrency, one, difference))
        return results

    def _measure(self, mode: Mode, prompts: list[Prompt], max_tokens: int) -> list[Measured]:
        if self._reference is not None and mode.drafts == TRANSFORMERS:
            return measure_transformers(self._reference, prompts, max_tokens)
        return measure(self.engine, mode, prompts, max_tokens)

    def _prompt(self, question: Question, turn: int, answers: list[str]) -> Prompt:
        """The turn's prompt behind the conversation so far; plain text where the model has no chat template."""
        item, tokenizer = question.item, self.engine.tokenizer
        messages: list[Message] = list(item.messages)
        if item.prompt is not None:
            return tuple(encode(tokenizer, item.prompt))
        for text, answer in zip(item.turns, answers, strict=False):
            messages += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]
        if item.turns:
            messages.append({"role": "user", "content": item.turns[turn]})
        if not tokenizer.chat_template:
            return tuple(encode(tokenizer, "\n".join(str(message["content"]) for message in messages)))
        return tuple(render_chat(tokenizer, messages))


def waves(questions: list[Question], size: int) -> Iterator[list[Question]]:
    """The questions in order, ``size`` at a time; the last wave may be smaller."""
    return (questions[start : start + size] for start in range(0, len(questions), size))


def _turns(question: Question) -> int:
    return max(1, len(question.item.turns))
