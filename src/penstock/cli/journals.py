"""`penstock journals`: look at journals (`list`, `fragments`, `store-health`); the group of all such commands."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import click

from penstock.base.errors import PenstockError
from penstock.cli import journals_data, journals_edit, journals_prune, journals_upkeep
from penstock.cli.common import emit, json_option, show, wants_json
from penstock.cli.connection import Connection, broker_options
from penstock.cli.selecting import parse_duration, parse_time, selector_option, served

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.message import Message

    from penstock.cli.journals_render import Columns
    from penstock.journal.protocol import FragmentsResponse, LabelSelector, ListResponse


@click.group(no_args_is_help=True)
def journals() -> None:
    """Look at journals and work on them.

    A journal is an append-only log of bytes. These commands reach a broker by --broker ADDRESS (or
    PENSTOCK_BROKER); without one, the broker of the data directory.

    \b
    Examples:
      penstock journals list
      penstock journals apply --specs journals.yaml
      echo hello | penstock journals append -l name=examples/greetings
      penstock journals read -l name=examples/greetings
      penstock journals check --sums
    """


@journals.command(name="list")
@selector_option(required=False)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "yaml", "json"]),
    default="table",
    show_default=True,
    help="yaml is what `apply` takes; json is one object, as gazctl prints it.",
)
@click.option(
    "-L", "--label", "labels", multiple=True, metavar="NAME", help="A column for this label (repeat)."
)
@click.option("-p", "--primary", is_flag=True, help="Show the primary broker; <S> marks suspended journals.")
@click.option("-r", "--replicas", is_flag=True, help="Show the other brokers.")
@click.option("--rf", is_flag=True, help="Show the replication factor.")
@click.option("--stores", is_flag=True, help="Show where fragments go, and which of it does not work.")
@click.option("--watch", is_flag=True, help="Go on, and print again whenever the journals change.")
@broker_options
@json_option
@click.pass_context
def list_journals(
    ctx: click.Context,
    *,
    connection: Connection,
    selector: LabelSelector | None,
    output: str,
    labels: tuple[str, ...],
    primary: bool,
    replicas: bool,
    rf: bool,
    stores: bool,
    watch: bool,
) -> None:
    """List journals.

    With --json, one object a journal and line; with --watch as well, one object a snapshot and line.

    \b
    Examples:
      penstock journals list
      penstock journals list -l prefix=shop/ --stores -L content-type
      penstock journals list -l "color in (red, blue),!old" -p -r --rf
      penstock journals list -o yaml > journals.yaml
      penstock journals list --watch --json
    """
    from penstock.cli.journals_render import Columns

    columns = Columns(rf, primary, replicas, stores, labels)
    with connection.client() as client:
        if not watch:
            found = client.list(selector, store_health=stores and output != "json")
            _print_list(ctx, found, output, columns, watched=False)
            return
        for snapshot in client.watch(selector):
            _print_list(ctx, snapshot, output, columns, watched=True)


def _print_list(
    ctx: click.Context, found: Sequence[ListResponse.Journal], output: str, columns: Columns, *, watched: bool
) -> None:
    if wants_json(ctx) and watched:
        emit({"journals": [_record(journal) for journal in found]})
    elif wants_json(ctx):
        for journal in found:
            emit(_record(journal))
    elif output == "json":
        click.echo(_as_gazctl(found))
    elif output == "yaml":
        from penstock.journal.specs import Change, hoist

        click.echo(("---\n" if watched else "") + hoist(map(Change.of, found)), nl=False)
    else:
        from penstock.cli import journals_render

        show(journals_render.journals(found, columns))
        for line in journals_render.faults(found):
            click.echo(line)


def _record(journal: ListResponse.Journal) -> dict[str, object]:
    """A journal for a program: its spec as YAML has it, and what the broker knows about it."""
    from penstock.cli import journals_render
    from penstock.journal.specs_fields import plain

    record = {
        **plain(journal.spec),
        "revision": journal.mod_revision,
        "create_revision": journal.create_revision,
        "primary": journals_render.primary(journal) or None,
        "replicas": journals_render.replicas(journal),
    }
    if journal.HasField("store_health"):
        record["store_health"] = {one.fragment_store: one.error or "ok" for one in journal.store_health.known}
    return record


def _as_gazctl(found: Sequence[ListResponse.Journal]) -> str:
    """One object, original field names, zeros included."""
    from google.protobuf.json_format import MessageToJson

    from penstock.journal.protocol import ListResponse

    return MessageToJson(
        ListResponse(journals=found),
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )


@journals.command()
@selector_option(required=True)
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True,
    help="json is one object a line, as gazctl prints it.",
)  # fmt: skip
@click.option(
    "--from", "since", metavar="TIME", callback=parse_time, help="Only those stored at TIME or later."
)
@click.option(
    "--to", "until", metavar="TIME", callback=parse_time, help="Only those stored at TIME or before."
)
@click.option(
    "--url-ttl", metavar="DURATION", callback=parse_duration,
    help="Show signed URLs that are good for so long, as in 10m.",
)  # fmt: skip
@broker_options
@json_option
@click.pass_context
def fragments(
    ctx: click.Context,
    *,
    connection: Connection,
    selector: LabelSelector,
    output: str,
    since: int,
    until: int,
    url_ttl: timedelta | None,
) -> None:
    """List the fragments that journals are kept in.

    TIME is unix seconds, or a date such as 2026-01-31T12:00:00Z. A fragment that is in no store yet has no time:
    --to leaves it out.

    \b
    Examples:
      penstock journals fragments -l name=shop/orders
      penstock journals fragments -l prefix=shop/ --from 2026-01-31 --json
      penstock journals fragments -l name=shop/orders --url-ttl 10m
    """
    with connection.client() as client:
        found = [
            fragment
            for journal in served(client, selector)
            for fragment in client.fragments(
                journal.spec.name, begin_mod_time=since, end_mod_time=until, signature_ttl=url_ttl
            )
        ]
    if wants_json(ctx) or output == "json":
        record = _fragment_record if wants_json(ctx) else _fields
        for fragment in found:
            emit(record(fragment))
        return
    from penstock.cli import journals_render

    show(journals_render.fragments(found))


def _fragment_record(listed: FragmentsResponse._Fragment) -> dict[str, object]:
    from penstock.journal.fragment import Fragment

    fragment = Fragment.from_proto(listed.spec)
    return {
        "journal": fragment.journal,
        "begin": fragment.begin,
        "end": fragment.end,
        "sha1": fragment.sum.hex(),
        "compression_codec": fragment.codec.name,
        "store": fragment.backing_store or None,
        "path_postfix": fragment.path_postfix,
        "mod_time": fragment.mod_time or None,
        "url": listed.signed_url or None,
    }


def _fields(message: Message) -> dict[str, object]:
    """A message as gazctl prints fragments: original names, enums as numbers, zeros left out."""
    return {
        field.name: _fields(value) if field.message_type else value for field, value in message.ListFields()
    }


@journals.command(name="store-health", short_help="Ask the broker whether a store works.")
@click.argument("url")
@click.option(
    "--check-delete-prefix", metavar="PREFIX/", help="Also try to put and delete a file below this prefix."
)
@broker_options
@json_option
@click.pass_context
def store_health(
    ctx: click.Context, *, connection: Connection, url: str, check_delete_prefix: str | None
) -> None:
    """Ask the broker whether the fragment store at URL works; exit code 1 if it does not.

    \b
    Examples:
      penstock journals store-health file:///
      penstock journals store-health s3://bucket/prefix/ --check-delete-prefix probe/
    """
    from penstock.journal.validation_specs import validate_store

    validate_store(url)
    with connection.client() as client:
        problem = client.store_health(url, check_delete_prefix=check_delete_prefix)
    if wants_json(ctx):
        emit({"store": url, "healthy": not problem, "error": problem or None})
    if problem:
        raise PenstockError(
            f"the store {url} is not healthy: {problem}", hint="the broker tries again by itself; see its log"
        )
    if not wants_json(ctx):
        click.echo(f"The store {url} is healthy.")


for _command in (
    journals_edit.apply,
    journals_edit.edit,
    journals_data.append,
    journals_data.read,
    journals_upkeep.check,
    journals_prune.prune,
    journals_upkeep.suspend,
    journals_upkeep.reset_head,
    journals_upkeep.history,
    journals_upkeep.trim,
    journals_upkeep.roll,
):
    journals.add_command(_command)
