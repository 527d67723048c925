"""One frozen, validated configuration for the engine.

Every field changes something observable, and ``tests/racer/test_config.py`` holds one test a field that shows it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, TypeAdapter, ValidationError

from racer.errors import ConfigError, UserError


class Drafts(StrEnum):
    """Where draft tokens come from."""

    RACER = "racer"
    RETRIEVAL = "retrieval"
    LOGITS = "logits"
    OFF = "off"


class TreeShape(StrEnum):
    """How a draft tree is grown."""

    BEST = "best"
    PAPER = "paper"
    CHAIN = "chain"


Budget = int | Literal["auto"]
"""Nodes in a draft tree, root included; auto: the budget controller chooses in each step."""


def _budget(value: Any) -> Budget:
    if value == "auto":
        return "auto"
    try:
        return TypeAdapter(Annotated[int, Field(ge=1, le=1024)]).validate_python(value)
    except ValidationError:
        raise ValueError("it must be auto or an integer from 1 to 1024") from None


SourceDeadline = float | Literal["auto"]
"""Milliseconds; auto: a part of what steps take lately."""


def _deadline(value: Any) -> SourceDeadline:
    if value == "auto":
        return "auto"
    try:
        return TypeAdapter(Annotated[float, Field(gt=0.0, allow_inf_nan=False)]).validate_python(value)
    except ValidationError:
        raise ValueError("it must be auto or a number of milliseconds above 0") from None


def one_sentence(error: ValidationError) -> tuple[str, str]:
    """The first problem of a pydantic error as ``(sentence, field)``."""
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"unknown field {field!r}; remove it or correct its name", field
    message = first["msg"].removeprefix("Value error, ")
    return f"{field}={first['input']!r} is not valid: {message[0].lower()}{message[1:]}", field


class Validated(BaseModel):
    """A frozen value object whose constructor raises one of our errors instead of pydantic's report."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise self._error(*one_sentence(error)) from None

    @classmethod
    def _error(cls, sentence: str, field: str) -> UserError:
        return ConfigError(sentence)


class EngineConfig(Validated):
    """Settings of one engine. Frozen: a change means a new engine.

    Sizes are in tokens, nodes or bytes as named; times carry their unit in the name.
    """

    model: str = Field("demo", description="'demo', a local folder, a GGUF file, or a Hub id")
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        "auto", description="auto: bfloat16 where the processor has instructions for it, else float32"
    )
    device: str = Field("auto", description="auto: cuda where there is one, else cpu; or a torch device string")
    trust_remote_code: bool = Field(False, description="run Python code that the model's repository brings")
    compile: bool = Field(
        True, description="on a processor code of the layers by torch's compiler, on a GPU CUDA graphs, where they work"
    )

    drafts: Drafts = Field(Drafts.RACER, description="sources of draft tokens")
    tree: TreeShape = Field(TreeShape.BEST, description="how the draft tree is grown")
    budget: Annotated[Budget, PlainValidator(_budget)] = Field(
        "auto",
        description="draft budget: nodes in a request's tree, root included; auto: in each step as many as pay (paper "
        "and chain trees: 64)",
    )
    max_budget: int = Field(64, ge=1, le=1024, description="largest draft budget that auto chooses")
    ngram: int = Field(10, ge=2, le=32, description="paper and chain trees: longest n-gram in the automaton (n)")
    top_k: int = Field(8, ge=1, le=64, description="next tokens remembered for each token in the logits table (k)")
    min_depth: int = Field(2, ge=1, le=32, description="paper and chain trees: shortest match that retrieves")
    max_automaton_nodes: int = Field(
        10_000, ge=64, description="paper and chain trees: automaton nodes a request may keep; oldest leaf goes first"
    )
    prior: bool = Field(True, description="use the model's prior table (computed once per model, then cached)")

    prior_limit_s: float = Field(900.0, gt=0.0, description="go without the prior table if computing it takes longer")

    cache_bytes: int | None = Field(
        None, ge=1, description="cap of the key-value cache; None: 1 GiB on cpu, 80% of the free memory on cuda"
    )
    max_context: int | None = Field(None, ge=2, description="longest prompt plus answer; None: what the model allows")
    max_running: int = Field(64, ge=1, description="sequences decoded in one step")
    prefill_chunk: int = Field(512, ge=1, description="prompt tokens processed in one step, over all requests")
    source_deadline_ms: Annotated[SourceDeadline, PlainValidator(_deadline)] = Field(
        "auto",
        description="longest wait for the shared n-gram store in a step; auto: a fifth of a step's time, at least 2",
    )
    seed: int | None = Field(
        None, ge=0, lt=2**64, description="seed of requests that bring none; None: fresh entropy for each"
    )
