"""A read-only journal is a view of a store that another cluster writes: read, never written to, never deleted from."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration
from tests.mounting import may_mount

from penstock.base.disk import Disk
from penstock.journal import maintenance
from penstock.journal.broker import Broker, BrokerOptions
from penstock.journal.datadir import DataDir
from penstock.journal.protocol import (
    AppendRequest,
    ApplyRequest,
    FragmentsRequest,
    FragmentStoreHealthRequest,
    JournalSpec,
    ReadRequest,
    RollRequest,
    Status,
    TrimRequest,
)
from penstock.log.commitlog import journal_spec

from .brokers import (
    CLAIMS,
    JOURNAL,
    append,
    applied,
    content,
    in_loop,
    listed,
    opened,
    persisted,
    read,
    replica,
    until,
)

READ_ONLY = JournalSpec.O_RDONLY
Seen = dict[str, tuple[int, int, bytes]]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """What the other cluster has written: two fragments, the first of them old."""

    async def test() -> None:
        await write_elsewhere(tmp_path, b"one;", b"two;")

    in_loop(test)
    root = tmp_path / "other" / "fragments"
    for file in root.rglob("*-*"):
        os.utime(file, (1_000_000_000, 1_000_000_000))
    return root


async def write_elsewhere(tmp_path: Path, *pieces: bytes) -> None:
    """The other cluster appends; each piece is a fragment in the store when it returns."""
    async with opened(tmp_path / "other") as broker:
        for piece in pieces:
            await append(broker, piece)
            await broker.roll(RollRequest(journal=JOURNAL), CLAIMS)
        await persisted(broker)


def view(*, labelled: bool = False) -> ApplyRequest.Change:
    """The journal as we have it; its retention is over for everything in the store."""
    labels = {maintenance.RETENTION: maintenance.ENFORCED} if labelled else {}
    spec = journal_spec(JOURNAL, 1024, labels)
    spec.flags = READ_ONLY
    spec.fragment.refresh_interval.CopyFrom(Duration(seconds=1))
    spec.fragment.retention.CopyFrom(Duration(seconds=1))
    return ApplyRequest.Change(expect_mod_revision=-1, upsert=spec)


@asynccontextmanager
async def viewing(
    tmp_path: Path, store: Path, *, labelled: bool = False, **options: object
) -> AsyncIterator[Broker]:
    directory = DataDir(tmp_path / "ours")
    options = {"pulse_interval": 3600, **options}
    broker = Broker(
        directory,
        directory.create(Disk()),
        Disk(),
        BrokerOptions(file_root=store, **options),  # type: ignore[arg-type]
    )
    try:
        await applied(broker, view(labelled=labelled))
        await listed(broker)
        yield broker
    finally:
        await broker.close()


def everything_in(root: Path) -> Seen:
    """Each file and folder: its times and content."""
    return {
        str(path.relative_to(root)): (
            path.stat().st_mtime_ns,
            path.stat().st_ctime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in [root, *sorted(root.rglob("*"))]
    }


@contextmanager
def untouched(root: Path) -> Iterator[None]:
    before = everything_in(root)
    yield
    assert everything_in(root) == before


async def use(broker: Broker) -> None:
    """Everything that would write to, or delete from, the store of a journal of our own."""
    assert await content(broker) == b"one;two;"
    assert await append(broker, b"") == (8, 8)  # a barrier
    for request in (
        AppendRequest(journal=JOURNAL, content=b"x"),
        AppendRequest(journal=JOURNAL, content=b"x", offset=8),
    ):
        assert (await broker.append_whole(request, CLAIMS)).status == Status.NOT_ALLOWED
    await maintenance.pulse(JOURNAL, broker._appending, CLAIMS, suspend=False)
    assert (await broker.trim(TrimRequest(journal=JOURNAL, offset=8), CLAIMS)).status == Status.NOT_ALLOWED
    asked = FragmentStoreHealthRequest(fragment_store="file:///")
    assert (await broker.fragment_store_health(asked, CLAIMS)).status == Status.OK  # by a listing
    asked.check_delete = True
    refused = await broker.fragment_store_health(asked, CLAIMS)
    assert (refused.status, "never written" in refused.store_health_error) == (
        Status.FRAGMENT_STORE_UNHEALTHY,
        True,
    )
    await broker._refresh(JOURNAL)
    await broker._pulse(JOURNAL)
    assert await content(broker) == b"one;two;"
    assert replica(broker).trimmed == 0


def test_nothing_in_the_store_changes(tmp_path: Path, store: Path) -> None:
    """Not even by retention that is over, with the label that has it enforced; nor by a restart."""

    async def test() -> None:
        with untouched(store):
            for _ in range(2):
                async with viewing(tmp_path, store, labelled=True) as broker:
                    await use(broker)

    in_loop(test)


def test_a_store_without_permission_to_write_will_do(tmp_path: Path, store: Path) -> None:
    folders = [store, *(path for path in store.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o500)

    async def test() -> None:
        async with viewing(tmp_path, store, labelled=True) as broker:
            await use(broker)

    try:
        with untouched(store):
            in_loop(test)
    finally:
        for folder in folders:
            folder.chmod(0o700)


def test_what_the_other_cluster_writes_appears_after_a_refresh(tmp_path: Path, store: Path) -> None:
    async def test() -> None:
        async with viewing(tmp_path, store) as broker:
            waiting = asyncio.create_task(first_content(broker, 8))
            await write_elsewhere(tmp_path, b"three;")
            assert await waiting == b"three;"
            assert await content(broker) == b"one;two;three;"
            assert await append(broker, b"") == (14, 14)
            [answer, *_] = await read(broker, ReadRequest(journal=JOURNAL, offset=-1))
            assert answer.write_head == 14

    async def first_content(broker: Broker, offset: int) -> bytes:
        async for response in broker.read(ReadRequest(journal=JOURNAL, offset=offset, block=True), CLAIMS):
            if response.content:
                return response.content
        raise AssertionError("the read ended")

    in_loop(test)


def test_pulses_and_barriers_go_on_under_load_of_readers(tmp_path: Path, store: Path) -> None:
    async def test() -> None:
        with untouched(store):
            async with viewing(tmp_path, store, pulse_interval=0.01) as broker:
                done = await asyncio.gather(
                    *(content(broker) for _ in range(20)), *(append(broker, b"") for _ in range(20))
                )
                assert done == [b"one;two;"] * 20 + [(8, 8)] * 20
                assert not replica(broker).listing_error

    in_loop(test)


def test_fragments_are_listed_and_no_spool_is_made(tmp_path: Path, store: Path) -> None:
    async def test() -> None:
        async with viewing(tmp_path, store) as broker:
            await use(broker)
            answer = await broker.list_fragments(FragmentsRequest(journal=JOURNAL), CLAIMS)
            assert [(found.spec.begin, found.spec.end) for found in answer.fragments] == [(0, 4), (4, 8)]
        assert not list((tmp_path / "ours" / "spools").rglob("*.spool"))

    in_loop(test)


def test_spools_from_before_a_journal_became_read_only_are_kept_and_not_stored(
    tmp_path: Path, store: Path
) -> None:
    """They are stored if it becomes writable again."""

    async def test() -> None:
        own = tmp_path / "own"
        async with opened(own) as broker:
            await append(broker, b"ours")
            await applied(broker, view())
            rolled = await broker.roll(RollRequest(journal=JOURNAL), CLAIMS)
            with untouched(own / "fragments"):
                assert rolled.status in (Status.OK, Status.NOT_ALLOWED)
                assert await content(broker) == b"ours"
                await asyncio.sleep(0.05)
        async with opened(own) as broker:  # which makes it writable again
            await broker.roll(RollRequest(journal=JOURNAL), CLAIMS)
            await persisted(broker)
            await until(lambda: bool(list((own / "fragments").rglob("*-*"))))
            assert await content(broker) == b"ours"

    in_loop(test)


def test_a_store_that_is_watched_from_the_start_is_only_listed(tmp_path: Path, store: Path) -> None:
    async def test() -> None:
        async with viewing(tmp_path, store):
            pass
        with untouched(store):
            async with viewing(tmp_path, store, stores=("file:///",)) as broker:
                await broker.announce("http://localhost:1")
                await until(lambda: broker.stores.known() == [("file:///", True)])

    in_loop(test)


MOUNTED = """
import sys
from pathlib import Path
from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker
from tests.journal.test_read_only import JOURNAL, view

store, data = Path(sys.argv[1]), Path(sys.argv[2])
try:
    (store / "x").touch()
except OSError:
    pass
else:
    raise SystemExit("the store can be written to")
with EmbeddedBroker(data) as broker, Client(broker.address) as client:
    client.apply([view(labelled=True)])
    assert client.read_bytes(JOURNAL, 0, 0) == b"one;two;"
    assert client.append(JOURNAL, b"").end == 8
    assert client.store_health("file:///") == ""
print("read")
"""


def test_a_store_on_a_read_only_mount_will_do(tmp_path: Path, store: Path) -> None:
    """Even root cannot write there; as a user one has at most the right to read."""
    if not may_mount():
        pytest.skip("nothing may be mounted here; the test without permission does for users")
    DataDir(tmp_path / "ours").create(Disk())
    (fragments := tmp_path / "ours" / "fragments").mkdir()
    mount = 'mount --bind "$1" "$2" && mount -o remount,bind,ro "$2" && shift 2 && exec "$@"'
    script = [sys.executable, "-c", MOUNTED, str(fragments), str(tmp_path / "ours")]
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mount, "sh", str(store), str(fragments), *script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout == "read\n", done.stderr
