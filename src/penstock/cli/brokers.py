"""`penstock broker serve`: a broker of its own, for as long as it is wanted."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from penstock.base import logs, memory
from penstock.base.errors import UsageError
from penstock.base.webpages import is_loopback
from penstock.cli.broker_cluster import ClusterSettings, cluster_options
from penstock.cli.common import data_dir_option, emit, json_option, wants_json
from penstock.cli.tokens import token

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.journal.datadir import DataDir
    from penstock.journal.server import Addresses, Options
    from penstock.journal.tls import ServerTls

_OFF = "off"
_LOG_LEVELS = ("debug", "info", "warning", "error")
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


class _Told(TypedDict):
    """What the options of `serve` say of the broker itself."""

    listen: str
    http: str | None
    advertise: str
    zone: str
    suffix: str
    stores: tuple[str, ...]
    file_root: Path | None
    file_only: bool
    cert_file: Path | None
    key_file: Path | None
    client_ca_file: Path | None
    min_append_rate: int
    max_append_rate: int
    max_grpc_recv_size: int
    max_replication: int
    auto_suspend: bool
    allow_origins: tuple[str, ...]


@click.group(no_args_is_help=True)
def broker() -> None:
    """Run a journal broker, and make tokens for its clients.

    \b
    Examples:
      penstock broker serve
      penstock broker serve --listen 0.0.0.0:8080 --auth-keys @keys --data-dir /var/lib/penstock
    """


broker.add_command(token)


@broker.command()
@data_dir_option
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:8080",
    show_default=True,
    help="gRPC; port 0 takes a free one.",
)
@click.option(
    "--http",
    metavar="HOST:PORT|off",
    help="The HTTP gateway, /metrics and /ready. Default: the port after --listen's.",
)
@click.option(
    "--advertise", metavar="HOST:PORT", default="", help="How others reach --listen, if by another name."
)
@click.option("--zone", default="local", show_default=True, help="The broker's failure zone.")
@click.option("--id", "suffix", default="broker", show_default=True, help="The broker's name in its zone.")
@click.option(
    "--store",
    "stores",
    multiple=True,
    metavar="URL",
    help="A fragment store to accept and to watch from the start (repeat). Others are then refused.",
)
@click.option(
    "--file-root",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Where file:/// stores live. Default: `fragments` in the data directory.",
)
@click.option("--file-only", is_flag=True, help="Keep the stores of every scheme below the file root.")
@click.option(
    "--auth-keys",
    metavar="KEYS|@FILE",
    envvar="PENSTOCK_AUTH_KEYS",
    help="Keys in base64 that tokens must be signed with. Without any, everybody may do everything.",
)
@click.option("--cert-file", type=_FILE, help="TLS: the certificate.")
@click.option("--key-file", type=_FILE, help="TLS: its key.")
@click.option("--client-ca-file", type=_FILE, help="TLS: clients need a certificate that this CA has signed.")
@click.option(
    "--min-append-rate", type=click.IntRange(min=0), default=65536, show_default=True, metavar="BYTES",
    help="An append that is slower, in bytes a second, is ended. 0: none is.",
)  # fmt: skip
@click.option(
    "--max-append-rate", type=click.IntRange(min=0), default=0, show_default=True, metavar="BYTES",
    help="Lowers the rate of journals whose spec has a higher one, in bytes a second. 0: does not.",
)  # fmt: skip
@click.option(
    "--max-grpc-recv-size", type=click.IntRange(min=1024), default=4 << 20, show_default=True, metavar="BYTES",
    help="The largest message accepted.",
)  # fmt: skip
@click.option(
    "--max-replication", type=click.IntRange(min=1), default=9, show_default=True, metavar="N",
    help="Journals are kept by no more brokers than this, whatever their specs say. One broker alone: 1.",
)  # fmt: skip
@click.option("--auto-suspend", is_flag=True, help="Suspend journals that are not in use.")
@cluster_options
@click.option(
    "--allow-origin", "allow_origins", multiple=True, metavar="ORIGIN", help="CORS, for HTTP (repeat)."
)
@click.option(
    "--log-level", type=click.Choice(_LOG_LEVELS), default="warning", show_default=True,
    help="Of the log lines on standard error.",
)  # fmt: skip
@json_option
@click.pass_context
def serve(
    ctx: click.Context,
    *,
    data_dir: Path,
    auth_keys: str | None,
    cluster: ClusterSettings,
    log_level: str,
    **told: Unpack[_Told],
) -> None:
    """Serve the journals of a data directory until SIGTERM or SIGINT; a second one ends it at once.

    The directory is made if it is not there. When the broker is ready it prints one line; with --json, an object with
    the addresses (`grpc`, `http`, `socket`), so that a program can ask for port 0 and read which one it got.

    \b
    Examples:
      penstock broker serve
      penstock broker serve --listen 127.0.0.1:0 --http off --json
      penstock broker serve --listen 0.0.0.0:8080 --data-dir /var/lib/penstock \\
          --auth-keys @keys --cert-file cert.pem --key-file key.pem --store s3://bucket/journals/
      penstock broker serve --etcd http://etcd:2379 --zone east --id broker-1 \\
          --listen 0.0.0.0:8080 --data-dir /var/lib/penstock --store s3://bucket/journals/
    """
    from penstock.journal.datadir import DataDir

    options = _options(auth_keys, cluster, told)
    if not auth_keys and not is_loopback((options.listen or "").rpartition(":")[0]):
        open_to = f"everybody who reaches {options.listen} may read and write all journals"
        click.echo(f"Warning: {open_to}. --auth-keys protects them.", err=True)
    logs.set_up(log_level, "text")
    _run(DataDir(data_dir), options, as_json=wants_json(ctx))


def _options(auth_keys: str | None, cluster: ClusterSettings, told: _Told) -> Options:
    """What the broker is to do; refuses what cannot be meant before anything is made."""
    from penstock.journal import auth
    from penstock.journal.server import Options
    from penstock.journal.validation_specs import validate_store

    for store in told["stores"]:
        validate_store(store)
    _check_member(told["zone"], told["suffix"])
    keys = auth.keys_from(auth_keys) if auth_keys else None
    return Options(
        listen=told["listen"],
        http=http_address(told["listen"], told["http"]),
        zone=told["zone"],
        suffix=told["suffix"],
        advertise=told["advertise"] or _advertised(told["listen"]),
        stores=told["stores"],
        file_root=told["file_root"],
        file_only=told["file_only"],
        min_append_rate=told["min_append_rate"],
        max_append_rate=told["max_append_rate"],
        max_receive=told["max_grpc_recv_size"],
        max_replication=told["max_replication"],
        auto_suspend=told["auto_suspend"],
        authorizer=auth.KeyedAuthorizer(keys) if keys is not None else auth.OpenAuthorizer(),
        tls=_tls(told["cert_file"], told["key_file"], told["client_ca_file"]),
        allow_origins=told["allow_origins"],
        cluster=cluster.options(keys),
    )


def _run(directory: DataDir, options: Options, *, as_json: bool) -> None:
    """Hold the directory's lock, and serve it."""
    from penstock.base.disk import Disk
    from penstock.journal.datadir import Lock

    def ready(addresses: Addresses) -> None:
        if as_json:
            emit(
                {
                    "grpc": addresses.grpc or None,
                    "http": addresses.http or None,
                    "socket": addresses.socket,
                    "data_dir": str(directory.path),
                    "pid": os.getpid(),
                }
            )
            return
        http = f", HTTP on {addresses.http}" if addresses.http else ""
        click.echo(f"serving gRPC on {addresses.grpc}{http}, data in {directory.path}")

    memory.keep_used()
    lock = Lock(directory, Disk())
    try:
        asyncio.run(_until_signalled(directory, options, ready))
    finally:
        lock.release()


async def _until_signalled(directory: DataDir, options: Options, ready: Callable[[Addresses], None]) -> None:
    from penstock.journal.server import serve

    stop = asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        if stop.is_set():
            os._exit(128 + number)  # what is not done now is recovered at the next start
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    await serve(directory, options, ready=ready, stop=stop)


def http_address(listen: str, http: str | None) -> str | None:
    """Where HTTP is served: as told, or on the port after gRPC's."""
    from penstock.journal.server import split_address

    host, port = split_address(listen)
    if http is not None:
        if http != _OFF:
            split_address(http)
        return None if http == _OFF else http
    if port == 65535:
        raise UsageError("there is no port after 65535 for HTTP", hint="say --http HOST:PORT or --http off")
    return f"{host}:{port + 1 if port else 0}"


def _advertised(listen: str) -> str:
    """The machine's name, if every address of it is listened on: others cannot dial `0.0.0.0`."""
    from penstock.journal.server import split_address

    host, _ = split_address(listen)
    return f"{socket.gethostname()}:0" if host.strip("[]") in ("0.0.0.0", "::") else ""


def _tls(cert_file: Path | None, key_file: Path | None, client_ca_file: Path | None) -> ServerTls | None:
    if (cert_file is None) != (key_file is None):
        raise UsageError("TLS needs a certificate and its key", hint="give both --cert-file and --key-file")
    if cert_file is None or key_file is None:
        if client_ca_file is not None:
            raise UsageError("--client-ca-file needs TLS", hint="give --cert-file and --key-file, too")
        return None
    from penstock.journal.tls import ServerTls

    tls = ServerTls(cert_file, key_file, client_ca_file)
    tls.ssl_context()  # files that do not fit are told before anything is made
    return tls


def _check_member(zone: str, suffix: str) -> None:
    from penstock.journal.protocol import ProcessSpec
    from penstock.journal.validation_specs import validate_process_id

    validate_process_id(ProcessSpec.ID(zone=zone, suffix=suffix))
