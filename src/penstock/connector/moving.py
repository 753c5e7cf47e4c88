"""Moving an instance, with all its streams and connectors, to another worker, as an operator asks for it.

The worker that has the instance is asked over HTTP, and the move is put on record (`penstock.log.audit`) under the
instance's journal. A move is on its way when this returns; `status.survey` tells where the instance is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from penstock.base.errors import PenstockError
from penstock.base.texts import one_line
from penstock.connector.settings import dialable
from penstock.connector.status import WorkerStatus, request
from penstock.journal import upkeep
from penstock.journal.client import Client
from penstock.log.audit import Deed, note

ACTION = "migrate"


class Moved(NamedTuple):
    """An instance that goes from one worker to another; and why that is not on record, if it is not."""

    instance: str
    origin: str
    target: str
    unrecorded: str | None = None

    @property
    def words(self) -> str:
        return f"moves from {self.origin} to {self.target}"


def able(workers: Sequence[WorkerStatus]) -> list[WorkerStatus]:
    """Those that can be asked for a move; refuses if there are none."""
    found = [each for each in workers if each.answers and each.http]
    if not found:
        raise PenstockError(
            "no worker answers",
            hint="start one, with --http; `penstock connector status` shows those that were there",
        )
    return found


def unknown(workers: Sequence[WorkerStatus], target: str) -> str | None:
    """A warning, if no worker is known at the target."""
    if any(each.answers and each.address == target for each in workers):
        return None
    return f"no worker that answers is known at {target}"


def journal_of(prefix: str, instance: str) -> str:
    return f"{prefix}/{instance}"


def move(workers: Sequence[WorkerStatus], what: str, target: str, cookie: bytes) -> Moved:
    """Have the worker that has it move the instance that is meant: by its name, or by that of an open stream."""
    dialable(target)
    for each in able(workers):
        instance = _asked(each, what, target, cookie)
        if instance is not None:
            return Moved(instance, each.address, target)
    raise PenstockError(
        f"no worker has an instance or an open stream called '{what}'",
        hint="`penstock connector status` lists workers and streams; of journals with another prefix: --journals",
    )


def recorded(client: Client, prefix: str, moved: Moved, who: str, now: int) -> Moved:
    """Put a move on record."""
    journal = journal_of(prefix, moved.instance)
    found = upkeep.named(client, journal)
    unrecorded = note(client, Deed(now, who, ACTION, journal, moved.words), found.spec if found else None)
    return moved._replace(unrecorded=unrecorded)


def _asked(worker: WorkerStatus, what: str, target: str, cookie: bytes) -> str | None:
    """The instance that a worker moves now; None if it has none of that name."""
    body = msgspec.json.encode({"what": what, "to": target})
    try:
        code, answer = request(worker.http, "POST", "/migrate", body, cookie)
    except OSError as error:
        raise PenstockError(f"the worker at {worker.address} is gone: {error}", hint="try again") from None
    text = answer.decode(errors="replace").strip()
    if code == 200:
        return str(msgspec.json.decode(answer)["instance"])
    if code == 404:
        return None
    hint = "give the cookie that the worker was started with: --cookie-file, also of `console` and `run --console`"
    raise PenstockError(
        f"the worker at {worker.address} refused: {one_line(text)}", hint=hint if code == 403 else None
    )
