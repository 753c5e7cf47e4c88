"""`penstock connector recover`: how far the streams of an instance are, told anew where its journal lost it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from penstock.base.errors import UsageError
from penstock.cli.common import emit, json_option, wants_json
from penstock.cli.connection import Connection, broker_options
from penstock.cli.connector_options import client_of, journals_option, require_data

if TYPE_CHECKING:
    from penstock.connector.records import Points


@click.command()
@click.argument("instance")
@click.option(
    "--stream", "streams", multiple=True, metavar="NAME=ID", help="A stream and its last id (repeat)."
)
@click.option(
    "--stream-id", "numbers", multiple=True, metavar="STREAM=ID", help="The same, by the stream's number."
)
@click.option("--forget", is_flag=True, help="All other streams begin anew; needed if none is given.")
@journals_option
@broker_options
@json_option
@click.pass_context
def recover(
    ctx: click.Context,
    *,
    connection: Connection,
    instance: str,
    streams: tuple[str, ...],
    numbers: tuple[str, ...],
    forget: bool,
    journals: str,
) -> None:
    """Tell an instance how far its streams are, if its journal was trimmed up to its end and lost that.

    Stop the workers that may have the instance first. What connectors still have of a stream that is not named here
    comes into the journal again.

    \b
    Examples:
      penstock connector recover web --stream access.log=3893
      penstock connector recover web --forget
    """
    points = _points(streams, numbers)
    if not points and not forget:
        raise UsageError(
            "no stream was named: all of them would begin anew, and come into the journal again",
            hint="give --stream NAME=ID for those whose last id you know, or --forget",
        )
    recovered = asyncio.run(_recover(connection, journals, instance, points))
    if wants_json(ctx):
        emit({"recovered": list(recovered), "streams": len(points)})
        return
    for journal in recovered:
        click.echo(f"{journal} can be opened again")


def _points(streams: Sequence[str], numbers: Sequence[str]) -> Points:
    from penstock.connector.frames import NOTHING_SEEN
    from penstock.connector.records import Point
    from penstock.connector.source import stream_id

    points: Points = {}
    for given, named in [*((each, True) for each in streams), *((each, False) for each in numbers)]:
        key, _, last = given.rpartition("=")
        valid = bool(key) and last.isdecimal() and int(last) < NOTHING_SEEN
        if not valid or not (named or (key.isdecimal() and int(key) <= NOTHING_SEEN)):
            raise UsageError(f"expected {'NAME' if named else 'STREAM'}=ID, got {given!r}")
        points[stream_id(key) if named else int(key)] = Point(int(last), name=key if named else "")
    return points


async def _recover(connection: Connection, journals: str, instance: str, points: Points) -> Sequence[str]:
    from penstock.connector import recovery
    from penstock.connector.status import survey

    require_data(connection)
    async with client_of(connection) as client:
        for worker in await survey(client, journals):
            if any(stream.instance == instance for stream in worker.streams):
                raise UsageError(
                    f"the worker at {worker.address} has {instance}, and knows how far its streams are",
                    hint="there is nothing to recover while it runs",
                )
        return await recovery.recover(client, f"{journals}/{instance}", points)
