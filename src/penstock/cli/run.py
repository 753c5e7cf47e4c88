"""`run`: carry a pipeline out, and show how it goes.

On a terminal a table that lives, then a summary; anywhere else lines of JSON, at most one a second, the last
one being the summary. Signals are the runner's: it ends between two batches and says so in the summary.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.base.errors import UsageError
from penstock.cli.common import (
    DEFAULT_DATA_DIR,
    console,
    data_dir_option,
    emit,
    json_option,
    pipeline_argument,
    visible,
    wants_json,
)

if TYPE_CHECKING:
    from penstock.cli.render import NextStep
    from penstock.pipeline.definition import Pipeline
    from penstock.pipeline.progress import Progress, Summary

Report = Callable[["Progress"], None]

_QUIET_SECONDS = 1.0
_REFRESH = 4


@click.command()
@pipeline_argument
@click.option("--once", is_flag=True, help="End when all that is there now has been delivered.")
@click.option("--follow", is_flag=True, help="Go on until stopped, waiting for more.")
@data_dir_option
@click.option("--master", metavar="URL", help="Spark master; a local one is started if not given.")
@click.option(
    "--cores", type=click.IntRange(min=1), metavar="N", help="Cores of the local Spark; all if not given."
)
@json_option
@click.pass_context
def run(
    ctx: click.Context,
    pipeline: Pipeline,
    once: bool,
    follow: bool,
    data_dir: Path,
    master: str | None,
    cores: int | None,
) -> None:
    """Carry out PIPELINE: a file, or FILE:NAME if it defines several.

    Without --once or --follow it does what the source's `tail` setting says: follow changes, or end when the
    source has run out. Run it again after any crash: it goes on where it was.

    \b
    Examples:
      penstock run shop.py --once
      penstock run shop.py --follow --cores 4
      penstock run shop.py:shop --data-dir /var/lib/penstock
      penstock run shop.py --once --json | jq .phase
    """
    if once and follow:
        raise UsageError(
            "--once and --follow exclude each other", hint="--once ends by itself, --follow does not"
        )
    tails = bool(getattr(pipeline.source_node.adaptor, "tail", False))
    ends = once or not (follow or tails)

    def carry_out(report: Report) -> Summary:
        # Importing the runner imports Spark, which takes long enough for a person to want to see something.
        from penstock.pipeline import runner

        return runner.run(pipeline, data_dir=data_dir, once=ends, master=master, cores=cores, report=report)

    if wants_json(ctx) or not sys.stdout.isatty():
        summary = _in_lines(carry_out)
    else:
        summary = _live(pipeline.name, data_dir, carry_out)
    ctx.exit(summary.exit_code)


def _in_lines(carry_out: Callable[[Report], Summary]) -> Summary:
    summary = carry_out(throttled(lambda progress: emit(labelled("progress", progress))))
    emit(labelled("summary", summary))
    if summary.message:
        click.echo(f"Error: {visible(summary.message)}", err=True)
    return summary


def labelled(event: str, value: Progress | Summary) -> dict[str, object]:
    """The value as an object that says what it is."""
    import msgspec

    fields: dict[str, object] = msgspec.to_builtins(value)
    return {"event": event, **fields}


def throttled(report: Report, clock: Callable[[], float] = time.monotonic) -> Report:
    """Pass on at most one report a second; the next one tells what those between would have told."""
    due = float("-inf")

    def passed_on(progress: Progress) -> None:
        nonlocal due
        now = clock()
        if now >= due:
            due = now + _QUIET_SECONDS
            report(progress)

    return passed_on


def _live(name: str, data_dir: Path, carry_out: Callable[[Report], Summary]) -> Summary:
    from rich.live import Live

    from penstock.cli import render
    from penstock.pipeline.progress import Progress

    out = console()
    opening = render.progress(Progress(pipeline=name, elapsed=0.0, phase="opening", log_next=0))
    # The table goes when the summary comes: two tables with nearly the same numbers would only confuse.
    with Live(opening, console=out, refresh_per_second=_REFRESH, transient=True) as live:
        summary = carry_out(lambda progress: live.update(render.progress(progress)))
    out.print(render.summary(summary, what_next(summary, data_dir)))
    return summary


def what_next(summary: Summary, data_dir: Path) -> list[NextStep]:
    """Commands that are worth typing after this run."""
    from penstock.cli.render import NextStep

    where = "" if data_dir == DEFAULT_DATA_DIR else f" --data-dir {shlex.quote(str(data_dir))}"
    last = max(summary.log_next - 1, 0)
    steps = [NextStep(f"penstock status{where}", "what each sink has, and what it lacks")]
    if summary.log_next:
        shown = f"penstock xlog show {max(last - 2, 0)} {last}{where}"
        steps.append(NextStep(shown, "the last messages of the log"))
    return [*steps, NextStep("the same command again", "it goes on where it was, also after kill -9")]
