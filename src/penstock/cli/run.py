"""`run`: carry a pipeline out, and show how it goes.

On a terminal a table that lives, then a summary; anywhere else lines of JSON, one a second or less, the last
one being the summary. Signals are the runner's: it ends between two batches and says so in the summary.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.base.errors import UsageError
from penstock.base.logs import LEVELS, Format, set_up
from penstock.cli.common import (
    DEFAULT_DATA_DIR,
    console,
    emit,
    json_option,
    pipeline_argument,
    visible,
    wants_json,
)
from penstock.cli.connection import Connection, broker_beside_directory
from penstock.cli.connector_options import FILE
from penstock.cli.webconsole import DEFAULT_LISTEN, beside_run

if TYPE_CHECKING:
    from penstock.cli.render import NextStep
    from penstock.pipeline.definition import Pipeline
    from penstock.pipeline.progress import Progress, Summary
    from penstock.spark.reach import Reach

Report = Callable[["Progress"], None]
Failed = Callable[["Summary"], None]

log = logging.getLogger(__name__)

_QUIET_SECONDS = 1.0
_COLLECTIONS = (50_000, 20, 20)
_REFRESH = 4


def _settings(ctx: click.Context, _: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """`KEY=VALUE` settings for Spark."""
    settings = {}
    for item in given:
        key, equals, value = item.partition("=")
        if not equals or not key.startswith("spark."):
            raise UsageError(
                f"--conf {item}: expected spark.SOMETHING=VALUE",
                hint="for example --conf spark.driver.memory=4g",
            )
        settings[key] = value
    return settings


@click.command()
@pipeline_argument
@click.option("--once", is_flag=True, help="End when all that is there now has been delivered.")
@click.option("--follow", is_flag=True, help="Go on until stopped, waiting for more.")
@click.option(
    "--strict/--no-strict",
    default=None,
    help="A failing sink stops the pipeline; nothing is read before all sinks have what earlier runs left.",
)
@broker_beside_directory
@click.option("--master", metavar="URL", help="Spark master; a local one is started if not given.")
@click.option(
    "--cores", type=click.IntRange(min=1), metavar="N", help="Cores of the local Spark; all if not given."
)
@click.option(
    "--conf",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_settings,
    help="A setting for Spark, as it is.",
)
@click.option(
    "--scratch",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where Spark and staging put what they need for a while; in the data directory if not given.",
)
@click.option(
    "--http",
    metavar="HOST:PORT|off",
    default="127.0.0.1:0",
    show_default=True,
    help="Where to serve /metrics, /ready and /status; port 0 takes a free one, which `status` shows.",
)
@click.option("--console", "with_console", is_flag=True, help="Also serve the web console, while it runs.")
@click.option(
    "--console-listen",
    metavar="HOST:PORT",
    default=DEFAULT_LISTEN,
    show_default=True,
    help="Where; a loopback address.",
)
@click.option(
    "--cookie-file",
    type=FILE,
    help="For --console: the secret of connector workers, to move their instances. Default: none.",
)
@click.option(
    "--log-level", type=click.Choice(LEVELS), default="warning", show_default=True,
    help="Of the log lines on standard error.",
)  # fmt: skip
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Of log lines.",
)
@json_option
@click.pass_context
def run(
    ctx: click.Context,
    pipeline: Pipeline,
    once: bool,
    follow: bool,
    strict: bool | None,
    connection: Connection,
    master: str | None,
    cores: int | None,
    settings: dict[str, str],
    scratch: Path | None,
    http: str,
    with_console: bool,
    console_listen: str,
    cookie_file: Path | None,
    log_level: str,
    log_format: Format,
) -> None:
    """Carry out PIPELINE: a file, or FILE:NAME if it defines several.

    Without --once or --follow it does what the source's `tail` setting says: follow changes, or end when the
    source has run out. Run it again after any crash: it goes on where it was. SIGINT and SIGTERM let batches under
    way end (up to the pipeline's `stop_timeout`); a second one ends at once, and loses nothing either.

    With --broker the log and the offsets are journals of that broker; --data-dir then holds caches and scratch only.

    \b
    Examples:
      penstock run shop.py --once
      penstock run shop.py --follow --cores 4 --http 127.0.0.1:8401
      penstock run shop.py:shop --data-dir /var/lib/penstock
      penstock run shop.py --master spark://10.0.0.5:7077 --conf spark.executor.memory=2g
      penstock run shop.py --once --json | jq .phase
    """
    if once and follow:
        raise UsageError(
            "--once and --follow exclude each other", hint="--once ends by itself, --follow does not"
        )
    set_up(log_level, log_format)
    _check_master(master, pipeline, connection)
    tails = bool(getattr(pipeline.source_node.adaptor, "tail", False))
    ends = once or not (follow or tails)

    def carry_out(report: Report, failed: Failed) -> Summary:
        # Importing the runner imports Spark, which takes long enough for a person to want to see something.
        from penstock.pipeline import runner

        _collect_less_often()
        return runner.run(
            pipeline,
            data_dir=connection.data_dir,
            once=ends,
            strict=strict,
            broker=reach(connection),
            master=master,
            cores=cores,
            settings=settings,
            scratch=scratch,
            http=None if http == "off" else http,
            report=report,
            failed=failed,
        )

    with beside_run(ctx, console_listen if with_console else None, pipeline, connection, cookie_file):
        if wants_json(ctx) or not sys.stdout.isatty():
            summary = _in_lines(carry_out)
        else:
            summary = _live(pipeline.name, connection, carry_out)
    ctx.exit(summary.exit_code)


def _collect_less_often() -> None:
    """Batches are many objects and hardly a cycle: looking for those as often as usual took a third of the time.

    What is loaded by now stays for good, and is not looked at again.
    """
    gc.freeze()
    gc.set_threshold(*_COLLECTIONS)


def _check_master(master: str | None, pipeline: Pipeline, connection: Connection) -> None:
    from penstock.cli.pipelines import stores_of
    from penstock.pipeline.master import check_master, is_remote

    if not is_remote(master):
        return
    stores = [pipeline.settings.store] if pipeline.settings.store else None
    if stores is None and connection.address is not None:
        stores = stores_of(pipeline.name, connection)
    token = bool(connection.auth_token or connection.auth_keys)
    check_master(master, broker=connection.address, token=token, stores=stores)


def reach(connection: Connection) -> Reach | None:
    """The broker that was named, as Spark's processes find it too; None for the data directory's own.

    Credentials go into the environment, which is how they get to those processes; never into Spark's plans.
    """
    if connection.address is None:
        return None
    from penstock.spark.reach import KEYS, TOKEN, Reach

    for name, value in ((TOKEN, connection.auth_token), (KEYS, connection.auth_keys)):
        if value:
            os.environ[name] = value
    return Reach(connection.address, connection.ca_file, connection.cert_file, connection.key_file)


def _in_lines(carry_out: Callable[[Report, Failed], Summary]) -> Summary:
    def tell_end(summary: Summary) -> None:
        emit(labelled("summary", summary))

    tell = without_room(lambda progress: emit(labelled("progress", progress)))
    summary = carry_out(throttled(tell), tell_end)
    tell_end(summary)
    if summary.message:
        click.echo(f"Error: {visible(summary.message)}", err=True)
    for remark in remarks(summary):
        click.echo(visible(remark), err=True)
    return summary


def labelled(event: str, value: Progress | Summary) -> dict[str, object]:
    """The value as an object that says what it is."""
    import msgspec

    fields: dict[str, object] = msgspec.to_builtins(value)
    return {"event": event, **fields}


def without_room(report: Report) -> Report:
    """Do without a report that finds no room, as in a file on a full disk: told once, and the messages go on.

    Whoever reads and goes away ends the run, as any command of a pipe.
    """
    lost = False

    def passed_on(progress: Progress) -> None:
        nonlocal lost
        try:
            report(progress)
        except BrokenPipeError:
            raise
        except OSError as error:
            if not lost:
                log.warning("how it goes cannot be printed, and the run goes on: %s", error.strerror)
            lost = True
        else:
            lost = False

    return passed_on


def throttled(report: Report, clock: Callable[[], float] = time.monotonic) -> Report:
    """Pass on one report a second, and each new phase; the next one tells what those between would have told."""
    due, phase = float("-inf"), ""

    def passed_on(progress: Progress) -> None:
        nonlocal due, phase
        now = clock()
        if now >= due or progress.phase != phase:
            due, phase = now + _QUIET_SECONDS, progress.phase
            report(progress)

    return passed_on


def _live(name: str, connection: Connection, carry_out: Callable[[Report, Failed], Summary]) -> Summary:
    from rich.live import Live

    from penstock.cli import render
    from penstock.pipeline.progress import Progress

    out = console()
    opening = render.progress(Progress(pipeline=name, elapsed=0.0, phase="opening", log_next=0))
    # The table goes when the summary comes: two tables with nearly the same numbers would only confuse.
    failed: list[Summary] = []
    try:
        with Live(opening, console=out, refresh_per_second=_REFRESH, transient=True) as live:
            summary = carry_out(lambda progress: live.update(render.progress(progress)), failed.append)
    finally:
        for end in failed:  # the error itself comes behind it
            out.print(render.summary(dataclasses.replace(end, message=None)))
    out.print(render.summary(summary, what_next(summary, connection.data_dir, connection.address)))
    for remark in remarks(summary):
        out.print(visible(remark), style="yellow")
    return summary


def remarks(summary: Summary) -> list[str]:
    """What a person should know of a run that went well and yet did nothing, as a pattern may have it."""
    if summary.exit_code:
        return []
    look = "`penstock plan` shows what its pattern matches"
    if not summary.log_next:
        return [f"The source gave nothing; {look}."]
    return [
        f"{sink.sink}: everything was dropped; {look}, `penstock trace` what functions make of a message."
        for sink in summary.sinks
        if sink.messages_in and sink.dropped == sink.messages_in
    ]


def what_next(summary: Summary, data_dir: Path, broker: str | None = None) -> list[NextStep]:
    """Commands that are worth typing after a first run. One that failed has said by itself what to do."""
    from penstock.cli.render import NextStep

    if summary.exit_code or summary.read < summary.log_next:
        return []
    where = "" if data_dir == DEFAULT_DATA_DIR else f" --data-dir {shlex.quote(str(data_dir))}"
    if broker is not None:
        where = f" --broker {shlex.quote(broker)}"
    last = max(summary.log_next - 1, 0)
    steps = [NextStep(f"penstock status{where}", "what each sink has, and what it lacks")]
    if summary.log_next:
        shown = f"penstock xlog show {max(last - 2, 0)} {last}{where}"
        steps.append(NextStep(shown, "the last messages of the log"))
    return [*steps, NextStep("the same command again", "it goes on where it was, also after kill -9")]
