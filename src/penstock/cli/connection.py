"""How a command reaches a broker: an address, or a data directory.

The one place where a client is made from options. An address is for a broker that runs (`penstock broker serve`, or
any that speaks the protocol); a data directory is reached through its owner's socket, and if it has no owner this
command is that for the moment.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
from click.core import ParameterSource

from penstock.base.errors import UsageError
from penstock.cli.common import data_dir_option

if TYPE_CHECKING:
    from penstock.journal.client import AsyncClient, Client
    from penstock.journal.client.connection import Tokens
    from penstock.journal.client.stubs import AppendsCall
    from penstock.journal.tls import ClientTls

F = TypeVar("F", bound=Callable[..., object])

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@dataclass(frozen=True, slots=True)
class Connection:
    """What the options said about the broker. Without an address it is the data directory's."""

    address: str | None
    data_dir: Path
    auth_keys: str | None = field(default=None, repr=False)
    auth_token: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    @contextmanager
    def client(self) -> Iterator[Client]:
        """A client that has not called anything yet."""
        if self.address is None:
            with self._embedded() as client:
                yield client
            return
        from penstock.journal.client import Client

        with Client(self.address, tls=self.tls(), tokens=self.tokens()) as client:
            yield client

    def tls(self) -> ClientTls | None:
        """What the options say about TLS."""
        from penstock.journal.tls import ClientTls

        files = (self.ca_file, self.cert_file, self.key_file)
        return ClientTls(*files) if any(files) else None

    def asynchronous(self, address: str, near: Callable[[], AppendsCall | None] | None = None) -> AsyncClient:
        """A client for asyncio of the broker at `address`, with what the options said about trust."""
        from penstock.journal.client import AsyncClient
        from penstock.journal.tls import ClientTls

        files = (self.ca_file, self.cert_file, self.key_file)
        tls = ClientTls(*files) if any(files) else None
        return AsyncClient(address, tls=tls, tokens=self.tokens(), near=near)

    @contextmanager
    def _embedded(self) -> Iterator[Client]:
        from penstock.journal.datadir import DataDir
        from penstock.journal.embedded import connect

        if not DataDir(self.data_dir).exists:
            raise UsageError(
                f"no data directory at {self.data_dir}",
                hint="name one with --data-dir, or a running broker with --broker http://HOST:PORT; "
                f"`penstock broker serve --data-dir {self.data_dir}` makes and serves one",
            )
        with connect(self.data_dir) as client:
            yield client

    def tokens(self) -> Tokens | None:
        """What the options say about authorization."""
        if self.auth_keys and self.auth_token:
            raise UsageError(
                "--auth-keys and --auth-token exclude each other", hint="a key signs its own tokens"
            )
        from penstock.journal import auth

        if self.auth_keys:
            return auth.TokenSource(auth.keys_from(self.auth_keys))
        if self.auth_token:
            return auth.FixedToken(_token(self.auth_token))
        return None


def _token(option: str) -> str:
    """The token itself, or the content of the file that `@FILE` names."""
    if not option.startswith("@"):
        return option
    try:
        return Path(option[1:]).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"cannot read the token from {option[1:]}: {reason}") from None


_OPTIONS = (
    click.option(
        "--broker",
        metavar="ADDRESS",
        envvar="PENSTOCK_BROKER",
        help="A broker: http://HOST:PORT, https://HOST:PORT or unix:/PATH; several of a cluster with commas, of which "
        "the first that can be reached is asked. Otherwise the data directory's.",
    ),
    data_dir_option,
    click.option(
        "--auth-keys",
        metavar="KEYS|@FILE",
        envvar="PENSTOCK_AUTH_KEYS",
        help="Keys of the broker, in base64; the first signs what this command asks for.",
    ),
    click.option(
        "--auth-token",
        metavar="TOKEN|@FILE",
        envvar="PENSTOCK_AUTH_TOKEN",
        help="A token that was given to you, sent as it is.",
    ),
    click.option("--ca-file", type=_FILE, help="Whom to trust for https, instead of this machine's list."),
    click.option("--cert-file", type=_FILE, help="A certificate of your own, if the broker wants one."),
    click.option("--key-file", type=_FILE, help="The certificate's key."),
)


def broker_options(command: F) -> Callable[..., object]:
    """Adds the options; the command gets what they say as `connection`: a broker, or a data directory."""
    return _gathered(command, beside=False)


def broker_beside_directory(command: F) -> Callable[..., object]:
    """The same for a command that needs a directory for itself, whichever broker it uses."""
    return _gathered(command, beside=True)


def _gathered(command: F, *, beside: bool) -> Callable[..., object]:

    @functools.wraps(command)
    @click.pass_context
    def gathered(
        ctx: click.Context,
        /,
        *arguments: object,
        broker: str | None,
        data_dir: Path,
        auth_keys: str | None,
        auth_token: str | None,
        ca_file: Path | None,
        cert_file: Path | None,
        key_file: Path | None,
        **options: object,
    ) -> object:
        address = broker if beside else _chosen(ctx, broker, data_dir)
        connection = Connection(address, data_dir, auth_keys, auth_token, ca_file, cert_file, key_file)
        return command(*arguments, connection=connection, **options)

    wrapped: Callable[..., object] = gathered
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def _chosen(ctx: click.Context, broker: str | None, data_dir: Path) -> str | None:
    """The broker's address, unless the data directory is meant: what was typed beats the environment."""
    typed = ParameterSource.COMMANDLINE
    if ctx.get_parameter_source("data_dir") is typed:
        if ctx.get_parameter_source("broker") is typed:
            raise UsageError(
                "--broker and --data-dir exclude each other", hint=f"leave out --data-dir {data_dir}"
            )
        return None
    return broker
