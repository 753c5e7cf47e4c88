"""What became of one message at every node: from the log, through each function, to each sink.

What functions made of it is worked out again (`recompute`), so it is what the pipeline file says today. What each
sink has is told by its offset log, the dead letters and the control journal, in that order: acknowledging without
sending is an operator's act, and on record there as long as the journal goes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.base.errors import UsageError
from penstock.log.control import ControlEntry
from penstock.log.deadletters import DeadLetter
from penstock.log.offsets import Commit
from penstock.log.record import Record
from penstock.pipeline.definition import Pipeline, SinkNode
from penstock.pipeline.operations import Directory, utc
from penstock.pipeline.recompute import passed, step_traces
from penstock.pipeline.records import SinkTrace, StepTrace, Trace, entry


def trace(directory: Directory, name: str, offset: int, pipeline: Pipeline | None = None) -> Trace:
    """Follow one message. Without the pipeline's definition, functions and filters are not known."""
    end = directory.reader(name).state().next
    if not 0 <= offset < end:
        held = (
            f"the log of '{name}' has the offsets 0 to {end - 1}" if end else f"the log of '{name}' is empty"
        )
        raise UsageError(f"{held}, asked for {offset}")
    record = directory.message(name, offset)
    dead, audit = directory.dead(name), directory.audit(name)
    nodes = {sink.name: sink for sink in pipeline.sink_nodes} if pipeline else {}
    sinks = []
    for sink in sorted({*nodes, *directory.sinks(name)}):
        commit = directory.loaded(name, sink).commit
        letters = [letter for letter in dead if letter.sink == sink and letter.offset == offset]
        edits = [edit for edit in audit if edit.sink == sink]
        traced = _sink(sink, nodes.get(sink), record, offset, commit, letters, edits)
        error = directory.stopped_by(name, sink, offset) if traced.outcome == "pending" else None
        if error is not None and offset == commit.watermark:
            traced = replace(traced, detail=f"the last run stopped here: {error}; {traced.detail}")
        sinks.append(traced)
    source = pipeline.source_node.name if pipeline else None
    return Trace(name, offset, entry(record) if record is not None else None, sinks, source)


def _sink(
    name: str,
    node: SinkNode | None,
    record: Record | None,
    offset: int,
    commit: Commit,
    letters: Sequence[DeadLetter],
    edits: Sequence[ControlEntry],
) -> SinkTrace:
    steps: Sequence[StepTrace] = ()
    meant = True
    if node is not None and record is not None:
        meant = node.ns.matches(record.ns)
        steps = step_traces(passed([record], node), node.steps, offset) if meant else ()
    outcome, detail = _reached(offset, commit, letters, edits)
    if outcome in ("acknowledged", "pending"):
        outcome, detail = _expected(outcome, detail, node, steps, meant=meant)
    return SinkTrace(name, outcome, detail, steps, commit.watermark)


def _reached(
    offset: int, commit: Commit, letters: Sequence[DeadLetter], edits: Sequence[ControlEntry]
) -> tuple[str, str]:
    """What the journals say about a message and a sink."""
    here = f"the sink's offset is {commit.watermark - 1}, generation {commit.generation}"
    for letter in sorted(letters, key=lambda letter: -letter.number):
        if letter.generation == commit.generation:
            words = {"dead": "dead", "replayed": "replayed", "dropped": "given up"}
            return words[
                letter.state
            ], f"dead letter {letter.number}: '{letter.node}' refused it: {letter.error}"
    who = skipped_by(offset, commit.generation, edits)
    if offset < commit.watermark:
        return ("skipped by operator", who) if who is not None else ("acknowledged", here)
    if offset in commit.acked:
        return "skipped by operator", f"{who or 'acknowledged ahead of its turn'}; {here}"
    if offset < commit.careful:
        here = f"{here}; it will be delivered by itself, since a batch that held it was refused"
    return "pending", here


def _expected(
    outcome: str, detail: str, node: SinkNode | None, steps: Sequence[StepTrace], *, meant: bool
) -> tuple[str, str]:
    """What filters and functions make of it is more than that it was, or will be, acknowledged."""
    if node is not None and not meant:
        return "left out", f"the sink's ns is '{node.ns}'; {detail}"
    last = next((step for step in steps if step.outcome in ("dropped", "refused")), None)
    if last is not None and last.outcome == "dropped":
        return "dropped", f"by '{last.node}'; {detail}"
    if last is not None:
        return outcome, f"'{last.node}' refuses it today; {detail}"
    return outcome, detail


def skipped_by(offset: int, generation: int, edits: Sequence[ControlEntry]) -> str | None:
    """Who acknowledged a message without sending it in this generation, and when; None if nobody is on record."""
    found = None
    for edit in edits:
        told = edit.detail
        before, after = told.get("from"), told.get("to")
        if edit.action in ("mark", "import") and isinstance(before, int) and isinstance(after, int):
            forward = before < offset <= after and told.get("generation") == generation
            found = _by(edit, f"offset {edit.action} to {after}") if forward else found
            if after < offset <= before:
                found = None  # set back behind it: it was, or will be, sent after all
        given = told.get("offsets")
        if edit.action == "ack" and isinstance(given, list) and offset in given:
            found = _by(edit, "offset ack")
    return found


def _by(edit: ControlEntry, what: str) -> str:
    return f"by {edit.who} with `{what}`, {utc(edit.time)}"
