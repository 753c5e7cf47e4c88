"""A data directory that is moved, removed or replaced under the process that owns it."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.base.errors import PenstockError
from penstock.journal.client import BrokerGoneError, Client, JournalError
from penstock.journal.datadir import DisplacedError
from penstock.journal.embedded import EmbeddedBroker
from penstock.journal.protocol import Status
from penstock.journal.served import served
from penstock.log.journals import ensure, journal_spec

JOURNAL = "some/journal"
PATIENCE = 20.0


def moved(data: Path) -> None:
    data.rename(data.with_name("elsewhere"))


def moved_and_replaced(data: Path) -> None:
    shutil.copytree(data, data.with_name("copy"), ignore=shutil.ignore_patterns("*.sock"))
    moved(data)
    data.with_name("copy").rename(data)


def lock_removed(data: Path) -> None:
    (data / "LOCK").unlink()


def append_until_refused(client: Client) -> int:
    """How many bytes were acknowledged."""
    deadline = time.monotonic() + PATIENCE
    end = 0
    while time.monotonic() < deadline:
        try:
            end = client.append(JOURNAL, b"line\n").end
        except BrokerGoneError:
            return end
        except JournalError as error:  # it was on its way while the broker let its journals go
            if error.status != Status.NO_JOURNAL_PRIMARY_BROKER:
                raise
            return end
        time.sleep(0.02)
    pytest.fail("it goes on")


@pytest.mark.parametrize("displace", [moved, moved_and_replaced, lock_removed, shutil.rmtree])
def test_its_owner_takes_nothing_more_and_says_why(tmp_path: Path, displace: Callable[[Path], None]) -> None:
    data = tmp_path / "data"
    broker = EmbeddedBroker(data)
    with broker.client() as client:
        ensure(client, journal_spec(JOURNAL, 1 << 20, {}))
        client.append(JOURNAL, b"line\n")
        displace(data)
        end = append_until_refused(client)
    with pytest.raises(DisplacedError, match="was moved, removed or replaced"):
        broker.stop()
    if displace is moved:
        assert not (data / "spools").exists()
    left = {moved: tmp_path / "elsewhere", moved_and_replaced: tmp_path / "elsewhere", lock_removed: data}
    if displace in left:
        with EmbeddedBroker(left[displace]) as again, again.client() as client:
            assert client.head(JOURNAL) == end, "all that was acknowledged is there"


def test_nor_do_appends_without_a_socket_go_on(tmp_path: Path) -> None:
    async def own_it() -> None:
        async with served(tmp_path / "data") as here:
            assert here.near() is not None
            moved(tmp_path / "data")
            deadline = time.monotonic() + PATIENCE
            assert here._broker is not None
            while not here._broker._closed:
                assert time.monotonic() < deadline, "it goes on"
                await asyncio.sleep(0.05)

    with pytest.raises(PenstockError, match="was moved, removed or replaced"):
        asyncio.run(own_it())


def test_a_directory_that_stays_is_served_on(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (tmp_path / "link").symlink_to(data)
    with EmbeddedBroker(tmp_path / "link") as broker, broker.client() as client:
        ensure(client, journal_spec(JOURNAL, 1 << 20, {}))
        time.sleep(2.5)  # longer than two looks
        assert client.append(JOURNAL, b"line\n").end == 5
