"""Change the specs of journals: `apply` a YAML text, or `edit` it in place.

A change tells the revision of the journal that it is made from. If the journal has moved on nothing is changed, and
the command says which one it was.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from penstock.base.errors import PenstockError, UsageError
from penstock.cli.common import emit, json_option, wants_json
from penstock.cli.connection import Connection, broker_options
from penstock.cli.selecting import selected, selector_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.journal.client import Client
    from penstock.journal.protocol import LabelSelector
    from penstock.journal.specs import Change

_ERROR_MARK = "#!"

_max_txn_size = click.option(
    "--max-txn-size",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="At most N changes in one transaction; 0, the default, makes all of them or none.",
)


@click.command()
@click.option(
    "--specs",
    type=click.File("r", encoding="utf-8"),
    default="-",
    metavar="FILE",
    help="The YAML text; - is stdin.",
)
@click.option(
    "--dry-run", is_flag=True, help="Check the text and show what would be asked; no broker is needed."
)
@_max_txn_size
@broker_options
@json_option
@click.pass_context
def apply(
    ctx: click.Context, *, connection: Connection, specs: TextIO, dry_run: bool, max_txn_size: int
) -> None:
    """Create, change and delete journals as a YAML text says.

    \b
    A journal is a node; a name that ends in / is a directory, whose children inherit what they leave out:
      name: shop/
      replication: 1
      fragment: {length: 67108864, compression_codec: GZIP, stores: ["file:///"], refresh_interval: 5m}
      children:
        - name: shop/items
        - name: shop/orders
          labels: [{name: content-type, value: application/x-ndjson}]
          revision: 12

    A `revision` is the one the journal must have: none means it must not exist yet, -1 any. `delete: true` deletes
    the journal, not its fragments. Nothing has a default: a spec that is not complete is refused.

    \b
    Examples:
      penstock journals apply --specs journals.yaml
      penstock journals apply --specs journals.yaml --dry-run
      penstock journals list -o yaml | sed 's/GZIP/ZSTANDARD/' | penstock journals apply
    """
    if specs.isatty():
        raise UsageError(
            "no specs given", hint="name a file with --specs, or pipe the text into this command"
        )
    from penstock.journal.specs import flatten

    try:
        text = specs.read()
    except UnicodeDecodeError as error:
        raise UsageError(f"the specs are not UTF-8 text ({error.reason} at byte {error.start})") from None
    changes = flatten(text)
    if dry_run:
        _show_request(ctx, changes)
        return
    with connection.client() as client:
        submit(client, changes, max_txn_size)
    _tell(ctx, changes)


def _show_request(ctx: click.Context, changes: Sequence[Change]) -> None:
    from google.protobuf import text_format

    from penstock.journal.protocol import ApplyRequest

    if not wants_json(ctx):
        request = ApplyRequest(changes=[change.to_proto() for change in changes])
        click.echo(text_format.MessageToString(request, as_utf8=True), nl=False)
        return
    from penstock.journal.specs_fields import plain

    for change in changes:
        spec = {"delete": True} if change.spec is None else plain(change.spec)
        emit({"name": change.name, **spec, "revision": change.revision})


def submit(client: Client, changes: Sequence[Change], max_txn_size: int) -> None:
    """Apply the changes; an error that names the journals whose revision was not as expected."""
    if not changes:
        return
    if client.apply([change.to_proto() for change in changes], max_txn_size=max_txn_size):
        return
    revisions = {journal.spec.name: journal.mod_revision for journal in client.list()}
    moved = []
    for change in changes:
        now = revisions.get(change.name, 0)
        if change.revision not in (now, -1):
            state = f"is at revision {now}" if now else "does not exist"
            expected = (
                f"revision {change.revision}" if change.revision else "a journal that does not exist yet"
            )
            moved.append(f"{change.name} {state}, the change is for {expected}")
    some = " Changes of earlier transactions stand." if max_txn_size else " Nothing was changed."
    raise PenstockError(
        f"journals are not as the changes expect: {'; '.join(moved) or 'they changed a moment ago'}.{some}",
        hint="take the revisions from `penstock journals list -o yaml`; -1 means any",
    )


def _tell(ctx: click.Context, changes: Sequence[Change]) -> None:
    if wants_json(ctx):
        for change in changes:
            emit({"name": change.name, "change": "delete" if change.spec is None else "upsert"})
        return
    deleted = sum(change.spec is None for change in changes)
    parts = [f"{len(changes) - deleted} created or changed"] if deleted < len(changes) else []
    parts += [f"{deleted} deleted"] if deleted else []
    click.echo(f"Journals: {', '.join(parts)}." if parts else "No changes were asked for.")


@click.command(short_help="Edit specs in an editor, and apply them.")
@selector_option(required=True)
@_max_txn_size
@broker_options
@json_option
@click.pass_context
def edit(ctx: click.Context, *, connection: Connection, selector: LabelSelector, max_txn_size: int) -> None:
    """Edit the specs of journals in an editor, and apply them when it ends.

    The editor is $GAZ_EDITOR, $EDITOR or vi. If the text is refused the editor opens again, with the reason on top;
    leave the text as it is to give up. A journal that you take out of the text stays as it is: to delete it, write
    `delete: true`.

    \b
    Examples:
      penstock journals edit -l name=shop/orders
      EDITOR=nano penstock journals edit -l prefix=shop/
    """
    from penstock.journal.specs import Change, flatten, hoist

    with connection.client() as client:
        before = {journal.spec.name: Change.of(journal) for journal in selected(client, selector)}
        text = hoist(before.values())
        refusal: PenstockError | None = None
        while True:
            edited = _edited(_with_error(text, refusal))
            if edited == text:
                if refusal is not None:
                    raise _given_up(text, refusal)
                click.echo("The text is as it was: nothing to change.", err=True)
                return
            text = edited
            try:
                changes = [change for change in flatten(text) if change != before.get(change.name)]
                submit(client, changes, max_txn_size)
                break
            except PenstockError as error:
                refusal = error
    _tell(ctx, changes)


def _given_up(text: str, refusal: PenstockError) -> PenstockError:
    """The refusal, with the way back to the text that somebody has put work into."""
    descriptor, path = tempfile.mkstemp(prefix="penstock-", suffix=".yaml")
    with os.fdopen(descriptor, "w", encoding="utf-8") as kept:
        kept.write(text)
    refusal.hint = f"your text is kept: correct it, then `penstock journals apply --specs {path}`"
    return refusal


def _with_error(text: str, refusal: PenstockError | None) -> str:
    """The text with the refusal on top, whose lines are counted as the editor will show them."""
    if refusal is None:
        return text
    from penstock.journal.specs import flatten

    try:
        flatten("\n" * _header(refusal).count("\n") + text)
    except UsageError as shifted:
        refusal = shifted
    return _header(refusal) + text


def _header(refusal: PenstockError) -> str:
    lines = [refusal.message, refusal.hint or "", "Leave the text as it is to give up."]
    return "".join(f"{_ERROR_MARK} {line}\n" for entry in lines for line in entry.splitlines())


def _edited(text: str) -> str:
    """What an editor makes of the text, without the error on top."""
    editor = os.environ.get("GAZ_EDITOR") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        file = Path(folder) / "journals.yaml"
        file.write_text(text, encoding="utf-8")
        try:
            done = subprocess.run([*shlex.split(editor), str(file)], check=False)
            edited = file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise UsageError(
                f"the editor '{editor}' did not work: {error}", hint="set EDITOR to one that does"
            ) from None
    if done.returncode:
        raise PenstockError(f"the editor '{editor}' ended with {done.returncode}; nothing was changed")
    kept = [line for line in edited.splitlines(keepends=True) if not line.startswith(_ERROR_MARK)]
    return "".join(kept)
