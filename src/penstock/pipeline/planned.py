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
class PlannedSource:
    """The source; `namespaces` are those it will read, None if nobody could ask it."""

    name: str
    adaptor: str
    ns: str
    settings: Mapping[str, str]
    namespaces: tuple[str, ...] | None
    left_out: tuple[str, ...] = ()
    """Namespaces that are there and will not be read."""


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


@dataclass(frozen=True, slots=True)
class Remark:
    """Something about a node that a person may not have meant, and what to do about it."""

    node: str
    text: str
    hint: str | None = None


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
