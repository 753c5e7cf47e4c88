"""`console`: the web page over everything that the other commands tell and do; and the same beside a `run`."""

from __future__ import annotations

import asyncio
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.base.errors import UsageError
from penstock.cli.broker_cluster import EtcdSettings, etcd_options
from penstock.cli.common import (
    DEFAULT_DATA_DIR,
    emit,
    given_values,
    json_option,
    load_from,
    value_files,
    wants_json,
)
from penstock.cli.connection import Connection, broker_options
from penstock.cli.connector_options import cookie_of, cookie_option

if TYPE_CHECKING:
    from penstock.console.cluster import Cluster
    from penstock.console.definitions import Definitions
    from penstock.console.reaching import Reaching
    from penstock.console.serving import Door
    from penstock.pipeline.definition import Pipeline

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
DEFAULT_LISTEN = "127.0.0.1:8400"


@click.command()
@click.argument("files", nargs=-1, metavar="[PIPELINE]...")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default=DEFAULT_LISTEN,
    show_default=True,
    help="Port 0 takes a free one.",
)
@click.option(
    "--token",
    metavar="SECRET|@FILE",
    envvar="PENSTOCK_CONSOLE_TOKEN",
    help="What an operator logs in with, also as a bearer token.",
)
@click.option(
    "--users", type=_FILE, help="Who may log in: NAME operator|viewer SECRET, a line each; mode 600."
)
@click.option("--read-only", is_flag=True, help="Nobody changes anything from here.")
@click.option("--tls-cert", type=_FILE, help="TLS of the page: the certificate.")
@click.option("--tls-key", type=_FILE, help="TLS of the page: its key.")
@cookie_option
@etcd_options(required=False)
@value_files
@broker_options
@json_option
@click.pass_context
def console(
    ctx: click.Context,
    files: tuple[str, ...],
    listen: str,
    token: str | None,
    users: Path | None,
    read_only: bool,
    tls_cert: Path | None,
    tls_key: Path | None,
    cookie_file: Path | None,
    connection: Connection,
    etcd: EtcdSettings,
) -> None:
    """Serve a web page to watch pipelines and to mend a stuck sink.

    Name PIPELINE files if their functions are to be shown and messages delivered by hand; of a data directory the file
    of the last run is known already. On a loopback address the page is for the user who starts it, and for root;
    --token and --users let others in. Any other address needs one of them, and TLS. --cookie-file is for moving the
    instances of connectors between workers.

    \b
    Examples:
      penstock console
      penstock console shop.py --data-dir /var/lib/penstock
      penstock console --broker http://10.0.0.4:8080 --etcd http://10.0.0.4:2379 --read-only
      penstock console --listen 0.0.0.0:8400 --users users --tls-cert cert.pem --tls-key key.pem
    """
    _require_extra()
    made = door(listen, token, users, read_only=read_only, cert=tls_cert, key=tls_key)
    made.options()
    definitions, cluster = _definitions(ctx, files, connection), _cluster(etcd, connection)
    cookie = cookie_of(cookie_file)
    asyncio.run(_until_signalled(ctx, reaching(connection), definitions, made, cluster, cookie))


def _cluster(etcd: EtcdSettings, connection: Connection) -> Cluster | None:
    """What looks at the cluster, if its etcd was named."""
    if not etcd.addresses:
        return None
    from penstock.console.cluster import Cluster, Etcd
    from penstock.journal import auth
    from penstock.journal.client.connection import NoTokens
    from penstock.journal.tls import ClientTls

    keys = connection.auth_keys
    tokens = auth.TokenSource(auth.keys_from(keys)) if keys else NoTokens()
    trusted = ClientTls(connection.ca_file) if connection.ca_file is not None else None
    return Cluster(Etcd(etcd.addresses, etcd.prefix, etcd.user, etcd.password, etcd.tls(), trusted, tokens))


def _require_extra() -> None:
    try:
        import aiohttp  # noqa: F401
    except ImportError:
        raise UsageError("the console needs aiohttp", hint="pip install 'penstock[console]'") from None


def door(
    listen: str,
    token: str | None,
    users: Path | None,
    *,
    read_only: bool,
    cert: Path | None,
    key: Path | None,
) -> Door:
    """Where the page is served, and for whom."""
    from penstock.console.access import OPERATOR, credential, read_users
    from penstock.console.serving import Door

    found = list(read_users(users)) if users is not None else []
    if token is not None:
        found.append(credential("operator", OPERATOR, _secret(token)))
    return Door(listen, found, read_only, cert, key)


def _secret(option: str) -> str:
    if not option.startswith("@"):
        return option
    try:
        return Path(option[1:]).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"cannot read the token from {option[1:]}: {reason}") from None


def reaching(connection: Connection, *, runs: Path | None = None) -> Reaching:
    """The way to the journals that the options name; beside a run, `runs` is where that leaves its file."""
    from penstock.console.reaching import BrokerPlace, DirectoryPlace

    if connection.address is not None:
        return BrokerPlace(connection.client, connection.address, runs)
    given = connection.data_dir != DEFAULT_DATA_DIR
    return DirectoryPlace(
        connection.data_dir, f" --data-dir {shlex.quote(str(connection.data_dir))}" if given else ""
    )


def _definitions(ctx: click.Context, files: tuple[str, ...], connection: Connection) -> Definitions:
    from penstock.console.definitions import Definitions

    settings, secrets = given_values(ctx)
    given = {load_from(ctx, file).name: str(Path(file).absolute()) for file in files}
    return Definitions(given, recorded=connection.address is None, settings=settings, secrets=secrets)


async def _until_signalled(
    ctx: click.Context,
    reaching: Reaching,
    definitions: Definitions,
    door: Door,
    cluster: Cluster | None,
    cookie: bytes,
) -> None:
    from penstock.console.serving import serve

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    def ready(address: str) -> None:
        if wants_json(ctx):
            emit({"console": address, "place": reaching.place})
        else:
            click.echo(f"The console of {reaching.place} is at {address}  (Ctrl-C ends it)")

    await serve(reaching, definitions, door, ready=ready, stop=stop, cluster=cluster, cookie=cookie)


@contextmanager
def beside_run(
    ctx: click.Context,
    listen: str | None,
    pipeline: Pipeline,
    connection: Connection,
    cookie_file: Path | None,
) -> Iterator[None]:
    """The console for the time of a run, if one is wanted."""
    if listen is None:
        if cookie_file is not None:
            raise UsageError("--cookie-file is for the console of a run", hint="give --console as well")
        yield
        return
    _require_extra()
    from penstock.base.webpages import is_loopback
    from penstock.console.definitions import Definitions
    from penstock.console.serving import beside

    host = listen.rpartition(":")[0].strip("[]")
    if host and not is_loopback(host):
        raise UsageError(
            f"--console-listen {listen} is not a loopback address",
            hint="for others start `penstock console` beside the run: it takes --token or --users, and TLS",
        )
    settings, secrets = given_values(ctx)
    files = {pipeline.name: pipeline.file} if pipeline.file else {}
    definitions = Definitions(files, recorded=False, settings=settings, secrets=secrets)
    made = door(listen, None, None, read_only=False, cert=None, key=None)

    def ready(address: str) -> None:
        click.echo(f"console: {address}", err=True)

    place = reaching(connection, runs=connection.data_dir)
    with beside(place, definitions, made, ready, cookie=cookie_of(cookie_file), run=pipeline.name):
        yield
