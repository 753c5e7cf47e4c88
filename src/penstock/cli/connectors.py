"""`penstock connector`: workers that take streams into journals, a sender, a look at all of it, and moves."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.base import logs, memory
from penstock.base.errors import UsageError
from penstock.base.texts import one_line
from penstock.base.units import parse_size
from penstock.cli.common import emit, json_option, show, wants_json, warn
from penstock.cli.connection import Connection, broker_options
from penstock.cli.connector_options import (
    FILE,
    client_of,
    cookie_of,
    cookie_option,
    journals_option,
    require_data,
    trusted_by,
)
from penstock.cli.connector_recover import recover
from penstock.cli.connector_send import send
from penstock.cli.connector_sinks import sink
from penstock.connector.settings import CREDITS, JOURNALS

if TYPE_CHECKING:
    from rich.text import Text

    from penstock.connector.settings import WorkerSettings, WorkerTls
    from penstock.connector.status import WorkerStatus

_LOG_LEVELS = ("debug", "info", "warning", "error")
_MOST = 80
"""Characters of a name in a table: peers may give any of 65,535 bytes."""


@click.group(no_args_is_help=True)
def connector() -> None:
    """Streams of programs in any language: into journals, and to sinks.

    \b
    Examples:
      penstock connector worker --listen 127.0.0.1:7110 --cookie-file cookie
      penstock connector send access.log --follow --to 127.0.0.1:7110 --instance web --cookie-file cookie
      penstock connector status
      penstock connector sink file --out out/orders --listen 127.0.0.1:7200
    """


connector.add_command(recover)
connector.add_command(send)
connector.add_command(sink)


def _size(ctx: click.Context, parameter: click.Parameter, value: str) -> int:
    try:
        return parse_size(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@connector.command()
@click.option(
    "--listen", metavar="HOST:PORT", default="127.0.0.1:7110", show_default=True, help="Port 0: a free one."
)
@click.option(
    "--advertise", metavar="HOST:PORT", default="", help="How others reach --listen, if by another name."
)
@click.option(
    "--http",
    metavar="HOST:PORT|off",
    default="127.0.0.1:0",
    show_default=True,
    help="/status, /metrics, moves.",
)
@cookie_option
@click.option("--tls-cert", type=FILE, help="TLS of --listen: the certificate.")
@click.option("--tls-key", type=FILE, help="TLS of --listen: its key.")
@click.option("--tls-ca", type=FILE, help="Whom to trust of other workers, instead of this machine's list.")
@journals_option
@click.option("--name", default="worker", show_default=True, help="The worker's name, for people.")
@click.option(
    "--credits",
    "credit",
    type=click.IntRange(min=2),
    default=CREDITS,
    show_default=True,
    help="Of a session.",
)
@click.option(
    "--instance", "instances", multiple=True, metavar="NAME",
    help="Take this instance, and no others but those named likewise; all if none is.",
)  # fmt: skip
@click.option(
    "--partitions",
    type=click.IntRange(min=1, max=256),
    default=1,
    show_default=True,
    help="Journals among which new streams of an instance are spread.",
)
@click.option(
    "--max-frame", callback=_size, default="16MiB", show_default=True, help="The longest frame taken."
)
@click.option(
    "--max-sessions", type=click.IntRange(min=1), default=256, show_default=True, metavar="N",
    help="Connections at a time; one more is refused.",
)  # fmt: skip
@click.option(
    "--store", default="file:///", show_default=True, metavar="URL", help="Of journals that are made."
)
@click.option(
    "--replication", type=click.IntRange(min=1), default=1, show_default=True, help="Of journals made."
)
@click.option(
    "--log-level", type=click.Choice(_LOG_LEVELS), default="warning", show_default=True,
    help="Of the log lines on standard error.",
)  # fmt: skip
@broker_options
@json_option
@click.pass_context
def worker(
    ctx: click.Context,
    *,
    connection: Connection,
    listen: str,
    advertise: str,
    http: str,
    cookie_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    journals: str,
    name: str,
    credit: int,
    instances: tuple[str, ...],
    partitions: int,
    max_frame: int,
    max_sessions: int,
    store: str,
    replication: int,
    log_level: str,
) -> None:
    """Take what connectors send into journals until SIGTERM or SIGINT.

    Each instance that a connector names has a journal of its own. A message is acknowledged when it is durable there,
    and is there once. Told to stop, the worker acknowledges what is durable and sends its connectors to another one.

    \b
    Examples:
      penstock connector worker --listen 127.0.0.1:7110 --cookie-file cookie
      penstock connector worker --listen 0.0.0.0:7110 --broker https://broker:8080 --cookie-file cookie
    """
    from penstock.connector.settings import WorkerSettings, dialable

    if advertise:
        dialable(advertise)
    settings = WorkerSettings(
        cookie=cookie_of(cookie_file),
        credits=credit,
        instances=frozenset(instances),
        partitions=partitions,
        max_frame=max_frame,
        max_sessions=max_sessions,
    )
    logs.set_up(log_level, "text")
    if not settings.cookie and not listen.startswith(("127.", "localhost", "[::1]")):
        click.echo(f"Warning: everybody who reaches {listen} may write. --cookie-file protects it.", err=True)
    memory.keep_used()
    asyncio.run(
        _work(
            connection,
            settings,
            (listen, advertise, "" if http == "off" else http),
            (journals, name, store, replication),
            _tls(tls_cert, tls_key, tls_ca),
            as_json=wants_json(ctx),
        )
    )


def _tls(certificate: Path | None, key: Path | None, authority: Path | None) -> WorkerTls | None:
    from penstock.connector.settings import WorkerTls
    from penstock.journal.tls import ServerTls

    if certificate is None and key is None and authority is None:
        return None
    if certificate is None or key is None:
        raise UsageError("TLS needs a certificate and its key", hint="give both --tls-cert and --tls-key")
    return WorkerTls(ServerTls(certificate, key).ssl_context(), trusted_by(authority))


async def _work(
    connection: Connection,
    settings: WorkerSettings,
    places: tuple[str, str, str],
    what: tuple[str, str, str, int],
    tls: WorkerTls | None,
    *,
    as_json: bool,
) -> None:
    from penstock.connector import web
    from penstock.connector.worker import Worker

    listen, advertise, http = places
    journals, name, store, replication = what
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        if stop.is_set():
            os._exit(128 + number)  # what is not acknowledged is sent again, to whoever is there then
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    async with client_of(connection) as client:
        working = Worker(settings, client, journals, name=name, store=store, replication=replication, tls=tls)
        address = await working.start(listen, advertise)
        server = await web.serve(working, http) if http else None
        working.announce()
        if as_json:
            emit({"listen": address, "http": working.http or None, "pid": os.getpid()})
        else:
            shown = f", HTTP on {working.http}" if working.http else ""
            click.echo(f"taking connectors on {address}{shown}, journals {journals}/INSTANCE")
        await stop.wait()
        await working.stop()
        if server is not None:
            server.close()


@connector.command()
@click.option("--journals", metavar="PREFIX", help="Only workers whose journals are PREFIX/INSTANCE.")
@broker_options
@json_option
@click.pass_context
def status(ctx: click.Context, *, connection: Connection, journals: str | None) -> None:
    """Show workers, their sessions, and how far each stream is.

    A pipeline that runs and takes connectors itself is shown likewise, as its source.

    \b
    Examples:
      penstock connector status
      penstock connector status --broker http://127.0.0.1:8080 --json
    """
    workers = _survey(connection, journals)
    if wants_json(ctx):
        import msgspec

        emit(msgspec.to_builtins(workers))
        return
    if not workers:
        click.echo("no worker")
    for each in workers:
        _show(each)


def _survey(connection: Connection, journals: str | None) -> Sequence[WorkerStatus]:
    """What all tell now. Whoever has the data directory is asked at once: a run or a worker does not let it go."""
    from penstock.connector.status import survey
    from penstock.connector.threaded import Threaded

    require_data(connection)
    with connection.client() as client:
        calls = Threaded(client)
        try:
            return asyncio.run(survey(calls, journals))
        finally:
            calls.close()


def _show(worker: WorkerStatus) -> None:
    from penstock.cli.tables import NOTHING, byte_size, table

    off = 'http="off"' if worker.pipeline else "--http off"
    silent = "does not answer" if worker.http else f"tells nothing ({off})"
    count = len(worker.sessions)
    state = f"{count} session{'s' if count != 1 else ''}" if worker.answers else silent
    where = "" if worker.journals == JOURNALS else f", journals {worker.journals}/INSTANCE"
    if worker.pipeline:
        where = f", the source of pipeline {worker.pipeline}"
    click.echo(f"{one_line(worker.name)} at {one_line(worker.address)}: {state}{one_line(where)}")
    if worker.sessions:
        titles = [
            "session>",
            "peer",
            "program",
            "instance",
            "state",
            "credits>",
            "messages>",
            "dropped>",
            "bytes>",
        ]
        sessions = table(*titles)
        for one in worker.sessions:
            sessions.add_row(
                *_texts(str(one.number), one.peer, one.program, one.instance, one.state, str(one.credits)),
                *(str(one.messages), str(one.dropped), byte_size(one.bytes)),
            )
        show(sessions)
    if worker.streams:
        streams = table(
            "instance", "stream", "id>", "state", "session>", "seen>", "durable>", "acked>", "ended"
        )
        for each in worker.streams:
            numbers = (each.session, each.last_seen, each.last_durable, each.last_acked)
            session, seen, durable, acked = (NOTHING if number is None else str(number) for number in numbers)
            journal = f"{each.instance}+{each.partition}" if each.partition else each.instance
            streams.add_row(
                *_texts(journal, each.name, str(each.id), each.state, session, seen, durable, acked),
                "yes" if each.ended else "",
            )
        show(streams)
    for reason in worker.recent[-5:]:
        click.echo(f"  {one_line(reason)}")


def _texts(*values: str) -> list[Text]:
    """What comes from a peer is neither markup nor control characters, nor more than a row."""
    from rich.text import Text

    return [Text(one_line(value, _MOST)) for value in values]


@connector.command()
@click.argument("what", metavar="STREAM|INSTANCE")
@click.option("--to", "target", required=True, metavar="HOST:PORT", help="The worker to go to.")
@cookie_option
@journals_option
@broker_options
@json_option
@click.pass_context
def migrate(
    ctx: click.Context,
    *,
    what: str,
    target: str,
    connection: Connection,
    cookie_file: Path | None,
    journals: str,
) -> None:
    """Move an instance, with all its streams and connectors, to another worker.

    It ends when the worker has begun to move it; `penstock connector status` shows where it is. `penstock journals
    history` tells who moved what.

    \b
    Examples:
      penstock connector migrate web --to 10.0.0.7:7110 --cookie-file cookie
    """
    from penstock.cli.places import who
    from penstock.connector import moving
    from penstock.connector.settings import dialable
    from penstock.pipeline.clock import now_us

    dialable(target)
    cookie = cookie_of(cookie_file)
    workers = moving.able(_survey(connection, journals))
    warn(moving.unknown(workers, target))
    moved = moving.move(workers, what, target, cookie)
    with connection.client() as client:
        moved = moving.recorded(client, journals, moved, who(), now_us())
    warn(moved.unrecorded)
    if wants_json(ctx):
        emit({"instance": moved.instance, "from": moved.origin, "to": moved.target})
    else:
        click.echo(f"instance {moved.instance} {moved.words}")
