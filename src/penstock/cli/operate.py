"""Commands for the operator: look into the log (`xlog`) and at what sinks have of it (`offset`)."""

from __future__ import annotations

from pathlib import Path

import click

from penstock.base.errors import UsageError, did_you_mean
from penstock.cli.common import (
    chosen_pipeline,
    data_dir_option,
    emit,
    json_option,
    open_data_dir,
    pipeline_option,
    show,
    wants_json,
)


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
@data_dir_option
@pipeline_option
@json_option
@click.pass_context
def oldest(ctx: click.Context, data_dir: Path, pipeline: str | None) -> None:
    """Print the first offset that the log still holds.

    \b
    Examples:
      penstock xlog oldest
      penstock xlog oldest --pipeline shop --json
    """
    with open_data_dir(data_dir) as directory:
        name = chosen_pipeline(directory, pipeline)
        _print_offset(ctx, name, directory.oldest(name))


@xlog.command()
@data_dir_option
@pipeline_option
@json_option
@click.pass_context
def current(ctx: click.Context, data_dir: Path, pipeline: str | None) -> None:
    """Print the last offset of the log; -1 if it is empty.

    \b
    Examples:
      penstock xlog current
      penstock xlog current --pipeline shop --json
    """
    with open_data_dir(data_dir) as directory:
        name = chosen_pipeline(directory, pipeline)
        _print_offset(ctx, name, directory.current(name))


@xlog.command(name="show")
@click.argument("first", type=int, metavar="X")
@click.argument("last", type=int, metavar="[Y]", required=False)
@data_dir_option
@pipeline_option
@json_option
@click.pass_context
def show_entries(
    ctx: click.Context, first: int, last: int | None, data_dir: Path, pipeline: str | None
) -> None:
    """Show the message at offset X, or those from X to Y, both included.

    With --json, one object a line; `data` is the message's text, and `ts` counts microseconds since 1970.

    \b
    Examples:
      penstock xlog show 3
      penstock xlog show 3 9
      penstock xlog show 0 99 --json
    """
    last = first if last is None else last
    if last < first:
        raise UsageError(
            f"the range ends before it starts: {first} to {last}", hint=f"swap them: {last} {first}"
        )
    with open_data_dir(data_dir) as directory:
        name = chosen_pipeline(directory, pipeline)
        entries = directory.show(name, first, last)
        if wants_json(ctx):
            for entry in entries:
                emit(entry)
            return
        from penstock.cli import render

        for place, entry in enumerate(entries):
            click.echo(("\n" if place else "") + render.entry(entry))


def _print_offset(ctx: click.Context, pipeline: str, offset: int) -> None:
    if wants_json(ctx):
        emit({"pipeline": pipeline, "offset": offset})
    else:
        click.echo(str(offset))


@click.group(no_args_is_help=True)
def offset() -> None:
    """See what each sink has acknowledged.

    \b
    Examples:
      penstock offset list
      penstock offset show audit
    """


@offset.command(name="list")
@data_dir_option
@pipeline_option
@json_option
@click.pass_context
def list_offsets(ctx: click.Context, data_dir: Path, pipeline: str | None) -> None:
    """List the sinks: the last offset each has acknowledged (-1 if none), and how many are missing.

    \b
    Examples:
      penstock offset list
      penstock offset list --json
    """
    with open_data_dir(data_dir) as directory:
        sinks = directory.offsets(chosen_pipeline(directory, pipeline))
    if wants_json(ctx):
        for sink in sinks:
            emit({"sink": sink.sink, "offset": sink.offset, "lag": sink.lag, "generation": sink.generation})
        return
    from penstock.cli import render

    show(render.offsets(sinks))


@offset.command(name="show")
@click.argument("sink")
@data_dir_option
@pipeline_option
@json_option
@click.pass_context
def show_offsets(ctx: click.Context, sink: str, data_dir: Path, pipeline: str | None) -> None:
    """Show the last offset that SINK has acknowledged, for each namespace.

    \b
    Examples:
      penstock offset show audit
      penstock offset show audit --json
    """
    with open_data_dir(data_dir) as directory:
        sinks = {found.sink: found for found in directory.offsets(chosen_pipeline(directory, pipeline))}
    if sink not in sinks:
        raise UsageError(f"there is no sink '{sink}'{did_you_mean(sink, sinks)}")
    namespaces = dict(sorted(sinks[sink].namespaces.items()))
    if wants_json(ctx):
        for namespace, last in namespaces.items():
            emit({"sink": sink, "namespace": namespace, "offset": last})
        return
    from penstock.cli import render

    show(render.namespaces(namespaces))
