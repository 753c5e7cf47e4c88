"""Messages delivered by an operator: the next one of a sink (`step`), or dead letters (`dead replay`). No Spark.

The message goes the way of every other: functions, staging, publishing, and only then the offset. Sinks that commit
together are stepped together, by one decision. What a sink needs Spark for, a function of a DataFrame, cannot be
stepped through; a run has to do it.
"""

from __future__ import annotations

import functools
import itertools
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from penstock.adaptors.base import Refusal, Sink
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
from penstock.pipeline.atomic import atomic_nodes, decisions_of, leave_group
from penstock.pipeline.definition import Pipeline, SinkNode
from penstock.pipeline.editing import Editor
from penstock.pipeline.engine import at_hand
from penstock.pipeline.moves import refuse_unended
from penstock.pipeline.recompute import needs_spark, sink_node
from penstock.pipeline.records import Replayed, Stepped
from penstock.spark.single import SingleDelivery, SingleStager
from penstock.spark.singlevote import Bury, Passed, VotedDelivery, Voter


def step(editor: Editor, pipeline: Pipeline, sink: str, count: int, *, bury: bool) -> Iterator[Stepped]:
    """Deliver the next messages of a sink, one by one, up to `count`; ends at one that is refused.

    With `bury`, a refused one goes to the dead letters, and the sink passes it. A message of sinks that commit together
    is told of for each of them.
    """
    nodes = party(pipeline, sink)
    for node in nodes:
        chain_steps(node)
        editor.require_sink_still(pipeline.name, node.name)
    reader = editor.directory.reader(pipeline.name)
    log = reader.state()
    end = log.closed.offset
    with at_hand(pipeline), _by_hand(editor, pipeline, nodes, bury=bury) as delivery:
        at = delivery.watermark
        if at >= end:
            refuse_unended(log, at)
            raise UsageError(f"sink '{sink}' has everything: its offset and the log's are both {end - 1}")
        with delivery:
            for record in itertools.islice(reader.show(at, end - 1), count):
                stepped = [_stepped(record, passed) for passed in delivery.deliver(record)]
                for done in stepped:
                    detail: Detail = {"offset": done.offset, "outcome": done.outcome, "error": done.error}
                    editor.record(pipeline.name, "step", done.sink, detail)
                    yield done
                if any(done.outcome == "refused" for done in stepped):
                    return


def _stepped(record: Record, passed: Passed) -> Stepped:
    refusal = passed.refusal if passed.outcome == "refused" else None
    error, node = (mask(refusal.error), refusal.node) if refusal is not None else (None, None)
    return Stepped(passed.sink, record.offset, record.ns, passed.outcome, error, node)


def replay(editor: Editor, pipeline: Pipeline, letters: Sequence[DeadLetter]) -> Iterator[Replayed]:
    """Send dead letters through their sinks' functions and sinks again, in the order of their numbers.

    One that is refused again stays dead, with the new reason. Letters of one message at sinks that commit together are
    sent by one decision.
    """
    editor.require_still(pipeline.name)
    nodes = {letter.sink: sink_node(pipeline, letter.sink) for letter in letters}
    for node in nodes.values():
        chain_steps(node)
    found = deadletters.messages(editor.client, pipeline.name, [letter.number for letter in letters])
    dead = DeadLetters(editor.client, pipeline.name, editor.clock())
    parties = [[node.name for node in party(pipeline, name) if node.name in nodes] for name in nodes]
    for names in dict.fromkeys(map(tuple, parties)):
        mine = [letter for letter in letters if letter.sink in names]
        with (
            at_hand(pipeline),
            _by_hand(editor, pipeline, [nodes[name] for name in names], bury=False) as delivery,
            delivery,
        ):
            for same in _of_one_message(mine):
                refusal = delivery.redeliver(found[same[0].number], [letter.sink for letter in same])
                yield from [_replayed(editor, pipeline.name, dead, letter, refusal) for letter in same]


def _of_one_message(letters: Sequence[DeadLetter]) -> Iterable[Sequence[DeadLetter]]:
    """The letters by message, one of each sink: a sink that was rewound may have the same message dead twice."""
    found: dict[tuple[int, int], list[DeadLetter]] = {}
    for letter in letters:
        found.setdefault((letter.offset, letter.generation), []).append(letter)
    return found.values()


def _replayed(
    editor: Editor, pipeline: str, dead: DeadLetters, letter: DeadLetter, refusal: Refusal | None
) -> Replayed:
    """What became of a letter, on record."""
    if refusal is None:
        dead.settle([letter.number], "replayed", editor.clock())
        done = Replayed(letter.number, letter.sink, letter.offset, "replayed")
    else:
        error = mask(refusal.error)
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


def party(pipeline: Pipeline, sink: str) -> tuple[SinkNode, ...]:
    """The sink, and those that commit together with it."""
    node = sink_node(pipeline, sink)
    together = atomic_nodes(pipeline)
    return together if node in together else (node,)


class Alone:
    """A sink by itself, in the words of those that commit together."""

    def __init__(self, delivery: SingleDelivery, name: str, held: OffsetLog) -> None:
        self._delivery = delivery
        self._name = name
        self._held = held

    def __enter__(self) -> Alone:
        self._delivery.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._delivery.close()

    @property
    def watermark(self) -> int:
        return self._held.state.commit.watermark

    def deliver(self, record: Record) -> list[Passed]:
        done = self._delivery.deliver_records([record])
        if done.refused is not None:
            return [Passed(self._name, "refused", done.refused)]
        return [Passed(self._name, "dead" if done.dead else "delivered" if done.delivered else "dropped")]

    def redeliver(self, record: Record, sinks: Collection[str]) -> Refusal | None:
        return self._delivery.redeliver(record)


@contextmanager
def _by_hand(
    editor: Editor, pipeline: Pipeline, nodes: Sequence[SinkNode], *, bury: bool
) -> Iterator[Alone | VotedDelivery]:
    """The delivery to these sinks, whose offset logs it has from now on; to be entered to open their targets."""
    directory = editor.directory.directory
    inside = directory.scratch if directory is not None and directory.scratch.is_dir() else None
    together = nodes[0] in atomic_nodes(pipeline)
    if not together:
        names = [node.name for node in nodes]
        leave_group(editor.client, pipeline.name, names, editor.clock(), beside_a_run=True)
    held = {n.name: OffsetLog(editor.client, pipeline.name, n.name, editor.clock()) for n in nodes}
    keep = _bury(editor, pipeline.name, held) if bury else None
    log_id = editor.directory.log_id(pipeline.name)
    sinks = {node.name: _sink(editor, pipeline.name, node) for node in nodes}
    with tempfile.TemporaryDirectory(prefix="step-", dir=inside) as scratch:
        if all(sink.lanes for sink in sinks.values()):
            voters = [
                Voter(
                    SingleStager(n.name, sinks[n.name], n.ns, chain_steps(n), Path(scratch) / n.name),
                    held[n.name],
                )
                for n in nodes
            ]
            decisions = decisions_of(editor.client, pipeline.name, editor.clock()) if together else None
            yield VotedDelivery(voters, decisions, log_id, editor.clock, keep)
            return
        (node,) = nodes
        delivery = SingleDelivery(
            sink_name=node.name,
            sink=sinks[node.name],
            accept=node.ns,
            steps=chain_steps(node),
            offsets=held[node.name],
            log_id=log_id,
            scratch=Path(scratch) / node.name,
            bury=None if keep is None else functools.partial(keep, node.name),
            clock=editor.clock,
        )
        yield Alone(delivery, node.name, held[node.name])


def _sink(editor: Editor, pipeline: str, node: SinkNode) -> Sink:
    state = functools.cache(lambda: editor.directory.reader(pipeline).state())
    sink = node.adaptor.sink()
    sink.use(
        LatestSchemas(lambda ns: state().told(ns), lambda: state().all_told()), f"{pipeline}.{node.name}"
    )
    return sink


def _bury(editor: Editor, pipeline: str, held: Mapping[str, OffsetLog]) -> Bury:
    letters = DeadLetters(editor.client, pipeline, editor.clock())
    reader = editor.directory.reader(pipeline)

    def keep(sink: str, refusal: Refusal) -> None:
        death = Death(refusal.offset, refusal.ns, refusal.node, mask(refusal.error))
        letters.add(sink, held[sink].state.commit.generation, [death], reader, editor.clock())

    return keep
