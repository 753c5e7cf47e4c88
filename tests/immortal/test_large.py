"""Checkpoints larger than memory would like: streamed both ways, whatever their size."""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import xxhash
from tests.immortal.apps import PAGE
from tests.immortal.logs import checkpoints_of
from tests.immortal.pairs import Pair
from tests.immortal.processes import REPOSITORY, broker, until
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


def wait_for_checkpoint(place: str, name: str, number: int) -> None:
    until(
        lambda: [one.number for one in checkpoints_of(place, name)][-1:] == [number],
        f"checkpoint {number}",
        600,
    )


def peak(pid: int) -> int:
    """The most memory that a process had so far."""
    [found] = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found) << 10


@pytest.mark.soak
def test_a_large_state_is_written_and_read_by_hooks_in_pieces(tmp_path: Path) -> None:
    pages = (4 << 30) // PAGE + 1
    with broker(tmp_path) as place:
        archive = Pair(place, tmp_path, "archive", "Archive", "--keep-checkpoints", "1")
        try:
            for life in (1, 2):
                archive.start(ARCHIVE_PAGES=str(pages))
                wait_for_checkpoint(place, "archive", life)
                coordinator, binding = archive.coordinator, archive.process
                assert coordinator is not None
                assert binding is not None
                assert max(peak(coordinator.pid), peak(binding.pid)) < BOUND
                archive.kill("both")
            archive.start(ARCHIVE_PAGES="0")
            archive.wait_for("read", pages)
        finally:
            archive.stop()


@pytest.mark.soak
def test_a_large_declared_state_needs_no_second_copy_of_itself(tmp_path: Path) -> None:
    pages = 800
    with broker(tmp_path) as place:
        vault = Pair(place, tmp_path, "vault", "Vault", "--keep-checkpoints", "1")
        try:
            for life in (
                1,
                2,
                3,
            ):  # the first checkpoint is empty, the second written, the third read and written
                vault.start(ARCHIVE_PAGES=str(pages))
                wait_for_checkpoint(place, "vault", life)
                coordinator, binding = vault.coordinator, vault.process
                assert coordinator is not None
                assert binding is not None
                assert peak(coordinator.pid) < BOUND
                assert peak(binding.pid) < pages * PAGE + BOUND
                vault.kill("both")
            vault.start(ARCHIVE_PAGES=str(pages))
            until(
                lambda: vault.ask(lambda outside: outside.call("whole", [])) == pages,
                "all pages as they were",
                600,
            )
        finally:
            vault.stop()
