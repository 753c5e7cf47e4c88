"""The executables `Ambrosia` and `ImmortalCoordinator`, for bindings that start a coordinator themselves.

What they take is told in `ambrosia_options`, where an instance is found in `ambrosia_places`. What bindings look for in
the output is printed as they expect it (`penstock.immortal.running`), what they look for in the folder of logs is there
(`penstock.immortal.folder`), and what the Node binding looks for in Azure is left there (`ambrosia_azure`).
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, NoReturn

import click

from penstock.base.errors import PenstockError, UsageError
from penstock.cli import ambrosia_azure as azure
from penstock.cli import ambrosia_places as places
from penstock.cli.ambrosia_options import COORDINATOR, VERBS, flag, number, parse, required, usage, wants_help
from penstock.cli.common import show_error

if TYPE_CHECKING:
    from penstock.immortal.about import Registration
    from penstock.immortal.coordinator import Options
    from penstock.journal.client import AsyncClient


def register(verb: str, found: Mapping[str, str]) -> None:
    from penstock.immortal import about
    from penstock.immortal.journals import check_name
    from penstock.immortal.place import is_address, opened

    name = check_name(required(found, "instanceName"))
    one = _asked_for(verb, found)
    log = places.log_of(name, found.get("log"))

    async def said() -> None:
        async with opened(places.place_of(log)) as there:
            await about.register(there.client, name, one, is_known=False)

    asyncio.run(said())
    places.remember(name, log, one)
    click.echo(f"{name} was registered" + (f", replica {one.replica}" if one.replica else ""))
    if connection := os.environ.get(azure.VARIABLE, "").strip():
        try:
            azure.publish(connection, name, log if is_address(log) else f"{log}/", one)
        except PenstockError as error:  # it is registered, whoever may look for it elsewhere
            click.echo(f"Warning: {name} was not registered with Azure as well: {error}", err=True)


def _asked_for(verb: str, found: Mapping[str, str]) -> Registration:
    from penstock.immortal.about import Registration

    replica = number(found, "replicaNum") if verb == "AddReplica" else 0
    if verb == "AddReplica" and replica < 1:
        raise UsageError("--replicaNum is 1 or more")
    create = found.get("createService", "A").upper()
    if create not in ("A", "Y", "N"):
        raise UsageError(f"--createService is A, Y or N, not '{create}'")
    version = number(found, "currentVersion", 0)
    upgrade = number(found, "upgradeVersion", version)
    if upgrade < version:
        raise UsageError(f"--upgradeVersion {upgrade} is below --currentVersion {version}")
    return Registration(
        replica,
        number(found, "receivePort"),
        number(found, "sendPort"),
        create,
        flag(found, "pauseAtStart"),
        not flag(found, "noPersistLogs"),
        number(found, "logTriggerSize", 1000),
        flag(found, "activeActive") or verb == "AddReplica",
        version,
        upgrade,
        time.time(),
    )


def debug(found: Mapping[str, str]) -> int:
    from penstock.immortal import running
    from penstock.immortal.coordinator import Options
    from penstock.immortal.starting import Debug

    name = required(found, "instanceName")
    version = number(found, "currentVersion", 0)
    options = Options(
        name, number(found, "receivePort"), number(found, "sendPort"), version=version, upgrade=version
    )
    what = Debug(number(found, "checkpoint", 1), flag(found, "testingUpgrade"))
    return running.run(options, places.place_of(places.log_of(name, found.get("log"))), debug=what)


def coordinate(found: Mapping[str, str]) -> int:
    from penstock.immortal import running

    name, port = required(found, "instanceName"), number(found, "port")
    for refused in ("assemblyName", "assemblyClass"):
        if refused in found:
            raise UsageError(f"--{refused}: security plug-ins are not offered")
    replica = number(found, "replicaNum", 0)
    log = places.log_of(name, found.get("log"))

    async def decided(client: AsyncClient) -> Options:
        known = await _registration(client, name, replica, found)
        return _decided(known, name, port, log, found)

    return running.run(decided, places.place_of(log))


async def _registration(
    client: AsyncClient, name: str, replica: int, found: Mapping[str, str]
) -> Registration:
    """As registered last: with the journals, or, if those are others now, on this machine.

    A binding that names both ports has said all that is needed; whether it is one of several replicas it then says
    itself, by either option.
    """
    from penstock.immortal import about, journals

    known = [places.registered(name, replica)]
    if name in await journals.instances(client):
        known.append((await about.read(client, name)).registrations.get(replica))
    last = max((one for one in known if one is not None), key=lambda one: one.at, default=None)
    if last is not None:
        return last
    if "receivePort" in found and "sendPort" in found:
        active = flag(found, "activeActive") or "replicaNum" in found
        receive, send = number(found, "receivePort"), number(found, "sendPort")
        return about.Registration(replica, receive, send, active=active)
    which = f"replica {replica} of {name}" if replica else name
    raise UsageError(
        f"{which} is not registered",
        hint="Ambrosia RegisterInstance -i=NAME -rp=PORT -sp=PORT, or AddReplica",
    )


def _decided(known: Registration, name: str, port: int, log: str, found: Mapping[str, str]) -> Options:
    from penstock.immortal.coordinator import Options

    if known.pause:
        click.echo("Hit Enter to go on")
        sys.stdin.readline()
    return Options(
        name,
        number(found, "receivePort", known.receive_port),
        number(found, "sendPort", known.send_port),
        host=found.get("IPAddr", "127.0.0.1"),
        port=port,
        replica=known.replica,
        active=known.active or known.replica > 0,
        version=known.version,
        upgrade=known.upgrade,
        create=known.create,
        persist=known.persist,
        trigger=int(float(found.get("logTriggerSize", known.trigger_mib)) * (1 << 20)),
        legacy=flag(found, "legacyBinding") or os.environ.get("PENSTOCK_LEGACY_BINDING", "0") != "0",
        folder=places.folder_of(log),
    )


def _ended(code: int) -> NoReturn:
    from penstock.immortal import running

    running.end(code)
    raise SystemExit(code)


def ambrosia() -> NoReturn:
    """`Ambrosia VERB OPTIONS`."""
    verb, *arguments = sys.argv[1:] or [""]
    known = next((name for name in VERBS if name.lower() == verb.lower()), None)
    if known is None:
        click.echo("\n\n".join(usage(f"Ambrosia {name}", options) for name, options in VERBS.items()))
        sys.exit(0 if wants_help([verb]) else 2)
    if wants_help(arguments):
        click.echo(usage(f"Ambrosia {known}", VERBS[known]))
        sys.exit(0)
    try:
        found = parse(arguments, VERBS[known])
        if known == "DebugInstance":
            _ended(debug(found))
        register(known, found)
    except PenstockError as error:
        sys.exit(show_error(error, debug=False))
    sys.exit(0)


def immortal_coordinator() -> NoReturn:
    """`ImmortalCoordinator OPTIONS`."""
    arguments = sys.argv[1:]
    if not arguments or wants_help(arguments):
        click.echo(usage("ImmortalCoordinator", COORDINATOR))
        sys.exit(0 if arguments else 2)
    try:
        _ended(coordinate(parse(arguments, COORDINATOR)))
    except PenstockError as error:
        sys.exit(show_error(error, debug=False))
