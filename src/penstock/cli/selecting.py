"""What the commands on journals share: selecting them, times, and the question before something is lost."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

import click

from penstock.base.errors import UsageError
from penstock.base.units import counted as counted

if TYPE_CHECKING:
    from penstock.journal.client import Client
    from penstock.journal.protocol import LabelSelector, ListResponse

F = TypeVar("F", bound=Callable[..., object])
_SECONDS = re.compile("[0-9]{1,18}")


def _parse_selector(_: click.Context, __: click.Parameter, value: str | None) -> LabelSelector | None:
    if value is None:
        return None
    from penstock.journal.labels import parse_selector
    from penstock.journal.protocol import ListRequest
    from penstock.journal.validation import validate_list_request

    selector = parse_selector(value)
    validate_list_request(ListRequest(selector=selector))  # the broker's rules, told before it is asked
    return selector


def selector_option(*, required: bool) -> Callable[[F], F]:
    return click.option(
        "-l",
        "--selector",
        metavar="SELECTOR",
        required=required,
        callback=_parse_selector,
        help="Which journals: name=a/b, prefix=a/, or labels as in color=red,!old.",
    )


def selected(client: Client, selector: LabelSelector) -> list[ListResponse.Journal]:
    """The journals of the selector; an error if there are none, since something was to be done with them."""
    found = client.list(selector)
    if not found:
        from penstock.journal.labels import format_selector

        raise UsageError(
            f"no journal matches the selector '{format_selector(selector)}'",
            hint="`penstock journals list` shows all; one is selected by `-l name=NAME`, a directory by "
            "`-l prefix=DIRECTORY/`",
        )
    return found


def served(client: Client, selector: LabelSelector) -> list[ListResponse.Journal]:
    """As `selected`, without those that are suspended to zero replicas: they are empty, and nobody tells of them."""
    from penstock.journal.upkeep import without_brokers

    return [journal for journal in selected(client, selector) if not without_brokers(journal)]


def _check_journal(_: click.Context, __: click.Parameter, value: str) -> str:
    from penstock.journal.tokens import field
    from penstock.journal.validation_specs import validate_request_journal

    with field("JOURNAL"):
        validate_request_journal(value)
    return value


journal_argument: Callable[[F], F] = click.argument("journal", callback=_check_journal)


def parse_time(_: click.Context, __: click.Parameter, value: str | None) -> int:
    """Unix seconds, or a date and time as ISO 8601 has them (UTC if no zone is given); 0 if not given."""
    if value is None:
        return 0
    if _SECONDS.fullmatch(value):
        return int(value)
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise UsageError(
            f"'{value}' is no time", hint="write unix seconds, or a date such as 2026-01-31T12:00:00Z"
        ) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


def parse_duration(_: click.Context, __: click.Parameter, value: str | None) -> timedelta | None:
    """A duration as Go writes it: 90s, 10m, 1h30m."""
    if value is None:
        return None
    from penstock.journal import durations

    length = timedelta(microseconds=durations.parse_duration(value) // 1000)
    if length <= timedelta():
        raise UsageError(f"expected a duration above zero ({value})")
    return length


yes_option: Callable[[F], F] = click.option("--yes", is_flag=True, help="Do not ask.")


def confirm(ctx: click.Context, question: str, *, yes: bool) -> None:
    """Ask, unless told not to; ends the command if the answer is no."""
    if yes:
        return
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:  # nobody there to answer
        raise UsageError(
            "this needs an answer, and there is nobody to ask", hint="--yes does not ask"
        ) from None
    if not agreed:
        click.echo("Nothing was changed.", err=True)
        ctx.exit(1)
