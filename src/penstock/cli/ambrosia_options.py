"""Options of `Ambrosia` and `ImmortalCoordinator`, spelled as AMBROSIA has them.

Long and short names alike with `--`, `-` or `/`, in any case; values behind `=`, `:` or a space. An empty value behind
`=` is as good as none: the Node binding writes `--log=` where it has no folder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from penstock.base.errors import UsageError, did_you_mean


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
    Option("lb", "legacyBinding", "For the C client: it listens on the send port itself.", True),
)


HELP = ("h", "help", "?")
_WORD = re.compile(r"(?:--?|/)(?P<name>[^=:]+)(?P<rest>[=:].*)?", re.DOTALL)


def wants_help(arguments: Sequence[str]) -> bool:
    return any(word.lstrip("-/").lower() in HELP for word in arguments if word[:1] in "-/")


def parse(arguments: Sequence[str], known: Sequence[Option]) -> dict[str, str]:
    """The options by their long names; flags have the value `true`."""
    by_name = {name.lower(): option for option in known for name in (option.short, option.long)}
    found: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        said = _WORD.fullmatch(word)
        option = by_name.get(said["name"].lower()) if said else None
        if said is None or option is None:
            names = [f"--{one.long}" for one in known]
            meant = did_you_mean(f"--{said['name']}", names) if said else ""
            raise UsageError(f"unknown option '{word}'{meant}")
        value = said["rest"]
        if value is not None:
            value = value[1:]
        elif option.is_flag:
            value = "true"
        elif rest:
            value = rest.pop(0)
        else:
            raise UsageError(f"--{option.long} wants a value")
        if value:
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


def usage(program: str, options: Sequence[Option]) -> str:
    rows = [f"  -{one.short}, --{one.long}{'' if one.is_flag else '=VALUE'}" for one in options]
    width = max(map(len, rows)) + 2
    lines = [f"{row:<{width}}{one.help}" for row, one in zip(rows, options, strict=True)]
    return "\n".join([f"Usage: {program} OPTIONS", *lines])
