"""`penstock broker token`: sign a bearer token with a broker's keys."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from penstock.base.errors import UsageError
from penstock.cli.common import emit, json_option, wants_json

if TYPE_CHECKING:
    from penstock.journal.protocol import LabelSelector

_CAPABILITIES = ("list", "apply", "read", "append", "replicate", "all")


@click.command()
@click.option(
    "--auth-keys",
    metavar="KEYS|@FILE",
    envvar="PENSTOCK_AUTH_KEYS",
    required=True,
    help="The broker's keys; the first one signs.",
)
@click.option(
    "--can",
    "capabilities",
    multiple=True,
    required=True,
    type=click.Choice(_CAPABILITIES),
    help="What the token allows (repeat).",
)
@click.option(
    "-l", "--selector", "text", default="", metavar="SELECTOR", help="For which journals; default: all."
)
@click.option("--lifetime", default="1h", show_default=True, metavar="DURATION", help="As 30m, 12h, 720h.")
@json_option
@click.pass_context
def token(
    ctx: click.Context, *, auth_keys: str, capabilities: tuple[str, ...], text: str, lifetime: str
) -> None:
    """Sign a bearer token that a broker with these keys accepts, and print it.

    \b
    Examples:
      penstock broker token --auth-keys @keys --can append -l name=shop/orders
      penstock broker token --auth-keys @keys --can list --can read -l name:prefix=shop/ --lifetime 24h
      curl -H "Authorization: Bearer $(penstock broker token --auth-keys @keys --can read)" http://host:8081/shop/orders
    """
    from penstock.journal import auth
    from penstock.journal.claims import Capability, Claims
    from penstock.journal.durations import parse_duration

    wanted = Capability(0)
    for name in capabilities:
        wanted |= Capability[name.upper()]
    seconds = parse_duration(lifetime) / 10**9
    if seconds <= 0:
        raise UsageError(f"a token cannot live for {lifetime}", hint="say how long: --lifetime 1h")
    signed = auth.sign(
        auth.keys_from(auth_keys), Claims(wanted, _selector(text)), now=time.time(), lifetime=seconds
    )
    if wants_json(ctx):
        emit({"token": signed, "expires": int(time.time() + seconds)})
    else:
        click.echo(signed)


def _selector(text: str) -> LabelSelector:
    from penstock.journal.labels import parse_selector

    selector = parse_selector(text)
    for label in (*selector.include.labels, *selector.exclude.labels):
        if label.name == "prefix":
            raise UsageError(
                "in a token `prefix=` matches in lists only", hint=f"write name:prefix={label.value} instead"
            )
    return selector
