"""Checkpoints larger than memory would like: streamed both ways, whatever their size."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import xxhash
from tests.immortal.processes import REPOSITORY, broker
from tests.servers.ports import free_port

from penstock.immortal.wire import (
    Blob,
    CheckpointRecord,
    Record,
    RecordDecoder,
    checkpoint_message,
    initial_message,
)

PIECE = 1 << 20
BOUND = 400 << 20
"""Bytes of memory that a coordinator may have, whatever the checkpoint."""


def pieces(size: int) -> Iterator[bytes]:
    for number in range(0, size, PIECE):
        whole = number.to_bytes(8, "big") * (PIECE // 8)
        yield whole[: min(PIECE, size - number)]


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async with asyncio.timeout(60):
        while True:
            try:
                return await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.05)


class Life:
    """One life of a coordinator with a binding that has `size` bytes of state."""

    def __init__(self, place: str, size: int) -> None:
        self.ports = free_port(), free_port()
        self.size = size
        self.sum = xxhash.xxh64()
        self.loaded = 0
        self.peak = 0
        command = [sys.executable, "-m", "penstock", "immortal", "serve", "--name", "large", "--log", place]
        command += [
            "--receive-port",
            str(self.ports[0]),
            "--send-port",
            str(self.ports[1]),
            "--keep-checkpoints",
            "1",
        ]
        self.process = subprocess.Popen(command, cwd=REPOSITORY)

    async def until(self, record: str) -> None:
        _, writer = await connect(self.ports[0])
        reader, second = await connect(self.ports[1])
        decoder, process = RecordDecoder(), psutil.Process(self.process.pid)
        is_first = True
        try:
            while data := await reader.read(1 << 20):
                self.peak = max(self.peak, process.memory_info().rss)
                for event in decoder.feed(data):
                    if isinstance(event, CheckpointRecord):
                        is_first = False
                        assert event.length == self.size
                    elif isinstance(event, Blob):
                        self.sum.update(event.piece)
                        self.loaded += len(event.piece)
                    elif isinstance(event, Record) and event.sequence < 0:
                        if record == "control":
                            return
                        writer.write(initial_message(b"x") if is_first else b"")
                        writer.write(checkpoint_message(self.size))
                        for piece in pieces(self.size):
                            writer.write(piece)
                            await writer.drain()
                            self.peak = max(self.peak, process.memory_info().rss)
                    elif record == "record":
                        return
        finally:
            writer.close()
            second.close()
            with contextlib.suppress(psutil.Error):
                self.process.kill()
            self.process.wait()
        raise AssertionError("the coordinator ended")


@pytest.mark.soak
@pytest.mark.parametrize("size", [200_000_000, (4 << 30) + 12345], ids=["200 MB", "over 4 GiB"])
def test_a_large_checkpoint_is_streamed_in_and_out(tmp_path: Path, size: int) -> None:
    with broker(tmp_path) as place:
        first = Life(place, size)
        asyncio.run(first.until("record"))
        second = Life(place, size)
        asyncio.run(second.until("control"))
    expected = xxhash.xxh64()
    for piece in pieces(size):
        expected.update(piece)
    assert second.loaded == size
    assert second.sum.digest() == expected.digest()
    assert max(first.peak, second.peak) < BOUND
