"""Whether a run goes on now.

A run leaves signs: the file `runs/P.json`, replaced a few times a second, and beats in the control journal. Neither
proves anything, since a killed run leaves its last ones behind. A data directory's lock does: it goes with the
process that holds it.
"""

from __future__ import annotations

import logging
import time

from penstock.journal.datadir import Owner
from penstock.log.control import ALIVE_SECONDS, RUN_BEAT, Control, ControlState, RunMark
from penstock.pipeline.progress import RunFile
from penstock.pipeline.records import RunStatus

log = logging.getLogger(__name__)

_LOOK_AGAIN = 0.5
_BROKER = "penstock broker "
"""How the command begins that serves a data directory to everybody."""


def serves(owner: Owner) -> bool:
    """Whether the owner of a data directory is a broker for everybody, not a run."""
    return owner.command.startswith(_BROKER)


def running(
    owner: Owner | None, file: RunFile | None, control: ControlState, now: int, *, local: bool
) -> RunStatus | None:
    """The run that goes on at `now` (us), if one does.

    A `local` data directory has a lock: without an owner nothing runs, whatever is written; with one, it is a run
    if it says so under the owner's process id. Behind a broker the beat in the control journal must do.
    """
    if local and owner is None:
        return None
    if owner is not None and file is not None and file.pid == owner.pid and file.exit_code is None:
        return RunStatus(file.pid, file.host, file.http, file.started, file.progress.phase, file.written)
    mark = control.run
    if mark is None or not mark.alive(now):
        return None
    if owner is not None and not serves(owner) and owner.pid != mark.pid:
        return None
    return RunStatus(mark.pid, mark.host, mark.http, mark.began or None)


def is_gone(control: Control, mark: RunMark, now: int, patience: float = ALIVE_SECONDS) -> bool:
    """Whether a run that looks alive at `now` (us) is not: its beat is from a time to come, and no other one follows.

    By the clock such a beat would count until its time is over: for a day, if the clock was set back by a day.
    """
    if not mark.is_ahead(now):
        return False
    log.warning("the last sign of the run on %s is of a time to come: waiting for another one", mark.host)
    heard, _ = control.changed_since(0)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        time.sleep(_LOOK_AGAIN)
        heard, entries = control.changed_since(heard)
        if any(entry.action == RUN_BEAT and entry.detail.get("run") == mark.run for entry in entries):
            return False
    return True
