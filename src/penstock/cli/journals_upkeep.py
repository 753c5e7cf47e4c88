"""Upkeep of journals: `check`, `suspend`, `reset-head`, `trim`, `roll`; `prune` is in `journals_prune`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from penstock.base.errors import CorruptError, PenstockError
from penstock.base.texts import one_line
from penstock.base.units import counted
from penstock.cli.common import emit, json_option, show, visible, wants_json, warn
from penstock.cli.connection import Connection, broker_options
from penstock.cli.selecting import confirm, journal_argument, selected, selector_option, served, yes_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.journal.check import Finding
    from penstock.journal.client import Client
    from penstock.journal.fragment import Fragment
    from penstock.journal.protocol import LabelSelector, ListResponse


@click.command(short_help="Look for holes, overlaps and wrong sums.")
@selector_option(required=False)
@click.option("--sums", is_flag=True, help="Also read every fragment and compare its SHA1.")
@broker_options
@json_option
@click.pass_context
def check(ctx: click.Context, *, connection: Connection, selector: LabelSelector | None, sums: bool) -> None:
    """Look for damage: holes and overlaps between fragments, and sums that do not match.

    Exit code 5 if anything is found. Bytes before the first fragment were trimmed or pruned, and are no hole. With
    --sums all content is read through the broker, which can take long. With --json, one object a journal.

    \b
    Examples:
      penstock journals check
      penstock journals check -l prefix=shop/ --sums
      penstock journals check --json
    """
    from penstock.journal.protocol import LabelSelector

    findings: list[tuple[str, Finding]] = []
    looked_at = 0
    with connection.client() as client:
        for journal in served(client, selector or LabelSelector()):
            name = journal.spec.name
            looked_at += 1
            fragments, found = _examined_or_refused(client, name, sums=sums)
            findings += [(name, finding) for finding in found]
            if wants_json(ctx):
                emit({"journal": name, "fragments": len(fragments), "findings": found})
    if not findings:
        if not wants_json(ctx):
            how = "every fragment read" if sums else "sums not compared: --sums does"
            click.echo(f"No fault in {looked_at} journals ({how}).")
        return
    if not wants_json(ctx):
        from penstock.cli import journals_render

        show(journals_render.findings(findings))
    journal_name, first = findings[0]
    raise CorruptError(
        f"{first.fault}: {first.text}" + (f"; {len(findings)} faults in all" if len(findings) > 1 else ""),
        where=journal_name,
        position=first.begin,
        hint="keep the stores as they are until you know why; a read stops at a hole that is younger than 6 h",
    )


def _examined_or_refused(client: Client, journal: str, *, sums: bool) -> tuple[list[Fragment], list[Finding]]:
    """A journal that the broker cannot serve is a finding, and no reason not to look at the others."""
    from penstock.journal import check
    from penstock.journal.client import BrokerGoneError, JournalError, TimedOutError, UnauthenticatedError

    try:
        return _examined(client, journal, sums=sums)
    except (BrokerGoneError, JournalError, TimedOutError, UnauthenticatedError):
        raise
    except PenstockError as error:
        return [], [check.Finding(check.Fault.MISSING, 0, 0, f"not served: {error.message}")]


def _examined(client: Client, journal: str, *, sums: bool) -> tuple[list[Fragment], list[Finding]]:
    from penstock.journal import check
    from penstock.journal.fragment import Fragment

    client.begin(journal)  # waits until the broker knows its stores; a read does not
    head = client.head(journal)
    fragments = [Fragment.from_proto(listed.spec) for listed in client.fragments(journal)]
    findings = check.layout(fragments, head)
    if sums:
        findings += _summed(client, journal, fragments)
    return fragments, findings


def _summed(client: Client, journal: str, fragments: Sequence[Fragment]) -> list[Finding]:
    """Read all fragments, with a bar on a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    findings: list[Finding] = []
    total = sum(fragment.length for fragment in fragments)
    # Only a terminal gets one: its lines would be noise in a log.
    screen = Console(stderr=True, markup=False)
    with Progress(console=screen, transient=True, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task(visible(journal), total=total)
        for fragment in fragments:
            if not fragment.length:
                continue
            finding = _content(client, fragment)
            findings += [finding] if finding else []
            progress.advance(bar, fragment.length)
    return findings


def _content(client: Client, fragment: Fragment) -> Finding | None:
    """What is wrong with a fragment's content. That the broker is gone, or has other reasons, is no such thing."""
    from penstock.journal import check
    from penstock.journal.client import BrokerGoneError, JournalError, TimedOutError, UnauthenticatedError

    try:
        chunks = client.read(fragment.journal, fragment.begin, fragment.end, timeout=None)
        return check.content(fragment, chunks)
    except (JournalError, TimedOutError, UnauthenticatedError):
        raise
    except BrokerGoneError as error:
        client.head(fragment.journal)  # it answers: then it was this read that it could not do
        reason = error.message
    except PenstockError as error:
        reason = error.message
    return check.Finding(check.Fault.MISSING, fragment.begin, fragment.end, f"cannot be read: {reason}")


@click.command()
@selector_option(required=True)
@click.option("-f", "--force", is_flag=True, help="Even if content is not in a store yet.")
@broker_options
@json_option
@click.pass_context
def suspend(ctx: click.Context, *, connection: Connection, selector: LabelSelector, force: bool) -> None:
    """Let brokers put journals aside that are not in use. The next append brings a journal back.

    A journal whose content is all in a store keeps one replica (PARTIAL); one that is empty keeps none (FULL).

    \b
    Examples:
      penstock journals suspend -l prefix=archive/
      penstock journals suspend -l name=shop/orders --force
    """
    from penstock.cli.places import who
    from penstock.log import upkeep
    from penstock.pipeline.clock import now_us

    with connection.client() as client:
        journals = [*selected(client, selector)]
        done = [upkeep.suspend(client, journal, who(), now_us(), force=force) for journal in journals]
    for journal, (level, unrecorded) in zip(journals, done, strict=True):
        name = journal.spec.name
        warn(unrecorded)
        if wants_json(ctx):
            emit({"journal": name, "level": level})
        elif level == "NONE":
            click.echo(
                f"{name}: not suspended, since content is not in a store yet or in use (--force suspends)"
            )
        else:
            click.echo(f"{name}: suspended ({level})")


@click.command(name="reset-head", short_help="Trust the stores after replicas were lost.")
@selector_option(required=True)
@click.option(
    "--explain",
    is_flag=True,
    help="Say first what every broker and store has, what could be lost, and whether a reset is needed at all.",
)
@yes_option
@broker_options
@json_option
@click.pass_context
def reset_head(
    ctx: click.Context, *, connection: Connection, selector: LabelSelector, explain: bool, yes: bool
) -> None:
    """Set the write head of journals to the end of what their stores hold.

    For disasters: when all replicas of a journal were lost, appends fail with INDEX_HAS_GREATER_OFFSET, since nobody
    can tell whether the store has everything. This command says that it has. What was acknowledged but had not
    reached the store is gone; registers come back empty, so that owners of the journal stop and tell.

    A journal that got an append meanwhile needs no reset; that is told, and no failure.

    With --explain each broker is asked what it has, and only journals that need it are reset, after a question.

    \b
    Examples:
      penstock journals reset-head -l name=shop/orders --explain
      penstock journals reset-head -l name=shop/orders
      penstock journals reset-head -l prefix=shop/ --yes
    """
    from penstock.cli.places import who
    from penstock.log import upkeep
    from penstock.pipeline.clock import now_us

    with connection.client() as client:
        journals = served(client, selector)
        names = [journal.spec.name for journal in journals]
        if explain:
            names = _explained(ctx, client, journals)
            if not names:
                return
        confirm(ctx, f"Reset the write head of {_some(names)}? Only if their replicas are lost.", yes=yes)
        for journal in journals:
            if (name := journal.spec.name) not in names:
                continue
            done, unrecorded = upkeep.reset_head(client, journal, who(), now_us())
            warn(unrecorded)
            if wants_json(ctx):
                emit({"journal": name, "offset": done.offset, "outcome": done.outcome})
            else:
                click.echo(f"{name}: {done.words}")


def _explained(ctx: click.Context, client: Client, journals: Sequence[ListResponse.Journal]) -> list[str]:
    """Tell what is known of journals; the names of those that need a reset."""
    from dataclasses import asdict

    from penstock.cli.journals_explain import explained

    found = [explained(client, journal) for journal in journals]
    for one in found:
        if wants_json(ctx):
            emit({**asdict(one), "end": one.end, "needed": one.needed})
        else:
            for line in one.lines():
                click.echo(one_line(line))
    return [one.journal for one in found if one.needed]


@click.command(short_help="Who suspended, reset or moved what.")
@click.argument("journal", required=False)
@click.option(
    "-n", "--count", type=click.IntRange(min=1), default=50, show_default=True, help="How many at most."
)
@broker_options
@json_option
@click.pass_context
def history(ctx: click.Context, *, connection: Connection, journal: str | None, count: int) -> None:
    """Show who did what to a journal, or to all: `suspend`, `reset-head`, and `connector migrate`.

    What operators did to a pipeline is told by `penstock offset history`.

    \b
    Examples:
      penstock journals history
      penstock journals history shop/orders --json
    """
    import msgspec

    from penstock.cli.tables import name, table, timestamp
    from penstock.log.audit import deeds

    with connection.client() as client:
        found = deeds(client, journal)[-count:]
    if wants_json(ctx):
        for deed in found:
            emit(msgspec.to_builtins(deed))
        return
    rows = table("time", "who", "journal", "action", "outcome")
    for deed in found:
        rows.add_row(
            timestamp(deed.time),
            *(name(text) for text in (deed.who, deed.journal, deed.action, deed.outcome)),
        )
    show(rows)


@click.command(short_help="Delete what lies below an offset.")
@journal_argument
@click.argument("offset", type=click.IntRange(0, (1 << 63) - 1))
@yes_option
@broker_options
@json_option
@click.pass_context
def trim(ctx: click.Context, *, connection: Connection, journal: str, offset: int, yes: bool) -> None:
    """Delete what lies below OFFSET of JOURNAL, by whole fragments. Reads below jump forward.

    The fragment that holds OFFSET stays.

    \b
    Examples:
      penstock journals trim shop/orders 1048576
      penstock journals trim shop/orders 1048576 --yes --json
    """
    with connection.client() as client:
        confirm(ctx, f"Delete the fragments of {journal} that end at or below {offset}?", yes=yes)
        done = client.trim(journal, offset)
    if wants_json(ctx):
        emit({"journal": journal, "begin": done.begin, "fragments": done.fragments, "bytes": done.bytes})
    else:
        click.echo(
            f"{journal}: {counted(done.fragments, 'fragment')} of {counted(done.bytes, 'byte')} deleted; "
            f"it begins at {done.begin}"
        )


@click.command(short_help="Close the fragment that is being written.")
@journal_argument
@broker_options
@json_option
@click.pass_context
def roll(ctx: click.Context, *, connection: Connection, journal: str) -> None:
    """Close the fragment of JOURNAL that is being written, so that it goes to the store now.

    \b
    Examples:
      penstock journals roll shop/orders
      penstock journals roll shop/orders --broker http://localhost:8080
    """
    with connection.client() as client:
        done = client.roll(journal)
    if wants_json(ctx):
        emit({"journal": journal, "offset": done.offset})
    else:
        click.echo(f"{journal}: the next fragment begins at {done.offset}")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
