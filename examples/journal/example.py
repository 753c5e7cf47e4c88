"""A journal in a temporary directory: written in batches, read as it grows, taken over by a new owner.

    python example.py

The broker runs in a thread of this process, and the client reaches it by its socket. With `http://HOST:PORT`, the
address of a `penstock broker serve`, in place of the socket's the rest is the same.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from penstock.journal.client import Appender, AsyncClient, FencedError, Ownership, claim
from penstock.journal.embedded import EmbeddedBroker
from penstock.journal.fragment import Codec
from penstock.journal.protocol import JournalSpec

JOURNAL = "sensors/attic"
READINGS = 20_000


def spec(name: str) -> JournalSpec:
    """Fragments of a mebibyte, kept as they are in the broker's own directory."""
    journal = JournalSpec(name=name, replication=1)
    journal.fragment.length = 1 << 20
    journal.fragment.compression_codec = Codec.NONE.to_proto()
    journal.fragment.stores.append("file:///")
    journal.fragment.refresh_interval.FromSeconds(300)
    return journal


async def write(client: AsyncClient, owner: Ownership) -> None:
    """Many small records in few appends. When the block ends all of them are durable: once each, in order."""
    async with Appender(client, JOURNAL, owner=owner, max_batch_bytes=64 << 10) as appender:
        for number in range(READINGS):
            appender.add(b'{"reading":%d}\n' % number)
            await appender.ready()
        landed = await appender.append(b'{"done":true}\n')
    print(f"written: {appender.committed} records, durable up to offset {landed.end}")


async def follow(client: AsyncClient, begin: int) -> int:
    """Read along while somebody writes. Chunks end anywhere, so lines are put together here."""
    lines, rest = 0, b""
    async with client.read(JOURNAL, begin, block=True) as reader:
        async for _, chunk in reader:
            rest += chunk
            lines += rest.count(b"\n")
            if rest.endswith(b'{"done":true}\n'):
                break
            rest = rest[rest.rfind(b"\n") + 1 :]
    return lines


async def main(address: str) -> None:
    async with AsyncClient(address) as client:
        await client.create(spec(JOURNAL))
        monday = await claim(client, JOURNAL, "monday", b'{"owner":"monday"}\n')
        read, _ = await asyncio.gather(follow(client, monday.end), write(client, monday))
        print(f"read:    {read} records, while they were written")

        tuesday = await claim(client, JOURNAL, "tuesday", b'{"owner":"tuesday"}\n')
        try:
            await monday.append(b'{"reading":"too late"}\n')
        except FencedError as error:
            print(f"refused: {error}")
        landed = await tuesday.append(b'{"reading":0}\n')
        tail = await client.read_bytes(JOURNAL, tuesday.claimed_at, landed.end)
        print(f"the end: {tail.decode().splitlines()}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder)) as broker:
        asyncio.run(main(broker.address))
