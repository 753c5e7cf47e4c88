"""Connectors for the page: workers, their sessions and streams as `penstock connector status` tells, and moves.

A move is `penstock connector migrate`: an instance goes to another worker with all its streams and connectors.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence

import msgspec

from penstock.base.errors import UsageError
from penstock.base.secrets import mask
from penstock.base.units import counted
from penstock.connector import moving
from penstock.connector.settings import JOURNALS, dialable
from penstock.connector.status import WorkerStatus, survey
from penstock.console.actions import Outcome, Plan, Wish
from penstock.console.answers import masked
from penstock.console.reaching import Reaching
from penstock.console.remembered import Remembered
from penstock.console.views import Json
from penstock.journal.client import AsyncClient, Client
from penstock.log import audit
from penstock.pipeline.clock import now_us

_MOST = 1000
_MOST_DEEDS = 20


class Connectors:
    """May be used by several threads. `cookie` is what workers want of who moves their instances."""

    def __init__(self, reaching: Reaching, cookie: bytes = b"") -> None:
        self._reaching = reaching
        self._cookie = cookie
        self._listed = Remembered(reaching, {"workers": [], "history": {"deeds": [], "problem": None}})

    def list(self) -> Json:
        """All workers, and who moved what lately, the newest first."""
        return self._listed.get(lambda directory: _read(directory.client))

    def plan(self, wish: Wish) -> Plan:
        """What moving an instance would do."""
        prefix = _require_move(wish)
        with self._reaching.looking() as directory:
            workers = asyncio.run(_asked(directory.client, prefix))
        return plan_move(workers, wish, self._reaching.options, with_cookie=bool(self._cookie))

    def carry_out(self, wish: Wish, who: str) -> Outcome:
        prefix = _require_move(wish)
        with self._reaching.looking() as directory:
            workers = asyncio.run(_asked(directory.client, prefix))
            moved = moving.move(workers, wish.sink, wish.to, self._cookie)
            moved = moving.recorded(directory.client, prefix, moved, who, now_us())
        lines = [f"Instance {moved.instance} {moved.words}.", moved.unrecorded]
        return Outcome(True, [line for line in lines if line])


def plan_move(workers: Sequence[WorkerStatus], wish: Wish, options: str, *, with_cookie: bool) -> Plan:
    """What would happen to an instance and its connectors; the workers are those of its prefix. Pure."""
    dialable(wish.to)
    instance, target = wish.sink, wish.to
    here = next((one for one in workers if one.answers and _has(one, instance)), None)
    origin = here.address if here else "none"
    sessions = [one for one in here.sessions if one.instance == instance] if here else []
    streams = [one for one in here.streams if one.instance == instance] if here else []
    changes = [
        f"Instance {instance} goes from the worker at {origin} to the one at {target}, with its "
        f"{counted(len(streams), 'stream')}.",
        f"{counted(len(sessions), 'connected program')} {'is' if len(sessions) == 1 else 'are'} sent there, each when "
        "what it has sent so far is durable and acknowledged. One that cannot be told, or does not go within 30 "
        "seconds, is disconnected and finds the new worker when it connects again.",
        "No message is lost and none comes twice: the new worker goes on where the instance's journal ends.",
    ]
    if (warning := moving.unknown(workers, target)) is not None:
        changes.append(f"Careful: {warning}. Programs that are sent there wait until there is one.")
    options = f"{' --cookie-file FILE' if with_cookie else ''}{_told_prefix(wish.journals)}{options}"
    return Plan(
        f"Move instance {instance} to {target}",
        "Move",
        changes,
        f"penstock connector migrate {shlex.quote(instance)} --to {shlex.quote(target)}{options}",
        reason=_refusal(here, instance, target),
    )


def _refusal(here: WorkerStatus | None, instance: str, target: str) -> str | None:
    if here is None:
        return f"No worker that answers has an instance '{instance}' now."
    if here.pipeline:
        return f"It is the source of pipeline {here.pipeline}, whose streams cannot move."
    return f"It is at {target} already." if here.address == target else None


def _has(worker: WorkerStatus, instance: str) -> bool:
    held = {one.instance for one in worker.sessions} | {one.instance for one in worker.streams}
    return instance in held


def _require_move(wish: Wish) -> str:
    """The prefix of the instance that is to move."""
    if wish.action != moving.ACTION:
        raise UsageError(f"there is no action '{wish.action}' on a connector")
    return wish.journals or JOURNALS


def _told_prefix(prefix: str) -> str:
    return f" --journals {shlex.quote(prefix)}" if prefix not in ("", JOURNALS) else ""


def _read(client: Client) -> Json:
    return {
        "workers": [told(one) for one in asyncio.run(_asked(client))],
        "history": masked(msgspec.to_builtins(audit.told(client, _MOST_DEEDS, action=moving.ACTION))),
    }


def told(one: WorkerStatus) -> Json:
    """A worker for the page. Ids of streams have 64 bits, of which a number of JavaScript has room for 53."""
    shown: Json = msgspec.to_builtins(one)
    return {
        **shown,
        "sessions": msgspec.to_builtins(one.sessions[:_MOST]),
        "streams": [{**msgspec.to_builtins(each), "id": str(each.id)} for each in one.streams[:_MOST]],
        "stream_count": len(one.streams),
        "recent": [mask(text) for text in one.recent[-20:]],
    }


async def _asked(client: Client, prefix: str | None = None) -> list[WorkerStatus]:
    async with AsyncClient(client.address, tls=client.tls, tokens=client.tokens) as there:
        return list(await survey(there, prefix))
