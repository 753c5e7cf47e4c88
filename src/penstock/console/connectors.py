"""Connectors for the page: workers, their sessions, how far each stream is, as `penstock connector status` tells."""

from __future__ import annotations

import asyncio

import msgspec

from penstock.base.secrets import mask
from penstock.connector.status import WorkerStatus, survey
from penstock.console.reaching import Reaching
from penstock.console.remembered import Remembered
from penstock.console.views import Json
from penstock.journal.client import AsyncClient, Client

PREFIX = "connectors"
"""Where workers keep their journals unless told otherwise."""
_MOST = 1000


class Connectors:
    """May be used by several threads."""

    def __init__(self, reaching: Reaching) -> None:
        self._listed = Remembered(reaching)

    def list(self) -> Json:
        """All workers."""
        return self._listed.get(lambda directory: _read(directory.client))


def _read(client: Client) -> Json:
    return {"workers": [_told(one) for one in asyncio.run(_asked(client))]}


def _told(one: WorkerStatus) -> Json:
    shown: Json = msgspec.to_builtins(one)
    return {
        **shown,
        "sessions": msgspec.to_builtins(one.sessions[:_MOST]),
        "streams": msgspec.to_builtins(one.streams[:_MOST]),
        "stream_count": len(one.streams),
        "recent": [mask(text) for text in one.recent[-20:]],
    }


async def _asked(client: Client) -> list[WorkerStatus]:
    async with AsyncClient(client.address, tls=client.tls, tokens=client.tokens) as there:
        return list(await survey(there, PREFIX))
