"""One instance at one worker: its log, its streams, the sessions that share it, and how it moves elsewhere."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from penstock.base import faults
from penstock.base.errors import PenstockError
from penstock.connector.instancelog import InstanceLog, OnDurable
from penstock.connector.intake import Run
from penstock.connector.registry import Registry

if TYPE_CHECKING:
    from penstock.connector.serving import Peer

log = logging.getLogger(__name__)

MAX_PENDING = 32 << 20
"""Bytes of all sessions of an instance that are not durable; above, each waits for its own."""

_PATIENCE = 5.0
"""Seconds that a log which is let go has for what is on its way; none if that has been waited for in vain."""


class Instance:
    """Opened once; when its log fails, or it has moved away, another takes its place."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.peers: set[Peer] = set()
        self.registry = Registry()
        self.leaving = ""
        """The address of the worker that it moves to, while it does."""
        self._log: InstanceLog | None = None
        self._quiet = asyncio.Event()

    def use(self, log: InstanceLog) -> None:
        self._log = log
        self.registry = Registry(dict(log.points))

    def messages(self, run: Run, on_durable: OnDurable) -> None:
        registry = self.registry

        def durable() -> None:
            registry.durable(run.lasts)
            on_durable()

        self._open.messages(run, durable)

    def free(self, stream: int) -> None:
        """Somebody asks for a stream that a session holds: the session ends if its peer is gone, and is not read."""
        holder = self.registry.held[stream].session
        for peer in self.peers:
            if peer.number == holder and peer.is_absent:
                peer.wire.cut()

    def partition_of(self, stream: int) -> int:
        return self._open.partition_of(stream)

    def has_room_for(self, stream: int, name: str) -> bool:
        return self._open.has_room_for(stream, name)

    def opened(self, stream: int, name: str) -> None:
        self._open.opened(stream, name)

    def ended(self, stream: int, on_durable: OnDurable) -> None:
        def durable() -> None:
            self.registry.has_ended(stream)
            on_durable()

        self._open.ended(stream, durable)

    @property
    def pending_bytes(self) -> int:
        return self._open.pending_bytes

    @property
    def is_full(self) -> bool:
        """Whether so much is on its way to the log that its sessions should wait."""
        return self.pending_bytes > MAX_PENDING

    async def flush(self) -> None:
        await self._open.flush()

    def settled(self) -> None:
        """A stream was let go, or closed."""
        if not self.registry.held:
            self._quiet.set()

    def restart_all(self, address: str = "") -> None:
        for peer in list(self.peers):
            peer.restart(address)

    async def move(self, address: str, patience: float) -> None:
        """Ask every session to go; those that have not closed their streams in time are sent away.

        On return all that they sent is durable, no stream is held, and the log is let go: another worker may claim it.
        """
        self.leaving = address
        self._quiet.clear()
        self.settled()
        for peer in list(self.peers):
            peer.migrate(address)
        try:
            async with asyncio.timeout(patience):
                await self._quiet.wait()
        except TimeoutError:
            log.warning("instance %s: sessions that did not close their streams are sent away", self.name)
            self.restart_all(self.leaving)  # by now that may be another address
        with faults.step("connector-let-go"):
            await self.close()

    async def hand_over(self, address: str, patience: float) -> None:
        """Make durable what came, acknowledge it, and send every session away, for this worker ends."""
        self.leaving = address
        try:
            async with asyncio.timeout(patience):
                await self.flush()
                await asyncio.sleep(0)  # what became durable is acknowledged in the next turn of the loop
        except (TimeoutError, PenstockError) as error:
            log.warning("instance %s: not all that came is durable: %s", self.name, error)
            self.restart_all(address)
            await self.close(patience=0)
        else:
            self.restart_all(address)
            await self.close()

    async def close(self, patience: float = _PATIENCE) -> None:
        if self._log is not None:
            try:
                async with asyncio.timeout(patience):
                    await self._log.flush()
            except (TimeoutError, PenstockError):
                log.info("instance %s: closed with messages on their way", self.name)
            await self._log.close()

    @property
    def _open(self) -> InstanceLog:
        assert self._log is not None
        return self._log
