"""What functions make of messages, worked out again: for `tap`, `trace`, `try` and `test`. Needs no Spark.

Functions are free of side effects, so leading a message through them once more tells what happened to it, as
long as the pipeline file is the one that ran. The same code as in a run does it (`penstock.functions.chain`), one
function at a time, so that what stands before and behind each of them can be seen.

A DataFrame or SQL function runs in Spark only. The course ends there and says so; what comes behind is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.base.errors import UsageError, did_you_mean
from penstock.functions.base import Function
from penstock.functions.chain import Chain, NamespaceMatcher, Step
from penstock.log.message import Op
from penstock.log.record import Record
from penstock.pipeline.definition import Pipeline, SinkNode, TransformNode
from penstock.pipeline.records import Passing, StepTrace, passing

if TYPE_CHECKING:
    import pyarrow as pa

_COMMAND = Op.COMMAND.word


@dataclass(frozen=True, slots=True)
class Pass:
    """What one function did to a batch: the messages it was asked about, and what it made of them."""

    step: TransformNode
    into: Sequence[Passing]
    out: Sequence[Passing]
    """What it let through; a message may have become several, with the same offset."""
    refused: dict[int, str]
    """Offsets of messages that it could not process, and why."""


@dataclass(frozen=True, slots=True)
class Course:
    """What became of a batch on the way to one sink."""

    left_out: frozenset[int]
    """Offsets that the sink's own filter does not mean."""
    passes: Sequence[Pass]
    out: Sequence[Passing]
    """What comes out behind the last function that could be led over it."""
    needs_spark: str | None
    """The function at which the course ends, since only Spark can run it."""

    @property
    def refused(self) -> dict[int, tuple[str, str]]:
        """The node and the error for each offset that a function refused."""
        return {offset: (p.step.name, error) for p in self.passes for offset, error in p.refused.items()}


class AnyOf:
    """Matches what any of these would: a function may lie on the way to several sinks."""

    def __init__(self, matchers: Iterable[NamespaceMatcher]) -> None:
        self._matchers = tuple(matchers)

    def matches(self, ns: str) -> bool:
        return any(matcher.matches(ns) for matcher in self._matchers)


class _Everything:
    def matches(self, ns: str) -> bool:
        return True


def passed(records: Sequence[Record], sink: SinkNode) -> Course:
    """What becomes of these messages of the log on the way to a sink."""
    return led(records, sink.ns, sink.steps)


def led(records: Sequence[Record], accept: NamespaceMatcher, steps: Sequence[TransformNode]) -> Course:
    """Lead messages of the log through a filter and functions, as far as that is possible without Spark."""
    mine = [record for record in records if accept.matches(record.ns)]
    left_out = frozenset(record.offset for record in records) - {record.offset for record in mine}
    if not mine or not steps:
        return Course(left_out, (), [passing(record) for record in mine], _first_frame(steps))
    from penstock.spark.single import batch_of

    batch = batch_of(mine)
    passes: list[Pass] = []
    for step in steps:
        if not isinstance(step.function, Function):
            return Course(left_out, passes, rows_of(batch), step.name)
        done, batch = _one(batch, step, step.function)
        passes.append(done)
    return Course(left_out, passes, rows_of(batch), None)


def _one(batch: pa.RecordBatch, step: TransformNode, function: Function) -> tuple[Pass, pa.RecordBatch]:
    before = rows_of(batch)
    into = [row for row in before if row.op != _COMMAND and step.ns.matches(row.ns)]
    applied = Chain([Step(step.name, function, step.ns)]).apply(batch, _Everything())
    asked = {row.offset for row in into}
    out = [row for row in rows_of(applied.batch) if row.offset in asked]
    refused = {refusal.offset: refusal.error for refusal in applied.refused}
    return Pass(step, into, out, refused), applied.batch


def step_traces(course: Course, steps: Sequence[TransformNode], offset: int) -> list[StepTrace]:
    """What each function made of one message, which the sink's filter means."""
    traces = []
    here = True
    for done in course.passes:
        asked = [row for row in done.into if row.offset == offset]
        if not asked:
            traces.append(StepTrace(done.step.name, done.step.label, "not asked" if here else "not reached"))
            continue
        trace = _trace(done, asked, offset)
        here = trace.outcome not in ("dropped", "refused")
        traces.append(trace)
    for step in steps[len(course.passes) :]:
        traces.append(StepTrace(step.name, step.label, "not known" if here else "not reached"))
    return traces


def _trace(done: Pass, asked: Sequence[Passing], offset: int) -> StepTrace:
    name, label = done.step.name, done.step.label
    if offset in done.refused:
        return StepTrace(name, label, "refused", error=done.refused[offset])
    out = [row for row in done.out if row.offset == offset]
    if not out:
        return StepTrace(name, label, "dropped")
    return StepTrace(name, label, "passed" if out == list(asked) else "changed", out)


@dataclass(frozen=True, slots=True)
class Tapped:
    """A node to look at: whom it means, what lies before it, and which side of it is wanted."""

    node: str
    kind: str
    """source | function | sink"""
    side: str
    """in | out"""
    accept: NamespaceMatcher
    steps: Sequence[TransformNode] = ()

    def seen(self, records: Sequence[Record]) -> tuple[list[Passing], dict[int, str]]:
        """The messages that pass here, and of those that were refused here, the error by their offset."""
        if self.kind == "source":
            return [passing(record) for record in records], {}
        course = led(records, self.accept, self.steps)
        if course.needs_spark is not None:
            raise needs_spark(course.needs_spark)
        if self.kind == "sink":
            return list(course.out), {}
        if not course.passes:
            return [], {}
        last = course.passes[-1]
        return list(last.into if self.side == "in" else last.out), last.refused


def tapped(pipeline: Pipeline, node: str, side: str | None) -> Tapped:
    """The node of a pipeline to look at; by default what comes out of it, and at a sink what comes in."""
    if node == pipeline.source_node.name:
        if side == "in":
            raise UsageError(
                f"'{node}' is the source: what goes into it is not Penstock's to see", hint="leave out --in"
            )
        return Tapped(node, "source", "out", _Everything())
    for sink in pipeline.sink_nodes:
        if sink.name == node:
            if side == "out":
                raise UsageError(
                    f"'{node}' is a sink: what comes out of it is in its target",
                    hint="leave out --out; `penstock trace OFFSET` tells what it has acknowledged",
                )
            return Tapped(node, "sink", "in", sink.ns, sink.steps)
    step = function_node(pipeline, node)
    behind = [sink for sink in pipeline.sink_nodes if step in sink.steps]
    if not behind:
        raise UsageError(f"function '{node}' leads to no sink, so nothing passes it")
    steps = behind[0].steps[: behind[0].steps.index(step) + 1]
    return Tapped(node, "function", side or "out", AnyOf(sink.ns for sink in behind), steps)


def function_node(pipeline: Pipeline, node: str) -> TransformNode:
    """The function of this name in a pipeline."""
    for step in pipeline.transform_nodes:
        if step.name == node:
            return step
    others = {sink.name: "a sink" for sink in pipeline.sink_nodes} | {pipeline.source_node.name: "the source"}
    if node in others:
        raise UsageError(f"'{node}' is {others[node]} of pipeline '{pipeline.name}', not a function")
    names = [
        pipeline.source_node.name,
        *(step.name for step in pipeline.transform_nodes),
        *(sink.name for sink in pipeline.sink_nodes),
    ]
    raise UsageError(f"pipeline '{pipeline.name}' has no node '{node}'{did_you_mean(node, names)}")


def sink_node(pipeline: Pipeline, name: str) -> SinkNode:
    """The sink of this name in a pipeline."""
    for sink in pipeline.sink_nodes:
        if sink.name == name:
            return sink
    names = [sink.name for sink in pipeline.sink_nodes]
    raise UsageError(f"pipeline '{pipeline.name}' has no sink '{name}'{did_you_mean(name, names)}")


def needs_spark(step: str) -> UsageError:
    return UsageError(
        f"'{step}' is a function of a DataFrame: only Spark can run it",
        hint="look at a node before it, or write a case for it: `penstock test` starts Spark where it must",
    )


def rows_of(batch: pa.RecordBatch) -> list[Passing]:
    import pyarrow as pa

    columns = {
        name: (column.cast(pa.int64()) if name == "ts" else column).to_pylist()
        for name in ("offset", "ts", "mode", "op", "ns", "key", "data", "old_key")
        for column in [batch.column(name)]
    }
    return [Passing(*row) for row in zip(*columns.values(), strict=True)]


def _first_frame(steps: Sequence[TransformNode]) -> str | None:
    return next((step.name for step in steps if not isinstance(step.function, Function)), None)
