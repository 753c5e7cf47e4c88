"""A program that stays has a broker for its data directory, whoever comes and goes beside it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

import penstock.journal.served
from penstock.base.disk import Disk
from penstock.journal.client import AsyncClient, BrokerGoneError
from penstock.journal.datadir import DataDir, Lock
from penstock.journal.embedded import EmbeddedBroker
from penstock.journal.served import Served, served
from penstock.log.commitlog import journal_spec

from .brokers import JOURNAL

OWNER = """
import sys, time
from pathlib import Path
from penstock.journal.embedded import EmbeddedBroker
with EmbeddedBroker(Path(sys.argv[1])):
    print("owned", flush=True)
    time.sleep(600)
"""

# A process of its own, as commands are: the two kinds of client that gRPC has disturb each other within one.
LOOKER = """
import sys, time
from contextlib import suppress
from pathlib import Path
from penstock.base.errors import PenstockError
from penstock.journal.embedded import connect
while True:
    with suppress(PenstockError), connect(Path(sys.argv[1])) as client:  # whom it asks may go meanwhile
        client.list()
        print("looked", flush=True)
        time.sleep(0.1)
    time.sleep(0.02)
"""


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(limited())


async def took(here: Served) -> None:
    while here.near() is None:  # noqa: ASYNC110 - another process brings it about
        await asyncio.sleep(0.02)


async def head(client: AsyncClient) -> int:
    """Where the journal ends, once its broker is back."""
    while True:
        try:
            return await client.head(JOURNAL)
        except BrokerGoneError:
            await asyncio.sleep(0.02)


def test_a_command_that_has_the_directory_for_a_moment_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(penstock.journal.served, "PATIENCE", 60.0)

    async def test() -> None:
        lock = Lock(DataDir(tmp_path), Disk())
        asyncio.get_running_loop().call_later(0.3, lock.release)
        async with served(tmp_path) as here:
            assert here.near() is not None

    run(test)


def test_commands_that_have_it_one_behind_the_other_do_not_keep_it_from_whoever_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a program that asks for the status every second does, or a test that looks how far things are."""
    monkeypatch.setattr(penstock.journal.served, "PATIENCE", 0.0)
    EmbeddedBroker(tmp_path).stop()
    looking = subprocess.Popen(
        [sys.executable, "-c", LOOKER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert looking.stdout is not None
    assert looking.stdout.readline() == "looked\n"

    async def test() -> None:
        async with served(tmp_path) as here, asyncio.timeout(penstock.journal.served.ABSENCE - 1):
            await took(here)

    try:
        run(test)
    finally:
        looking.kill()
        looking.communicate()


def test_an_owner_that_is_soon_back_finds_the_directory_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(penstock.journal.served, "PATIENCE", 0.0)

    async def test() -> None:
        broker = await asyncio.to_thread(EmbeddedBroker, tmp_path)
        async with served(tmp_path) as here, AsyncClient(here.address, near=here.near) as client:
            await client.create(journal_spec(JOURNAL, 8 << 20, {}))
            await asyncio.to_thread(broker.stop)
            await asyncio.sleep(0.5)
            again = await asyncio.to_thread(partial(EmbeddedBroker, tmp_path, patience=0.0))
            assert here.near() is None
            assert await head(client) == 0
            await asyncio.to_thread(again.stop)

    run(test)


def test_the_directory_is_taken_over_from_an_owner_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(penstock.journal.served, "PATIENCE", 0.0)
    monkeypatch.setattr(penstock.journal.served, "ABSENCE", 0.5)
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "owned\n"

        async def test() -> None:
            async with served(tmp_path) as here, AsyncClient(here.address, near=here.near) as client:
                await client.create(journal_spec(JOURNAL, 8 << 20, {}))
                await client.append(JOURNAL, b"before")
                owner.kill()
                await took(here)
                assert await head(client) == 6

        run(test)
    finally:
        owner.kill()
        owner.wait()


def test_it_is_let_go_at_the_end_whether_it_was_had_or_waited_for(tmp_path: Path) -> None:
    async def test() -> None:
        async with served(tmp_path) as first:
            assert first.near() is not None
            async with served(tmp_path) as second:
                assert second.near() is None
                assert second.address == first.address
        assert first.near() is None

    run(test)
    Lock(DataDir(tmp_path), Disk()).release()
