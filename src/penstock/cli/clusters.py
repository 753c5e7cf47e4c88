"""`penstock cluster up` and `penstock cluster status`."""

from __future__ import annotations

import asyncio
import signal
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.base.errors import PenstockError
from penstock.base.texts import one_line
from penstock.cli.broker_cluster import EtcdSettings, client_tls, etcd_options
from penstock.cli.common import emit, json_option, show, wants_json
from penstock.cli.selecting import counted, selector_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from penstock.journal.cluster.local import LocalCluster
    from penstock.journal.cluster.status import ClusterStatus, JournalStatus
    from penstock.journal.protocol import LabelSelector
    from penstock.journal.tls import ClientTls

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_ASKED = 2000
"""Replicas that are asked for their write heads unless that is wanted of more."""
_LOOK = 0.2


@click.group(no_args_is_help=True)
def cluster() -> None:
    """Brokers that share journals through etcd.

    \b
    Examples:
      penstock cluster up --brokers 3
      penstock cluster status --etcd http://127.0.0.1:2379
    """


@cluster.command(short_help="etcd and brokers on this machine, for trying things.")
@click.option(
    "--brokers", type=click.IntRange(1, 20), default=3, show_default=True, metavar="N",
    help="How many brokers.",
)  # fmt: skip
@click.option(
    "--zones", type=click.IntRange(1, 20), default=2, show_default=True, metavar="N",
    help="In how many zones they are, by turns.",
)  # fmt: skip
@click.option(
    "--dir", "directory", type=click.Path(path_type=Path, file_okay=False), default=Path(".penstock-cluster"),
    show_default=True, help="Where everything lies; the next `up` goes on with it.",
)  # fmt: skip
@click.option(
    "--port", type=click.IntRange(0, 65000), default=8080, show_default=True,
    help="Of the first broker; its HTTP has the next one, and so on. 0: any that are free.",
)  # fmt: skip
@json_option
@click.pass_context
def up(ctx: click.Context, *, brokers: int, zones: int, directory: Path, port: int) -> None:
    """Start etcd and some brokers on this machine, until SIGINT or SIGTERM.

    For trying things: one machine is one failure. Fragments of file:/// stores lie in one folder that all share.
    When all are ready their addresses are printed; with --json as one object.

    \b
    Examples:
      penstock cluster up
      penstock cluster up --brokers 5 --zones 3 --port 0 --json
    """
    from penstock.journal.cluster.local import LocalCluster

    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: stopped.append(number))
    running = LocalCluster(directory.absolute(), brokers=brokers, zones=min(zones, brokers), port=port)
    running.start()
    try:
        _announce(running, as_json=wants_json(ctx))
        while not stopped:
            failed = running.failed()
            if failed is not None:
                raise PenstockError(f"{failed} has ended", hint=f"see {running.directory / f'{failed}.log'}")
            time.sleep(_LOOK)
    finally:
        running.stop()


def _announce(running: LocalCluster, *, as_json: bool) -> None:
    if as_json:
        found = [
            {"zone": one.zone, "id": one.id, "grpc": one.address, "http": one.http, "pid": one.process.pid}
            for one in running.brokers
        ]
        emit({"etcd": running.etcd, "brokers": found, "dir": str(running.directory)})
        return
    from penstock.cli.tables import table

    shown = table("Broker", "Zone", "gRPC", "HTTP", "Pid>")
    for one in running.brokers:
        shown.add_row(one.id, one.zone, one.address, one.http, str(one.process.pid))
    show(shown)
    click.echo(f"\netcd on {running.etcd}, everything in {running.directory}\n")
    click.echo(f"  export PENSTOCK_ETCD={running.etcd} PENSTOCK_BROKER=http://{running.brokers[0].address}")
    click.echo("  penstock cluster status")


@cluster.command(short_help="Brokers, journals, routes, who agrees, who lags behind.")
@etcd_options(required=True)
@selector_option(required=False)
@click.option("--all", "every", is_flag=True, help="Show every journal, not only those that are not well.")
@click.option("--heads/--no-heads", default=None, help="Ask every replica for its write head, or none.")
@click.option(
    "--max-replication", type=click.IntRange(min=1), default=9, show_default=True, metavar="N",
    help="As the brokers were started with: journals want no more replicas than this.",
)  # fmt: skip
@click.option(
    "--auth-keys", metavar="KEYS|@FILE", envvar="PENSTOCK_AUTH_KEYS", help="Keys of the brokers, in base64."
)
@click.option("--ca-file", type=_FILE, help="Whom to trust as a broker.")
@click.option("--cert-file", type=_FILE, help="A certificate of your own, if the brokers want one.")
@click.option("--key-file", type=_FILE, help="The certificate's key.")
@json_option
@click.pass_context
def status(
    ctx: click.Context,
    *,
    etcd: EtcdSettings,
    selector: LabelSelector | None,
    every: bool,
    heads: bool | None,
    max_replication: int,
    auth_keys: str | None,
    ca_file: Path | None,
    cert_file: Path | None,
    key_file: Path | None,
) -> None:
    """Show the brokers of a cluster and its journals: routes, whether replicas agree, and how far each is.

    Journals that are well are counted, and listed with --all or a selector. Exit code 1 if one is not well. With
    --json, one object with all of it.

    \b
    Examples:
      penstock cluster status --etcd http://127.0.0.1:2379
      penstock cluster status -l prefix=shop/ --json
    """
    tls = client_tls(ca_file, cert_file, key_file, "--")
    found = asyncio.run(_look(etcd, selector, heads, max_replication, auth_keys, tls))
    if wants_json(ctx):
        emit({**asdict(found), "well": found.is_well})
    else:
        _show(found, every=every or selector is not None)
    if not found.is_well:
        ctx.exit(1)


async def _look(
    etcd: EtcdSettings,
    selector: LabelSelector | None,
    heads: bool | None,
    max_replication: int,
    auth_keys: str | None,
    tls: ClientTls | None,
) -> ClusterStatus:
    from penstock.journal import auth
    from penstock.journal.client.connection import NoTokens
    from penstock.journal.cluster.etcd import EtcdClient
    from penstock.journal.cluster.status import cluster_status
    from penstock.journal.protocol import LabelSelector

    tokens = auth.TokenSource(auth.keys_from(auth_keys)) if auth_keys else NoTokens()
    async with EtcdClient(etcd.addresses, user=etcd.user, password=etcd.password, tls=etcd.tls()) as client:

        async def look(*, asking: bool) -> ClusterStatus:
            return await cluster_status(
                client,
                etcd.prefix,
                selector=selector or LabelSelector(),
                max_replication=max_replication,
                tls=tls,
                tokens=tokens,
                heads=asking,
            )

        if heads is not None:
            return await look(asking=heads)
        first = await look(asking=False)
        replicas = sum(len(journal.replicas) for journal in first.journals)
        return await look(asking=True) if replicas <= _ASKED else first


def _show(found: ClusterStatus, *, every: bool) -> None:
    from penstock.cli.tables import name, table

    members = table("Broker", "Zone", "Endpoint", "Replicas>", "Primary of>", "Limit>", "")
    for one in found.members:
        word = ", ".join(word for word, so in (("leader", one.leader), ("exiting", one.exiting)) if so)
        members.add_row(
            *map(name, (one.id, one.zone, one.endpoint)),
            str(one.replicas),
            str(one.primaries),
            str(one.limit),
            word,
        )
    show(members)
    shown = [journal for journal in found.journals if every or not journal.is_well]
    if shown:
        click.echo()
        show(_journals(shown))
        click.echo("* primary")
    for store in found.stores:
        if every or store.troubles:
            click.echo()
            state = "well" if not store.troubles else "not well"
            click.echo(f"Store {one_line(store.url)} of {counted(store.journals, 'journal')}: {state}")
            for broker, trouble in store.troubles.items():
                click.echo(f"  {one_line(broker)}: {one_line(trouble)}")
    well = sum(journal.is_well for journal in found.journals)
    click.echo(
        f"\n{well} of {len(found.journals)} journals are well; {len(found.members)} brokers; "
        f"revision {found.revision} of {found.prefix}"
    )


def _journals(shown: Sequence[JournalStatus]) -> Table:
    from rich.text import Text

    from penstock.cli.tables import byte_size, name, table

    made = table("Journal", "State", "Brokers", "Write head>", "Lag>")
    for journal in shown:
        brokers = ", ".join(
            f"{replica.id}{'*' if replica.primary else ''}{f' ({replica.trouble})' if replica.trouble else ''}"
            for replica in journal.replicas
        )
        known = [replica.write_head for replica in journal.replicas if replica.write_head is not None]
        lag = max((replica.lag for replica in journal.replicas if replica.lag is not None), default=None)
        made.add_row(
            name(journal.name),
            Text(journal.state, style="green" if journal.is_well else "bold red"),
            name(f"{brokers or '-'} ({len(journal.replicas)} of {journal.replication})"),
            str(max(known)) if known else "-",
            byte_size(lag) if lag is not None else "-",
        )
    return made
