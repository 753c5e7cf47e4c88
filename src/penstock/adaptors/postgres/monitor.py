"""Looks at a replication slot every few seconds, in a thread with a connection of its own."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from penstock.adaptors.postgres.connection import Connection, Server
from penstock.adaptors.postgres.slot import gauges_of
from penstock.base.errors import PenstockError

SECONDS = 5.0


class Monitor:
    """`gauges` are as last seen; those of a server that is away stay as they were."""

    def __init__(self, server: Server, slot: str) -> None:
        self.gauges: Mapping[str, float] = {}
        self._server, self._slot = server, slot
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"penstock-{slot}-gauges", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        connection: Connection | None = None
        while True:
            try:
                connection = connection or self._server.connect()
                with self._server.telling("cannot look at the slot"):
                    self.gauges = gauges_of(connection, self._slot)
            except PenstockError:  # the reader of the stream tells it to whom it concerns
                if connection is not None:
                    connection.close()
                connection = None
            if self._closing.wait(SECONDS):
                break
        if connection is not None:
            connection.close()
