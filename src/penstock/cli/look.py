"""Commands that look: `status` and `top`. They work while a pipeline runs and while none does."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import click

from penstock.base.errors import UsageError
from penstock.cli.common import console, emit, json_option, pipeline_option, show, wants_json
from penstock.cli.connection import Connection, broker_options
from penstock.cli.places import chosen_pipeline, looking, require_directory

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penstock.pipeline.progress import RunFile
    from penstock.pipeline.records import PipelineStatus

_REFRESH_SECONDS = 1.0
_REFRESH = 4
_HINT = "`penstock status` tells how it stands"
_SILENT_SECONDS = 10.0
"""A run that has said nothing for so long may hang: it is said, since it writes about every second."""


@click.command()
@broker_options
@pipeline_option
@json_option
@click.pass_context
def status(ctx: click.Context, connection: Connection, pipeline: str | None) -> None:
    """Tell how far each pipeline and each sink is.

    Works while a pipeline runs and while none does. With --json, one object a pipeline.

    \b
    Examples:
      penstock status
      penstock status --pipeline shop --json
      penstock status --data-dir /var/lib/penstock
      penstock status --broker http://10.0.0.4:8080
    """
    from penstock.pipeline.clock import now_us

    with looking(connection) as directory:
        one = len(directory.pipelines()) < 2 or pipeline is not None
        names = [chosen_pipeline(directory, pipeline)] if one else directory.pipelines()
        statuses = directory.statuses(names)
    if wants_json(ctx):
        for found in statuses:
            emit(found)
        return
    from penstock.cli import render_state

    for found in statuses:
        show(render_state.status(found, now_ts=now_us()))


@click.command()
@click.option("--once", is_flag=True, help="Show it once and end.")
@broker_options
@pipeline_option
@json_option
@click.pass_context
def top(ctx: click.Context, once: bool, connection: Connection, pipeline: str | None) -> None:
    """Watch a running pipeline, node by node.

    What each takes, gives, drops and lacks, every second. Ends when the run does, or with Ctrl-C.

    \b
    Examples:
      penstock top
      penstock top --once --json
      penstock top --pipeline shop
    """
    told: Iterator[RunFile | PipelineStatus] = (
        _from_broker(connection, pipeline) if connection.address else _from_file(connection, pipeline)
    )
    if once:
        told = islice(told, 1)
    if wants_json(ctx) or not sys.stdout.isatty() or once:
        for found in told:
            if wants_json(ctx):
                emit(found)
            else:
                show(_rendered(found))
        return
    from rich.live import Live

    with Live(console=console(), refresh_per_second=_REFRESH) as live:
        for found in told:
            live.update(_rendered(found))


def _from_file(connection: Connection, pipeline: str | None) -> Iterator[RunFile]:
    """What the run tells in its data directory, each second until it ends; no broker is asked."""
    from penstock.journal.datadir import DataDir
    from penstock.pipeline.operations import running_here
    from penstock.pipeline.progress import published

    require_directory(connection)
    directory = DataDir(connection.data_dir)
    owner = directory.owner()
    names = running_here(directory, owner) if owner else []
    name = pipeline or (names[0] if names else None)
    if name not in names or name is None:
        raise UsageError(
            f"pipeline '{name}' is not running" if name else "no pipeline is running", hint=_HINT
        )
    while (file := published(directory.path, name)) is not None and directory.owner() == owner:
        yield file
        if file.exit_code is not None:
            return
        time.sleep(_REFRESH_SECONDS)


def _from_broker(connection: Connection, pipeline: str | None) -> Iterator[PipelineStatus]:
    """What the journals tell, each second until the run ends."""
    from penstock.pipeline.clock import now_us
    from penstock.pipeline.watching import Watched

    with looking(connection) as directory:
        name = chosen_pipeline(directory, pipeline)
        found, watched = directory.status(name), Watched(name)
        if not found.running:
            raise UsageError(f"pipeline '{name}' is not running", hint=_HINT)
        while found.running:
            yield found
            time.sleep(_REFRESH_SECONDS)
            found = watched.look(directory, now_us())


def _rendered(found: RunFile | PipelineStatus) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from penstock.cli import render, render_state
    from penstock.pipeline.clock import now_us
    from penstock.pipeline.progress import RunFile

    if not isinstance(found, RunFile):
        return render_state.status(found, now_ts=now_us())
    silent = time.time() - found.written / 1e6
    shown = render.progress(found.progress)
    if silent < _SILENT_SECONDS:
        return shown
    return Group(shown, Text(f"the run has said nothing for {silent:.0f} s", style="red"))
