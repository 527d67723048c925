"""Making a model's engine in a process of its own, as replicas and batch workers do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deployments.config import ModelConfig

if TYPE_CHECKING:
    from racer.async_engine import AsyncEngine


def load_engine(config: ModelConfig) -> AsyncEngine:
    """The engine on its thread, ready to decode. Raises what stands in the way."""
    import torch

    from racer.async_engine import AsyncEngine
    from racer.config import Drafts
    from racer.engine import Engine
    from racer.types import SamplingParams
    from racer.verify.sampling import sample

    torch.set_num_threads(config.replica_threads)

    def make() -> Engine:
        made = Engine(config.engine_config())
        if made.config.drafts is not Drafts.OFF:
            made.drafter.warm_up()
        sample(torch.zeros(2), SamplingParams(temperature=1.0), 0.5)  # compiles what draws
        return made

    return AsyncEngine(make)
