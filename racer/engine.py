"""The decoding engine: one verifying forward a step over all running sequences."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Generator, Iterable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from racer.budget import BudgetController
from racer.config import Budget, Drafts, EngineConfig, TreeShape
from racer.deadline import LookupDeadline
from racer.draft.drafter import Drafter
from racer.draft.sources import NgramSource
from racer.draft.tree import DraftTree
from racer.drafting import StepDrafts
from racer.errors import ConfigError, ContextLengthError, InvalidRequestError
from racer.metrics import EngineMetrics, StepStats, count_depths
from racer.model.attention import ATTENTION
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
from racer.turn import Scores, Turn
from racer.types import DRAFT_SOURCES, Request, Source, StepOutput


class Engine:
    """Decodes requests with drafts, all running ones in one forward a step.

    Not thread-safe: one thread adds, aborts and steps (:class:`racer.async_engine.AsyncEngine` is that thread).
    ``source``: a shared n-gram store to draft from and to teach; the engine never waits longer for it than
    ``config.source_deadline_ms`` says. A request may bring another source of its own. ``step_curve``: step
    times, where ``config.budget`` is "auto"; measured, or read from the cache folder, if not given.

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
        self.runner = ModelRunner(self.loaded.model, config.cache_bytes, compile=config.compile)
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
        self._deadline = LookupDeadline(config.source_deadline_ms)
        self._drafts = StepDrafts(controller, source, self._deadline)
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
        drafts = self._draft()
        slots = self.scheduler.schedule({sequence: len(tree) for sequence, tree in drafts.items()})
        if not slots:
            return outputs
        turns = [Turn(slot, self._tree(slot, drafts)) for slot in slots]
        drafted = time.perf_counter()
        logits = self.runner.run([turn.segment(self.scheduler.regions[turn.sequence].start) for turn in turns])
        verified = time.perf_counter()
        decided = self._accept(turns, logits)
        self._record(turns, decided, started, drafted, verified)
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
        if sequence.drafts is not None and not sequence.text_learned:
            sequence.drafts.learn_text(np.array(sequence.tokens, np.int32))
            sequence.text_learned = True
        return DraftTree.root_only(sequence.tokens[sequence.cached + slot.chain - 1])

    def _accept(self, turns: list[Turn], logits: Tensor) -> list[StepOutput]:
        """Decide tokens for each turn, keep the accepted places, and collect what may be delivered."""
        tokens, probs = top_k(logits, self.config.top_k)
        outputs: list[StepOutput] = []
        moves: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        row = 0
        for turn in turns:
            sequence, cached = turn.sequence, turn.slot.chain - 1
            rows = slice(row, row + turn.tokens - turn.scored_from)
            row = rows.stop
            path = turn.verify(Scores(logits, rows, tokens[rows], probs[rows]))
            if sequence.finished:
                self._finish(sequence)
            else:
                if path[-1] >= len(path):  # some accepted node is not where a chain's would be
                    root = self.scheduler.regions[sequence].start + sequence.cached + cached
                    kept, places = np.array(path, np.int64), np.arange(len(path))
                    moved = kept != places
                    moves.append((root + kept[moved], root + places[moved]))
                self.scheduler.advance(sequence, cached + len(path))
            output = sequence.take_output()
            if output.token_ids or output.finished or output.prompt_logprobs is not None:
                outputs.append(output)
        self.runner.copy_places([source for source, _ in moves], [target for _, target in moves])
        return outputs

    def _finish(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence)
        open_choices = self._open.get(sequence.request.request_id, [])
        if all(other.finished for other in open_choices):
            self._open.pop(sequence.request.request_id, None)
        own = sequence.request.source
        source = self._source if own is None else own
        if source is not None:
            source.learn(np.array(sequence.tokens, np.int32), sequence.prompt_length)

    def _record(
        self, turns: list[Turn], outputs: list[StepOutput], started: float, drafted: float, verified: float
    ) -> None:
        sources = np.concatenate([turn.tree.sources for turn in turns])
        accepted: Counter[Source] = Counter(source for output in outputs for source in output.sources)
        del accepted[Source.ROOT]
        runs = [sum(source is not Source.ROOT for source in output.sources) for output in outputs]
        decoding = sum(turn.slot.chain == 1 for turn in turns)
        tokens = sum(turn.tokens for turn in turns)
        predicted_ms = self.step_times.step_ms(tokens, len(turns)) if self.step_times is not None else None
        step_ms = (time.perf_counter() - started) * 1e3
        fair = decoding == len(turns) and self.runner.timed_fairly
        if self.step_times is not None and self.budget == "auto" and fair:
            self.step_times.observe(tokens, len(turns), step_ms - (drafted - started) * 1e3)
        if fair:
            self._deadline.observe(step_ms - (drafted - started) * 1e3)
        self.metrics.record(
            StepStats(
                step_ms=step_ms,
                draft_ms=(drafted - started) * 1e3,
                forward_ms=(verified - drafted) * 1e3,
                predicted_ms=predicted_ms,
                decoding=decoding,
                prefilling=len(turns) - decoding,
                tokens=tokens,
                budgets=sum(len(turn.tree) for turn in turns if turn.slot.chain == 1),
                decided=sum(len(output.token_ids) for output in outputs),
                drafted=Counter({s: n for s in DRAFT_SOURCES if (n := int(np.count_nonzero(sources == s)))}),
                accepted=accepted,
                drafted_by_depth=count_depths(np.concatenate([turn.tree.depths for turn in turns])),
                accepted_by_depth=count_depths(
                    np.concatenate([np.arange(run + 1, dtype=np.int32) for run in (0, *runs)])
                ),
            )
        )

    def check_integrity(self) -> None:
        """Raise AssertionError unless cache, scheduler and open requests agree."""
        self.scheduler.check_integrity()
        live = {*self.scheduler.running, *self.scheduler.waiting}
        assert live == {s for group in self._open.values() for s in group if not s.finished}
