"""Whether a run goes on now.

A run leaves signs: the file `runs/P.json`, replaced a few times a second, and beats in the control journal. Neither
proves anything, since a killed run leaves its last ones behind. A data directory's lock does: it goes with the
process that holds it.
"""

from __future__ import annotations

from penstock.journal.datadir import Owner
from penstock.log.control import ControlState
from penstock.pipeline.progress import RunFile
from penstock.pipeline.records import RunStatus

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
        return RunStatus(file.pid, file.host, file.http, file.started, file.progress.phase)
    mark = control.run
    if mark is None or not mark.alive(now):
        return None
    if owner is not None and not serves(owner) and owner.pid != mark.pid:
        return None
    return RunStatus(mark.pid, mark.host, mark.http, mark.began or None)
