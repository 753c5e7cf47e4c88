"""Messages delivered by an operator: the next one of a sink (`step`), or dead letters (`dead replay`). No Spark.

The message goes the way of every other: functions, staging, publishing, and only then the offset. What a sink needs
Spark for, a function of a DataFrame, cannot be stepped through; a run has to do it.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from penstock.adaptors.base import Refusal
from penstock.base.errors import UsageError
from penstock.base.secrets import mask
from penstock.functions.base import Function
from penstock.functions.chain import Step
from penstock.log import deadletters
from penstock.log.control import Detail
from penstock.log.deadletters import DeadLetter, DeadLetters, Death
from penstock.log.offsets import OffsetLog
from penstock.log.record import Record
from penstock.log.schema import LatestSchemas
from penstock.pipeline.definition import Pipeline, SinkNode
from penstock.pipeline.editing import Editor
from penstock.pipeline.engine import at_hand
from penstock.pipeline.recompute import needs_spark, sink_node
from penstock.pipeline.records import Replayed, Stepped
from penstock.spark.single import Bury, Delivered, SingleDelivery


def step(editor: Editor, pipeline: Pipeline, sink: str, count: int, *, bury: bool) -> Iterator[Stepped]:
    """Deliver the next messages of a sink, one by one, up to `count`; ends at one that is refused.

    With `bury`, a refused one goes to the dead letters, and the sink passes it.
    """
    node = sink_node(pipeline, sink)
    steps = chain_steps(node)
    editor.require_sink_still(pipeline.name, sink)
    reader = editor.directory.reader(pipeline.name)
    end = reader.state().next
    held = OffsetLog(editor.client, pipeline.name, sink, editor.clock())
    if held.state.commit.watermark >= end:
        raise UsageError(f"sink '{sink}' has everything: its offset and the log's are both {end - 1}")
    keep = _bury(editor, pipeline.name, sink, held) if bury else None
    with at_hand(pipeline), _delivery(editor, pipeline.name, node, steps, held, keep) as delivery:
        for record in reader.show(held.state.commit.watermark, end - 1):
            done = _stepped(sink, record, delivery.deliver_records([record]))
            editor.record(
                pipeline.name,
                "step",
                sink,
                {"offset": done.offset, "outcome": done.outcome, "error": done.error},
            )
            yield done
            count -= 1
            if not count or done.outcome == "refused":
                return


def _stepped(sink: str, record: Record, done: Delivered) -> Stepped:
    if done.refused is not None:
        error = mask(done.refused.error)
        return Stepped(sink, record.offset, record.ns, "refused", error, done.refused.node)
    outcome = "dead" if done.dead else "delivered" if done.delivered else "dropped"
    return Stepped(sink, record.offset, record.ns, outcome)


def replay(editor: Editor, pipeline: Pipeline, letters: Sequence[DeadLetter]) -> Iterator[Replayed]:
    """Send dead letters through their sinks' functions and sinks again, in the order of their numbers.

    One that is refused again stays dead, with the new reason.
    """
    editor.require_still(pipeline.name)
    nodes = {letter.sink: sink_node(pipeline, letter.sink) for letter in letters}
    steps = {name: chain_steps(node) for name, node in nodes.items()}
    found = deadletters.messages(editor.client, pipeline.name, [letter.number for letter in letters])
    dead = DeadLetters(editor.client, pipeline.name, editor.clock())
    for name, node in nodes.items():
        held = OffsetLog(editor.client, pipeline.name, name, editor.clock())
        with at_hand(pipeline), _delivery(editor, pipeline.name, node, steps[name], held, None) as delivery:
            for letter in letters:
                if letter.sink == name:
                    yield _replayed(editor, pipeline.name, dead, delivery, letter, found[letter.number])


def _replayed(
    editor: Editor,
    pipeline: str,
    dead: DeadLetters,
    delivery: SingleDelivery,
    letter: DeadLetter,
    message: Record,
) -> Replayed:
    refusal = delivery.redeliver(message)
    error = mask(refusal.error) if refusal is not None else None
    if refusal is None or error is None:
        dead.settle([letter.number], "replayed", editor.clock())
        done = Replayed(letter.number, letter.sink, letter.offset, "replayed")
    else:
        dead.retell(letter.number, refusal.node, error, editor.clock())
        done = Replayed(letter.number, letter.sink, letter.offset, "refused", error, refusal.node)
    detail: Detail = {
        "number": done.number,
        "offset": done.offset,
        "outcome": done.outcome,
        "error": done.error,
    }
    editor.record(pipeline, "dead-replay", letter.sink, detail)
    return done


def chain_steps(node: SinkNode) -> list[Step]:
    """The functions in front of a sink; refuses those that only Spark can run."""
    steps = []
    for step in node.steps:
        if not isinstance(step.function, Function):
            raise UsageError(
                f"sink '{node.name}': {needs_spark(step.name).message}",
                hint="a run delivers it: `penstock run`; after a refused batch it goes one message at a time",
            )
        steps.append(Step(step.name, step.function, step.ns))
    return steps


@contextmanager
def _delivery(
    editor: Editor, pipeline: str, node: SinkNode, steps: list[Step], held: OffsetLog, bury: Bury | None
) -> Iterator[SingleDelivery]:
    directory = editor.directory.directory
    inside = directory.scratch if directory is not None and directory.scratch.is_dir() else None
    state = functools.cache(lambda: editor.directory.reader(pipeline).state())
    sink = node.adaptor.sink()
    schemas = LatestSchemas(lambda ns: state().schema(ns), lambda: state().schemas())
    sink.use(schemas, f"{pipeline}.{node.name}")
    with tempfile.TemporaryDirectory(prefix="step-", dir=inside) as scratch:
        delivery = SingleDelivery(
            sink_name=node.name,
            sink=sink,
            accept=node.ns,
            steps=steps,
            offsets=held,
            log_id=editor.directory.log_id(pipeline),
            scratch=Path(scratch) / node.name,
            bury=bury,
            clock=editor.clock,
        )
        with delivery:
            yield delivery


def _bury(editor: Editor, pipeline: str, sink: str, held: OffsetLog) -> Bury:
    letters = DeadLetters(editor.client, pipeline, editor.clock())
    reader = editor.directory.reader(pipeline)

    def keep(refusal: Refusal) -> None:
        death = Death(refusal.offset, refusal.ns, refusal.node, mask(refusal.error))
        letters.add(sink, held.state.commit.generation, [death], reader, editor.clock())

    return keep
