"""The executables `Ambrosia` and `ImmortalCoordinator`, for bindings that start a coordinator themselves.

Options are spelled as AMBROSIA's have them: long names with one or two dashes, values behind `=`, `:` or a space. What
bindings look for in the output is printed as they expect it (`penstock.immortal.running`).

An instance is registered in the place that `--log` names: a data directory, or the address of a broker. So that
`ImmortalCoordinator --instanceName=N --port=P` finds it without being told, a file named after the instance remembers
the place, in `$XDG_STATE_HOME/penstock/immortals`. Without `--log` it is `$PENSTOCK_BROKER`, or `$PENSTOCK_DATA_DIR`,
or `.penstock`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import click

from penstock.base.errors import PenstockError, UsageError, did_you_mean
from penstock.cli.common import show_error

if TYPE_CHECKING:
    from penstock.immortal.about import Registration
    from penstock.immortal.coordinator import Options
    from penstock.journal.client import AsyncClient


class Option(NamedTuple):
    """One option, under two names."""

    short: str
    long: str
    help: str
    is_flag: bool = False


NAME = Option("i", "instanceName", "The instance. Required.")
RECEIVE = Option("rp", "receivePort", "Where the binding sends.")
SEND = Option("sp", "sendPort", "Where the binding receives.")
LOG = Option("l", "log", "Where logs are: a directory, or a broker's address.")
TRIGGER = Option("lts", "logTriggerSize", "MiB of log after which it is rolled; 1000.")
CURRENT = Option("cv", "currentVersion", "The version of the instance; 0.")
REPLICA = Option("r", "replicaNum", "The replica.")
ACTIVE = Option("aa", "activeActive", "Active/active.", True)
REGISTERING = (
    NAME,
    RECEIVE,
    SEND,
    LOG,
    Option("cs", "createService", "A: recover if there is something; Y: begin anew; N: recover."),
    Option("ps", "pauseAtStart", "Wait for Enter when it starts.", True),
    Option("npl", "noPersistLogs", "Write no log.", True),
    TRIGGER,
    ACTIVE,
    CURRENT,
    Option("uv", "upgradeVersion", "The version to upgrade to."),
)
VERBS: Mapping[str, tuple[Option, ...]] = {
    "RegisterInstance": REGISTERING,
    "AddReplica": (*REGISTERING, REPLICA),
    "DebugInstance": (
        NAME,
        RECEIVE,
        SEND,
        LOG,
        CURRENT,
        Option("c", "checkpoint", "The checkpoint to begin with; 1."),
        Option("tu", "testingUpgrade", "Run new code against the log.", True),
    ),
}
COORDINATOR = (
    NAME,
    Option("p", "port", "Where other coordinators connect. Required."),
    REPLICA,
    ACTIVE,
    RECEIVE,
    SEND,
    LOG,
    TRIGGER,
    Option("ip", "IPAddr", "The address that others connect to."),
    Option("an", "assemblyName", "Not offered."),
    Option("ac", "assemblyClass", "Not offered."),
    Option("lst", "logStorageType", "`files`; the log is in journals whatever is said."),
)


def parse(arguments: Sequence[str], known: Sequence[Option]) -> dict[str, str]:
    """The options by their long names; flags have the value `true`."""
    by_name = {name.lower(): option for option in known for name in (option.short, option.long)}
    found: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name = word.lstrip("-")
        for separator in "=:":
            name, _, _ = name.partition(separator)
        option = by_name.get(name.lower())
        if option is None or not word.startswith("-"):
            names = [f"--{one.long}" for one in known]
            raise UsageError(f"unknown option '{word}'{did_you_mean(f'--{name}', names)}")
        value = word.lstrip("-")[len(name) + 1 :]
        if option.is_flag:
            value = value or "true"
        elif not value:
            if not rest:
                raise UsageError(f"--{option.long} wants a value")
            value = rest.pop(0)
        found[option.long] = value
    return found


def number(found: Mapping[str, str], option: str, default: int | None = None) -> int:
    text = found.get(option)
    if text is None:
        if default is None:
            raise UsageError(f"--{option} is required")
        return default
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"--{option} is a number, not '{text}'") from None


def flag(found: Mapping[str, str], option: str) -> bool:
    return found.get(option, "false").lower() == "true"


def required(found: Mapping[str, str], option: str) -> str:
    if option not in found:
        raise UsageError(f"--{option} is required")
    return found[option]


def _remembering(name: str) -> Path:
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "penstock" / "immortals" / name


def place_of(name: str, log: str | None) -> str:
    """Where the journals of an instance are."""
    from penstock.immortal.place import is_address

    if log is not None:
        return log if is_address(log) else str(Path(log).absolute())
    try:
        return _remembering(name).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        data_dir = os.environ.get("PENSTOCK_DATA_DIR", ".penstock")
        return os.environ.get("PENSTOCK_BROKER") or str(Path(data_dir).absolute())


def remember(name: str, place: str) -> None:
    file = _remembering(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(place, encoding="utf-8")


def register(verb: str, found: Mapping[str, str]) -> None:
    from penstock.immortal import about
    from penstock.immortal.journals import check_name
    from penstock.immortal.place import opened

    name = check_name(required(found, "instanceName"))
    replica = number(found, "replicaNum") if verb == "AddReplica" else 0
    if verb == "AddReplica" and replica < 1:
        raise UsageError("--replicaNum is 1 or more")
    create = found.get("createService", "A").upper()
    if create not in ("A", "Y", "N"):
        raise UsageError(f"--createService is A, Y or N, not '{create}'")
    version = number(found, "currentVersion", 0)
    one = about.Registration(
        replica,
        number(found, "receivePort"),
        number(found, "sendPort"),
        create,
        flag(found, "pauseAtStart"),
        not flag(found, "noPersistLogs"),
        number(found, "logTriggerSize", 1000),
        flag(found, "activeActive") or verb == "AddReplica",
        version,
        number(found, "upgradeVersion", version),
    )
    place = place_of(name, found.get("log"))

    async def said() -> None:
        async with opened(place) as there:
            await about.register(there.client, name, one)

    asyncio.run(said())
    remember(name, place)
    click.echo(f"{name} was registered" + (f", replica {replica}" if replica else ""))


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
    return running.run(options, place_of(name, found.get("log")), debug=what)


def coordinate(found: Mapping[str, str]) -> int:
    from penstock.immortal import running

    name, port = required(found, "instanceName"), number(found, "port")
    for refused in ("assemblyName", "assemblyClass"):
        if refused in found:
            raise UsageError(f"--{refused}: security plug-ins are not offered")
    replica = number(found, "replicaNum", 0)

    async def decided(client: AsyncClient) -> Options:
        return _decided(await _registration(client, name, replica), name, port, replica, found)

    return running.run(decided, place_of(name, found.get("log")))


async def _registration(client: AsyncClient, name: str, replica: int) -> Registration:
    from penstock.immortal import about, journals

    if name in await journals.instances(client):
        known = (await about.read(client, name)).registrations.get(replica)
        if known is not None:
            return known
    which = f"replica {replica} of {name}" if replica else name
    raise UsageError(
        f"{which} is not registered",
        hint="Ambrosia RegisterInstance -i=NAME -rp=PORT -sp=PORT, or AddReplica",
    )


def _decided(known: Registration, name: str, port: int, replica: int, found: Mapping[str, str]) -> Options:
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
        replica=replica,
        active=known.active or replica > 0,
        version=known.version,
        upgrade=known.upgrade,
        create=known.create,
        persist=known.persist,
        trigger=int(float(found.get("logTriggerSize", known.trigger_mib)) * (1 << 20)),
    )


def _usage(program: str, options: Sequence[Option]) -> str:
    rows = [f"  -{one.short}, --{one.long}{'' if one.is_flag else '=VALUE'}" for one in options]
    width = max(map(len, rows)) + 2
    lines = [f"{row:<{width}}{one.help}" for row, one in zip(rows, options, strict=True)]
    return "\n".join([f"Usage: {program} OPTIONS", *lines])


def _ended(code: int) -> NoReturn:
    from penstock.immortal import running

    running.end(code)
    raise SystemExit(code)


def ambrosia() -> NoReturn:
    """`Ambrosia VERB OPTIONS`."""
    verb, *arguments = sys.argv[1:] or ["--help"]
    known = next((name for name in VERBS if name.lower() == verb.lower()), None)
    if known is None:
        click.echo("\n\n".join(_usage(f"Ambrosia {name}", options) for name, options in VERBS.items()))
        sys.exit(0 if verb.lstrip("-") in ("h", "help", "?") else 2)
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
    if not sys.argv[1:] or sys.argv[1].lstrip("-") in ("h", "help", "?"):
        click.echo(_usage("ImmortalCoordinator", COORDINATOR))
        sys.exit(0 if sys.argv[1:] else 2)
    try:
        _ended(coordinate(parse(sys.argv[1:], COORDINATOR)))
    except PenstockError as error:
        sys.exit(show_error(error, debug=False))
