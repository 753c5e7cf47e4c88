"""`journals prune`: delete fragments that are older than their journal wants them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.base.errors import PenstockError, UsageError
from penstock.base.units import counted
from penstock.cli.common import emit, json_option, wants_json
from penstock.cli.connection import Connection, broker_options
from penstock.cli.selecting import confirm, selector_option, served, yes_option

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.journal.client import Client
    from penstock.journal.fragment import Fragment
    from penstock.journal.protocol import FragmentsResponse, JournalSpec, LabelSelector


@click.command(short_help="Delete fragments past their retention.")
@selector_option(required=True)
@click.option("--dry-run", is_flag=True, help="Only tell what would be deleted.")
@click.option(
    "--file-root",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Where file:// stores live, as the broker has it; known for a data directory.",
)
@yes_option
@broker_options
@json_option
@click.pass_context
def prune(
    ctx: click.Context,
    *,
    connection: Connection,
    selector: LabelSelector,
    dry_run: bool,
    file_root: Path | None,
    yes: bool,
) -> None:
    """Delete stored fragments that are as old as the `retention` of their journal, or older.

    From the front only, so that no hole is made, and never the newest fragment, so that the end of a journal is never
    lost. Journals without a retention, and read-only ones, are left alone. A broker of ours deletes them itself, as
    for `trim`. With any other broker this command deletes from the store, and needs the store's credentials.

    \b
    Examples:
      penstock journals prune -l prefix=shop/ --dry-run
      penstock journals prune -l prefix=shop/ --yes
      penstock journals prune -l name=shop/orders --file-root /var/lib/penstock/fragments
    """
    now = int(time.time())
    with connection.client() as client:
        old = {
            journal.spec.name: outdated(journal.spec, _listed(client.fragments(journal.spec.name)), now)
            for journal in served(client, selector)
        }
        doomed = [fragment for fragments in old.values() for fragment in fragments]
        if not dry_run and doomed:
            size = sum(fragment.length for fragment in doomed)
            what = f"{counted(len(doomed), 'fragment')} with {counted(size, 'byte')} of journals"
            confirm(ctx, f"Delete {what}?", yes=yes)
            for name, fragments in old.items():
                if fragments:
                    _delete(client, name, fragments, file_root or _own_root(connection))
    done = "would be deleted" if dry_run else "deleted"
    for name, fragments in old.items():
        size = sum(fragment.length for fragment in fragments)
        if wants_json(ctx):
            paths = [fragment.content_path for fragment in fragments]
            emit({"journal": name, "fragments": paths, "bytes": size, "deleted": not dry_run})
        else:
            click.echo(f"{name}: {counted(len(fragments), 'fragment')} {done}, {counted(size, 'byte')}")


def _listed(found: Iterable[FragmentsResponse._Fragment]) -> list[Fragment]:
    from penstock.journal.fragment import Fragment

    return [Fragment.from_proto(listed.spec) for listed in found]


def outdated(spec: JournalSpec, fragments: Sequence[Fragment], now: int) -> list[Fragment]:
    """The fragments that may go, of a complete listing in order."""
    from penstock.journal.protocol import JournalSpec
    from penstock.journal.validation_specs import nanoseconds

    retention = nanoseconds(spec.fragment.retention)
    found: list[Fragment] = []
    if retention <= 0 or spec.flags == JournalSpec.O_RDONLY:
        return found
    for fragment in fragments[:-1]:
        if fragment.is_local or (now - fragment.mod_time) * 10**9 < retention:
            break
        found.append(fragment)
    return found


def _own_root(connection: Connection) -> Path | None:
    from penstock.journal.datadir import DataDir

    return DataDir(connection.data_dir).fragments if connection.address is None else None


def _delete(client: Client, journal: str, fragments: Sequence[Fragment], root: Path | None) -> None:
    """Through the broker, whose readers then know that the bytes are gone for good; else from the store."""
    from penstock.journal.client import NotOfferedError

    try:
        client.trim(journal, fragments[-1].end)
    except NotOfferedError:
        _remove(fragments, root)


def _remove(fragments: Iterable[Fragment], root: Path | None) -> None:
    """In the order of their offsets: if this fails in the middle, no hole is left."""
    from penstock.base.disk import Disk
    from penstock.journal.stores import FragmentStore, open_store

    stores: dict[str, FragmentStore] = {}
    for fragment in fragments:
        url = fragment.backing_store
        if url not in stores:
            if url.startswith("file:") and root is None:
                raise UsageError(
                    f"the fragments of {fragment.journal} are in {url}",
                    hint="say with --file-root where that is on this machine",
                )
            stores[url] = open_store(url, root, Disk(), sweep=False)  # what is half-written is the broker's
        try:
            stores[url].remove(fragment.content_path)
        except OSError as error:
            raise PenstockError(
                f"cannot delete {fragment.content_path} from {url}: {error}",
                hint="what was deleted before stays deleted; the command can be repeated",
            ) from None
