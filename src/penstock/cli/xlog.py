"""`xlog`: look into the commit log. What compaction kept counts as part of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from penstock.base.errors import UsageError
from penstock.cli.common import emit, json_option, pipeline_option, wants_json
from penstock.cli.connection import Connection, broker_options
from penstock.cli.places import chosen_pipeline, looking

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


def _refuse_beyond(current: int, pipeline: str, first: int) -> None:
    if not 0 <= first <= current + 1:
        raise UsageError(f"the log of '{pipeline}' ends with {current}, asked to begin at {first}")


def _followed(connection: Connection, pipeline: str, first: int, pattern: object) -> Iterable[LogEntry]:
    from penstock.pipeline.following import follow
    from penstock.pipeline.namespace import Namespace
    from penstock.pipeline.recompute import entry

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
