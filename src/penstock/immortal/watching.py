"""How a secondary knows that the primary is gone: it holds a connection to it, over which heartbeats come.

A process that was killed closes the connection at once; one that is frozen, or a network that is cut, lets no heartbeat
through; and who has its port now does not know its password. Being wrong is harmless: the log's registers decide who is
primary, and the other one ends.
"""

from __future__ import annotations

import asyncio

from penstock.immortal import about, journals
from penstock.immortal.place import Place
from penstock.immortal.streams import (
    LINE,
    NOT_PRIMARY,
    Hello,
    NoStreamError,
    Welcome,
    connected,
    line,
    read_line,
)
from penstock.journal.client import BrokerGoneError, TimedOutError

_POLL = 0.2
_ANNOUNCING = 3.0
"""Seconds that one who has claimed the log has to say where it serves."""


async def until_gone(place: Place, instance: str, me: str, failover: float) -> str:
    """The owner of the log, as soon as it is gone; empty if there is none."""
    silent_since: dict[str, float] = {}
    while True:
        try:
            owner = await _owner(place, instance)
            if not owner:
                return ""
            known = await about.read(place.client, instance)
        except (BrokerGoneError, TimedOutError):
            await place.reach()
            continue
        serving = known.serving
        if serving is not None and serving.owner == owner:
            if not await _watched(serving, instance, me, failover) and await _is_still(
                place, instance, owner
            ):
                return owner
        else:
            now = asyncio.get_running_loop().time()
            if now - silent_since.setdefault(owner, now) > max(_ANNOUNCING, failover):
                return owner
        await asyncio.sleep(_POLL)


async def _owner(place: Place, instance: str) -> str:
    found, _ = await journals.registers(place.client, journals.journal_name(instance, "log"))
    return journals.owner_of(found)


async def _is_still(place: Place, instance: str, owner: str) -> bool:
    try:
        return await _owner(place, instance) == owner
    except (BrokerGoneError, TimedOutError):
        return False


async def _watched(serving: about.Serving, instance: str, me: str, failover: float) -> bool:
    """Watch until nothing is heard any more; whether it is there all the same, only not ready yet."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(failover):
            reader, writer = await connected(serving, limit=LINE)
            writer.write(line(Hello(instance, serving.password, watcher=me)))
            welcome = await read_line(reader, Welcome)
        if welcome.error:
            # Whoever else answers has its port now, perhaps we ourselves.
            return welcome.error == NOT_PRIMARY
        while True:
            async with asyncio.timeout(failover):
                if not await reader.readline():
                    return False
    except (OSError, NoStreamError):
        return False
    finally:
        if writer is not None:
            writer.close()
