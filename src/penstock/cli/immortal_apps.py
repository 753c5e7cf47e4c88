"""Immortals written in Python: run one, call it from outside, upgrade it, re-run it from its log."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from penstock.base.errors import UsageError
from penstock.cli.common import emit, json_option, wants_json
from penstock.cli.connection import Connection, broker_beside_directory

if TYPE_CHECKING:
    from penstock.immortal.binding.app import Immortal

_log_option = click.option("--log", metavar="DIR|URL", help="Where logs and checkpoints are, as for `serve`.")
_http_option = click.option(
    "--http", metavar="HOST:PORT", help="Take calls from outside there, when primary."
)
_token_option = click.option(
    "--token",
    envvar="PENSTOCK_IMMORTAL_TOKEN",
    default="",
    help="What those who call must send as bearer token.",
)
_more = click.argument("coordinator", nargs=-1, metavar="[-- COORDINATOR OPTIONS]")


def _place(connection: Connection, log: str | None) -> str:
    return log or connection.address or str(connection.data_dir)


def _address(http: str | None) -> tuple[str, int] | None:
    if http is None:
        return None
    host, _, port = http.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--http {http}: HOST:PORT was expected")
    return host.strip("[]") or "127.0.0.1", int(port)


def _tell(text: str) -> None:
    click.echo(text)
    sys.stdout.flush()


@click.command()
@click.argument("app", metavar="FILE:CLASS")
@click.option("--name", required=True, metavar="N", help="The instance.")
@click.option(
    "--ports", nargs=2, type=int, metavar="R S", help="Use the coordinator at these ports, start none."
)
@_log_option
@_http_option
@_token_option
@_more
@broker_beside_directory
def run(
    connection: Connection,
    app: str,
    name: str,
    ports: tuple[int, int] | None,
    log: str | None,
    http: str | None,
    token: str,
    coordinator: tuple[str, ...],
) -> None:
    """Run an immortal class, with a coordinator of its own.

    \b
    Examples:
      penstock immortal run bank.py:Bank --name bank --log data --http 127.0.0.1:8400
      penstock immortal run bank.py:Bank --name bank --log data -- --replica 1
    """
    from penstock.immortal.binding import pair
    from penstock.immortal.binding.loading import load_class

    pair.with_fixed_hashes(sys.argv[1:])
    cls = load_class(app)
    plan = pair.Plan(cls, name, http=_address(http), token=token)
    if ports is not None:
        pair.run(plan, ports, _tell)
        return
    more = ("--current-version", str(cls.version), *coordinator)
    pair.run_pair(plan, _place(connection, log), more, _tell)


@click.command()
@click.argument("name")
@click.option("--from", "old", required=True, metavar="FILE:CLASS", help="The class that wrote the log.")
@click.option("--to", "new", required=True, metavar="FILE:CLASS", help="The class that takes over.")
@_log_option
@_http_option
@_token_option
@_more
@broker_beside_directory
def upgrade(
    connection: Connection,
    name: str,
    old: str,
    new: str,
    log: str | None,
    http: str | None,
    token: str,
    coordinator: tuple[str, ...],
) -> None:
    """Take an instance to a new class, and go on with it.

    The old class replays the log, the new one takes over in the same process. A running instance is relieved; with
    `-- --active` this process follows it first, and takes over when it has caught up.

    \b
    Examples:
      penstock immortal upgrade bank --from old.py:Bank --to bank.py:Bank --log bank-logs
    """
    from penstock.cli.immortal import asking
    from penstock.immortal import about
    from penstock.immortal.binding import pair
    from penstock.immortal.binding.loading import load_class

    pair.with_fixed_hashes(sys.argv[1:])
    before, after = load_class(old), load_class(new)
    if after.version <= before.version:
        raise UsageError(
            f"{after.__name__}.version is {after.version}, {before.__name__}.version {before.version}",
            hint="count `version` up in the new class",
        )
    place = _place(connection, log)
    is_at = asking(connection, place, lambda client: about.describe(client, name)).version
    address = _address(http)
    if is_at == after.version:
        _tell(f"{name} is at version {is_at} already")
        plan = pair.Plan(after, name, http=address, token=token)
        more = ("--current-version", str(is_at), *coordinator)
    else:
        plan = pair.Plan(before, name, upgrade_to=after, http=address, token=token)
        more = ("--current-version", str(is_at), "--upgrade-version", str(after.version), *coordinator)
    pair.run_pair(plan, place, more, _tell)


@click.command()
@click.argument("name")
@click.option("--app", required=True, metavar="FILE:CLASS", help="The class that wrote the log.")
@click.option(
    "--checkpoint", type=int, required=True, metavar="K", help="Where to begin; `inspect` lists them."
)
@click.option("--at", type=int, metavar="INPUT", help="Stop in the debugger at this input, not at the first.")
@click.option(
    "--run", "is_run", is_flag=True, help="Do not stop: run to the end of the log, and show the state."
)
@click.option("--what-if", metavar="FILE:CLASS", help="Try this class, and report the first difference.")
@_log_option
@json_option
@broker_beside_directory
@click.pass_context
def debug(
    ctx: click.Context,
    connection: Connection,
    name: str,
    app: str,
    checkpoint: int,
    at: int | None,
    is_run: bool,
    what_if: str | None,
    log: str | None,
) -> None:
    """Re-run an instance from its log: under pdb, or against new code.

    Nothing is written, and nobody else notices.

    \b
    Examples:
      penstock immortal debug bank --app bank.py:Bank --checkpoint 1 --log bank-logs
      penstock immortal debug bank --app bank.py:Bank --checkpoint 1 --what-if new.py:Bank --log bank-logs
    """
    from penstock.immortal.binding import pair
    from penstock.immortal.binding.loading import load_class
    from penstock.immortal.binding.repro import Repro

    pair.with_fixed_hashes(sys.argv[1:])
    cls: type[Immortal] = load_class(app)
    repro = Repro(name, _place(connection, log), checkpoint, tls=connection.tls(), tokens=connection.tokens())
    if what_if is not None:
        difference, inputs = repro.what_if(cls, load_class(what_if))
        if difference is None:
            _tell(f"No difference in {inputs} inputs")
            return
        _tell(f"The first difference is at {difference}")
        raise click.exceptions.Exit(1)
    machine = repro.replay(cls, at=at, stop=not is_run)
    if wants_json(ctx):
        emit({"inputs": machine.runtime.inputs, "open": machine.open_handlers, "state": machine.state()})
        return
    _tell(f"{machine.runtime.inputs} inputs, {machine.open_handlers} handlers open")
    emit(machine.state())


@click.command()
@click.argument("url", metavar="HOST:PORT")
@click.argument("method")
@click.argument("arguments", nargs=-1)
@click.option("--key", default="", metavar="K", help="The same key happens once, however often it is asked.")
@click.option(
    "--timeout", type=float, default=30.0, show_default=True, help="Seconds to wait for the answer."
)
@_token_option
def call(url: str, method: str, arguments: tuple[str, ...], key: str, timeout: float, token: str) -> None:
    """Call an @impulse method of a running immortal, and print its result.

    ARGUMENTS are JSON; what is none is taken as text.

    \b
    Examples:
      penstock immortal call 127.0.0.1:8400 deposit bob 5
      penstock immortal call 127.0.0.1:8400 deposit bob 5 --key payment-17
    """
    from penstock.immortal.binding.outside import Outside

    _tell(Outside(url, token=token, timeout=timeout).call_text(method, list(arguments), key))
