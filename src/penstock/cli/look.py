"""Commands that look: `status`."""

from __future__ import annotations

import time
from pathlib import Path

import click

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


@click.command()
@data_dir_option
@pipeline_option
@json_option
@click.pass_context
def status(ctx: click.Context, data_dir: Path, pipeline: str | None) -> None:
    """Tell how far each pipeline and each sink is.

    Works while a pipeline runs and while none does. With --json, one object a pipeline.

    \b
    Examples:
      penstock status
      penstock status --pipeline shop --json
      penstock status --data-dir /var/lib/penstock
    """
    with open_data_dir(data_dir) as directory:
        one = len(directory.pipelines()) < 2 or pipeline is not None
        names = [chosen_pipeline(directory, pipeline)] if one else sorted(directory.pipelines())
        statuses = [directory.status(name) for name in names]
    if wants_json(ctx):
        for found in statuses:
            emit(found)
        return
    from penstock.cli import render

    for found in statuses:
        show(render.status(found, now_ts=int(time.time() * 1_000_000)))
