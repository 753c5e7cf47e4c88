"""A disk without room under the journal: connectors wait or are asked to come again, nothing is lost or repeated."""

from __future__ import annotations

import asyncio
import errno
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.connector.rig import Numbers, Rig, eventually, ids_of
from tests.connector.test_source import connector
from tests.journal.brokers import HookedDisk

from penstock.connector.source import stream_id
from penstock.journal.client import AsyncClient
from penstock.journal.served import served

COUNT = 2000


class FullDisk(HookedDisk):
    """Has no room while `full`; counts what it refused."""

    def __init__(self) -> None:
        self.full = False
        self.refused = 0
        super().__init__(self._step)

    def _step(self, step: str, path: Path) -> None:
        if self.full and step in ("write", "sync"):
            self.refused += 1
            raise OSError(errno.ENOSPC, "No space left on device", str(path))


@pytest.mark.parametrize("outage_limit", [60.0, 0.3], ids=["waits it out", "gives up and comes again"])
def test_a_full_disk_holds_connectors_back_until_there_is_room(tmp_path: Path, outage_limit: float) -> None:
    disk = FullDisk()

    async def test(rig: Rig) -> None:
        worker = await rig.worker(credits=500, outage_limit=outage_limit)
        streams = [Numbers(f"s{n}", COUNT) for n in range(2)]
        for stream in streams:
            stream.gate = COUNT // 2
        running = connector([worker.me.address], list(streams))
        serving = asyncio.create_task(running.serve())
        await eventually(lambda: all(running.acked.get(s.name) == COUNT // 2 for s in streams))
        disk.full = True
        for stream in streams:
            stream.gate = COUNT
        await eventually(lambda: disk.refused >= 3)
        if outage_limit < 1:
            await eventually(lambda: worker.counters.rollbacks > 0)
        assert all(running.acked[s.name] == COUNT // 2 for s in streams), "acknowledged without room"
        assert worker.counters.messages <= COUNT + 500 * (1 + worker.counters.rollbacks)
        disk.full = False
        await serving
        wanted = {stream_id(s.name): list(range(1, COUNT + 1)) for s in streams}
        assert ids_of(await rig.frames()) == wanted

    async def run() -> None:
        async with asyncio.timeout(120), AsyncExitStack() as using:
            broker = await using.enter_async_context(served(tmp_path / "d", disk=disk))
            client = AsyncClient(broker.address, near=broker.near)
            using.push_async_callback(client.close)
            await test(Rig(client, using))

    asyncio.run(run())
