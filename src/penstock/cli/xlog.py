"""`xlog`: look into the commit log. What compaction kept counts as part of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from penstock.base.errors import UsageError
from penstock.cli.common import emit, json_option, pipeline_option, wants_json
from penstock.cli.connection import Connection, broker_options
from penstock.cli.places import chosen_pipeline, looking
from penstock.cli.selecting import parse_time

if TYPE_CHECKING:
    from penstock.pipeline.records import LogEntry


@click.group(no_args_is_help=True)
def xlog() -> None:
    """Look into the commit log.

    \b
    Examples:
      penstock xlog oldest
      penstock xlog current
      penstock xlog show 3
      penstock xlog show 3 9 --json
      penstock xlog find "on request"
    """


@xlog.command()
@broker_options
@pipeline_option
@json_option
@click.pass_context
def oldest(ctx: click.Context, connection: Connection, pipeline: str | None) -> None:
    """Print the first offset that can still be read; -1 if there is none.

    \b
    Examples:
      penstock xlog oldest
      penstock xlog oldest --pipeline shop --json
    """
    with looking(connection) as directory:
        name = chosen_pipeline(directory, pipeline)
        _print_offset(ctx, name, directory.oldest(name))


@xlog.command()
@broker_options
@pipeline_option
@json_option
@click.pass_context
def current(ctx: click.Context, connection: Connection, pipeline: str | None) -> None:
    """Print the last offset of the log; -1 if it is empty.

    \b
    Examples:
      penstock xlog current
      penstock xlog current --pipeline shop --json
    """
    with looking(connection) as directory:
        name = chosen_pipeline(directory, pipeline)
        _print_offset(ctx, name, directory.current(name))


@xlog.command(name="show")
@click.argument("first", type=int, metavar="X")
@click.argument("last", type=int, metavar="[Y]", required=False)
@click.option("--ns", metavar="PATTERN", help="Only messages of the namespaces that this finds.")
@click.option("--follow", "-f", is_flag=True, help="From X on, and then those to come.")
@broker_options
@pipeline_option
@json_option
@click.pass_context
def show_entries(
    ctx: click.Context,
    first: int,
    last: int | None,
    ns: str | None,
    follow: bool,
    connection: Connection,
    pipeline: str | None,
) -> None:
    """Show the message at offset X, or those from X to Y, both included.

    Below the oldest segment there is, only the newest message of each namespace is left; the others of a range are
    passed over. With --json, one object a line; `data` is the message's text, and `ts` counts microseconds since 1970.

    \b
    Examples:
      penstock xlog show 3
      penstock xlog show 3 9
      penstock xlog show 0 99 --ns '^orders$' --json
      penstock xlog show 100 --follow
    """
    from penstock.pipeline.namespace import Namespace

    pattern = Namespace(ns) if ns is not None else None
    if follow:
        if last is not None:
            raise UsageError("--follow has no end, so Y means nothing", hint=f"leave out {last}")
        with looking(connection) as directory:
            name = chosen_pipeline(directory, pipeline)
            _refuse_beyond(directory.current(name), name, first)
        _print_entries(ctx, _followed(connection, name, first, pattern))
        return
    last = first if last is None else last
    if last < first:
        raise UsageError(
            f"the range ends before it starts: {first} to {last}", hint=f"swap them: {last} {first}"
        )
    with looking(connection) as directory:
        name = chosen_pipeline(directory, pipeline)
        _print_entries(ctx, directory.show(name, first, last, pattern))


@xlog.command()
@click.argument("text", default="")
@click.option("--ns", metavar="PATTERN", help="Only messages of the namespaces that this finds.")
@click.option("--from", "start", type=click.IntRange(min=0), metavar="OFFSET", help="Begin here.")
@click.option(
    "--since", metavar="TIME", callback=parse_time, help="Begin with what was logged at TIME or later."
)
@click.option("--newest", is_flag=True, help="From the end of the log backwards.")
@click.option(
    "-n", "--count", type=click.IntRange(min=1), default=20, show_default=True, help="So many at most."
)
@broker_options
@pipeline_option
@json_option
@click.pass_context
def find(
    ctx: click.Context,
    text: str,
    ns: str | None,
    start: int | None,
    since: int,
    newest: bool,
    count: int,
    connection: Connection,
    pipeline: str | None,
) -> None:
    """Find messages with TEXT in them or in their key, whatever the case.

    TIME is unix seconds, or a date such as 2026-01-31T12:00:00Z. The messages are shown in the order of the log.

    \b
    Examples:
      penstock xlog find "on request"
      penstock xlog find --ns '^orders$' --newest -n 5
      penstock xlog find Ann --since 2026-01-31 --json
    """
    from penstock.pipeline.browsing import Search, offset_at, page
    from penstock.pipeline.namespace import Namespace

    search = Search(Namespace(ns) if ns is not None else None, text)
    with looking(connection) as directory:
        name = chosen_pipeline(directory, pipeline)
        begin = start if start is not None else directory.current(name) if newest else 0
        if since:
            begin = offset_at(directory, name, since * 1_000_000)
        found: list[LogEntry] = []
        more: int | None = begin
        while more is not None and len(found) < count:
            wanted = count - len(found)
            part = page(directory, name, search, start=more, count=wanted, backwards=newest)
            found = [*part.entries, *found] if newest else [*found, *part.entries]
            more = part.more
        _print_entries(ctx, found)


def _refuse_beyond(current: int, pipeline: str, first: int) -> None:
    if not 0 <= first <= current + 1:
        raise UsageError(f"the log of '{pipeline}' ends with {current}, asked to begin at {first}")


def _followed(connection: Connection, pipeline: str, first: int, pattern: object) -> Iterable[LogEntry]:
    from penstock.pipeline.following import follow
    from penstock.pipeline.namespace import Namespace
    from penstock.pipeline.records import entry

    for piece in follow(lambda: looking(connection), pipeline, first, wait=True):
        for record in piece:
            if not isinstance(pattern, Namespace) or pattern.matches(record.ns):
                yield entry(record)


def _print_entries(ctx: click.Context, entries: Iterable[LogEntry]) -> None:
    if wants_json(ctx):
        for entry in entries:
            emit(entry)
        return
    from penstock.cli import render_state

    for place, entry in enumerate(entries):
        click.echo(("\n" if place else "") + render_state.entry(entry))


def _print_offset(ctx: click.Context, pipeline: str, offset: int) -> None:
    if wants_json(ctx):
        emit({"pipeline": pipeline, "offset": offset})
    else:
        click.echo(str(offset))
