"""Commands that follow messages: `tap` at one node, `trace` one message past all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from penstock.base.errors import UsageError
from penstock.base.texts import indented
from penstock.cli.common import emit, json_option, pipeline_option, value_files, wants_json
from penstock.cli.connection import Connection, broker_options
from penstock.cli.places import chosen_pipeline, looking, with_optional_file

if TYPE_CHECKING:
    from penstock.pipeline.recompute import Tapped
    from penstock.pipeline.records import Passing


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="[PIPELINE] NODE")
@click.option("--in", "side", flag_value="in", help="What goes into the node; at a sink this is the default.")
@click.option(
    "--out", "side", flag_value="out", help="What comes out of it; the default at a source or function."
)
@click.option("--ns", metavar="PATTERN", help="Only messages of the namespaces that this finds.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="End after so many messages.")
@click.option(
    "--from", "start", type=click.IntRange(min=0), metavar="OFFSET", help="Begin here, not at the end."
)
@click.option("--no-wait", is_flag=True, help="End at the end of the log.")
@value_files
@broker_options
@pipeline_option
@json_option
@click.pass_context
def tap(
    ctx: click.Context,
    words: tuple[str, ...],
    side: str | None,
    ns: str | None,
    count: int | None,
    start: int | None,
    no_wait: bool,
    connection: Connection,
    pipeline: str | None,
) -> None:
    """Show messages as they pass NODE of PIPELINE.

    NODE is its source, a function or a sink. The log is followed, and what functions make of each message is worked
    out again, here; nothing is changed, and a run does not notice. What a function refuses is shown on stderr.
    Without the pipeline file only the source can be tapped, which is the log itself.

    \b
    Examples:
      penstock tap shop.py slim
      penstock tap shop.py slim --in -n 5
      penstock tap shop.py audit --ns orders --json
      penstock tap shop.py audit --from 0 --no-wait
    """
    from penstock.pipeline.namespace import Namespace
    from penstock.pipeline.recompute import tapped

    loaded, node = with_optional_file(ctx, words, "the name of a node")
    with looking(connection) as directory:
        name = chosen_pipeline(directory, loaded.name if loaded else pipeline)
        if start is not None and start > directory.current(name) + 1:
            raise UsageError(
                f"the log of '{name}' ends with {directory.current(name)}, asked to begin at {start}"
            )
        if loaded is None:
            _require_source(directory.run_file(name), node)
    at = tapped(loaded, node, side) if loaded else _the_log(node, side)
    pattern = Namespace(ns) if ns is not None else None
    shown = 0
    for row in _passing(connection, name, at, start, wait=not no_wait):
        if pattern is not None and not pattern.matches(row.ns):
            continue
        _print(ctx, row)
        shown += 1
        if shown == count:
            return


def _require_source(file: object, node: str) -> None:
    """Without its file, of a pipeline's nodes only the source is what the log holds."""
    from penstock.pipeline.progress import RunFile

    nodes = {known.node: known.kind for known in file.progress.nodes} if isinstance(file, RunFile) else {}
    if nodes.get(node) != "source":
        raise UsageError(
            f"to tap '{node}' the pipeline file is needed: filters and functions are in it",
            hint=f"penstock tap PIPELINE.py {node}; the log itself is `penstock xlog show X --follow`",
        )


def _the_log(node: str, side: str | None) -> Tapped:
    from penstock.pipeline.recompute import AnyOf, Tapped

    if side == "in":
        raise UsageError(
            f"'{node}' is the source: what goes into it is not Penstock's to see", hint="leave out --in"
        )
    return Tapped(node, "source", "out", AnyOf(()))


def _passing(
    connection: Connection, pipeline: str, at: Tapped, start: int | None, *, wait: bool
) -> Iterator[Passing]:
    from penstock.pipeline.following import follow

    for piece in follow(lambda: looking(connection), pipeline, start, wait=wait):
        rows, refused = at.seen(piece) if piece else ([], {})
        for offset, error in refused.items():
            click.echo(indented(f"{at.node} refused message {offset}: {error}"), err=True)
        yield from rows


def _print(ctx: click.Context, row: Passing) -> None:
    if wants_json(ctx):
        emit(row)
        return
    from penstock.cli import render_state

    click.echo(render_state.message(row))


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="[PIPELINE] OFFSET")
@value_files
@broker_options
@pipeline_option
@json_option
@click.pass_context
def trace(ctx: click.Context, words: tuple[str, ...], connection: Connection, pipeline: str | None) -> None:
    """Tell what became of the message at OFFSET, at every node.

    With the pipeline file, what each function makes of it is worked out again, by the file as it is now. What each
    sink has is told by its offsets: acknowledged, pending, dead, or skipped by an operator.

    \b
    Examples:
      penstock trace shop.py 14
      penstock trace 14
      penstock trace shop.py 14 --json
    """
    from penstock.pipeline.tracing import trace as traced

    loaded, text = with_optional_file(ctx, words, "an offset")
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"'{text}' is no offset", hint="it counts messages: 0, 1, 2 …")
    with looking(connection) as directory:
        name = chosen_pipeline(directory, loaded.name if loaded else pipeline)
        found = traced(directory, name, int(text), loaded)
    if wants_json(ctx):
        emit(found)
        return
    from penstock.cli import render_state

    click.echo(render_state.trace(found))
