"""`penstock immortal`: coordinators of immortal instances, and what is known about these."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from penstock.base.errors import UsageError
from penstock.cli.common import emit, json_option, show, wants_json
from penstock.cli.connection import Connection, broker_beside_directory
from penstock.cli.connector_options import FILE
from penstock.cli.immortal_apps import call, debug, run, upgrade

if TYPE_CHECKING:
    from penstock.immortal.about import Description, Registration
    from penstock.journal.client import AsyncClient
    from penstock.journal.tls import ServerTls

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])


@click.group(no_args_is_help=True)
def immortal() -> None:
    """Run services that survive any crash, and look after them.

    \b
    Examples:
      penstock immortal run bank.py:Bank --name bank --log bank-logs --http 127.0.0.1:8400
      penstock immortal call 127.0.0.1:8400 deposit bob 5
      penstock immortal serve --name bank --receive-port 2000 --send-port 2001 --log bank-logs
      penstock immortal list --log bank-logs
    """


for _command in (run, call, upgrade, debug):
    immortal.add_command(_command)

_log_option: Callable[[F], F] = click.option(
    "--log",
    metavar="DIR|URL",
    help="Where logs and checkpoints are: a data directory, or a broker's address. Default: --broker or --data-dir.",
)


def _journal_options(command: F) -> F:
    """Of the instance's journals; those that are there stay as they are."""
    for option in (
        click.option(
            "--store", default="file:///", show_default=True, metavar="URL", help="Of journals that are made."
        ),
        click.option(
            "--replication", type=click.IntRange(1), default=1, show_default=True, help="Of journals made."
        ),
    ):
        command = option(command)
    return command


def _place(connection: Connection, log: str | None) -> str:
    return log or connection.address or str(connection.data_dir)


_PORT = click.IntRange(0, 65535)


@immortal.command()
@click.option("--name", required=True, metavar="N", help="The instance.")
@click.option(
    "--receive-port", type=_PORT, metavar="P", help="Where the binding sends. Default: as registered."
)
@click.option(
    "--send-port", type=_PORT, metavar="P", help="Where the binding receives. Default: as registered."
)
@click.option(
    "--port", type=_PORT, default=0, metavar="P", help="Where other instances connect; 0 takes a free one."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address that others connect to.")
@_log_option
@click.option(
    "--replica", type=click.IntRange(0), default=0, help="Which replica this is; implies --active from 1 up."
)
@click.option(
    "--active", is_flag=True, help="Active/active: follow the log while another replica is primary."
)
@click.option(
    "--create", type=click.Choice(["A", "Y", "N"]), help="A: recover if possible; Y: begin anew; N: recover."
)
@click.option("--log-trigger", type=float, metavar="MIB", help="Roll the log at this size; 0: never.")
@click.option("--current-version", type=int, metavar="V", help="The version of the instance.")
@click.option("--upgrade-version", type=int, metavar="V", help="Upgrade it to this version.")
@click.option(
    "--keep-checkpoints",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="How many; older ones are deleted.",
)
@click.option(
    "--failover", type=float, default=1.5, show_default=True, help="Seconds of silence until a take-over."
)
@click.option("--tls-cert", type=FILE, help="TLS of streams to this instance: the certificate.")
@click.option("--tls-key", type=FILE, help="TLS of streams to this instance: its key.")
@click.option("--legacy-binding", is_flag=True, help="For the C client: it listens on the send port itself.")
@_journal_options
@broker_beside_directory
def serve(
    connection: Connection,
    name: str,
    receive_port: int | None,
    send_port: int | None,
    port: int,
    host: str,
    log: str | None,
    replica: int,
    active: bool,
    create: str | None,
    log_trigger: float | None,
    current_version: int | None,
    upgrade_version: int | None,
    keep_checkpoints: int,
    failover: float,
    tls_cert: Path | None,
    tls_key: Path | None,
    legacy_binding: bool,
    replication: int,
    store: str,
) -> None:
    """Run the coordinator of an instance, beside its binding.

    What is not said here is as registered. It ends when the binding does, and takes it along when it ends itself.

    \b
    Examples:
      penstock immortal serve --name bank --receive-port 2000 --send-port 2001 --log bank-logs
      penstock immortal serve --name bank --broker http://127.0.0.1:8080
    """
    from penstock.immortal import running
    from penstock.immortal.coordinator import Options

    async def decided(client: AsyncClient) -> Options:
        known = await _registered(client, name, replica)
        receive = receive_port if receive_port is not None else known.receive_port
        send = send_port if send_port is not None else known.send_port
        if not receive or not send:
            raise UsageError(
                f"no ports for the binding of {name}", hint="--receive-port and --send-port, or register it"
            )
        version = current_version if current_version is not None else known.version
        upgrade = known.upgrade if upgrade_version is None else upgrade_version
        trigger = known.trigger_mib if log_trigger is None else log_trigger
        return Options(
            name=name,
            receive_port=receive,
            send_port=send,
            host=host,
            port=port,
            replica=replica,
            active=active or replica > 0 or known.active,
            version=version,
            upgrade=max(version, upgrade),
            create=create or known.create,
            persist=known.persist,
            trigger=int(trigger * (1 << 20)),
            keep=keep_checkpoints,
            failover=failover,
            legacy=legacy_binding,
            replication=replication,
            store=store,
            tls=tls,
        )

    tls = _tls(tls_cert, tls_key)
    place = _place(connection, log)
    running.end(running.run(decided, place, tls=connection.tls(), tokens=connection.tokens()))


def _tls(certificate: Path | None, key: Path | None) -> ServerTls | None:
    from penstock.journal.tls import ServerTls

    if certificate is None or key is None:
        if certificate is not key:
            raise UsageError("TLS needs a certificate and its key", hint="give both --tls-cert and --tls-key")
        return None
    tls = ServerTls(certificate, key)
    tls.ssl_context()  # files that do not fit are told before anything is made
    return tls


async def _registered(client: AsyncClient, name: str, replica: int) -> Registration:
    """As registered; of one that was not, what registering says by default."""
    from penstock.immortal import about, journals

    journals.check_name(name)
    if name not in await journals.instances(client):
        return about.Registration(replica, 0, 0)
    known = (await about.read(client, name)).registrations
    return known.get(replica) or known.get(0) or about.Registration(replica, 0, 0)


def asking(connection: Connection, place: str, ask: Callable[[AsyncClient], Awaitable[T]]) -> T:
    """Ask the journals of a place, whoever serves it."""
    from penstock.immortal.place import opened

    async def asked() -> T:
        async with opened(place, tls=connection.tls(), tokens=connection.tokens()) as there:
            return await ask(there.client)

    return asyncio.run(asked())


def _registering(command: F) -> F:
    for option in reversed(
        (
            click.option(
                "--receive-port", type=_PORT, required=True, metavar="P", help="Where the binding sends."
            ),
            click.option("--send-port", type=_PORT, required=True, metavar="P", help="Where it receives."),
            click.option(
                "--create",
                type=click.Choice(["A", "Y", "N"]),
                default="A",
                show_default=True,
                help="A: recover if possible; Y: begin anew; N: recover.",
            ),
            click.option(
                "--log-trigger",
                type=float,
                default=1000,
                show_default=True,
                metavar="MIB",
                help="Roll the log at this size; 0: never.",
            ),
            click.option(
                "--current-version",
                type=int,
                default=0,
                show_default=True,
                metavar="V",
                help="The version of the instance.",
            ),
            click.option("--upgrade-version", type=int, metavar="V", help="Upgrade it to this version."),
            _log_option,
        )
    ):
        command = option(command)
    return command


@immortal.command()
@click.argument("name")
@_registering
@click.option("--active", is_flag=True, help="Active/active.")
@_journal_options
@broker_beside_directory
def register(
    connection: Connection,
    name: str,
    receive_port: int,
    send_port: int,
    create: str,
    log_trigger: float,
    current_version: int,
    upgrade_version: int | None,
    log: str | None,
    active: bool,
    replication: int,
    store: str,
) -> None:
    """Register an instance; whatever was registered before is replaced.

    \b
    Examples:
      penstock immortal register bank --receive-port 2000 --send-port 2001 --log bank-logs
      penstock immortal register bank --receive-port 2000 --send-port 2001 --broker http://broker:8080 --replication 3
    """
    from penstock.immortal.about import Registration

    upgrade = current_version if upgrade_version is None else upgrade_version
    one = Registration(
        0, receive_port, send_port, create, False, True, log_trigger, active, current_version, upgrade
    )
    _register(connection, log, name, one, replication=replication, store=store)


@immortal.command("add-replica")
@click.argument("name")
@click.option("--replica", type=click.IntRange(1), required=True, metavar="N", help="Its number, from 1 up.")
@_registering
@broker_beside_directory
def add_replica(
    connection: Connection,
    name: str,
    replica: int,
    receive_port: int,
    send_port: int,
    create: str,
    log_trigger: float,
    current_version: int,
    upgrade_version: int | None,
    log: str | None,
) -> None:
    """Register a replica of an instance, active/active.

    \b
    Examples:
      penstock immortal add-replica bank --replica 1 --receive-port 2010 --send-port 2011 --log bank-logs
    """
    from penstock.immortal.about import Registration

    upgrade = current_version if upgrade_version is None else upgrade_version
    one = Registration(
        replica, receive_port, send_port, create, False, True, log_trigger, True, current_version, upgrade
    )
    _register(connection, log, name, one)


def _register(
    connection: Connection,
    log: str | None,
    name: str,
    one: Registration,
    *,
    replication: int = 1,
    store: str = "file:///",
) -> None:
    from penstock.immortal import about

    asking(
        connection,
        _place(connection, log),
        lambda client: about.register(client, name, one, replication=replication, store=store),
    )
    click.echo(f"Registered {name}" + (f", replica {one.replica}" if one.replica else ""))


@immortal.command("list")
@_log_option
@json_option
@broker_beside_directory
@click.pass_context
def list_command(ctx: click.Context, connection: Connection, log: str | None) -> None:
    """Show all instances.

    \b
    Examples:
      penstock immortal list --log bank-logs
      penstock immortal list --broker http://127.0.0.1:8080 --json
    """
    from penstock.immortal import about

    found = asking(connection, _existing(connection, log), about.describe_all)
    if wants_json(ctx):
        emit([_public(one) for one in found])
        return
    from penstock.cli.tables import NOTHING, byte_size, table
    from penstock.cli.tables import name as shown

    rows = table(
        "instance",
        "version>",
        "replicas>",
        "primary",
        "checkpoints>",
        "last>",
        "log>",
        "to replay>",
        "calls/s>",
    )
    for one in found:
        last = one.checkpoints[-1] if one.checkpoints else None
        rows.add_row(
            shown(one.name),
            str(one.version),
            str(max(1, len(one.registrations))),
            shown(f"{one.serving.host}:{one.serving.port}" if one.serving else NOTHING),
            str(len(one.checkpoints)),
            byte_size(last.size) if last else NOTHING,
            byte_size(one.log_end - one.log_begin),
            byte_size(one.log_since_checkpoint),
            _pace(one, NOTHING),
        )
    show(rows)


@immortal.command()
@click.argument("name")
@_log_option
@json_option
@broker_beside_directory
@click.pass_context
def inspect(ctx: click.Context, connection: Connection, name: str, log: str | None) -> None:
    """Show all about one instance: replicas, checkpoints, log.

    \b
    Examples:
      penstock immortal inspect bank --log bank-logs
    """
    from penstock.immortal import about

    one = asking(connection, _existing(connection, log), lambda client: about.describe(client, name))
    if wants_json(ctx):
        emit(_public(one))
        return
    from penstock.cli.tables import NOTHING, byte_size, labelled, table, timestamp
    from penstock.cli.tables import name as shown

    serving = one.serving
    click.echo(
        labelled(
            {
                "instance": one.name,
                "version": str(one.version),
                "primary": f"replica {serving.replica} at {serving.host}:{serving.port}"
                if serving
                else NOTHING,
                "epoch": str(one.epoch),
                "calls": f"{_pace(one, NOTHING)} a second, {one.calls} taken by this primary",
                "log": f"{one.log_begin} to {one.log_end}, {byte_size(one.log_since_checkpoint)} to replay",
                "replicas": ", ".join(
                    f"{r.replica} (ports {r.receive_port}, {r.send_port})" for r in one.registrations
                )
                or NOTHING,
            }
        )
    )
    rows = table("checkpoint>", "version>", "record>", "log offset>", "size>", "taken", "by")
    for entry in one.checkpoints:
        when = timestamp(int(entry.at * 1e6))
        size = byte_size(entry.size)
        rows.add_row(
            str(entry.number),
            str(entry.version),
            str(entry.sequence),
            str(entry.log_offset),
            size,
            when,
            shown(entry.by),
        )
    show(rows)


def _pace(one: Description, unknown: str) -> str:
    return unknown if one.calls_per_second is None else f"{one.calls_per_second:,.1f}"


def _existing(connection: Connection, log: str | None) -> str:
    """A place to look at: a directory that is not there is not made."""
    from penstock.immortal.place import is_address
    from penstock.journal.datadir import DataDir

    place = _place(connection, log)
    if not is_address(place) and not DataDir(Path(place)).exists:
        raise UsageError(f"no data directory at {place}", hint="name one with --log or --data-dir")
    return place


def _public(one: Description) -> object:
    """Without the password of the coordinator's start."""
    import msgspec

    shown = msgspec.to_builtins(one)
    if shown["serving"]:
        del shown["serving"]["password"]
    return shown
