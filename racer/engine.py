"""The decoding engine: one verifying forward a step over all running sequences."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from racer.budget import BudgetController
from racer.config import Budget, Drafts, EngineConfig, TreeShape
from racer.draft.drafter import Drafter
from racer.draft.sources import NgramSource
from racer.draft.tree import DraftTree
from racer.drafting import StepDrafts
from racer.errors import ContextLengthError, InvalidRequestError
from racer.metrics import EngineMetrics, StepStats
from racer.model.attention import ATTENTION
from racer.model.layout import Segment
from racer.model.loader import LoadedModel, load
from racer.model.prior import model_prior
from racer.model.runner import ModelRunner
from racer.model.selftest import check_verifiable
from racer.model.step_time import model_step_curve
from racer.model.topk import top_k
from racer.scheduler import Scheduler, Slot
from racer.sequence import Sequence
from racer.step_curve import StepCurve
from racer.step_time import StepTimes
from racer.text import OutputText
from racer.types import DRAFT_SOURCES, Request, Source, StepOutput
from racer.verify.accept import walk
from racer.verify.sampling import token_logprob


class Engine:
    """Decodes requests with drafts, all running ones in one forward a step.

    Not thread-safe: one thread adds, aborts and steps (:class:`racer.async_engine.AsyncEngine` is that thread).
    ``source``: a shared n-gram store to draft from and to teach; the engine never waits longer for it than
    ``config.source_deadline_ms`` a step. ``step_curve``: step times, where ``config.budget`` is "auto"; measured, or
    read from the cache folder, if not given.

    ``budget`` is the configured one. Experiments may set it to a number, and back, between steps.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        loaded: LoadedModel | None = None,
        source: NgramSource | None = None,
        step_curve: StepCurve | None = None,
    ) -> None:
        self.config = config
        self.budget: Budget = config.budget
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
        self.step_times: StepTimes | None = None
        controller = None
        if config.budget == "auto":
            self.step_times = StepTimes(
                step_curve or model_step_curve(self.loaded, self.runner, config.max_running, config.top_k)
            )
            controller = BudgetController(self.step_times, self.drafter.reliability[TreeShape.BEST], config.max_budget)
        self._drafts = StepDrafts(controller, source, config.source_deadline_ms)
        self._source = source
        self._open: dict[str, list[Sequence]] = {}
        self._aborted: list[StepOutput] = []

    def _context_length(self) -> int:
        runner = self.runner
        limits = [self.config.max_context, self.loaded.context_length, runner.context_cap, runner.pool.places]
        return min(limit for limit in limits if limit is not None)

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
        bad = next((token for token in request.params.logit_bias if not 0 <= token < vocab), None)
        if bad is not None:
            raise InvalidRequestError(
                f"logit_bias names token {bad}, which is not in the vocabulary of {vocab} tokens", param="logit_bias"
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

    def abort(self, request_id: str) -> None:
        """Stop a request at once; the next step delivers its last outputs with reason "abort". Unknown ids: no-op."""
        for sequence in self._open.pop(request_id, []):
            if not sequence.finished:
                sequence.finish_reason = "abort"
                self.scheduler.remove(sequence)
                self._aborted.append(sequence.take_output())

    @property
    def has_work(self) -> bool:
        """Something is waiting, running, or to be delivered."""
        return bool(self.scheduler.running or self.scheduler.waiting or self._aborted)

    def is_open(self, request_id: str) -> bool:
        """The request was added and is neither finished nor aborted."""
        return request_id in self._open

    def generate(self, requests: Iterable[Request]) -> Iterator[StepOutput]:
        """Decode requests and yield what each step delivers, until all are finished."""
        for request in requests:
            self.add(request)
        while self.has_work:
            yield from self.step()

    # --- one step

    def step(self) -> list[StepOutput]:
        """Draft, verify in one forward, accept; returns what the running sequences may deliver."""
        outputs, self._aborted = self._aborted, []
        started = time.perf_counter()
        drafts = self._draft()
        slots = self.scheduler.schedule({sequence: len(tree) for sequence, tree in drafts.items()})
        if not slots:
            return outputs
        trees = [self._tree(slot, drafts) for slot in slots]
        drafted = time.perf_counter()
        logits = self.runner.run([self._segment(slot, tree) for slot, tree in zip(slots, trees, strict=True)])
        verified = time.perf_counter()
        decided = self._accept(slots, trees, logits)
        self._record(slots, trees, decided, started, drafted, verified)
        return outputs + decided

    def _draft(self) -> dict[Sequence, DraftTree]:
        """Draft trees of the sequences that decode."""
        decoding = [sequence for sequence in self.scheduler.running if sequence.decoding]
        return self._drafts.propose(decoding, self.budget, *self.scheduler.prefill_ahead())

    def _tree(self, slot: Slot, drafted: dict[Sequence, DraftTree]) -> DraftTree:
        """The slot's draft, cut to the places it was given; the root alone while it is being prefilled."""
        sequence = slot.sequence
        if sequence.decoding:
            return drafted[sequence].prefix(slot.budget)
        if sequence.drafts is not None and sequence.cached == 0 and sequence.decided == 0:
            sequence.drafts.learn_text(np.array(sequence.tokens, np.int32))
        return DraftTree.root_only(sequence.tokens[sequence.cached + slot.chain - 1])

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
            return int(top_tokens[first + node, 0]) if sequence.takes_argmax else sequence.choose(logits[first + node])

        def decide(node: int, token: int, source: Source) -> bool:
            return sequence.decide(token, source, logits[first + node])

        path = walk(tree, choose, decide).path
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
        decoding = sum(slot.chain == 1 for slot in slots)
        tokens = sum(slot.chain - 1 + len(tree) for slot, tree in zip(slots, trees, strict=True))
        predicted_ms = self.step_times.step_ms(tokens, len(slots)) if self.step_times is not None else None
        step_ms = (time.perf_counter() - started) * 1e3
        if self.step_times is not None and self.budget == "auto" and decoding == len(slots):
            self.step_times.observe(tokens, len(slots), step_ms)
        self.metrics.record(
            StepStats(
                step_ms=step_ms,
                draft_ms=(drafted - started) * 1e3,
                forward_ms=(verified - drafted) * 1e3,
                predicted_ms=predicted_ms,
                decoding=decoding,
                prefilling=len(slots) - decoding,
                tokens=tokens,
                budgets=sum(len(tree) for slot, tree in zip(slots, trees, strict=True) if slot.chain == 1),
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
