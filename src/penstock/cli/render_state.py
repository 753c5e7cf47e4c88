"""What a person sees of pipelines that run or stand still: status, offsets, dead letters, traces.

Pure, as `penstock.cli.render` is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.base.texts import indented, one_line, visible
from penstock.cli import render, tables
from penstock.cli.render import STATE_STYLE
from penstock.cli.tables import NOTHING, ago, byte_size, duration, labelled, timestamp
from penstock.log.control import ControlEntry
from penstock.log.deadletters import DeadLetter
from penstock.pipeline.letters import Reason
from penstock.pipeline.records import (
    NEAR_FULL,
    LogEntry,
    Passing,
    PipelineStatus,
    Quota,
    SinkStatus,
    SinkTrace,
    StepTrace,
    Trace,
)

_STALE = 60 * 1_000_000
"""Microseconds after which it is odd that a run has told nothing: the start of Spark may take some time."""


def status(found: PipelineStatus, *, now_ts: int) -> RenderableType:
    """A pipeline at rest or at work: its log, the phase of each namespace, and a row for each sink."""
    parts: list[RenderableType] = [_headline(found)]
    if found.ended:
        parts.append(Text(visible(found.ended), style="yellow"))
    last = found.run.told_ts if found.run else None
    if last is not None and now_ts - last > _STALE:
        old = f"it told {ago(last, now_ts)} how its nodes stand, and not since then: is its disk full?"
        parts.append(Text(old, style="yellow"))
    if found.readers:
        parts.append(Text(f"not reading: {visible(found.readers)}", style="yellow"))
    if found.namespaces:
        places = (f"{one_line(ns)} {at.mode} @{at.offset}" for ns, at in sorted(found.namespaces.items()))
        parts.append(Text("read: " + ", ".join(places)))
    if found.source is not None:
        parts += [render.copy_line(copy) for copy in found.source.copies]
        parts += [render.gauge_line(found.source)] if found.source.gauges else []
    if found.sinks:
        parts.append(_sinks(found.sinks, now_ts))
    for sink in found.sinks:
        parts += _remarks(sink)
    if found.bad:
        what = "1 thing" if found.bad == 1 else f"{found.bad:,} things"
        told = f"the source could make no message of {what}: see `penstock dead list`"
        parts.append(Text(told, style="yellow"))
    parts += _about_room(found)
    return Group(*parts)


def _headline(found: PipelineStatus) -> Text:
    state = "not running"
    if found.running:
        where = f" on {found.run.host}" if found.run and found.run.host else ""
        state = f"running (pid {found.pid}{where})" if found.pid is not None else "running"
    limit = f" of {byte_size(found.log_limit)}" if found.log_limit else ""
    http = f"  http://{found.run.http}" if found.run and found.run.http else ""
    return Text.assemble(
        (visible(found.pipeline), "bold"),
        "  ",
        (state, "green" if found.running else "yellow"),
        f"  {_log(found)}, {byte_size(found.log_bytes)}{limit}{http}",
    )


def _log(found: PipelineStatus) -> str:
    if found.next <= found.oldest:
        return "log empty"
    compacted = f" (compacted below {found.first})" if found.first > found.oldest else ""
    return f"log {found.oldest} to {found.next - 1}{compacted}"


def _sinks(sinks: Sequence[SinkStatus], now_ts: int) -> Table:
    table = tables.table(
        "sink", "offset>", "delivered>", "dropped>", "dead>", "lag>", "?lag bytes>", "?oldest pending",
        "?updated", "state",
    )  # fmt: skip
    for sink in sinks:
        counts = (sink.delivered, sink.dropped, sink.dead, sink.lag)
        lag_bytes = NOTHING if sink.lag_bytes is None else byte_size(sink.lag_bytes)
        oldest = NOTHING if sink.pending_ts is None else ago(sink.pending_ts, now_ts)
        updated = NOTHING if sink.updated_ts is None else ago(sink.updated_ts, now_ts)
        state = state_of(sink)
        table.add_row(
            tables.name(sink.sink),
            str(sink.offset),
            *(f"{count:,}" for count in counts),
            lag_bytes,
            oldest,
            updated,
            Text(state, style=STATE_STYLE.get(state, "")),
        )
    return table


def state_of(sink: SinkStatus) -> str:
    """How the sink stands, in one word or two."""
    if sink.detached:
        return "detached"
    if sink.paused:
        return "paused"
    return sink.state or ("waiting" if not sink.lag else "behind")


def _remarks(sink: SinkStatus) -> Iterator[RenderableType]:
    """What an operator should know about a sink beyond the numbers."""
    if sink.error:
        yield tables.error(sink.sink, sink.error)
    if sink.transaction is not None:
        yield render.transaction_line(sink.sink, sink.transaction)
    if sink.detached:
        told = "detached: it fell too far behind and lacks messages; set it with `penstock offset mark`, then backfill"
        yield _remark(sink.sink, told, "red")
    if sink.careful:
        told = (
            f"messages {sink.watermark} to {sink.careful - 1} go one at a time: a batch of them was refused"
        )
        yield _remark(sink.sink, told, "yellow")
    if sink.acked:
        ahead = ", ".join(map(str, sink.acked))
        yield _remark(sink.sink, f"will pass over {ahead}: acknowledged by an operator", "yellow")
    if sink.dead_letters:
        letters = "1 dead letter" if sink.dead_letters == 1 else f"{sink.dead_letters:,} dead letters"
        yield _remark(sink.sink, f"{letters}: see `penstock dead list`", "yellow")
    for quota in sink.quotas:
        if quota.worth_telling:
            yield _remark(sink.sink, _used(quota), "red" if quota.share >= NEAR_FULL[1] else "yellow")


def _about_room(found: PipelineStatus) -> Iterator[RenderableType]:
    if not found.log_limit:
        return
    quota = Quota("log_limit", found.log_bytes, found.log_limit)
    if quota.worth_telling:
        held = f"; '{visible(found.holder)}' holds most of it" if found.holder else ""
        style = "red" if quota.share >= NEAR_FULL[1] else "yellow"
        yield Text(f"{_used(quota)}{held}", style=style)


def _used(quota: Quota) -> str:
    shown = duration if quota.what.endswith("age") else lambda count: byte_size(int(count))
    return f"{quota.share:.0%} of {quota.what} used ({shown(quota.used)} of {shown(quota.limit)})"


def _remark(sink: str, text: str, style: str) -> Text:
    return Text.assemble((visible(sink), f"bold {style}"), (f": {indented(text)}", style))


def offsets(sinks: Iterable[SinkStatus]) -> Table:
    """The last offset each sink has acknowledged."""
    table = tables.table("SINK", "OFFSET>", "LAG>")
    for sink in sinks:
        table.add_row(tables.name(sink.sink), str(sink.offset), str(sink.lag))
    return table


def namespaces(last: Mapping[str, int]) -> Table:
    """The last offset acknowledged, by namespace."""
    table = tables.table("NAMESPACE", "OFFSET>")
    for namespace, offset in sorted(last.items()):
        table.add_row(tables.name(namespace), str(offset))
    return table


def entry(message: LogEntry) -> str:
    """A message of the log as lines of text, labelled as the Transporter has them."""
    return labelled(
        {
            "offset": str(message.offset),
            "timestamp": timestamp(message.ts),
            "mode": message.mode.upper(),
            "op": message.op.upper(),
            "ns": message.ns,
            "key": message.key,
            **({"old key": message.old_key} if message.old_key is not None else {}),
            "value": message.data,
        }
    )


def history(entries: Iterable[ControlEntry]) -> Table:
    """What operators did, a line each."""
    table = tables.table("when", "who", "action", "sink", "")
    for done in entries:
        told = ", ".join(f"{word} {value}" for word, value in done.detail.items() if value is not None)
        row = (timestamp(done.time), done.who, done.action, done.sink or NOTHING, told)
        table.add_row(*(tables.name(text) for text in row))
    return table


def letters(reasons: Sequence[Reason]) -> RenderableType:
    """Dead letters by what they died of."""
    table = tables.table("count>", "sink", "namespaces", "refused by", "numbers", "last", "error")
    for reason in reasons:
        table.add_row(
            f"{len(reason.numbers):,}",
            tables.name(reason.sink),
            tables.name(", ".join(reason.namespaces)),
            tables.name(reason.node),
            _some(reason.numbers),
            timestamp(reason.last_time),
            tables.name(reason.error),
        )
    return table


def _some(numbers: Sequence[int]) -> str:
    """Enough numbers to go on with."""
    return ", ".join(map(str, numbers[:5])) + (f" and {len(numbers) - 5} more" if len(numbers) > 5 else "")


def letter(dead: DeadLetter) -> str:
    """One dead letter, in full."""
    if dead.place is not None:
        return labelled(
            {
                "number": str(dead.number),
                "state": dead.state,
                "source": dead.sink,
                "place": dead.place,
                "error": dead.error,
                "time": timestamp(dead.time),
                "ns": dead.ns,
                "value": dead.data,
            }
        )
    return labelled(
        {
            "number": str(dead.number),
            "state": dead.state,
            "sink": f"{dead.sink} (generation {dead.generation})",
            "node": dead.node,
            "error": dead.error,
            "time": timestamp(dead.time),
            "offset": str(dead.offset),
            "timestamp": timestamp(dead.ts),
            "mode": dead.mode.upper(),
            "op": dead.op.upper(),
            "ns": dead.ns,
            "key": dead.key,
            **({"old key": dead.old_key} if dead.old_key is not None else {}),
            "value": dead.data,
        }
    )


def trace(found: Trace) -> str:
    """What became of a message, from the top down."""
    lines = [f"message {found.offset} of pipeline '{visible(found.pipeline)}'"]
    if found.entry is None:
        lines.append("  compaction has removed it: every sink had acknowledged it, and newer ones followed")
    else:
        source = f" by '{visible(found.source)}'" if found.source else ""
        lines.append(f"  logged{source}, {timestamp(found.entry.ts)}, {found.entry.mode}")
        lines.append(f"  {message(found.entry)}")
    for sink in found.sinks:
        lines += ["", *_sink_lines(sink)]
    return "\n".join(lines)


def _sink_lines(sink: SinkTrace) -> Iterator[str]:
    for step in sink.steps:
        yield f"  {visible(step.node)}  {step.function}: {_step_words(step)}"
        if step.outcome == "changed":
            yield from (f"    {message(row)}" for row in step.out)
    yield f"  {visible(sink.sink)}  {sink.outcome.upper()}  {indented(sink.detail, ' ' * 4)}"


def _step_words(step: StepTrace) -> str:
    words = {
        "passed": "let it through as it was",
        "changed": "made of it",
        "dropped": "dropped it",
        "refused": f"refused it: {indented(step.error or '', ' ' * 4)}",
        "not asked": "not asked, its ns does not match",
        "not reached": "not reached",
        "not known": "not known, only Spark can run it",
    }
    return words[step.outcome]


def message(shown: LogEntry | Passing) -> str:
    """A message in one line."""
    key = f" key {one_line(shown.key)}" if shown.key is not None else ""
    key += f" (was {one_line(shown.old_key)})" if shown.old_key is not None else ""
    return f"{shown.offset} {one_line(shown.ns)} {shown.op}{key} {indented(shown.data)}"
