"""The plan: what a pipeline would do, told before it does anything.

A pure function of the pipeline and of what its outside systems say (`penstock.pipeline.inspecting`): which namespaces
each sink gets, through which steps, in what order, and with what guarantee; and what in it a person may not have meant.
Settings are shown as they were given, secrets and passwords masked. What may not have been meant is found by
`penstock.pipeline.remarks`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass, replace

from penstock.adaptors.base import Found
from penstock.base.secrets import MASK, mask
from penstock.base.settings import settings_of
from penstock.base.units import Unit, duration_text, size_text
from penstock.functions.base import Function
from penstock.functions.kinds import NamespaceFunction, TextFunction
from penstock.functions.sql import SqlFunction
from penstock.pipeline.atomic import atomic_nodes, commits_with
from penstock.pipeline.definition import Pipeline, SinkNode, TransformNode
from penstock.pipeline.planned import (
    NodeFinding,
    Plan,
    PlannedNamespace,
    PlannedSink,
    PlannedSource,
    PlannedStep,
    Remark,
)
from penstock.pipeline.remarks import remarks
from penstock.pipeline.saving import max_lag_text, policy_text

__all__ = [
    "Plan",
    "PlannedSink",
    "PlannedSource",
    "PlannedStep",
    "Remark",
    "arriving",
    "make_plan",
    "shown_settings",
]

_KEEP_NAMES = ("opfilter", "pretty")
"""Functions of whole messages that leave the namespace alone."""


def make_plan(
    pipeline: Pipeline,
    namespaces: Sequence[str | Found] | None,
    problem: str | None = None,
    findings: Sequence[NodeFinding] = (),
    master: str | None = None,
) -> Plan:
    """Plan `pipeline` for a source that has these `namespaces`; None if they are not known.

    `findings` are what the outside systems were found to lack; `master` is the Spark master that is to run it.
    """
    pipeline.check()
    source = pipeline.source_node
    source.adaptor.source()
    known = {one.ns: one for one in map(_found, namespaces or ())}
    here = None if namespaces is None else sorted(known)
    read = None if here is None else tuple(ns for ns in here if source.ns.matches(ns))
    planned = PlannedSource(
        name=source.name,
        adaptor=source.adaptor.name,
        ns=str(source.ns),
        settings=shown_settings(source.adaptor),
        namespaces=read,
        left_out=tuple(ns for ns in here or () if not source.ns.matches(ns)),
        found=tuple(PlannedNamespace(ns, known[ns].rows, tuple(known[ns].key)) for ns in read or ()),
    )
    atomic_nodes(pipeline)
    sinks = tuple(_planned_sink(pipeline, sink, read) for sink in pipeline.sink_nodes)
    plan = Plan(
        pipeline.name,
        planned,
        sinks,
        (),
        None if problem is None else mask(problem),
        shown_settings(pipeline.settings),
        tuple(findings),
    )
    return replace(plan, warnings=tuple(remarks(pipeline, plan, here, master)))


def _found(namespace: str | Found) -> Found:
    return Found(namespace) if isinstance(namespace, str) else namespace


def shown_settings(thing: object) -> dict[str, str]:
    """The settings that differ from their defaults, as text for a person: nothing secret in it."""
    if not is_dataclass(thing):
        return {}
    shown = {}
    for setting in settings_of(type(thing)):
        value: object = getattr(thing, setting.name)
        if value != setting.default or setting.required:
            shown[setting.name] = MASK if setting.secret else mask(_shown(value, setting.unit))
    return shown


def _shown(value: object, unit: Unit | None) -> str:
    if unit is not None and isinstance(value, (int, float)):
        return size_text(int(value)) if unit is Unit.BYTES else duration_text(value)
    if callable(value):
        return str(getattr(value, "__qualname__", type(value).__name__))
    return value if isinstance(value, str) else repr(value)


def _planned_sink(pipeline: Pipeline, node: SinkNode, read: tuple[str, ...] | None) -> PlannedSink:
    sink = node.adaptor.sink()
    got = None if read is None else tuple(ns for ns in read if node.ns.matches(ns))
    return PlannedSink(
        name=node.name,
        adaptor=node.adaptor.name,
        ns=str(node.ns),
        settings=shown_settings(node.adaptor),
        namespaces=got,
        steps=tuple(_planned_steps(node.steps, got)),
        order=sink.order.value,
        guarantee=sink.guarantee.value,
        on_error=policy_text(node.on_error),
        max_lag=None if node.max_lag is None else max_lag_text(node.max_lag),
        commits_with=commits_with(pipeline, node),
    )


def arriving(node: SinkNode, read: Sequence[str] | None) -> tuple[str, ...] | None:
    """The names under which what is `read` arrives at a sink; None if they are not known."""
    names = None if read is None else tuple(ns for ns in read if node.ns.matches(ns))
    for step in node.steps:
        names = _names_behind(step, names)
    return names


def _planned_steps(steps: Sequence[TransformNode], names: tuple[str, ...] | None) -> Iterator[PlannedStep]:
    """Each step with the names that it is applied to, among those that the steps before it leave."""
    for step in steps:
        matched = None if names is None else tuple(ns for ns in names if step.ns.matches(ns))
        known = isinstance(step.function, (Function, SqlFunction))
        settings = shown_settings(step.function) if known else {}
        yield PlannedStep(step.name, step.label, str(step.ns), settings, matched)
        names = _names_behind(step, names)


def _names_behind(step: TransformNode, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The names that messages may have after a step; None if it can give any."""
    if names is None or isinstance(step.function, TextFunction) or step.label in _KEEP_NAMES:
        return names
    if isinstance(step.function, NamespaceFunction):
        moved = step.function.moved
        return tuple(sorted({moved(ns) if step.ns.matches(ns) else ns for ns in names}))
    return None if any(step.ns.matches(ns) for ns in names) else names
