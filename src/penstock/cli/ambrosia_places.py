"""Where the executables of AMBROSIA's names keep what they know of an instance.

The journals are in the place that `--log` names: a directory, or the address of a broker. So that `ImmortalCoordinator
--instanceName=N --port=P` finds it without being told, a file named after the instance remembers the place, in
`$XDG_STATE_HOME/penstock/immortals`. It remembers the registrations as well: to AMBROSIA they are no part of the logs,
and its scripts delete the logs after they have registered. Without `--log` the place is `$PENSTOCK_BROKER`, or
`$PENSTOCK_DATA_DIR`, or `.penstock`.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.base.errors import CorruptError

if TYPE_CHECKING:
    from penstock.immortal.about import Registration

INSIDE = "penstock"
"""The data directory in a folder of logs that holds something else."""


class Remembered(msgspec.Struct, frozen=True):
    """Content of the file."""

    log: str
    registrations: dict[int, dict[str, object]] = {}


def _file(name: str) -> Path:
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "penstock" / "immortals" / name


def _remembered(name: str) -> Remembered | None:
    file = _file(name)
    try:
        return msgspec.json.decode(file.read_bytes(), type=Remembered)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise CorruptError(
            f"this does not say where an instance is ({error})",
            where=str(file),
            position=0,
            hint="register the instance again",
        ) from None


def remember(name: str, log: str, registration: Registration) -> None:
    """What was registered, and where; each replica for itself."""
    known: dict[int, dict[str, object]] = {}
    with contextlib.suppress(CorruptError):  # what does not read is written anew
        before = _remembered(name)
        known = before.registrations if before is not None else {}
    said = Remembered(log, {**known, registration.replica: msgspec.to_builtins(registration)})
    file = _file(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    made = file.with_name(f".{name}.{os.getpid()}")
    made.write_bytes(msgspec.json.encode(said))
    made.replace(file)


def registered(name: str, replica: int) -> Registration | None:
    """How it was registered last, whatever became of the logs, and wherever they are now."""
    from penstock.immortal.about import Registration

    known = _remembered(name)
    said = known.registrations.get(replica) if known is not None else None
    return None if said is None else msgspec.convert(said, Registration)


def log_of(name: str, log: str | None) -> str:
    """The logs of an instance: an absolute directory, or an address."""
    from penstock.immortal.place import is_address

    if log is None:
        known = _remembered(name)
        if known is not None:
            return known.log
        log = os.environ.get("PENSTOCK_BROKER") or os.environ.get("PENSTOCK_DATA_DIR", ".penstock")
    return log if is_address(log) else str(Path(log).absolute())


def place_of(log: str) -> str:
    """Where the journals of these logs are: the directory itself, unless others keep something in it."""
    from penstock.immortal.place import is_address
    from penstock.journal.datadir import DataDir

    if is_address(log) or DataDir(Path(log)).is_free:
        return log
    return str(Path(log) / INSIDE)


def folder_of(log: str) -> Path | None:
    """The directory in which bindings look for an instance's files."""
    from penstock.immortal.place import is_address

    return None if is_address(log) else Path(log)
