"""Workers over a cluster of brokers, real processes over a real etcd: a broker dies, and the streams go on."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.connector.rig import Numbers, Rig, eventually, ids_of
from tests.connector.test_source import connector
from tests.journal.cluster.processes import Running, cluster, until

from penstock.connector.instancelog import ensure, journal_spec
from penstock.connector.source import stream_id
from penstock.journal.client import AsyncClient

pytestmark = pytest.mark.xdist_group("cluster")
COUNT = 3000
REPLICAS = 2


async def made(running: Running) -> list[str]:
    """The journal of the instance, with two replicas; its brokers, the primary first."""
    client = AsyncClient(running["a"].address)
    try:
        await ensure(client, journal_spec("connectors/i", "i", replication=REPLICAS, store="file:///"))
    finally:
        await client.close()
    return await asyncio.to_thread(running.settled, "connectors/i")


async def went_on(running: Running) -> None:
    """The primary dies under load: what was acknowledged is in the journal, and the rest comes behind it."""
    primary = (await made(running))[0]
    others = [name for name in running.brokers if name != primary]
    async with AsyncExitStack() as using:
        rigs = []
        for name in others:
            client = AsyncClient(running[name].address)
            using.push_async_callback(client.close)
            rigs.append(Rig(client, using, REPLICAS))
        workers = [await rig.worker(f"at {name}") for rig, name in zip(rigs, others, strict=True)]
        streams = [Numbers(f"s{n}", COUNT) for n in range(3)]
        for stream in streams:
            stream.gate = COUNT // 2
        running_connector = connector([worker.me.address for worker in workers], list(streams))
        serving = asyncio.create_task(running_connector.serve())
        await eventually(lambda: all(running_connector.acked.get(s.name) == COUNT // 2 for s in streams))
        await asyncio.to_thread(running[primary].kill)
        for stream in streams:
            stream.gate = COUNT
        await serving
        await asyncio.to_thread(until, lambda: primary not in running.members("connectors/i"))
        wanted = {stream_id(stream.name): list(range(1, COUNT + 1)) for stream in streams}
        for rig in rigs:
            assert ids_of(await rig.frames()) == wanted


@pytest.mark.timeout(300)
def test_a_worker_follows_the_primary_when_a_broker_is_killed(tmp_path: Path) -> None:
    with cluster(tmp_path / "cluster", "abc") as running:

        async def run() -> None:
            async with asyncio.timeout(240):
                await went_on(running)

        asyncio.run(run())
