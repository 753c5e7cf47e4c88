"""`penstock connector sink`: ready sinks that take part in two-phase commits, served until a signal."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from penstock.base import logs, secrets
from penstock.base.errors import UsageError
from penstock.cli.common import emit, json_option, show, wants_json

if TYPE_CHECKING:
    from penstock.connector.sink import StorageOf

F = TypeVar("F", bound=Callable[..., object])

_LOG_LEVELS = ("debug", "info", "warning", "error")


@click.group(no_args_is_help=True)
def sink() -> None:
    """Serve a sink of the connector protocol: each batch is there as a whole, or not at all.

    \b
    Examples:
      penstock connector sink file --out out/orders --listen 127.0.0.1:7200
      penstock connector sink list out/orders.txns
    """


def _served(command: F) -> F:
    """The options that all sinks have."""
    for option in reversed(
        (
            click.option(
                "--listen", metavar="HOST:PORT", default="127.0.0.1:7200", show_default=True,
                help="Where workers connect; port 0 takes a free one.",
            ),
            click.option(
                "--cookie", metavar="TEXT|@FILE", envvar="PENSTOCK_COOKIE", default="",
                help="The secret that workers must know.",
            ),
            click.option(
                "--txns", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
                help="Where the transaction logs lie. Default: beside the output.",
            ),
            click.option(
                "--always-commits", is_flag=True,
                help="For stores that cannot undo: a worker that left bytes out comes again. At least once.",
            ),
            click.option("--connections", type=click.IntRange(min=1), default=256, show_default=True, metavar="N",
                         help="Workers that may be connected at once."),
            click.option(
                "--log-level", type=click.Choice(_LOG_LEVELS), default="warning", show_default=True,
                help="Of the log lines on standard error.",
            ),
            json_option,
        )
    ):  # fmt: skip
        command = option(command)
    return command


@sink.command("file")
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, metavar="PATH",
    help="Bytes go to PATH.WORKER; consumers read as many as PATH.WORKER.committed says.",
)  # fmt: skip
@_served
@click.pass_context
def file_sink(ctx: click.Context, /, *, out: Path, txns: Path | None, **served: object) -> None:
    """Append the bytes of each worker to a file; cut them off again on abort.

    \b
    Examples:
      penstock connector sink file --out out/orders --listen 127.0.0.1:7200
      penstock connector sink file --out out/orders --listen 0.0.0.0:7200 --cookie @cookie
    """
    from penstock.connector.sink.files import FileStorage, file_of

    _serve(ctx, _beside(out, txns), lambda worker: FileStorage(file_of(out, worker)), served)


@sink.command("sqlite")
@click.option(
    "--database", type=click.Path(path_type=Path, dir_okay=False), required=True, metavar="FILE",
    help="The database; it is made if need be.",
)  # fmt: skip
@click.option("--table", default="output", show_default=True, help="Made with the columns worker, at, data.")
@_served
@click.pass_context
def sqlite_sink(
    ctx: click.Context, /, *, database: Path, table: str, txns: Path | None, **served: object
) -> None:
    """Keep each line as a row of a SQLite table; rows are seen when they are committed.

    \b
    Examples:
      penstock connector sink sqlite --database out.db --table orders --listen 127.0.0.1:7200
    """
    from penstock.connector.sink.sqlite import SqliteStorage

    database.parent.mkdir(parents=True, exist_ok=True)
    _serve(ctx, _beside(database, txns), lambda worker: SqliteStorage(database, table, worker), served)


@sink.command("parquet")
@click.option(
    "--directory", type=click.Path(path_type=Path, file_okay=False), required=True, metavar="DIR",
    help="Where the files go; it is made if need be.",
)  # fmt: skip
@_served
@click.pass_context
def parquet_sink(ctx: click.Context, /, *, directory: Path, txns: Path | None, **served: object) -> None:
    """Publish each transaction as a Parquet file of lines; the file appears when it is committed.

    \b
    Examples:
      penstock connector sink parquet --directory lake/orders --listen 127.0.0.1:7200
    """
    from penstock.connector.sink.parquet import ParquetStorage

    _serve(ctx, _beside(directory, txns), lambda worker: ParquetStorage(directory, worker), served)


@sink.command("postgres")
@click.option(
    "--uri", envvar="PENSTOCK_POSTGRES_URI", required=True, metavar="URI",
    help="The database; from the environment, other users of this machine do not see it.",
)  # fmt: skip
@click.option("--table", default="output", show_default=True, help="Made with the columns worker, at, data.")
@_served
@click.pass_context
def postgres_sink(
    ctx: click.Context, /, *, uri: str, table: str, txns: Path | None, **served: object
) -> None:
    """Keep each line, which must be JSON, as a row of a PostgreSQL table; rows are seen when they are committed.

    Uses PREPARE TRANSACTION where the server allows it (max_prepared_transactions), or else a table of staged rows.

    \b
    Examples:
      penstock connector sink postgres --uri postgresql://penstock@db/shop --table orders --txns orders.txns
    """
    from penstock.connector.sink.postgres import PostgresStorage

    secrets.register(uri)
    _serve(ctx, _beside(Path(table), txns), lambda worker: PostgresStorage(uri, table, worker), served)


@sink.command("list")
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@json_option
@click.pass_context
def list_transactions(ctx: click.Context, *, directory: Path) -> None:
    """Show the workers of a sink, what is committed, and the transactions that wait for a decision.

    DIRECTORY is where the sink keeps its transaction logs (--txns). It may be running.

    \b
    Examples:
      penstock connector sink list out/orders.txns
      penstock connector sink list out/orders.txns --json
    """
    from penstock.cli.tables import name, table
    from penstock.connector.sink import transactions

    views = transactions(directory)
    if wants_json(ctx):
        emit(
            [
                {
                    "worker": view.worker,
                    "committed": view.committed,
                    "forced": view.forced,
                    "in_flight": [
                        {
                            "transaction": voted.transaction,
                            "start": voted.start,
                            "end": voted.end,
                            "vote": "commit" if voted.commit else "abort",
                            "reason": voted.reason or None,
                            "time": voted.time,
                        }
                        for voted in view.in_flight
                    ],
                }
                for view in views
            ]
        )
        return
    shown = table("worker", "committed>", "transaction", "bytes", "vote")
    for view in views:
        for voted in view.in_flight or (None,):
            told = ["", "", ""]
            if voted is not None:
                vote = "commit" if voted.commit else f"abort: {voted.reason}"
                told = [voted.transaction, f"{voted.start:,} to {voted.end:,}", vote]
            shown.add_row(name(view.worker), f"{view.committed:,}", *map(name, told))
    show(shown)


def _beside(out: Path, txns: Path | None) -> Path:
    return txns or out.with_name(f"{out.name}.txns")


def _serve(ctx: click.Context, directory: Path, storage_of: StorageOf, served: dict[str, object]) -> None:
    """Until SIGTERM or SIGINT; when it is ready it says so, in one line or one object."""
    from penstock.connector.sink import Limits, SinkServer, Terms, Workers

    logs.set_up(str(served["log_level"]), "text")
    cookie = cookie_of(str(served["cookie"]))
    workers = Workers(directory, storage_of, always_commits=bool(served["always_commits"]))
    limits = Limits(connections=int(str(served["connections"])))
    with SinkServer(_address(str(served["listen"])), workers, Terms(cookie=cookie), limits) as server:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: server.ask_to_end())
        listening = f"{server.address[0]}:{server.address[1]}"
        if wants_json(ctx):
            emit({"listening": listening, "txns": str(directory), "pid": os.getpid()})
        else:
            click.echo(f"listening on {listening}, transaction logs in {directory}")
        while not server.wait(3600.0):
            pass


def cookie_of(given: str) -> bytes:
    """The cookie, or what the file holds that it names; never to be shown."""
    if not given.startswith("@"):
        text = given
    else:
        try:
            text = Path(given[1:]).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise UsageError(f"cannot read the cookie from {given[1:]}: {error.strerror}") from None
    if text:
        secrets.register(text)
    return text.encode()


def _address(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--listen: expected HOST:PORT, got '{listen}'")
    return host.strip("[]"), int(port)
