"""The typed settings of one run. Unknown fields are refused by name; a master sends them to its workers as JSON."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from loadtest.errors import UserError

_GOOD_SHARE = 0.99


class Section(BaseModel):
    """Frozen, and strict about names."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Step(Section):
    """So many users for so long."""

    users: int = Field(ge=0, description="conversations under way at a time")
    seconds: float = Field(gt=0.0, description="how long")


class Load(Section):
    """How requests arrive: closed loop (users, steps) or open loop (rate, replay). Exactly one is set."""

    users: int | None = Field(
        None, ge=1, description="closed loop: each user begins a conversation as its last one ends"
    )
    steps: tuple[Step, ...] | None = Field(None, min_length=1, description="closed loop: users that change over time")
    rate: float | None = Field(None, gt=0.0, description="open loop: conversations begun per second, Poisson arrivals")
    replay: float | None = Field(None, gt=0.0, description="open loop: a log's own times, so many times as fast")

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if sum(value is not None for value in (self.users, self.steps, self.rate, self.replay)) != 1:
            raise ValueError("give exactly one of users, steps, rate and replay")
        return self

    @property
    def open_loop(self) -> bool:
        """Whether arrivals are independent of how fast the server answers."""
        return self.rate is not None or self.replay is not None

    @property
    def label(self) -> str:
        """The load in a few words: ``8 users``."""
        if self.users is not None:
            return f"{self.users} user{'s' if self.users > 1 else ''}"
        if self.steps is not None:
            return "steps " + ", ".join(f"{step.users}x{step.seconds:g}" for step in self.steps)
        return f"{self.rate:g}/s" if self.rate is not None else f"replay x{self.replay:g}"


class Limits(Section):
    """What an answer must keep to be a good one, and how many must be good for the limits to hold."""

    ttft_ms: float | None = Field(None, gt=0.0, description="time to first token")
    time_per_token_ms: float | None = Field(None, gt=0.0, description="mean time of a token after the first")
    good_share: float = Field(
        _GOOD_SHARE, gt=0.0, le=1.0, description="part of the requests that must keep both limits"
    )
    error_share: float = Field(0.0, ge=0.0, le=1.0, description="part of the requests that may fail")

    @model_validator(mode="after")
    def _share_of_something(self) -> Self:
        if self.ttft_ms is None and self.time_per_token_ms is None and self.good_share != _GOOD_SHARE:
            raise ValueError("good_share needs a limit, ttft_ms or time_per_token_ms; error_share is about failures")
        return self


class RunSettings(Section):
    """One run: an endpoint, a workload, a load, and for how long."""

    url: str = Field(pattern=r"^https?://", description="base URL of the API, with its /v1")
    model: str | None = Field(None, description="what goes into the field model; None: the first that the server lists")
    server: Literal["racer", "openai"] = Field(
        "racer", description="racer: requests ask for return_stats; openai: nothing beyond OpenAI's API is asked for"
    )
    workload: str = Field("chat", description="name of a workload, or path of a JSONL file")
    seed: int = Field(1, ge=0, description="of the workload and the arrivals")
    first: int = Field(0, ge=0, description="number of the conversation to begin with")
    load: Load = Field(description="how requests arrive")
    duration_s: float | None = Field(
        None, gt=0.0, description="measured part; None: a minute, or as long as the steps or the replayed log take"
    )
    warmup_s: float = Field(0.0, ge=0.0, description="load before it that is not counted")
    drain_s: float = Field(60.0, ge=0.0, description="how long requests may finish after it; then they count as failed")
    timeout_s: float = Field(300.0, gt=0.0, description="longest answer; then it has failed")
    think_s: float = Field(0.0, ge=0.0, description="pause between the turns of a conversation")
    max_conversations: int | None = Field(None, ge=1, description="begin no more than so many, then end early")
    max_tokens: int | None = Field(None, ge=1, description="cap of every answer, over the workload's own")
    drafts: Literal["racer", "retrieval", "logits", "off"] | None = Field(None, description="field of every request")
    budget: int | None = Field(None, ge=1, description="field of every request: cap of the draft tree")
    limits: Limits = Field(default_factory=Limits, description="what the answers are held to")
    price_per_replica_hour: float | None = Field(None, gt=0.0, description="for the cost of a million tokens")
    replicas: int | None = Field(None, ge=1, description="replicas that are paid for; None: as /metrics shows them")
    poll_s: float = Field(5.0, ge=0.0, description="how often /metrics is read; 0: before and after only")
    watch_pid: int | None = Field(None, ge=1, description="process whose memory, with its children's, is recorded")

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        if self.server == "openai" and (self.drafts or self.budget):
            raise ValueError(
                "drafts and budget are fields of this project's endpoint; use server=racer or leave them out"
            )
        if self.load.steps is not None and (self.warmup_s or self.duration_s):
            raise ValueError("steps have their own times and no warm-up; leave warmup_s and duration_s out")
        if self.load.replay is not None and self.first:
            raise ValueError("a replay begins with its log's first line; leave first out")
        return self

    @property
    def api(self) -> str:
        """The URL without a slash at its end."""
        return self.url.rstrip("/")


def parse(kind: type[Section], values: Any, where: str) -> Any:
    """``values`` as a ``kind``.

    Raises:
        UserError: they are none; one sentence that begins with ``where`` and names the field.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise UserError(f"{where}: unknown field {field!r}; remove it or correct its name") from None
        if first["type"] == "missing":
            raise UserError(f"{where}: the field {field!r} is missing; add it") from None
        message = first["msg"].removeprefix("Value error, ")
        said = f"{message[0].lower()}{message[1:]}"
        about = f"{field}={first['input']!r} is not valid: " if field and first["type"] != "value_error" else ""
        raise UserError(f"{where}: {about}{said}") from None
