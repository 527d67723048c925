"""The decoding engine: one verifying forward a step over all running sequences."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Generator, Iterable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from racer.config import Drafts, EngineConfig, TreeShape
from racer.draft.drafter import Drafter
from racer.draft.sources import Continuation, NgramSource
from racer.draft.tree import DraftTree
from racer.errors import ConfigError, ContextLengthError, InvalidRequestError, LogitsError
from racer.metrics import EngineMetrics, StepStats
from racer.model.attention import ATTENTION
from racer.model.layout import Segment
from racer.model.loader import LoadedModel, load
from racer.model.prior import model_prior
from racer.model.runner import ModelRunner
from racer.model.selftest import check_verifiable
from racer.model.topk import top_k
from racer.scheduler import Scheduler, Slot
from racer.sequence import Sequence
from racer.text import OutputText
from racer.types import DRAFT_SOURCES, Request, Source, StepOutput
from racer.verify.accept import walk
from racer.verify.sampling import token_logprob

_CONTEXT_FOR_SOURCE = 16
"""Newest tokens of a sequence that an n-gram source gets to see."""


class Engine:
    """Decodes requests with drafts, all running ones in one forward a step.

    Not thread-safe: one thread adds, aborts and steps (:class:`racer.async_engine.AsyncEngine` is that thread).
    ``source``: a shared n-gram store to draft from and to teach; the engine never waits longer for it than
    ``config.source_deadline_ms`` a step.
    """

    def __init__(
        self, config: EngineConfig, *, loaded: LoadedModel | None = None, source: NgramSource | None = None
    ) -> None:
        self.config = config
        self.loaded = loaded if loaded is not None else load(config, ATTENTION)
        self.tokenizer = self.loaded.tokenizer
        self.runner = ModelRunner(self.loaded.model, config.cache_bytes)
        check_verifiable(self.runner)
        self.context_length = self._context_length()
        prior = None
        if self._wants_prior():
            prior = model_prior(self.loaded, self.runner, config.top_k, config.prior_limit_s)
        self.drafter = Drafter(config, self.runner.vocab_size, prior)
        self.scheduler = Scheduler(self.runner.pool, config.max_running, config.prefill_chunk)
        self.metrics = EngineMetrics()
        self._source = source
        self._open: dict[str, list[Sequence]] = {}
        self._aborted: list[StepOutput] = []

    def _context_length(self) -> int:
        """Longest prompt plus answer: what was asked for, else what model and cache allow."""
        runner, wanted = self.runner, self.config.max_context
        of_model = min((n for n in (self.loaded.context_length, runner.context_cap) if n is not None), default=None)
        if wanted is not None and of_model is not None and wanted > of_model:
            raise ConfigError(f"max_context={wanted} exceeds this model's context; use at most {of_model}")
        if wanted is not None and wanted > runner.pool.places:
            raise ConfigError(
                f"max_context={wanted} does not fit the cache, which holds {runner.pool.places} tokens; raise "
                f"cache_bytes, or use at most {runner.pool.places}"
            )
        return wanted or min(of_model or runner.pool.places, runner.pool.places)

    def _wants_prior(self) -> bool:
        uses_logits = self.config.drafts in (Drafts.RACER, Drafts.LOGITS)
        return self.config.prior and uses_logits and self.config.tree is TreeShape.BEST

    # --- requests in and out

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises InvalidRequestError (or its ContextLengthError) if it can never be served; nothing is queued then.
        """
        if request.request_id in self._open:
            raise InvalidRequestError(f"request id {request.request_id!r} is already in use", param="request_id")
        max_new = self._check(request)
        params = request.params
        seed = params.seed if params.seed is not None else self.config.seed
        drafts = params.drafts if params.drafts is not None else self.config.drafts
        sequences = []
        for choice in range(params.n):
            sequences.append(
                Sequence(
                    request,
                    choice,
                    secrets.randbits(64) if seed is None else seed,
                    max_new,
                    self.loaded.eos_token_ids,
                    self.runner.vocab_size,
                    None if drafts is Drafts.OFF else self.drafter.open(drafts, params.tree),
                    OutputText(self.tokenizer, params.stop),
                )
            )
        self._open[request.request_id] = sequences
        for sequence in sequences:
            self.scheduler.add(sequence)

    def _check(self, request: Request) -> int:
        """Tokens that the request may decide at most."""
        prompt = request.prompt_token_ids
        if not prompt:
            raise InvalidRequestError("the prompt is empty; give it at least one token", param="prompt")
        vocab = self.runner.vocab_size
        bad = next((token for token in prompt if not 0 <= token < vocab), None)
        if bad is not None:
            raise InvalidRequestError(f"prompt token {bad} is not in the vocabulary of {vocab} tokens", param="prompt")
        for name, named in (
            ("logit_bias", request.params.logit_bias),
            ("stop_token_ids", request.params.stop_token_ids),
        ):
            bad = next((token for token in named if not 0 <= token < vocab), None)
            if bad is not None:
                raise InvalidRequestError(
                    f"{name} names token {bad}, which is not in the vocabulary of {vocab} tokens", param=name
                )
        room = self.context_length - len(prompt)
        wanted = request.params.max_tokens
        if room < 1:
            raise ContextLengthError(
                f"the prompt has {len(prompt)} tokens, but the context of {self.context_length} leaves room for an "
                f"answer only behind {self.context_length - 1}; shorten the prompt",
                param="prompt",
            )
        if wanted is not None and wanted > room:
            raise ContextLengthError(
                f"the prompt has {len(prompt)} tokens and max_tokens asks for {wanted}, together more than the context "
                f"of {self.context_length}; ask for at most {room}",
                param="max_tokens",
            )
        return wanted if wanted is not None else room

    def abort(self, request_id: str, *, announce: bool = True) -> None:
        """Stop a request at once; the next step delivers its last outputs with reason "abort". Unknown ids: no-op.

        Without ``announce`` nobody listens any more, and nothing further is delivered under its id.
        """
        for sequence in self._open.pop(request_id, []):
            if not sequence.finished:
                sequence.finish_reason = "abort"
                self.scheduler.remove(sequence)
                if announce:
                    self._aborted.append(sequence.take_output())

    @property
    def has_work(self) -> bool:
        """Something is waiting, running, or to be delivered."""
        return bool(self.scheduler.running or self.scheduler.waiting or self._aborted)

    def is_open(self, request_id: str) -> bool:
        """The request was added and is neither finished nor aborted."""
        return request_id in self._open

    def generate(self, requests: Iterable[Request]) -> Generator[StepOutput, None, None]:
        """Decode requests and yield what each step delivers, until all are finished.

        If one of them is refused, or the iterator is closed early, those that it added are aborted.
        """
        added = []
        try:
            for request in requests:
                self.add(request)
                added.append(request.request_id)
            while self.has_work:
                yield from self.step()
        finally:
            for request_id in added:
                self.abort(request_id, announce=False)

    # --- one step

    def step(self) -> list[StepOutput]:
        """Draft, verify in one forward, accept; returns what the running sequences may deliver."""
        outputs, self._aborted = self._aborted, []
        started = time.perf_counter()
        slots = self.scheduler.schedule({s: self._budget(s) for s in self.scheduler.running if s.decoding})
        if not slots:
            return outputs
        trees = self._draft(slots)
        drafted = time.perf_counter()
        logits = self.runner.run([self._segment(slot, tree) for slot, tree in zip(slots, trees, strict=True)])
        verified = time.perf_counter()
        decided = self._accept(slots, trees, logits)
        self._record(slots, trees, decided, started, drafted, verified)
        return outputs + decided

    def _budget(self, sequence: Sequence) -> int:
        """Nodes that the sequence's tree may have, root included.

        A draft deeper than what may still be decided is useless, so the last token is decided without one.
        """
        if sequence.drafts is None or sequence.remaining <= 1:
            return 1
        own = sequence.params.budget
        return self.config.budget if own is None else min(own, self.config.budget)

    def _draft(self, slots: list[Slot]) -> list[DraftTree]:
        found = self._lookup([slot.sequence for slot in slots if slot.budget > 1])
        trees = []
        for slot in slots:
            sequence = slot.sequence
            if sequence.drafts is not None and not sequence.text_learned:
                sequence.drafts.learn_text(np.array(sequence.tokens, np.int32))
                sequence.text_learned = True
            if sequence.decoding and sequence.drafts is not None:
                continuations = found.get(sequence, ())
                trees.append(sequence.drafts.propose(slot.budget, continuations, max_depth=sequence.remaining - 1))
            else:
                trees.append(DraftTree.root_only(sequence.tokens[sequence.cached + slot.chain - 1]))
        return trees

    def _lookup(self, sequences: list[Sequence]) -> dict[Sequence, list[Continuation]]:
        if self._source is None or not sequences:
            return {}
        contexts = [np.array(sequence.tokens[-_CONTEXT_FOR_SOURCE:], np.int32) for sequence in sequences]
        found = self._source.lookup(contexts, self.config.source_deadline_ms)
        return dict(zip(sequences, found, strict=True))

    def _segment(self, slot: Slot, tree: DraftTree) -> Segment:
        """The slot's pending tokens with the draft tree behind the last of them."""
        sequence, before = slot.sequence, slot.chain - 1
        parents = np.concatenate([np.arange(-1, before, dtype=np.int32), tree.parents[1:] + before])
        tokens = np.concatenate([sequence.chain(slot.chain), tree.tokens[1:]])
        return Segment(
            tokens, parents, self.scheduler.regions[sequence].start, sequence.cached, self._scored_from(slot)
        )

    def _scored_from(self, slot: Slot) -> int:
        """First row of the slot whose logits are needed: prompt rows teach the logits table, or are asked for."""
        sequence = slot.sequence
        if sequence.params.prompt_logprobs is not None or _learns_logits(sequence):
            return 0
        return slot.chain - 1 if slot.chain == sequence.pending else slot.chain

    def _accept(self, slots: list[Slot], trees: list[DraftTree], logits: Tensor) -> list[StepOutput]:
        tops = top_k(logits, self.config.top_k)
        outputs: list[StepOutput] = []
        source_places: list[NDArray[np.int64]] = []
        target_places: list[NDArray[np.int64]] = []
        row = 0
        for slot, tree in zip(slots, trees, strict=True):
            sequence = slot.sequence
            rows = slice(row, row + slot.chain - 1 + len(tree) - self._scored_from(slot))
            row = rows.stop
            path = self._verify(slot, tree, logits[rows], tops[0][rows], tops[1][rows])
            if sequence.finished:
                self._finish(sequence)
            else:
                start = self.scheduler.regions[sequence].start + sequence.cached + slot.chain - 1
                moved = np.array(path, np.int64)
                stays = moved == np.arange(len(path))
                source_places.append(start + moved[~stays])
                target_places.append(start + np.flatnonzero(~stays))
                self.scheduler.advance(sequence, slot.chain - 1 + len(path))
            output = sequence.take_output()
            if output.token_ids or output.finished or output.prompt_logprobs is not None:
                outputs.append(output)
        self.runner.copy_places(source_places, target_places)
        return outputs

    def _verify(
        self,
        slot: Slot,
        tree: DraftTree,
        logits: Tensor,
        top_tokens: NDArray[np.int32],
        top_probs: NDArray[np.float32],
    ) -> list[int]:
        """Decide the slot's next tokens, teach its drafts; returns the accepted nodes, the root first."""
        sequence, drafts = slot.sequence, slot.sequence.drafts
        self._score_prompt(slot, logits)
        if drafts is not None and not sequence.decoding and _learns_logits(sequence):
            before = sequence.tokens[sequence.cached - 1] if sequence.cached else -1
            drafts.learn_prompt(sequence.chain(slot.chain), top_tokens, top_probs, before)
        if slot.chain < sequence.pending:  # more of the prompt is to come: nothing is decided yet
            return [0]
        first = len(logits) - len(tree)  # row of the root
        if sequence.decoding:
            sequence.stats.steps += 1
            for source in DRAFT_SOURCES:
                sequence.stats.drafted[source] += int(np.count_nonzero(tree.sources == source))
        verified, decoding = len(sequence.tokens), sequence.decoding

        def choose(node: int) -> int:
            if not np.isfinite(top_probs[first + node, 0]):
                raise LogitsError(
                    "the model's logits are not finite; its weights may be damaged, or overflow in this dtype"
                )
            return int(top_tokens[first + node, 0]) if sequence.takes_argmax else sequence.choose(logits[first + node])

        def decide(node: int, token: int, source: Source) -> bool:
            return sequence.decide(token, source, logits[first + node])

        try:
            path = walk(tree, choose, decide).path
        except LogitsError as error:
            sequence.fail(error)
            return [0]
        if drafts is not None and not sequence.finished:
            if decoding:
                drafts.learn_tree(tree, path, top_tokens, top_probs)
                drafts.feedback(tree, path)
            drafts.learn_text(sequence.tokens[verified:])
        return path

    def _score_prompt(self, slot: Slot, logits: Tensor) -> None:
        """Log-probabilities of the prompt tokens that follow the slot's rows."""
        sequence = slot.sequence
        scores, top = sequence.prompt_logprobs, sequence.params.prompt_logprobs
        if scores is None or top is None:
            return
        for position in range(len(scores) - 1, min(sequence.cached + slot.chain, sequence.prompt_length - 1)):
            scores.append(token_logprob(logits[position - sequence.cached], sequence.tokens[position + 1], top))

    def _finish(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence)
        open_choices = self._open.get(sequence.request.request_id, [])
        if all(other.finished for other in open_choices):
            self._open.pop(sequence.request.request_id, None)
        if self._source is not None:
            self._source.learn(np.array(sequence.tokens, np.int32))

    def _record(
        self,
        slots: list[Slot],
        trees: list[DraftTree],
        outputs: list[StepOutput],
        started: float,
        drafted: float,
        verified: float,
    ) -> None:
        sources = np.concatenate([tree.sources for tree in trees] or [np.empty(0, np.uint8)])
        accepted: Counter[Source] = Counter()
        for output in outputs:
            accepted.update(source for source in output.sources if source is not Source.ROOT)
        self.metrics.record(
            StepStats(
                step_ms=(time.perf_counter() - started) * 1e3,
                draft_ms=(drafted - started) * 1e3,
                forward_ms=(verified - drafted) * 1e3,
                decoding=sum(slot.chain == 1 for slot in slots),
                prefilling=sum(slot.chain > 1 for slot in slots),
                tokens=sum(slot.chain - 1 + len(tree) for slot, tree in zip(slots, trees, strict=True)),
                decided=sum(len(output.token_ids) for output in outputs),
                drafted=Counter({s: n for s in DRAFT_SOURCES if (n := int(np.count_nonzero(sources == s)))}),
                accepted=accepted,
            )
        )

    def check_integrity(self) -> None:
        """Raise AssertionError unless cache, scheduler and open requests agree."""
        self.scheduler.check_integrity()
        live = {*self.scheduler.running, *self.scheduler.waiting}
        assert live == {s for group in self._open.values() for s in group if not s.finished}


def _learns_logits(sequence: Sequence) -> bool:
    return sequence.drafts is not None and sequence.drafts.drafts is not Drafts.RETRIEVAL
