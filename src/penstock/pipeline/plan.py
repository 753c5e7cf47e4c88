"""The plan: what a pipeline would do, told before it does anything.

A pure function of the pipeline and of the namespaces that its source has now: which of them each sink gets,
through which steps, in what order, and with what guarantee; and what in it a person may not have meant.
Settings are shown as they were given, secrets and passwords masked.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.adaptors.base import Adaptor, Guarantee
from penstock.base.settings import settings_of
from penstock.functions.base import Function
from penstock.pipeline.definition import Pipeline, SinkNode, TransformNode

MASK = "***"

_PASSWORD = re.compile(r"(://[^:/?#@\s]*):[^\s]*@")
_PARAMETER = re.compile(
    r"([?&;](?:password|passwd|pwd|secret|token|api_?key|access_?key)=)[^&;\s]*", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One transformation on the way to a sink."""

    name: str
    function: str
    ns: str
    settings: Mapping[str, str]


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


def make_plan(pipeline: Pipeline, namespaces: Sequence[str] | None, problem: str | None = None) -> Plan:
    """Plan `pipeline` for a source that has these `namespaces`; None if they are not known."""
    pipeline.check()
    source = pipeline.source_node
    source.adaptor.source()
    here = None if namespaces is None else sorted(namespaces)
    read = None if here is None else tuple(ns for ns in here if source.ns.matches(ns))
    planned = PlannedSource(
        name=source.name,
        adaptor=source.adaptor.name,
        ns=str(source.ns),
        settings=shown_settings(source.adaptor),
        namespaces=read,
        left_out=tuple(ns for ns in here or () if not source.ns.matches(ns)),
    )
    sinks = tuple(_planned_sink(sink, read) for sink in pipeline.sink_nodes)
    warnings = (
        *_about_the_source(pipeline, here),
        *_about_the_sinks(pipeline, sinks),
        *_about_the_tree(pipeline),
    )
    return Plan(pipeline.name, planned, sinks, warnings, problem)


def shown_settings(thing: Adaptor | Function) -> dict[str, str]:
    """The settings that differ from their defaults, as text for a person: nothing secret in it."""
    if not dataclasses.is_dataclass(thing):
        return {}
    shown = {}
    for setting in settings_of(type(thing)):
        value: object = getattr(thing, setting.name)
        if value != setting.default or setting.required:
            shown[setting.name] = MASK if setting.secret else _masked(value)
    return shown


def _masked(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return _PARAMETER.sub(rf"\1{MASK}", _PASSWORD.sub(rf"\1:{MASK}@", text))


def _planned_sink(node: SinkNode, read: tuple[str, ...] | None) -> PlannedSink:
    sink = node.adaptor.sink()
    return PlannedSink(
        name=node.name,
        adaptor=node.adaptor.name,
        ns=str(node.ns),
        settings=shown_settings(node.adaptor),
        namespaces=None if read is None else tuple(ns for ns in read if node.ns.matches(ns)),
        steps=tuple(_planned_step(step) for step in node.steps),
        order=sink.order.value,
        guarantee=sink.guarantee.value,
    )


def _planned_step(step: TransformNode) -> PlannedStep:
    settings = shown_settings(step.function) if isinstance(step.function, Function) else {}
    return PlannedStep(step.name, step.label, str(step.ns), settings)


def _about_the_source(pipeline: Pipeline, here: Sequence[str] | None) -> Iterator[Remark]:
    source = pipeline.source_node
    if here is None:
        return
    if not here:
        yield Remark(source.name, "the source has no namespaces yet")
    elif not any(source.ns.matches(ns) for ns in here):
        yield Remark(
            source.name, f"'{source.ns}' matches none of its namespaces", f"there are: {_some(here)}"
        )
    yield from _more_than_it_seems(source.name, source.ns.surprises(here), str(source.ns))


def _about_the_sinks(pipeline: Pipeline, planned: Sequence[PlannedSink]) -> Iterator[Remark]:
    for node, sink in zip(pipeline.sink_nodes, planned, strict=True):
        if sink.guarantee == Guarantee.AT_LEAST_ONCE.value:
            yield Remark(sink.name, f"after a crash '{sink.adaptor}' may get messages again (at least once)")
        if sink.namespaces is None:
            continue
        if not sink.namespaces and not node.ns.everything:
            yield Remark(
                sink.name,
                f"'{sink.ns}' matches no namespace that is read",
                "a sink's pattern is tested on the name in the log, before any transformation",
            )
        yield from _more_than_it_seems(sink.name, node.ns.surprises(sink.namespaces), sink.ns)
        yield from _idle_steps(node, sink.namespaces)


def _idle_steps(node: SinkNode, namespaces: Sequence[str]) -> Iterator[Remark]:
    """Steps that no message will match; unknowable behind a step that may change namespaces."""
    for step in node.steps:
        if namespaces and not any(step.ns.matches(ns) for ns in namespaces):
            yield Remark(step.name, f"'{step.ns}' matches nothing on the way to '{node.name}'")
        if step.label not in ("omit", "pick", "rename", "skip"):
            return


def _about_the_tree(pipeline: Pipeline) -> Iterator[Remark]:
    used = {step.name for sink in pipeline.sink_nodes for step in sink.steps}
    for step in pipeline.transform_nodes:
        if step.name not in used:
            yield Remark(
                step.name, "leads to no sink, so it will not run", "add .save(...) behind it, or remove it"
            )
    source = pipeline.source_node
    for place, sink in enumerate(pipeline.sink_nodes):
        if _same_target(sink.adaptor, source.adaptor):
            yield Remark(sink.name, f"writes what '{source.name}' reads", "give the sink another target")
        for other in pipeline.sink_nodes[:place]:
            if _same_target(sink.adaptor, other.adaptor):
                yield Remark(
                    sink.name, f"writes the same target as '{other.name}'", "give each sink its own target"
                )


def _same_target(one: Adaptor, other: Adaptor) -> bool:
    target: object = getattr(one, "uri", None)
    return type(one) is type(other) and target is not None and target == getattr(other, "uri", None)


def _more_than_it_seems(node: str, surprises: Sequence[str], pattern: str) -> Iterator[Remark]:
    if surprises:
        yield Remark(
            node,
            f"'{pattern}' matches more than it seems: {_some(surprises)}",
            f"to mean whole names only, write '^({pattern})$'",
        )


def _some(names: Sequence[str]) -> str:
    """Enough names to recognise them by."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
