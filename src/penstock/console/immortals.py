"""Immortals for the page: instances, replicas, checkpoints and logs, as `penstock immortal list` and `inspect` tell.

How fast a log grows is worked out between two looks.
"""

from __future__ import annotations

import asyncio
import threading
import time

import msgspec

from penstock.console.reaching import Reaching
from penstock.console.remembered import Remembered
from penstock.console.views import Json
from penstock.immortal import about
from penstock.immortal.about import Description
from penstock.journal.client import AsyncClient, Client

_MOST_CHECKPOINTS = 50
_REMEMBERED = 1000


class Immortals:
    """May be used by several threads."""

    def __init__(self, reaching: Reaching) -> None:
        self._listed = Remembered(reaching, {"instances": []})
        self._lock = threading.Lock()
        self._ends: dict[str, tuple[float, int]] = {}

    def list(self) -> Json:
        """All instances."""
        return self._listed.get(lambda directory: self._read(directory.client))

    def _read(self, client: Client) -> Json:
        return {"instances": [self._told(one) for one in asyncio.run(_described(client))]}

    def _told(self, one: Description) -> Json:
        """One instance, without the password of its coordinator's start."""
        shown: Json = msgspec.to_builtins(one)
        serving = shown["serving"]
        if isinstance(serving, dict):
            shown["serving"] = {name: value for name, value in serving.items() if name != "password"}
        shown["checkpoint_count"] = len(one.checkpoints)
        shown["checkpoints"] = msgspec.to_builtins(one.checkpoints[-_MOST_CHECKPOINTS:])
        shown["growth"] = self._growth(one)
        return shown

    def _growth(self, one: Description) -> float | None:
        """Bytes a second that its log has grown by since the last look."""
        now = time.monotonic()
        with self._lock:
            before = self._ends.get(one.name)
            if before is None or now - before[0] > 1.0:
                self._ends[one.name] = (now, one.log_end)
            while len(self._ends) > _REMEMBERED:
                del self._ends[next(iter(self._ends))]
        return (one.log_end - before[1]) / (now - before[0]) if before and now > before[0] else None


async def _described(client: Client) -> list[Description]:
    async with AsyncClient(client.address, tls=client.tls, tokens=client.tokens) as there:
        return await about.describe_all(there)
