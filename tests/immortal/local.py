"""An immortal with its HTTP endpoint in a thread of the test; its log is in memory, so it can die and recover."""

from __future__ import annotations

import asyncio
import threading
import time

import msgspec
from tests.immortal.scripted import Scripted, pair
from tests.servers.ports import free_port

from penstock.immortal import Immortal
from penstock.immortal.binding.ingress import Ingress
from penstock.immortal.binding.machine import Machine
from penstock.immortal.binding.outside import Outside
from penstock.immortal.binding.shell import Shell
from penstock.immortal.wire import MessageType

PATIENCE = 60.0


class Local:
    """One instance."""

    def __init__(self, cls: type[Immortal], name: str, token: str) -> None:
        self._cls = cls
        self._name = name
        self._token = token
        self.port = free_port()
        self._log: list[bytes] = []
        self._blob: bytes | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop: asyncio.Event | None = None
        self.machine: Machine | None = None

    def start(self) -> None:
        ready = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(ready)), name=f"local {self._name}"
        )
        self._thread.start()
        assert ready.wait(PATIENCE), "it is not ready"

    async def _run(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()

        def serve(shell: Shell) -> asyncio.Task[None]:
            ingress = Ingress(shell, token=self._token)
            return asyncio.create_task(ingress.serve("127.0.0.1", self.port, lambda port: ready.set()))

        self.machine = Machine(self._cls, self._name, now=time.time, marks=False)
        async with pair(Shell(self.machine, on_primary=serve)) as (coordinator, _):
            await self._begin(coordinator)
            echoing = asyncio.create_task(self._echo(coordinator))
            await self._stop.wait()
            echoing.cancel()
            self._log = coordinator.log

    async def _begin(self, coordinator: Scripted) -> None:
        if self._blob is None:
            await coordinator.first_start()
            self._blob = coordinator.checkpoint
            return
        await coordinator.recover(self._blob, self._log, 0)
        coordinator.control(MessageType.TAKE_BECOMING_PRIMARY_CHECKPOINT)
        await coordinator.take_checkpoint()

    async def _echo(self, coordinator: Scripted) -> None:
        while True:
            await coordinator.log_what_comes()

    def kill(self) -> None:
        """All is gone but the log."""
        if self._thread is None:
            return
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE)
        self._thread = None

    def call(self, method: str, *arguments: object) -> object:
        outside = Outside(f"127.0.0.1:{self.port}", token=self._token)
        try:
            return outside.call(method, list(arguments))
        finally:
            outside.close()

    def state(self) -> dict[str, object]:
        outside = Outside(f"127.0.0.1:{self.port}", token=self._token)
        try:
            return msgspec.json.decode(outside.ask("GET", "/state"), type=dict[str, object])
        finally:
            outside.close()
