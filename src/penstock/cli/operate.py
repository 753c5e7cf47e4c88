"""Commands on one sink, one namespace or the source: `step`, `pause`, `resume`, `backfill`, `release`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from penstock.cli.common import (
    GIVEN_PIPELINE,
    emit,
    json_option,
    pipeline_argument,
    pipeline_option,
    visible,
    wants_json,
)
from penstock.cli.connection import Connection, broker_options
from penstock.cli.places import chosen_pipeline, editing, looking, who
from penstock.cli.selecting import confirm, yes_option

if TYPE_CHECKING:
    from penstock.pipeline.definition import Pipeline
    from penstock.pipeline.records import Stepped

REFUSED = 3


@click.command()
@pipeline_argument
@click.argument("sink")
@click.option(
    "-n", "--count", type=click.IntRange(min=1), default=1, show_default=True, help="So many messages."
)
@click.option(
    "--dead-letter", is_flag=True, help="If it is refused, keep it among the dead letters and go on."
)
@broker_options
@json_option
@click.pass_context
def step(
    ctx: click.Context, pipeline: Pipeline, sink: str, count: int, dead_letter: bool, connection: Connection
) -> None:
    """Deliver just the next message to SINK, and tell what happened.

    It goes through the functions and is acknowledged like any other. One that is refused stays the next one, and
    the exit code is 3. Needs no Spark; a sink behind a function of a DataFrame cannot be stepped. Sinks that commit
    together are stepped together.

    \b
    Examples:
      penstock step shop.py audit
      penstock step shop.py audit -n 10 --json
      penstock step shop.py audit --dead-letter
    """
    from penstock.pipeline.delivering import step as deliver

    refused = None
    with editing(connection) as editor:
        for done in deliver(editor, pipeline, sink, count, bury=dead_letter):
            refused = done if done.outcome == "refused" else None
            if wants_json(ctx):
                emit(done)
            else:
                click.echo(visible(done.words))
    if refused is not None:
        if not wants_json(ctx):
            click.echo(_what_now(refused, ctx.meta[GIVEN_PIPELINE]), err=True)
        ctx.exit(REFUSED)


def _what_now(done: Stepped, file: str) -> str:
    steps = [
        (f"penstock xlog show {done.offset}", "look at it"),
        (f"penstock offset ack {done.sink} {done.offset}", "pass over it"),
        (f"penstock step {shlex.quote(file)} {done.sink} --dead-letter", "keep it for later and go on"),
    ]
    width = max(len(command) for command, _ in steps)
    return visible("\nWhat to try next:\n" + "\n".join(f"  {c:{width}}   {why}" for c, why in steps))


@click.command()
@click.argument("sink")
@broker_options
@pipeline_option
@json_option
@click.pass_context
def pause(ctx: click.Context, sink: str, connection: Connection, pipeline: str | None) -> None:
    """Have SINK take nothing more until `resume`.

    A run that goes on follows within a second or two. Reading and the other sinks go on, and the log keeps what the
    sink lacks.

    \b
    Examples:
      penstock pause audit
      penstock pause audit --pipeline shop --json
    """
    _set(ctx, sink, connection, pipeline, paused=True)


@click.command()
@click.argument("sink")
@broker_options
@pipeline_option
@json_option
@click.pass_context
def resume(ctx: click.Context, sink: str, connection: Connection, pipeline: str | None) -> None:
    """Have SINK go on after `pause`.

    \b
    Examples:
      penstock resume audit
      penstock resume audit --pipeline shop --json
    """
    _set(ctx, sink, connection, pipeline, paused=False)


def _set(
    ctx: click.Context, sink: str, connection: Connection, pipeline: str | None, *, paused: bool
) -> None:
    from penstock.pipeline import editing as edits
    from penstock.pipeline.clock import now_us

    with looking(connection) as directory:
        name = chosen_pipeline(directory, pipeline)
        changed = edits.pause(directory, name, sink, who(), paused=paused)
        run = directory.run(name, now_us())
    if wants_json(ctx):
        emit(
            {"pipeline": name, "sink": sink, "paused": paused, "changed": changed, "running": run is not None}
        )
        return
    state = "paused" if paused else "not paused"
    if run:
        when = (
            "the run that is under way stops feeding it"
            if paused
            else "the run that is under way goes on with it"
        )
    else:
        when = "it counts from the next run on"
    click.echo(f"{sink} is {state}: {when}." if changed else f"{sink} is {state} already.")


@click.command()
@click.argument("ns")
@click.option(
    "--where", metavar="CONDITION", help="Only these rows, in the words of the source (SQL for databases)."
)
@yes_option
@broker_options
@pipeline_option
@json_option
@click.pass_context
def backfill(
    ctx: click.Context,
    ns: str,
    where: str | None,
    yes: bool,
    connection: Connection,
    pipeline: str | None,
) -> None:
    """Have the source copy namespace NS again.

    It does at the next run, and all sinks get the rows once more. Without --where all of it is copied. Changes that
    come meanwhile are followed as ever. One that has not come to its end begins anew with what is said now; --where is
    refused where all rows are still to be copied.

    \b
    Examples:
      penstock backfill orders
      penstock backfill orders --where "id > 1000"
    """
    with editing(connection) as editor:
        name = chosen_pipeline(editor.directory, pipeline)
        editor.require_still(name)
        what = f"the rows of '{ns}' where {where}" if where else f"all of '{ns}'"
        instead = editor.replaced_backfill(name, ns, where)
        loss = f", and no more those where {instead}, which were not copied to the end" if instead else ""
        confirm(ctx, visible(f"Copy {what} again, to all sinks of '{name}'{loss}?"), yes=yes)
        editor.backfill(name, ns, where)
    if wants_json(ctx):
        emit({"pipeline": name, "ns": ns, "where": where, "instead_of": instead})
    else:
        click.echo(visible(f"The next run of '{name}' copies {what} again{loss}."))


@click.command()
@pipeline_argument
@yes_option
@broker_options
@json_option
@click.pass_context
def release(ctx: click.Context, pipeline: Pipeline, yes: bool, connection: Connection) -> None:
    """Take away what PIPELINE has set up at its source.

    A slot, a publication, a consumer group: for a pipeline that will not run again, since what it set up may have
    the system keep things for it. Should it run after all, it goes on where the log stands if the system still has
    what comes next. Where it does not, as PostgreSQL without the slot, the run ends with an error that names the
    namespaces to copy anew with `penstock backfill`. Refused while the pipeline runs.

    \b
    Examples:
      penstock release shop.py
      penstock release shop.py --yes --json
    """
    from penstock.pipeline.releasing import release as take_away

    with editing(connection) as editor:
        known = pipeline.name in editor.directory.pipelines()
        if known:
            editor.require_still(pipeline.name)
        source = pipeline.source_node
        question = (
            f"Take away what source '{source.name}' ({source.adaptor.name}) has set up for '{pipeline.name}'?"
        )
        confirm(ctx, question, yes=yes)
        if known:
            editor.fence_off(pipeline.name)
        removed = take_away(pipeline)
        if known:
            editor.record(pipeline.name, "release", None, {"removed": list(removed)})
    if wants_json(ctx):
        emit({"pipeline": pipeline.name, "source": source.name, "removed": list(removed)})
    elif removed:
        click.echo("\n".join(visible(f"Removed {what}.") for what in removed))
    else:
        click.echo("There was nothing to remove.")
