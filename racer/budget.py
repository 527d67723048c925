"""How many draft nodes each request verifies in a step: as many as raise the expected tokens per second.

Pure choice (:func:`plan_step`), and the little state around it (:class:`BudgetController`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from racer.draft.reliability import Reliability
from racer.draft.tree import DraftTree
from racer.step_time import StepTimes

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

StepMs = Callable[[Ints, int], Floats]
"""t(tokens int [n] ascending, requests): milliseconds [n] of a step."""


@dataclass(frozen=True)
class Plan:
    """The candidate nodes of a step in the order in which they are worth verifying.

    owners  int [candidates]           the request of each
    gain    float64 [candidates + 1]   expected tokens if so many are verified
    ms      float64 [candidates + 1]   the step's time then
    worth   float64 [candidates + 1]   what ``best``, the number to verify, is the maximum of

    ``plain_ms``: a step of these requests without drafts, and without anything else.
    """

    requests: int
    owners: Ints
    gain: Floats
    ms: Floats
    worth: Floats
    plain_ms: float

    @property
    def best(self) -> int:
        """Candidates that pay; of equals the fewest."""
        return int(np.argmax(self.worth))

    def sizes(self, count: int) -> list[int]:
        """Nodes of each request's tree, root included, if ``count`` candidates are verified."""
        sizes: list[int] = (1 + np.bincount(self.owners[:count], minlength=self.requests)).tolist()
        return sizes

    def saved_ms(self, count: int) -> list[float]:
        """By request: how long plain decoding takes for what its nodes among ``count`` bring, less their own time."""
        owners = self.owners[:count]
        own = np.bincount(owners, minlength=self.requests)
        tokens = np.bincount(owners, np.diff(self.gain)[:count], self.requests)
        more_ms = float(self.ms[count] - self.ms[0])
        saved: list[float] = (tokens * (self.plain_ms / self.requests) - own * (more_ms / max(1, count))).tolist()
        return saved


def plan_step(
    probs: Sequence[NDArray[np.floating]],
    step_ms: StepMs,
    *,
    fixed_tokens: int = 0,
    fixed_requests: int = 0,
    speedup: float | None = None,
) -> Plan:
    """Rank the draft nodes of all decoding requests, and say what each number of them is worth.

    ``probs`` holds an array for each request: acceptance probabilities of its nodes without the root, best first, as
    many as it may have. A request's nodes are taken in that order (any prefix is a tree), so each ranks by the least
    probability up to it. Every request decides one token whatever is drafted. ``fixed_tokens`` of ``fixed_requests``
    are in the step whatever is chosen (prefill).

    One step by itself is worth its expected tokens per millisecond, (requests + sum p) / t. Over many steps, easy ones
    and hard ones, tokens per second are most if each is worth its tokens less what its time earns elsewhere:
    ``speedup`` times plain decoding's rate with these requests. Without a ``speedup`` that rate is the best this step
    could have without the fixed tokens, which for none is the same choice as by the ratio. (With them the ratio would
    be wrong: in a step that is long anyway it pays almost anything for a token, and that time is missing afterwards.)
    """
    requests = len(probs)
    if requests == 0:
        nothing = np.zeros(1)
        return Plan(0, np.zeros(0, np.int64), nothing, nothing, nothing, 0.0)
    flat = np.concatenate(probs).astype(np.float64)
    ranks = np.concatenate([np.minimum.accumulate(own) for own in probs])
    owners = np.repeat(np.arange(requests), [len(own) for own in probs])
    order = np.argsort(-ranks, kind="stable")
    gain = requests + np.concatenate(([0.0], np.cumsum(flat[order])))
    tokens = np.arange(requests, requests + len(gain))
    ms = step_ms(tokens, requests)
    worth = gain / ms
    plain_ms = float(ms[0])
    rate = float(worth.max()) if speedup is None else speedup * requests / plain_ms
    if fixed_tokens:
        ms = step_ms(tokens + fixed_tokens, requests + fixed_requests)
    if fixed_tokens or speedup is not None:
        worth = gain - rate * ms
    return Plan(requests, owners[order], gain, ms, worth, plain_ms)


_LEAST_REACH = 4
_MARGIN = 8.0
"""How much less than the least likely node that paid a node may promise and still be proposed."""
_MEMORY_STEPS = 20
_PROBE_SHARE = 0.004
_PROBE_EVERY = 16
_PROBES_AFTER_CHANGE = (0.0, 0.25, 0.5, 2.0) * 2
"""Times as many nodes as pay, every other step."""


class Choice(NamedTuple):
    """By request: nodes of its tree to verify, root included, and what they save as predicted (see ``Plan``)."""

    sizes: list[int]
    saved_ms: list[float]


class BudgetController:
    """Chooses the nodes of each step's trees; keeps up with the machine and with how drafts fare.

    ``reliability`` is the drafter's, and both it and ``step_times`` are taught by whoever runs the steps.
    ``max_budget``: nodes a tree may have, root included.

    What is never tried is never corrected: now and then the controller verifies half or twice as many nodes as pay.
    What that costs, as predicted, stays below 0.4% of the time. When the machine has changed all at once, it
    tries a few sizes whatever they cost.
    """

    def __init__(self, step_times: StepTimes, reliability: Reliability, max_budget: int) -> None:
        self.step_times = step_times
        self.max_budget = max_budget
        self._reliability = reliability
        self._reach = float(max_budget)
        self._least_prob = 0.0
        self._tokens, self._plain_tokens = 0.0, 0.0
        self._credit = 0.0
        self._since_probe = 0
        self._probe_up = True
        self._changes = 0
        self._probes: deque[float] = deque()

    @property
    def limit(self) -> int:
        """Nodes, root included, that it makes sense to propose for a request: drafting is not free either.

        Twice the largest tree of the latest steps.
        """
        return min(self.max_budget, max(_LEAST_REACH, int(2 * self._reach)))

    @property
    def least_prob(self) -> float:
        """Nodes that promise less need not be proposed: those that paid lately promised far more."""
        return self._least_prob

    def choose(
        self, trees: Sequence[DraftTree], fixed_tokens: int = 0, fixed_requests: int = 0, *, paused: int = 0
    ) -> Choice:
        """Nodes of each tree to verify: it is to be cut to that prefix. Call it once a step.

        ``fixed_tokens`` of ``fixed_requests`` are in the step whatever is chosen. ``paused`` of the trees are roots
        because nothing was proposed for them.
        """
        if all(len(tree) == 1 for tree in trees):
            if paused < len(trees):
                self._least_prob *= 0.9  # what is never proposed is never seen to pay
            if trees and not fixed_tokens:
                self._remember(len(trees), len(trees))
                self._credit = min(1.0, self._credit + _PROBE_SHARE)
                self._since_probe += 1
            return Choice([1] * len(trees), [0.0] * len(trees))
        plan = plan_step(
            self._probs(trees),
            self.step_times.ms,
            fixed_tokens=fixed_tokens,
            fixed_requests=fixed_requests,
            speedup=self._tokens / self._plain_tokens if self._plain_tokens else None,
        )
        best = plan.best
        sizes = plan.sizes(best)
        self._reach = max(0.9 * self._reach, max(sizes))
        if fixed_tokens:
            return Choice(sizes, plan.saved_ms(best))
        self._follow_price(trees, sizes)
        self._remember(float(plan.gain[best]), plan.requests * float(plan.ms[best] / plan.ms[0]))
        return Choice(plan.sizes(self._probed(plan, best)), plan.saved_ms(best))

    def _follow_price(self, trees: Sequence[DraftTree], sizes: Sequence[int]) -> None:
        """What a node must promise to pay differs with load and machine: down at once, up slowly."""
        paid = [float(tree.probs[1:size].min()) for tree, size in zip(trees, sizes, strict=True) if size > 1]
        least = min(paid) if paid else max(float(tree.probs[1:].max()) for tree in trees if len(tree) > 1)
        self._least_prob = min(least / _MARGIN, self._least_prob / 0.9 if self._least_prob else 1.0)

    def _probs(self, trees: Sequence[DraftTree]) -> list[Floats]:
        sources = np.concatenate([tree.sources[1:] for tree in trees])
        probs = self._reliability.calibrated(sources, np.concatenate([tree.probs[1:] for tree in trees]))
        return np.split(probs, np.cumsum([len(tree) - 1 for tree in trees])[:-1])

    def _remember(self, tokens: float, plain_tokens: float) -> None:
        """How many tokens the latest step brings, and how many plain decoding would in the same time."""
        keep = 1.0 - 1.0 / _MEMORY_STEPS
        self._tokens = keep * self._tokens + tokens
        self._plain_tokens = keep * self._plain_tokens + plain_tokens

    def _probed(self, plan: Plan, best: int) -> int:
        """``best``, or now and then another number to learn from."""
        self._credit = min(1.0, self._credit + _PROBE_SHARE)
        if self._changes != self.step_times.changes:
            self._changes = self.step_times.changes
            self._probes = deque(_PROBES_AFTER_CHANGE)
            self._credit = 1.0
        self._since_probe += 1
        if self._since_probe < (2 if self._probes else _PROBE_EVERY):
            return best
        self._since_probe = 0
        if self._probes:
            return min(int(self._probes.popleft() * best), len(plan.owners))
        other = min(max(2 * best, plan.requests), len(plan.owners)) if self._probe_up or best == 0 else best // 2
        self._probe_up = not self._probe_up
        lost_steps = float((plan.ms[other] - plan.gain[other] * plan.ms[best] / plan.gain[best]) / plan.ms[best])
        if not lost_steps <= self._credit:
            return best
        self._credit -= max(0.0, lost_steps)
        return other
