"""`dead`: the messages that a sink or function refused for good, kept with their reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from penstock.base.errors import UsageError
from penstock.base.texts import indented
from penstock.base.units import counted
from penstock.cli.common import (
    emit,
    json_option,
    pipeline_argument,
    pipeline_option,
    show,
    wants_json,
)
from penstock.cli.connection import Connection, broker_options
from penstock.cli.places import chosen_pipeline, editing, looking
from penstock.cli.selecting import confirm, yes_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.log.deadletters import DeadLetter
    from penstock.pipeline.definition import Pipeline

REFUSED = 3


@click.group(no_args_is_help=True)
def dead() -> None:
    """See, replay or give up messages that a sink refused.

    \b
    Examples:
      penstock dead list
      penstock dead show 3
      penstock dead replay shop.py --all
      penstock dead drop 3 4
    """


@dead.command(name="list")
@click.option("--sink", metavar="SINK", help="Only those of this sink.")
@click.option("--settled", is_flag=True, help="Also those that were replayed or dropped.")
@broker_options
@pipeline_option
@json_option
@click.pass_context
def list_letters(
    ctx: click.Context, sink: str | None, settled: bool, connection: Connection, pipeline: str | None
) -> None:
    """List the dead letters, by sink and reason. With --json, one object a letter.

    \b
    Examples:
      penstock dead list
      penstock dead list --sink audit --json
    """
    from penstock.pipeline.letters import grouped, of_sink

    with looking(connection) as directory:
        name = chosen_pipeline(directory, pipeline)
        letters = of_sink(directory, name, sink)
    letters = [letter for letter in letters if settled or letter.state == "dead"]
    if wants_json(ctx):
        for letter in letters:
            emit(letter)
        return
    if not letters:
        click.echo("There are no dead letters.")
        return
    from penstock.cli import render_state

    show(render_state.letters(grouped(letters)))


@dead.command(name="show")
@click.argument("number", type=int, metavar="N")
@broker_options
@pipeline_option
@json_option
@click.pass_context
def show_letter(ctx: click.Context, number: int, connection: Connection, pipeline: str | None) -> None:
    """Show dead letter N: the message as it was, who refused it, when, and why.

    \b
    Examples:
      penstock dead show 3
      penstock dead show 3 --json
    """
    from penstock.pipeline.letters import numbered

    with looking(connection) as directory:
        name = chosen_pipeline(directory, pipeline)
        [letter] = numbered(directory.dead(name), [number], name)
    if wants_json(ctx):
        emit(letter)
        return
    from penstock.cli import render_state

    click.echo(render_state.letter(letter))


@dead.command()
@pipeline_argument
@click.argument("numbers", type=int, nargs=-1, metavar="[N...]")
@click.option("--sink", metavar="SINK", help="All of this sink.")
@click.option("--all", "everything", is_flag=True, help="All there are.")
@broker_options
@json_option
@click.pass_context
def replay(
    ctx: click.Context,
    pipeline: Pipeline,
    numbers: tuple[int, ...],
    sink: str | None,
    everything: bool,
    connection: Connection,
) -> None:
    """Send dead letters through their functions and sink again.

    One that is refused again stays, and the exit code is 3. A sink's offset does not move. The message arrives
    behind those that the sink has got meanwhile.

    \b
    Examples:
      penstock dead replay shop.py 3 4
      penstock dead replay shop.py --sink audit
      penstock dead replay shop.py --all --json
    """
    from penstock.pipeline.delivering import replay as send
    from penstock.pipeline.letters import replayable

    refused = 0
    with editing(connection) as editor:
        editor.require_still(pipeline.name)
        letters = _chosen(editor.directory.dead(pipeline.name), pipeline.name, numbers, sink, everything)
        letters = replayable(letters, meant=not everything)
        for done in send(editor, pipeline, letters):
            refused += done.outcome == "refused"
            if wants_json(ctx):
                emit(done)
                continue
            why = f" by '{done.node}': {done.error}" if done.error else ""
            click.echo(indented(f"{done.number}: message {done.offset} to {done.sink} {done.outcome}{why}"))
    if not wants_json(ctx):
        click.echo(f"{counted(len(letters) - refused, 'message')} replayed, {refused} refused again.")
    if refused:
        ctx.exit(REFUSED)


@dead.command()
@click.argument("numbers", type=int, nargs=-1, metavar="[N...]")
@click.option("--sink", metavar="SINK", help="All of this sink.")
@click.option("--all", "everything", is_flag=True, help="All there are.")
@yes_option
@broker_options
@pipeline_option
@json_option
@click.pass_context
def drop(
    ctx: click.Context,
    numbers: tuple[int, ...],
    sink: str | None,
    everything: bool,
    yes: bool,
    connection: Connection,
    pipeline: str | None,
) -> None:
    """Give dead letters up: they will never be sent.

    \b
    Examples:
      penstock dead drop 3 4
      penstock dead drop --sink audit --yes
    """
    with editing(connection) as editor:
        name = chosen_pipeline(editor.directory, pipeline)
        editor.require_still(name)
        letters = _chosen(editor.directory.dead(name), name, numbers, sink, everything)
        confirm(ctx, f"Give up {counted(len(letters), 'dead letter')} of '{name}'?", yes=yes)
        editor.drop_letters(name, letters)
    if wants_json(ctx):
        emit({"pipeline": name, "dropped": [letter.number for letter in letters]})
    else:
        click.echo(f"{counted(len(letters), 'dead letter')} given up.")


def _chosen(
    letters: Sequence[DeadLetter], pipeline: str, numbers: Sequence[int], sink: str | None, everything: bool
) -> list[DeadLetter]:
    """The letters that are meant; all of them must still be dead."""
    from penstock.pipeline.letters import still_dead

    if bool(numbers) + (sink is not None) + everything != 1:
        raise UsageError(
            "say which dead letters: their numbers, or --sink SINK, or --all",
            hint="`penstock dead list` shows them",
        )
    return still_dead(letters, pipeline, numbers, sink)
