"""What a person sees: values of the pipeline turned into things that Rich can print.

Pure functions; none of them looks at a clock, a terminal or a file. Text that comes from data is never taken
for markup, and its control characters are spelled out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from penstock.cli.catalogue import Entry, quoted
from penstock.cli.common import visible
from penstock.pipeline.plan import Plan, PlannedSink, PlannedSource, PlannedStep
from penstock.pipeline.progress import NodeProgress, Progress, Summary
from penstock.pipeline.records import LogEntry, PipelineStatus, SinkStatus

_STATE_STYLE = {
    "starting": "yellow",
    "running": "green",
    "waiting": "cyan",
    "stopped": "red",
    "restarting": "yellow",
    "done": "green",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NOTHING = "-"


class NextStep(NamedTuple):
    """Something worth typing, and what for."""

    command: str
    why: str


def progress(now: Progress) -> RenderableType:
    """A running pipeline: headline, a row for each node, and what went wrong with any of them."""
    headline = Text.assemble(
        (visible(now.pipeline), "bold"),
        f"  {now.phase}  {duration(now.elapsed)}",
        (f"  log {now.log_next:,}", "dim"),
    )
    if not now.nodes:
        return headline
    table = _table(
        "node", "adaptor", "in>", "delivered>", "dropped>", "dead>", "rate/s>", "lag>", "state",
    )  # fmt: skip
    for node in now.nodes:
        table.add_row(*_node_row(node))
    errors = [_error(node.node, node.error) for node in now.nodes if node.error]
    return Group(headline, table, *errors)


def _node_row(node: NodeProgress) -> list[RenderableType]:
    state = Text(node.state, style=_STATE_STYLE.get(node.state, ""))
    rate = f"{node.rate:,.0f}"
    if node.kind == "source":
        counts = [f"{node.messages_in:,}", _NOTHING, _NOTHING, _NOTHING, rate, _NOTHING]
    else:
        counts = [f"{count:,}" for count in (node.messages_in, node.delivered, node.dropped, node.dead)]
        counts += [rate, f"{node.lag:,}"]
    return [_name(node.node), _name(node.adaptor), *counts, state]


def summary(end: Summary, next_steps: Sequence[NextStep] = ()) -> RenderableType:
    """How a run ended: counts that add up for each sink, and what to type next."""
    good = end.exit_code == 0
    parts: list[RenderableType] = [
        Text.assemble(
            (visible(end.pipeline), "bold"),
            ("  done" if good else "  stopped", "green" if good else "red"),
            f"  {duration(end.elapsed)}  read {end.read:,} messages, log at {end.log_next:,}",
        )
    ]
    table = _table("sink", "in>", "= delivered>", "+ dropped>", "+ dead>", "+ pending>", "rows>", "target")
    for sink in end.sinks:
        counts = (sink.messages_in, sink.delivered, sink.dropped, sink.dead, sink.pending, sink.rows)
        table.add_row(_name(sink.sink), *(f"{count:,}" for count in counts), visible(sink.target))
    parts += [table] if end.sinks else []
    told = end.message or ""
    parts += [_error(sink.sink, sink.error) for sink in end.sinks if sink.error and sink.error not in told]
    if not end.adds_up:
        parts.append(
            Text("The counts do not add up: messages are missing or were counted twice.", style="bold red")
        )
    if told:
        parts.append(Text(visible(told), style="" if good else "red"))
    if next_steps:
        table = Table.grid(padding=(0, 3, 0, 0))
        for step in next_steps:
            table.add_row(step.command, Text(step.why, style="dim"))
        parts += [Text("\nWhat to try next:", style="dim"), table]
    return Group(*parts)


def status(found: PipelineStatus, *, now_ts: int) -> RenderableType:
    """A pipeline at rest or at work: its log, the phase of each namespace, and a row for each sink."""
    running = found.running
    state = (
        f"running (pid {found.pid})"
        if running and found.pid is not None
        else "running"
        if running
        else "not running"
    )
    headline = Text.assemble(
        (visible(found.pipeline), "bold"),
        "  ",
        (state, "green" if running else "yellow"),
        f"  {_log(found)}, {byte_size(found.log_bytes)}",
    )
    parts: list[RenderableType] = [headline]
    if found.namespaces:
        places = (f"{visible(ns)} {at.mode} @{at.offset}" for ns, at in sorted(found.namespaces.items()))
        parts.append(Text("read: " + ", ".join(places)))
    if not found.sinks:
        return Group(*parts)
    table = _table("sink", "offset>", "delivered>", "dropped>", "dead>", "lag>", "lag bytes>", "updated")
    for sink in found.sinks:
        counts = (sink.delivered, sink.dropped, sink.dead, sink.lag)
        lag_bytes = _NOTHING if sink.lag_bytes is None else byte_size(sink.lag_bytes)
        updated = _NOTHING if sink.updated_ts is None else f"{duration((now_ts - sink.updated_ts) / 1e6)} ago"
        table.add_row(
            _name(sink.sink), str(sink.offset), *(f"{count:,}" for count in counts), lag_bytes, updated
        )
    return Group(*parts, table)


def _log(found: PipelineStatus) -> str:
    if found.next <= found.oldest:
        return "log empty"
    return f"log {found.oldest} to {found.next - 1}"


def offsets(sinks: Iterable[SinkStatus]) -> Table:
    """The last offset each sink has acknowledged."""
    table = _table("SINK", "OFFSET>", "LAG>")
    for sink in sinks:
        table.add_row(_name(sink.sink), str(sink.offset), str(sink.lag))
    return table


def namespaces(last: Mapping[str, int]) -> Table:
    """The last offset acknowledged, by namespace."""
    table = _table("NAMESPACE", "OFFSET>")
    for namespace, offset in sorted(last.items()):
        table.add_row(_name(namespace), str(offset))
    return table


def entry(message: LogEntry) -> str:
    """A message of the log as lines of text, labelled as the Transporter has them."""
    lines = {
        "offset": str(message.offset),
        "timestamp": timestamp(message.ts),
        "mode": message.mode.upper(),
        "op": message.op.upper(),
        "ns": message.ns,
        "key": message.key,
        "value": message.data,
    }
    return "\n".join(f"{label:<10}: {visible(text)}" for label, text in lines.items() if text is not None)


def catalogue(entries: Iterable[Entry]) -> RenderableType:
    """All adaptors and functions, a line each."""
    table = _table("", "name", "use as", "")
    for known in entries:
        table.add_row(known.kind, Text(known.name, style="bold"), ", ".join(known.uses), known.description)
    return Group(table, Text("\n`penstock about NAME` tells the settings of one.", style="dim"))


def details(entries: Iterable[Entry]) -> RenderableType:
    """Adaptors or functions with their settings and an example."""
    parts: list[RenderableType] = []
    for known in entries:
        uses = ", ".join(known.uses)
        parts.append(Text.assemble((known.name, "bold"), f"  {known.kind} ({uses})\n{known.description}\n"))
        table = _table("setting", "type", "default", "")
        for setting in known.settings:
            default = "required" if setting.required else quoted(setting.default)
            table.add_row(Text(setting.name, style="bold"), setting.type, default, setting.help)
        parts += [table] if known.settings else [Text("no settings")]
        parts.append(Text(f"\n{known.example}\n"))
    return Group(*parts)


def plan(planned: Plan) -> RenderableType:
    """What a pipeline would do, as a tree; then what in it may not have been meant."""
    tree = Tree(Text(planned.pipeline, style="bold"))
    branches: dict[tuple[str, ...], Tree] = {(): tree.add(_source_text(planned.source))}
    for sink in planned.sinks:
        path: tuple[str, ...] = ()
        for step in sink.steps:
            above, path = path, (*path, step.name)
            if path not in branches:
                branches[path] = branches[above].add(_step_text(step))
        branches[path].add(_sink_text(sink))
    parts: list[RenderableType] = [tree]
    if planned.problem:
        parts.append(Text(f"\nNamespaces are not known: {visible(planned.problem)}", style="yellow"))
    for remark in planned.warnings:
        hint = f" ({visible(remark.hint)})" if remark.hint else ""
        parts.append(
            Text.assemble(("warning ", "yellow"), (remark.node, "bold"), f": {visible(remark.text)}{hint}")
        )
    return Group(*parts)


def _source_text(source: PlannedSource) -> Text:
    text = _node_text(source.name, source.adaptor, source.ns, source.settings)
    text.append(f"\nreads {_names(source.namespaces)}")
    if source.left_out:
        text.append(f"\nleaves out {_names(source.left_out)}", style="dim")
    return text


def _step_text(step: PlannedStep) -> Text:
    return _node_text(step.name, step.function, step.ns, step.settings)


def _sink_text(sink: PlannedSink) -> Text:
    text = _node_text(sink.name, sink.adaptor, sink.ns, sink.settings)
    return text.append(f"\ngets {_names(sink.namespaces)}; {sink.guarantee}, order: {sink.order}")


def _node_text(name: str, kind: str, ns: str, settings: Mapping[str, str]) -> Text:
    given = ", ".join(f"{key}={visible(value)}" for key, value in settings.items())
    pattern = "" if ns == ".*" else f"  ns {visible(ns)}"
    call = f"{kind}({given})" if kind.isidentifier() else kind  # "DataFrame function" takes no settings
    return Text.assemble((name, "bold"), f"  {call}", (pattern, "cyan"))


def _names(namespaces: Sequence[str] | None) -> str:
    if namespaces is None:
        return "namespaces that are not known yet"
    return ", ".join(visible(ns) for ns in namespaces) if namespaces else "nothing"


def duration(seconds: float) -> str:
    """`3.2 s`, `4 min 05 s`, `2 h 10 min`, `3 d 4 h`."""
    seconds = max(seconds, 0.0)
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"


def byte_size(count: int) -> str:
    """`512 B`, `1.5 KiB`, `64.0 MiB` ..."""
    if count < 1024:
        return f"{count} B"
    size = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def timestamp(ts: int) -> str:
    """Microseconds since 1970 as a date in UTC; the bare number if no calendar reaches that far."""
    try:
        moment = _EPOCH + timedelta(microseconds=ts)
    except OverflowError:
        return str(ts)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _table(*columns: str) -> Table:
    """A table without lines; a title that ends in `>` heads a column of numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in columns:
        numbers = title.endswith(">")
        table.add_column(
            title.rstrip(">"), justify="right" if numbers else "left", no_wrap=numbers, overflow="fold"
        )
    return table


def _name(name: str) -> Text:
    return Text(visible(name))


def _error(node: str, error: str) -> Text:
    return Text.assemble((visible(node), "bold red"), (f": {visible(error)}", "red"))
