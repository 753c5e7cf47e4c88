"""What a person sees of a run, and of what there is to choose from: values turned into things that Rich can print.

Pure functions; none of them looks at a clock, a terminal or a file. What stands still is in `render_state`, plans are
in `render_plan`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.base.texts import one_line, visible
from penstock.cli import tables
from penstock.cli.catalogue import Entry, quoted
from penstock.cli.tables import NOTHING, byte_size, duration
from penstock.log.transaction import ABORTED, Transaction
from penstock.pipeline.progress import CopyProgress, NodeProgress, Progress, Summary

STATE_STYLE = {
    "starting": "yellow",
    "running": "green",
    "waiting": "cyan",
    "one at a time": "yellow",
    "retrying": "yellow",
    "away": "yellow",
    "restarting": "yellow",
    "paused": "cyan",
    "detached": "red",
    "stopped": "red",
    "done": "green",
}


class NextStep(NamedTuple):
    """Something worth typing, and what for."""

    command: str
    why: str


def progress(now: Progress) -> RenderableType:
    """A running pipeline: headline, a row for each node, and what went wrong with any of them."""
    limit = f" of {byte_size(now.log_limit)}" if now.log_limit else ""
    size = f", {byte_size(now.log_bytes)}{limit}" if now.log_bytes else ""
    headline = Text.assemble(
        (visible(now.pipeline), "bold"),
        f"  {now.phase}  {duration(now.elapsed)}",
        (f"  log {now.log_next:,}{size}", "dim"),
    )
    parts: list[RenderableType] = [headline]
    if now.readers:
        parts.append(Text(f"not reading: {visible(now.readers)}", style="yellow"))
    if now.nodes:
        table = tables.table(
            "node", "?adaptor", "in>", "delivered>", "dropped>", "dead>", "?rate/s>", "lag>", "state",
        )  # fmt: skip
        for node in now.nodes:
            table.add_row(*_node_row(node))
        parts.append(table)
    parts += [copy_line(copy) for node in now.nodes for copy in node.copies]
    parts += [gauge_line(node) for node in now.nodes if node.gauges]
    parts += [transaction_line(node.node, node.transaction) for node in now.nodes if node.transaction]
    parts += [tables.error(node.node, node.error) for node in now.nodes if node.error]
    return Group(*parts) if len(parts) > 1 else headline


def copy_line(copy: CopyProgress) -> Text:
    """How far the copy of a namespace is, in a line."""
    of = f" of about {copy.of:,}" if copy.of is not None else ""
    share = f" ({min(copy.rows / copy.of, 1.0):.0%})" if copy.of else ""
    left = f", {duration(copy.left)} left" if copy.left is not None else ""
    told = f"  {copy.rows:,}{of} rows{share}, {copy.rate:,.0f}/s{left}"
    return Text.assemble(("copying ", "dim"), one_line(copy.ns), (told, "dim"))


def transaction_line(sink: str, transaction: Transaction) -> Text:
    """A two-phase commit on its way, in a line."""
    style = "red" if transaction.state == ABORTED else "dim"
    return Text.assemble(visible(sink), (f"  {one_line(transaction.words)}", style))


def gauge_line(node: NodeProgress) -> Text:
    """What a source measures, in a line."""
    told = ", ".join(
        f"{visible(name).replace('_', ' ')} {_number(name, node.gauges[name])}" for name in node.gauges
    )
    return Text.assemble(visible(node.node), (f"  {told}", "dim"))


def _number(name: str, value: float) -> str:
    if name.endswith("bytes"):
        return byte_size(int(value))
    return duration(value) if name.endswith("seconds") else f"{value:,.6g}"


def _node_row(node: NodeProgress) -> list[RenderableType]:
    state = Text(node.state, style=STATE_STYLE.get(node.state, ""))
    rate = f"{node.rate:,.0f}"
    if node.kind == "source":
        bad = f"{node.dead:,}" if node.dead else NOTHING
        counts = [f"{node.messages_in:,}", NOTHING, NOTHING, bad, rate, NOTHING]
    else:
        counts = [f"{count:,}" for count in (node.messages_in, node.delivered, node.dropped, node.dead)]
        counts += [rate, f"{node.lag:,}" if node.kind == "sink" else NOTHING]
    return [tables.name(node.node), tables.name(node.adaptor), *counts, state]


def summary(end: Summary, next_steps: Sequence[NextStep] = ()) -> RenderableType:
    """How a run ended: counts that add up for each sink, and what to type next."""
    good = end.exit_code == 0
    messages = "1 message" if end.read == 1 else f"{end.read:,} messages"
    parts: list[RenderableType] = [
        Text.assemble(
            (visible(end.pipeline), "bold"),
            ("  done" if good else "  stopped", "green" if good else "red"),
            f"  {duration(end.elapsed)}  read {messages}, log at {end.log_next:,}",
        )
    ]
    table = tables.table(
        "sink", "in>", "= delivered>", "+ dropped>", "+ dead>", "+ pending>", "?rows>", "?target"
    )
    for sink in end.sinks:
        counts = (sink.messages_in, sink.delivered, sink.dropped, sink.dead, sink.pending, sink.rows)
        table.add_row(tables.name(sink.sink), *(f"{count:,}" for count in counts), visible(sink.target))
    parts += [table] if end.sinks else []
    if end.bad:
        what = "1 thing" if end.bad == 1 else f"{end.bad:,} things"
        parts.append(
            Text(f"The source could make no message of {what}: see `penstock dead list`", style="yellow")
        )
    told = end.message or ""
    parts += [
        tables.error(sink.sink, sink.error) for sink in end.sinks if sink.error and sink.error not in told
    ]
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


def catalogue(entries: Iterable[Entry]) -> RenderableType:
    """All adaptors and functions, a line each."""
    table = tables.table("", "name", "use as", "wants", "")
    for known in entries:
        told = f"{known.description} (experimental)" if known.experimental else known.description
        name = Text(known.name, style="bold")
        table.add_row(known.kind, name, ", ".join(known.uses), Text(_wants(known)), told)
    return Group(table, Text("\n`penstock about NAME` tells the settings of one.", style="dim"))


def _wants(known: Entry) -> str:
    return f"penstock[{known.extra}]" if known.extra else ""


def details(entries: Iterable[Entry]) -> RenderableType:
    """Adaptors or functions with their settings and an example."""
    parts: list[RenderableType] = []
    for known in entries:
        uses = ", ".join(known.uses)
        parts.append(Text.assemble((known.name, "bold"), f"  {known.kind} ({uses})\n{known.description}\n"))
        if known.extra:
            parts.append(Text(f"Install it with: pip install '{_wants(known)}'\n"))
        if known.experimental:
            parts.append(Text(f"Experimental: {known.experimental}.\n", style="yellow"))
        table = tables.table("setting", "type", "default", "")
        for setting in known.settings:
            default = "required" if setting.required else quoted(setting.default)
            table.add_row(Text(setting.name, style="bold"), setting.type, default, setting.help)
        parts += [table] if known.settings else [Text("no settings")]
        parts.append(Text(f"\n{known.example}\n"))
    return Group(*parts)
