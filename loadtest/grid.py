"""What a sweep varies: server settings times workloads times loads, each some times over."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from loadtest.errors import UserError
from loadtest.files import read_mapping
from loadtest.settings import Load, Section, parse

OWN = {"url", "model", "server", "workload", "seed", "first", "load", "drafts", "max_conversations", "watch_pid"}
"""Settings of a run that the sweep decides itself."""


def _off(value: Any) -> Any:
    """YAML reads a bare ``off`` as false."""
    return "off" if value is False else value


def _several(value: Any) -> Any:
    values = value if isinstance(value, list) else [value]
    return tuple(_off(one) for one in values)


Drafts = Literal["racer", "retrieval", "logits", "off"]
Store = Literal["off", "cold", "warm"]


class ServerSpec(Section):
    """Where a variant's requests go. Exactly one of config, command and url is set.

    ``config`` and ``command`` are started by the sweep, ``url`` runs already.
    """

    config: str | dict[str, Any] | None = Field(
        None, description="args of the application, or a file that `deployments serve --config` takes"
    )
    command: tuple[str, ...] | None = Field(
        None, min_length=1, description="another server: a command line in which {port} stands for its port"
    )
    url: str | None = Field(
        None, pattern=r"^https?://", description="a server that runs already: base URL with its /v1"
    )
    environment: dict[str, str] = Field(default_factory=dict, description="environment variables of what is started")
    kind: Literal["racer", "openai"] = Field("racer", description="openai: it has no fields and statistics of ours")
    model: str | None = Field(None, description="model to ask; None: the first that it lists")
    ready_timeout_s: float = Field(1800.0, gt=0.0, description="longest start")

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if sum(value is not None for value in (self.config, self.command, self.url)) != 1:
            raise ValueError("a server needs exactly one of config, command and url")
        if self.url is not None and (useless := sorted(self.model_fields_set & {"environment", "ready_timeout_s"})):
            raise ValueError(f"{useless[0]} is for a server that the sweep starts, not for a url; leave it out")
        return self


class Variants(Section):
    """One way to serve; where a setting has several values, one way for each combination."""

    name: str | None = Field(None, description="None: made of the settings")
    server: str | None = Field(None, description="name of the server; None: the only one")
    drafts: Annotated[tuple[Drafts, ...], BeforeValidator(_several)] = Field((), description="asked of each request")
    budget: Annotated[tuple[int | Literal["auto"], ...], BeforeValidator(_several)] = Field(
        (), description="the engine's draft budget: a number of nodes, or auto"
    )
    store: Annotated[tuple[Store, ...], BeforeValidator(_several)] = Field(
        (), description="off: none; cold: empty at the start of each run; warm: taught by other requests before it"
    )
    replicas: Annotated[tuple[int, ...], BeforeValidator(_several)] = Field((), description="replicas, fixed")


class Warming(Section):
    """How a warm store is taught: by conversations of the same workload that are not those measured."""

    conversations: int = Field(40, ge=1, description="how many")
    users: int = Field(8, ge=1, description="how many at a time")
    first: int = Field(0, ge=0, description="number of the first one (of a file: its line)")


class Grid(Section):
    """A sweep's file."""

    servers: dict[str, ServerSpec] = Field(min_length=1, description="servers by name")
    variants: tuple[Variants, ...] = Field(min_length=1, description="ways to serve")
    baseline: str | None = Field(None, description="variant the others are compared with; None: the first")
    workloads: tuple[str, ...] = Field(min_length=1, description="names or JSONL files")
    loads: tuple[Load, ...] = Field(min_length=1, description="loads")
    repeats: int = Field(3, ge=1, description="how often each run is made, each time with another seed")
    seed: int = Field(1, ge=0, description="of the first repeat")
    run: dict[str, Any] = Field(default_factory=dict, description="further settings of each run")
    warm: Warming = Field(default_factory=Warming, description="how warm stores are taught")
    settle: int = Field(8, ge=0, description="conversations, not counted, after a server's start")

    @model_validator(mode="after")
    def _run_has_no_own(self) -> Self:
        if wrong := sorted(OWN & set(self.run)):
            raise ValueError(f"run: the field {wrong[0]!r} is the sweep's to decide; leave it out")
        return self


@dataclass(frozen=True)
class Variant:
    """One way to serve. None: as the server's own settings say."""

    name: str
    server: str
    drafts: Drafts | None
    budget: int | Literal["auto"] | None
    store: Store | None
    replicas: int | None

    def options(self) -> dict[str, Any]:
        """Its settings, for a run's record."""
        found = {"server": self.server, "drafts": self.drafts, "budget": self.budget, "store": self.store}
        return found | {"replicas": self.replicas}


def read_grid(path: Path) -> Grid:
    """The grid in a YAML file.

    Raises:
        UserError: it is none; one sentence that names the field.
    """
    grid: Grid = parse(Grid, read_mapping(path), str(path))
    variants = variants_of(grid, str(path))
    if grid.baseline is not None and grid.baseline not in {variant.name for variant in variants}:
        raise UserError(f"{path}: baseline={grid.baseline!r} is no variant; they are {_listed(variants)}")
    if unused := sorted(set(grid.servers) - {variant.server for variant in variants}):
        raise UserError(f"{path}: no variant uses the server {unused[0]!r}; name it in one, or leave it out")
    if "warm" in grid.model_fields_set and all(variant.store != "warm" for variant in variants):
        raise UserError(f"{path}: warm says how stores are taught, and no variant has store: warm; leave it out")
    return grid


def variants_of(grid: Grid, where: str = "grid") -> list[Variant]:
    """All variants.

    Raises:
        UserError: two have one name, or a setting needs a server that the sweep starts.
    """
    found = [variant for several in grid.variants for variant in _combinations(several, grid, where)]
    names = [variant.name for variant in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"{where}: two variants are called {twice[0]!r}; give each a name of its own")
    return found


def _combinations(several: Variants, grid: Grid, where: str) -> Iterator[Variant]:
    server = several.server or (next(iter(grid.servers)) if len(grid.servers) == 1 else None)
    if server not in grid.servers:
        raise UserError(f"{where}: variant {several.name!r} needs server: one of {', '.join(grid.servers)}")
    spec = grid.servers[server]
    axes = {name: getattr(several, name) for name in ("drafts", "budget", "store", "replicas")}
    for values in itertools.product(*(axis or (None,) for axis in axes.values())):
        chosen = dict(zip(axes, values, strict=True))
        varied = [str(chosen[name]) for name, axis in axes.items() if len(axis) > 1]
        given = [f"{name}={value}" for name, value in chosen.items() if value is not None]
        name = " ".join([several.name, *varied]) if several.name else " ".join(given) or server
        if spec.config is None and (set(given) - {f"drafts={chosen['drafts']}"}):
            raise UserError(
                f"{where}: variant {name!r}: budget, store and replicas need a server "
                "with config, which the sweep starts"
            )
        if spec.kind == "openai" and chosen["drafts"] is not None:
            raise UserError(f"{where}: variant {name!r}: drafts are a field of this project's servers (kind: racer)")
        if useless := _useless(chosen):
            raise UserError(f"{where}: variant {name!r}: {useless} has no effect with drafts: {chosen['drafts']}")
        yield Variant(name, server, **chosen)


def _useless(chosen: dict[str, Any]) -> str | None:
    """A setting that the drafts leave without effect."""
    if chosen["drafts"] == "off" and chosen["budget"] is not None:
        return "budget"
    if chosen["drafts"] in ("off", "logits") and chosen["store"] in ("cold", "warm"):
        return f"store: {chosen['store']}"
    return None


def _listed(variants: list[Variant]) -> str:
    return ", ".join(variant.name for variant in variants)


def slug(text: str) -> str:
    """``text`` as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9._=-]+", "-", text).strip("-")
