"""Options that several commands of `penstock connector` have."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.base.errors import UsageError
from penstock.cli.connection import Connection
from penstock.connector.settings import JOURNALS

if TYPE_CHECKING:
    from penstock.journal.client import AsyncClient

FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
cookie_option = click.option(
    "--cookie-file", type=FILE, help="The secret that connectors and workers share. Default: none."
)
journals_option = click.option(
    "--journals",
    metavar="PREFIX",
    default=JOURNALS,
    show_default=True,
    help="Journals are PREFIX/INSTANCE.",
)


@asynccontextmanager
async def client_of(connection: Connection) -> AsyncIterator[AsyncClient]:
    """A client of the broker; a data directory without an owner is served by this process meanwhile."""
    from penstock.journal.served import served

    async with AsyncExitStack() as using:
        if connection.address is not None:
            client = connection.asynchronous(connection.address)
        else:
            broker = await using.enter_async_context(served(connection.data_dir))
            client = connection.asynchronous(broker.address, broker.near)
        using.push_async_callback(client.close)
        yield client


def require_data(connection: Connection) -> None:
    """Refuse a data directory that is not there, for commands that make none."""
    from penstock.journal.datadir import DataDir

    if connection.address is None and not DataDir(connection.data_dir).exists:
        raise UsageError(
            f"no data directory at {connection.data_dir}", hint="name one, or a broker with --broker"
        )


def trusted_by(authority: Path | None) -> ssl.SSLContext:
    """For connections to workers that speak TLS."""
    from penstock.journal.tls import ClientTls

    return ClientTls(authority).ssl_context()


def cookie_of(file: Path | None) -> bytes:
    """The secret in a file, without the newline behind it."""
    if file is None:
        return b""
    secret = file.read_bytes().strip()
    if not secret:
        raise UsageError(f"{file} is empty", hint="put a secret into it, or leave --cookie-file out")
    return secret
