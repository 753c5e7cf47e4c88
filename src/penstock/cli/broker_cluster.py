"""The options by which a broker becomes one of a cluster: where etcd is, and how brokers talk to each other."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.base.errors import UsageError

if TYPE_CHECKING:
    from penstock.journal.auth import Keys
    from penstock.journal.cluster.options import ClusterOptions
    from penstock.journal.tls import ClientTls

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_PASSWORD = "PENSTOCK_ETCD_PASSWORD"
PREFIX = "/gazette/cluster"


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """How etcd is reached, as the options said."""

    etcd: tuple[str, ...]
    prefix: str
    user: str
    password: str
    ca_file: Path | None
    cert_file: Path | None
    key_file: Path | None

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(part.strip() for text in self.etcd for part in text.split(",") if part.strip())

    def tls(self) -> ClientTls | None:
        return client_tls(self.ca_file, self.cert_file, self.key_file, "--etcd-")


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """What the options of a broker in a cluster said."""

    etcd: EtcdSettings
    lease: int
    limit: int
    watch_delay: float
    drain: float
    peer_ca_file: Path | None
    peer_cert_file: Path | None
    peer_key_file: Path | None

    def options(self, keys: Keys | None) -> ClusterOptions | None:
        """None if the broker is to be alone."""
        etcd = self.etcd
        if not etcd.addresses:
            _refuse_without_etcd()
            return None
        from penstock.journal.cluster.mirror import prefix_bytes
        from penstock.journal.cluster.options import ClusterOptions

        prefix_bytes(etcd.prefix)
        return ClusterOptions(
            etcd=etcd.addresses,
            prefix=etcd.prefix,
            etcd_user=etcd.user,
            etcd_password=etcd.password,
            etcd_tls=etcd.tls(),
            lease=self.lease,
            limit=self.limit,
            watch_delay=self.watch_delay / 1000,
            peer_tls=client_tls(self.peer_ca_file, self.peer_cert_file, self.peer_key_file, "--peer-"),
            keys=keys,
            drain=self.drain,
        )


def etcd_options(*, required: bool) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Gives the command `etcd`, an `EtcdSettings`."""

    def decorate(command: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(command)
        def wrapped(
            *args: object,
            etcd_addresses: tuple[str, ...],
            etcd_prefix: str,
            etcd_user: str,
            etcd_ca_file: Path | None,
            etcd_cert_file: Path | None,
            etcd_key_file: Path | None,
            **others: object,
        ) -> object:
            settings = EtcdSettings(
                etcd_addresses,
                etcd_prefix,
                etcd_user,
                os.environ.get(_PASSWORD, ""),
                etcd_ca_file,
                etcd_cert_file,
                etcd_key_file,
            )
            return command(*args, etcd=settings, **others)

        return _with(
            wrapped,
            click.option(
                "--etcd",
                "etcd_addresses",
                multiple=True,
                required=required,
                metavar="URL",
                envvar="PENSTOCK_ETCD",
                help="etcd's address; several with commas or by repeating it.",
            ),
            click.option(
                "--etcd-prefix", default=PREFIX, show_default=True, metavar="PATH", help="The cluster's keys."
            ),
            click.option(
                "--etcd-user",
                default="",
                metavar="NAME",
                help=f"etcd's user; its password is in {_PASSWORD}.",
            ),
            click.option("--etcd-ca-file", type=_FILE, help="TLS: whom to trust as etcd."),
            click.option("--etcd-cert-file", type=_FILE, help="TLS: our certificate, for etcd."),
            click.option("--etcd-key-file", type=_FILE, help="TLS: its key."),
        )

    return decorate


def cluster_options(command: Callable[..., object]) -> Callable[..., object]:
    """Gives the command `cluster`, a `ClusterSettings`."""

    @functools.wraps(command)
    def wrapped(
        *args: object,
        etcd: EtcdSettings,
        etcd_lease: int,
        limit: int,
        watch_delay: float,
        drain: float,
        peer_ca_file: Path | None,
        peer_cert_file: Path | None,
        peer_key_file: Path | None,
        **others: object,
    ) -> object:
        settings = ClusterSettings(
            etcd, etcd_lease, limit, watch_delay, drain, peer_ca_file, peer_cert_file, peer_key_file
        )
        return command(*args, cluster=settings, **others)

    return etcd_options(required=False)(
        _with(
            wrapped,
            click.option(
                "--etcd-lease", type=click.IntRange(min=1), default=20, show_default=True, metavar="SECONDS",
                help="A broker that is not heard of for so long counts as gone.",
            ),
            click.option(
                "--limit", type=click.IntRange(0, 131072), default=1024, show_default=True, metavar="N",
                help="In a cluster: the most replicas of journals that this broker takes.",
            ),
            click.option(
                "--watch-delay", type=click.FloatRange(min=0), default=30.0, show_default=True,
                metavar="MS", help="In a cluster: changes in etcd are gathered for so long.",
            ),
            click.option(
                "--drain", type=click.FloatRange(min=0), default=60.0, show_default=True, metavar="SECONDS",
                help="In a cluster: how long others may take to take over when this broker is to end.",
            ),
            click.option("--peer-ca-file", type=_FILE, help="TLS: whom to trust as another broker."),
            click.option("--peer-cert-file", type=_FILE, help="TLS: our certificate, for other brokers."),
            click.option("--peer-key-file", type=_FILE, help="TLS: its key."),
        )
    )  # fmt: skip


def _with(
    command: Callable[..., object], *options: Callable[[Callable[..., object]], Callable[..., object]]
) -> Callable[..., object]:
    for option in reversed(options):
        command = option(command)
    return command


def _refuse_without_etcd() -> None:
    """Options of a cluster that is not named would be without effect."""
    context = click.get_current_context()
    for name in ("etcd_user", "etcd_ca_file", "etcd_prefix", "etcd_lease", "limit", "peer_ca_file"):
        source = context.get_parameter_source(name)
        if source is click.core.ParameterSource.COMMANDLINE:
            option = "--" + name.replace("_", "-")
            raise UsageError(f"{option} is for a broker in a cluster", hint="name its etcd, too: --etcd URL")


def client_tls(
    ca_file: Path | None, cert_file: Path | None, key_file: Path | None, prefix: str
) -> ClientTls | None:
    """What the options with this prefix say about TLS."""
    if (cert_file is None) != (key_file is None):
        raise UsageError(f"give both {prefix}cert-file and {prefix}key-file, or neither")
    if ca_file is None and cert_file is None:
        return None
    from penstock.journal.tls import ClientTls

    tls = ClientTls(ca_file, cert_file, key_file)
    tls.grpc_credentials()  # files that do not fit are told before anything is made
    return tls
