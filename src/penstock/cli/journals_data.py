"""Bytes into journals and out of them: `append` and `read`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from penstock.base.errors import UsageError
from penstock.cli.common import emit, json_option, wants_json
from penstock.cli.connection import Connection, broker_options
from penstock.cli.selecting import parse_time, selected, selector_option

if TYPE_CHECKING:
    from penstock.journal.protocol import LabelSelector


@click.command()
@selector_option(required=True)
@click.option(
    "-i", "--input", "source", type=click.File("rb"), default="-", metavar="FILE", help="- is stdin."
)
@click.option(
    "-f",
    "--framing",
    type=click.Choice(["none", "lines", "fixed"]),
    default="none",
    show_default=True,
    help="How the input is cut into records; none: all of it is one append.",
)
@click.option(
    "-m",
    "--mapping",
    type=click.Choice(["random", "modulo", "rendezvous", "direct"]),
    help="Which of several journals a record goes to.",
)
@click.option("--base64", "encoded", is_flag=True, help="Keys of modulo and rendezvous are in base64.")
@broker_options
@json_option
@click.pass_context
def append(
    ctx: click.Context,
    *,
    connection: Connection,
    selector: LabelSelector,
    source: BinaryIO,
    framing: str,
    mapping: str | None,
    encoded: bool,
) -> None:
    """Append input to journals. What the command has told of is durable.

    With framing none the whole input is one append: all of it or nothing. With lines or fixed (a header of
    66339336 and the length, as 4 bytes each, little-endian), records are appended as they come, many at a time.

    If the selector matches several journals a mapping says which one gets a record: `random` any; `modulo` and
    `rendezvous` by the hash of a key; `direct` by name. The key, or name, stands before each record, framed like it
    and not appended.

    \b
    Examples:
      penstock journals append -l name=shop/orders -i orders.json
      tail -f app.log | penstock journals append -l name=logs/app -f lines
      printf 'key-1\\nrecord one\\n' | penstock journals append -l prefix=shop/ -f lines -m modulo
      printf 'shop/items\\n{"id":1}\\n' | penstock journals append -l prefix=shop/ -f lines -m direct
    """
    from penstock.cli import appending

    if encoded and mapping not in ("modulo", "rendezvous"):
        raise UsageError("--base64 is about keys, which only the mappings modulo and rendezvous have")
    with connection.client() as client:
        names = [journal.spec.name for journal in selected(client, selector)]
        if len(names) > 1 and mapping is None:
            raise UsageError(
                f"the selector matches {len(names)} journals, {names[0]} and {names[1]} among them",
                hint="select one with -l name=NAME, or say with --mapping which one gets what",
            )
        if framing == "none":
            landed = [appending.whole(client, appending.any_of(names, mapping), source)]
        else:
            records = appending.records(source, framing, mapping, names, encoded=encoded)
            landed = appending.each(client, records)
    for done in landed:
        if wants_json(ctx):
            emit(done)
        else:
            many = "record" if done.records == 1 else "records"
            click.echo(f"{done.journal}: {done.records} {many}, {done.bytes} bytes, up to offset {done.end}")


@click.command()
@selector_option(required=True)
@click.option("-b", "--block", is_flag=True, help="At the end of a journal wait for more, until interrupted.")
@click.option("--tail", is_flag=True, help="Begin at the write head instead of at the beginning.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    default="-",
    help="Where the bytes go; - is stdout. With --offsets the file is added to, otherwise written anew.",
)
@click.option(
    "--offsets",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Begin at these offsets: a JSON object of journals and numbers.",
)
@click.option(
    "--offsets-out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="At the end write the offsets that were reached, for --offsets.",
)
@click.option(
    "--file-root",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Read fragments of file:// stores directly, below this directory.",
)
@click.option(
    "--from", "since", metavar="TIME", callback=parse_time, help="Leave out fragments stored before TIME."
)
@broker_options
@json_option
@click.pass_context
def read(
    ctx: click.Context,
    *,
    connection: Connection,
    selector: LabelSelector,
    block: bool,
    tail: bool,
    output: str,
    offsets: Path | None,
    offsets_out: Path | None,
    file_root: Path | None,
    since: int,
) -> None:
    """Write the bytes of journals to stdout or a file.

    Several journals come one after the other, in the order of their names. With --block they are read at the same
    time, journals that are made meanwhile as well; whole lines of them are mixed as they come, and a broker that goes
    away is waited for. Where bytes are no longer there, reading goes on behind them, and stderr tells. With --json a
    line is an object of journal, offset and content (in base64). TIME is unix seconds, or a date such as
    2026-01-31T12:00:00Z.

    \b
    Examples:
      penstock journals read -l name=shop/orders
      penstock journals read -l prefix=shop/ --block --tail
      penstock journals read -l name=shop/orders -o orders.json --offsets at.json --offsets-out at.json
      penstock journals read -l name=shop/orders --from 2026-01-31
    """
    from penstock.cli import reading

    begins = reading.load_offsets(offsets) if offsets else {}
    with (
        ExitStack() as behind,
        connection.client() as client,
        reading.opened(output, add=offsets is not None) as file,
    ):
        out = reading.JsonOutput(file) if wants_json(ctx) else reading.Output(file, by_lines=block)
        reader = reading.Reader(client, out, begins, tail=tail, since=since, file_root=file_root)
        behind.callback(reader.join)
        try:
            if block:
                with reading.ended_by_signals():
                    reader.follow(selector)
            else:
                reader.each(selected(client, selector))
        finally:
            reader.finish()
            if offsets_out:
                reading.save_offsets(offsets_out, reader.offsets)
