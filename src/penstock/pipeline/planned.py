"""A plan as records: what each node of a pipeline would do, in texts and names that can be shown and printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One transformation on the way to a sink.

    `namespaces` are those of the sink's messages that it is applied to, by the names they have by then; None if they
    are not known, as behind a function that may give any name.
    """

    name: str
    function: str
    ns: str
    settings: Mapping[str, str]
    namespaces: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class PlannedNamespace:
    """A namespace that is read: about how many rows it has, None if nobody knows, and the fields of its key."""

    ns: str
    rows: int | None = None
    key: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedSource:
    """The source; `namespaces` are those it will read, None if nobody could ask it."""

    name: str
    adaptor: str
    ns: str
    settings: Mapping[str, str]
    namespaces: tuple[str, ...] | None
    left_out: tuple[str, ...] = ()
    """Namespaces that are there and will not be read."""
    found: tuple[PlannedNamespace, ...] = ()
    """Of those that will be read: what the source knows about them."""


@dataclass(frozen=True, slots=True)
class PlannedSink:
    """A sink; `namespaces` are those it will get, None if they are not known."""

    name: str
    adaptor: str
    ns: str
    settings: Mapping[str, str]
    namespaces: tuple[str, ...] | None
    steps: tuple[PlannedStep, ...]
    order: str
    guarantee: str
    on_error: str = "stop"
    max_lag: str | None = None
    commits_with: tuple[str, ...] = ()
    """The others of its atomic group: all of them have a batch, or none."""


@dataclass(frozen=True, slots=True)
class Remark:
    """Something about a node that a person may not have meant, and what to do about it."""

    node: str
    text: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class NodeFinding:
    """What is wrong at an outside system, and the statement or command that mends it, word for word.

    With a `fatal` one a run cannot work at all.
    """

    node: str
    what: str
    fix: str | None = None
    fatal: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What the pipeline would do. `problem` says why the namespaces are not known, if they are not."""

    pipeline: str
    source: PlannedSource
    sinks: tuple[PlannedSink, ...]
    warnings: tuple[Remark, ...]
    problem: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of the whole pipeline."""
    findings: tuple[NodeFinding, ...] = ()
    """What the outside systems lack."""
