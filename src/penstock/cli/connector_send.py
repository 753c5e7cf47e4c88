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

from penstock.base.errors import PenstockError, UsageError
from penstock.base.texts import one_line
from penstock.base.units import counted
from penstock.cli.common import emit, json_option, wants_json
from penstock.cli.connector_options import FILE, cookie_of, cookie_option, trusted_by

if TYPE_CHECKING:
    from penstock.cli.connector_sending import Watched
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

    SIGINT and SIGTERM end it sooner: what was read by then has two seconds to become durable. The exit code is 1 if a
    file was not read to its end, something that was read is not durable, or no worker took a stream. With --follow,
    and of a pipe or a port, having sent all that was read is enough.

    \b
    Examples:
      penstock connector send access.log --follow --to 127.0.0.1:7110 --instance web
      journalctl -o json | penstock connector send --to 127.0.0.1:7110 --instance host --stream boot-42
    """
    streams = _streams(files, stream, follow=follow)
    as_json = wants_json(ctx)
    trusted = trusted_by(tls_ca) if tls or tls_ca else None
    to = Connecting(list(addresses), instance, cookie_of(cookie_file), patience, trusted)
    sent = asyncio.run(_send(to, streams, udp, http, stream, follow=follow, quiet=as_json))
    durable = {each.name: each.durable for each in sent if each.durable is not None}
    behind = [each.name for each in sent if each.behind]
    if as_json:
        emit({"instance": instance, "durable": durable} | ({"behind": behind} if behind else {}))
    else:
        for each in sent:
            if each.behind or each.durable is not None:
                far = "nothing is durable" if each.durable is None else f"durable up to {each.durable}"
                click.echo(f"{one_line(each.name)}: {far}")
    if behind:
        raise PenstockError(
            f"stopped, and not all of {_some(behind)} is durable",
            hint="run it again: what the journal lacks is sent, but not what came to a port",
        )


def _some(names: Sequence[str]) -> str:
    if len(names) > 3:
        return counted(len(names), "stream")
    return ", ".join(f"'{one_line(name)}'" for name in names)


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
    to: Connecting,
    streams: list[Stream],
    udp: str | None,
    http: str | None,
    name: str | None,
    *,
    follow: bool,
    quiet: bool,
) -> list[Watched]:
    """Send until all is durable, or until a signal; the streams, which tell how far each is."""
    from penstock.cli.connector_sending import end_when_told, watched
    from penstock.connector.settings import dialable, split
    from penstock.connector.source import Connector
    from penstock.connector.sources import Datagrams, PipeLines, Posts

    for address in to.addresses:
        dialable(address)
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
    acked, told = asyncio.Event(), asyncio.Event()
    sent = watched([*streams, *listening], acked, follow=follow)
    running = Connector(
        to.addresses,
        to.instance,
        sent,
        cookie=to.cookie,
        program="penstock send",
        patience=to.patience,
        tls=to.tls,
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: running.stop() if told.is_set() else told.set())
    ending = loop.create_task(end_when_told(told, running, sent, acked))
    try:
        await running.serve()
    finally:
        ending.cancel()
        for each in listening:
            each.close()
            if isinstance(each, Datagrams) and each.lost:
                click.echo(
                    f"{each.lost} datagrams came when there was no room for them, and are lost", err=True
                )
    return sent
