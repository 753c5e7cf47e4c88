"""`penstock connector`: programs that speak the connector protocol, as sources of a log or as sinks behind it."""

from __future__ import annotations

import click

from penstock.cli.connector_sinks import sink


@click.group(no_args_is_help=True)
def connector() -> None:
    """Serve and look at connectors: sources and sinks in any language.

    \b
    Examples:
      penstock connector sink file --out out/orders --listen 127.0.0.1:7200
      penstock connector sink list out/orders.txns
    """


connector.add_command(sink)
