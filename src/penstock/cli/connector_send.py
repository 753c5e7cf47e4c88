"""`penstock connector send`: lines, datagrams and posts to a worker, until all of it is durable."""

from __future__ import annotations

import asyncio
import signal
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import click

from penstock.base.errors import UsageError
from penstock.cli.common import emit, json_option, visible, wants_json
from penstock.cli.connector_options import FILE, cookie_of, cookie_option, trusted_by

if TYPE_CHECKING:
    from penstock.connector.source import Stream
    from penstock.connector.sources import Readable


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--to", "addresses", multiple=True, required=True, metavar="HOST:PORT", help="A worker (repeat)."
)
@click.option("--instance", required=True, help="Which journal of the worker.")
@click.option("--stream", help="The stream's name. Default: the file's.")
@click.option("--follow", is_flag=True, help="Go on with what is added to the files.")
@click.option("--udp", metavar="HOST:PORT", help="Send datagrams that come here.")
@click.option("--http", metavar="HOST:PORT", help="Send what is posted here.")
@cookie_option
@click.option("--tls", is_flag=True, help="The workers speak TLS.")
@click.option("--tls-ca", type=FILE, help="The same, and whom to trust instead of this machine's list.")
@click.option(
    "--patience", type=float, help="Seconds without a worker after which to give up. Default: never."
)
@json_option
@click.pass_context
def send(
    ctx: click.Context,
    *,
    files: tuple[Path, ...],
    addresses: tuple[str, ...],
    instance: str,
    stream: str | None,
    follow: bool,
    udp: str | None,
    http: str | None,
    cookie_file: Path | None,
    tls: bool,
    tls_ca: Path | None,
    patience: float | None,
) -> None:
    """Send lines of files, of directories or of standard input to a worker, or datagrams, or HTTP posts.

    Each line is a message. It ends when everything is durable, and says how far each stream is. Run again, it sends
    what the journal lacks.

    \b
    Examples:
      penstock connector send access.log --follow --to 127.0.0.1:7110 --instance web
      journalctl -o json | penstock connector send --to 127.0.0.1:7110 --instance host --stream boot-42
    """
    streams = _streams(files, stream, follow=follow)
    as_json = wants_json(ctx)
    trusted = trusted_by(tls_ca) if tls or tls_ca else None
    running = Connecting(list(addresses), instance, cookie_of(cookie_file), patience, trusted)
    durable = asyncio.run(_send(running, streams, udp, http, stream, quiet=as_json))
    if as_json:
        emit({"instance": instance, "durable": durable})
        return
    for name, last in durable.items():
        click.echo(f"{visible(name)}: durable up to {last}")


class Connecting(NamedTuple):
    """Where to, and as whom."""

    addresses: list[str]
    instance: str
    cookie: bytes
    patience: float | None
    tls: ssl.SSLContext | None


def _streams(files: Sequence[Path], name: str | None, *, follow: bool) -> list[Stream]:
    from penstock.connector.sources import DirectoryLines, Lines

    if name is not None and len(files) > 1:
        raise UsageError(
            "one name cannot be that of several streams", hint="leave --stream out, or send one file"
        )
    for file in files:
        if not file.exists():
            raise UsageError(f"there is no {file}")
        if name is None and not _is_utf8(file.name):
            raise UsageError(
                f"the name of {file} is not UTF-8, as that of a stream is",
                hint="name the stream: --stream NAME",
            )
    return [
        DirectoryLines(file, name=name, follow=follow)
        if file.is_dir()
        else Lines(file, name=name, follow=follow)
        for file in files
    ]


def _is_utf8(name: str) -> bool:
    try:
        return name.encode() is not None
    except UnicodeEncodeError:  # the name of a file may be any bytes
        return False


async def _send(
    to: Connecting, streams: list[Stream], udp: str | None, http: str | None, name: str | None, *, quiet: bool
) -> dict[str, int]:
    """Send until all is durable, or until a signal; the last durable id of each stream that has one."""
    from penstock.connector.settings import split
    from penstock.connector.source import Connector
    from penstock.connector.sources import Datagrams, PipeLines, Posts

    listening: list[Datagrams | Posts] = []
    if udp is not None:
        listening.append(Datagrams(*split(udp), name=name or "udp"))
    if http is not None:
        listening.append(Posts(*split(http), name=name or "http"))
    if not streams and not listening:
        pipe = cast("Readable", getattr(sys.stdin.buffer, "raw", sys.stdin.buffer))
        streams = [PipeLines(pipe, name=name or "stdin")]
    for each in listening:
        click.echo(f"listening on port {await each.open()}", err=quiet)
    running = Connector(
        to.addresses,
        to.instance,
        [*streams, *listening],
        cookie=to.cookie,
        program="penstock send",
        patience=to.patience,
        tls=to.tls,
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.stop)
    try:
        await running.serve()
    finally:
        for each in listening:
            each.close()
            if isinstance(each, Datagrams) and each.lost:
                click.echo(
                    f"{each.lost} datagrams came when there was no room for them, and are lost", err=True
                )
    return running.acked
