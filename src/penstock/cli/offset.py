"""`offset`: see what each sink has acknowledged, and change it.

Looking works at any time. Changing needs the pipeline to stand still, asks where something is lost or sent again, and
leaves a record.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from penstock.base.errors import UsageError
from penstock.base.units import counted
from penstock.cli.common import emit, json_option, pipeline_option, show, visible, wants_json
from penstock.cli.connection import Connection, broker_options
from penstock.cli.places import chosen_pipeline, editing, looking
from penstock.cli.selecting import confirm, yes_option


@click.group(no_args_is_help=True)
def offset() -> None:
    """See what each sink has acknowledged, and change it.

    \b
    Examples:
      penstock offset list
      penstock offset show audit
      penstock offset ack audit 14        pass over message 14, which the sink refuses
      penstock offset mark audit 99       everything after message 99 again
    """


@offset.command(name="list")
@broker_options
@pipeline_option
@json_option
@click.pass_context
def list_offsets(ctx: click.Context, connection: Connection, pipeline: str | None) -> None:
    """List the sinks: the last offset each has acknowledged (-1 if none), and how many are missing.

    \b
    Examples:
      penstock offset list
      penstock offset list --json
    """
    with looking(connection) as directory:
        sinks = directory.offsets(chosen_pipeline(directory, pipeline))
    if wants_json(ctx):
        for sink in sinks:
            emit({"sink": sink.sink, "offset": sink.offset, "lag": sink.lag, "generation": sink.generation})
        return
    from penstock.cli import render_state

    show(render_state.offsets(sinks))


@offset.command(name="show")
@click.argument("sink")
@broker_options
@pipeline_option
@json_option
@click.pass_context
def show_offsets(ctx: click.Context, sink: str, connection: Connection, pipeline: str | None) -> None:
    """Show the last offset that SINK has acknowledged, for each namespace.

    \b
    Examples:
      penstock offset show audit
      penstock offset show audit --json
    """
    with looking(connection) as directory:
        name = chosen_pipeline(directory, pipeline)
        directory.require_sink(name, sink)
        [found] = [known for known in directory.offsets(name) if known.sink == sink]
    if wants_json(ctx):
        for namespace, last in found.namespaces.items():
            emit({"sink": sink, "namespace": namespace, "offset": last})
        return
    from penstock.cli import render_state

    show(render_state.namespaces(found.namespaces))
    ahead = ", ".join(map(str, found.acked))
    if ahead:
        click.echo(f"acknowledged ahead of their turn: {ahead}")


@offset.command(name="mark")
@click.argument("sink")
@click.argument("last", type=int, metavar="N")
@yes_option
@broker_options
@pipeline_option
@json_option
@click.pass_context
def mark(
    ctx: click.Context, sink: str, last: int, yes: bool, connection: Connection, pipeline: str | None
) -> None:
    """Set SINK's offset to N: all up to N counts as acknowledged, N+1 is delivered next.

    Back means that messages are sent again; -1 means all of them (write it as `mark SINK -- -1`). Forward means
    that messages are acknowledged without being sent; they count as dropped.

    \b
    Examples:
      penstock offset mark audit 99
      penstock offset mark audit -- -1
      penstock offset mark audit 99 --yes --json
    """
    from penstock.pipeline.moves import in_words

    with editing(connection) as editor:
        name = chosen_pipeline(editor.directory, pipeline)
        editor.require_still(name)
        planned = editor.planned_mark(name, sink, last)
        if planned.changes:
            confirm(ctx, f"{in_words(planned)} Do it?", yes=yes)
        done = editor.mark(name, sink, last)
    if wants_json(ctx):
        emit(done)
        return
    if not done.changes:
        click.echo(f"{sink} is at {last} already.")
        return
    click.echo(f"{sink}: offset {done.before} -> {done.after}, generation {done.generation}")
    if done.was_detached:
        click.echo(
            f"{sink} was detached and lacks messages that compaction removed: to get current rows to it, "
            "`penstock backfill NS` for its namespaces."
        )


@offset.command(name="ack")
@click.argument("sink")
@click.argument("offsets", type=int, nargs=-1, required=True, metavar="OFFSET...")
@broker_options
@pipeline_option
@json_option
@click.pass_context
def ack(
    ctx: click.Context, sink: str, offsets: tuple[int, ...], connection: Connection, pipeline: str | None
) -> None:
    """Acknowledge messages for SINK without sending them.

    The next one moves the sink's offset. Later ones are remembered, and passed over when their turn comes.

    \b
    Examples:
      penstock offset ack audit 14
      penstock offset ack audit 14 17 18 --json
    """
    with editing(connection) as editor:
        done = editor.ack(chosen_pipeline(editor.directory, pipeline), sink, offsets)
    if wants_json(ctx):
        emit(done)
        return
    moved = f"offset {done.before} -> {done.after}" if done.after > done.before else f"offset {done.after}"
    later = f"; waiting for their turn: {', '.join(map(str, done.ahead))}" if done.ahead else ""
    click.echo(f"{sink}: {moved}{later}")


@offset.command(name="delete")
@click.argument("sink")
@yes_option
@broker_options
@pipeline_option
@json_option
@click.pass_context
def delete(ctx: click.Context, sink: str, yes: bool, connection: Connection, pipeline: str | None) -> None:
    """Forget SINK, which the pipeline does not have any more; the log is then kept for the others only.

    A sink of that name that comes back later begins anew, with everything that the log still has.

    \b
    Examples:
      penstock offset delete audit
      penstock offset delete audit --yes
    """
    with editing(connection) as editor:
        name = chosen_pipeline(editor.directory, pipeline)
        editor.require_still(name)
        editor.directory.require_sink(name, sink)
        at = editor.directory.loaded(name, sink).commit.watermark - 1
        confirm(ctx, f"Forget that {sink} has everything up to {at}?", yes=yes)
        editor.forget(name, sink)
    if wants_json(ctx):
        emit({"pipeline": name, "sink": sink, "offset": at, "deleted": True})
    else:
        click.echo(f"{sink} is forgotten; it had everything up to {at}.")


@offset.command(name="export")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True), default=Path("-"))
@broker_options
@pipeline_option
@json_option
def export(file: Path, connection: Connection, pipeline: str | None) -> None:
    """Write the offsets of all sinks as JSON, to FILE or to standard output.

    \b
    Examples:
      penstock offset export offsets.json
      penstock offset export --pipeline shop > offsets.json
    """
    from penstock.pipeline.clock import now_us
    from penstock.pipeline.offsetfile import exported, written

    with looking(connection) as directory:
        found = exported(directory, chosen_pipeline(directory, pipeline), now_us())
    text = written(found)
    if str(file) == "-":
        click.echo(text)
        return
    try:
        file.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}") from None
    click.echo(f"Wrote the offsets of {counted(len(found.sinks), 'sink')} to {file}.", err=True)


@offset.command(name="import")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@yes_option
@broker_options
@pipeline_option
@json_option
@click.pass_context
def import_offsets(
    ctx: click.Context, file: Path, yes: bool, connection: Connection, pipeline: str | None
) -> None:
    """Set the offsets of sinks to what FILE says, as `export` wrote it.

    All of it is checked first; offsets beyond the log's end and files of another log are refused. Sinks that FILE
    does not name stay as they are. Each sink that changes begins a new generation.

    \b
    Examples:
      penstock offset import offsets.json
      penstock offset import offsets.json --yes --json
    """
    from penstock.pipeline import offsetfile

    wanted = offsetfile.read(_content(file), str(file))
    with editing(connection) as editor:
        name = chosen_pipeline(editor.directory, pipeline or wanted.pipeline)
        editor.require_still(name)
        wanted.check(name, editor.directory.log_id(name), editor.directory.current(name) + 1)
        confirm(ctx, f"Set the offsets of {counted(len(wanted.sinks), 'sink')} of '{name}'?", yes=yes)
        moves = editor.restore(name, wanted)
    for move in moves:
        if wants_json(ctx):
            emit(move)
        else:
            click.echo(
                f"{visible(move.sink)}: offset {move.before} -> {move.after}, generation {move.generation}"
            )


def _content(file: Path) -> bytes:
    if str(file) == "-":
        return sys.stdin.buffer.read()
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None


@offset.command(name="history")
@click.argument("sink", required=False)
@broker_options
@pipeline_option
@json_option
@click.pass_context
def history(ctx: click.Context, sink: str | None, connection: Connection, pipeline: str | None) -> None:
    """Tell who changed what, and when: the record that every edit leaves.

    \b
    Examples:
      penstock offset history
      penstock offset history audit --json
    """
    with looking(connection) as directory:
        name = chosen_pipeline(directory, pipeline)
        directory.reader(name)
        found = [entry for entry in directory.audit(name) if not entry.action.startswith("run-")]
    found = [entry for entry in found if sink is None or entry.sink == sink]
    if wants_json(ctx):
        for entry in found:
            emit(entry)
        return
    from penstock.cli import render_state

    show(render_state.history(found))
