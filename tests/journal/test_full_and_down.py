"""A full disk, and a store that is down: clear errors, nothing acknowledged lost, and all is well again by itself.

The disk is full at each kind of step in turn, and for real in a small file system of its own where the kernel lets
us have one. The store is an S3 server that is killed and started again, or a directory that goes and comes back.
"""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from tests.mounting import may_mount

from penstock.base.disk import Disk
from penstock.base.errors import PenstockError
from penstock.journal import stored
from penstock.journal.broker import Broker, BrokerOptions
from penstock.journal.datadir import DataDir
from penstock.journal.fragment import Codec
from penstock.journal.health import Pace
from penstock.journal.protocol import (
    AppendRequest,
    ApplyRequest,
    FragmentStoreHealthRequest,
    ReadRequest,
    RollRequest,
    Status,
)
from penstock.journal.replica import InStore
from penstock.journal.server import _metrics
from penstock.log.commitlog import journal_spec

from .brokers import (
    CLAIMS,
    JOURNAL,
    HookedDisk,
    append,
    applied,
    content,
    create,
    in_loop,
    listed,
    opened,
    persisted,
    read,
    replica,
    stream,
    until,
)
from .s3 import S3Server, aws_environment, s3_server

STEPS = ("write", "sync", "open", "make_dir", "sync_dir", "rename", "remove")
NO_ROOM = "No space left"


def full_at(step: str) -> Callable[[str, Path], None]:
    def fail(taken: str, path: Path) -> None:
        if taken == step:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    return fail


def room(step: str, path: Path) -> None:
    """No step fails."""


async def error_of(attempt: Awaitable[object]) -> str:
    """What an attempt failed with; "" if it did not."""
    try:
        await attempt
    except (OSError, PenstockError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("before", [0, 1, 3])
def test_appends_that_find_the_disk_full_fail_and_go_on_once_there_is_room(
    tmp_path: Path, step: str, before: int
) -> None:
    """Whatever step has no room, at the first append of a journal, within a fragment, and where one closes."""

    async def test() -> None:
        expected = b""
        async with opened(tmp_path / "data", disk := HookedDisk()) as broker:
            for cycle in range(3):
                for number in range(before):
                    await append(
                        broker,
                        piece := b"%d%d" % (cycle, number) * 250,
                        registers={"last": f"{cycle}-{number}"},
                    )
                    expected += piece
                disk.before = full_at(step)
                for _ in range(3):
                    error = await error_of(append(broker, piece := b"full" * 100, registers={"last": "full"}))
                    if error:
                        assert NO_ROOM in error
                        assert str(tmp_path) in error
                    else:
                        expected += piece  # it did not need the step
                    assert await content(broker) == expected
                disk.before = room
                await append(broker, b"after", registers={"last": f"after {cycle}"})
                expected += b"after"
                assert await content(broker) == expected
            await persisted(broker)
        async with opened(tmp_path / "data") as broker:
            assert await content(broker) == expected
            values = [label.value for label in replica(broker).spool.registers.labels if label.name == "last"]
            assert "after 2" in values

    in_loop(test)


@pytest.mark.parametrize("step", ["write", "sync"])
def test_changes_of_journals_that_find_the_disk_full_fail_and_go_on_once_there_is_room(
    tmp_path: Path, step: str
) -> None:
    async def test() -> None:
        async with opened(tmp_path / "data", disk := HookedDisk()) as broker:
            for number in range(3):
                disk.before = full_at(step)
                for _ in range(2):
                    with pytest.raises(OSError, match=NO_ROOM):
                        await create(broker, f"b/refused-{number}")
                assert broker.resolver.spec(f"b/refused-{number}") is None
                disk.before = room
                await create(broker, f"b/made-{number}")
            revision = broker._keyspace.revision
        async with opened(tmp_path / "data") as broker:
            names = [name for name, _ in broker.topology.journals()]
            assert names == [JOURNAL, "b/made-0", "b/made-1", "b/made-2"]
            assert broker._keyspace.revision >= revision

    in_loop(test)


def test_an_append_that_was_given_up_is_not_acknowledged_by_a_later_commit(tmp_path: Path) -> None:
    """Two appends on one stream of calls: the first fails with the disk, the second has room."""

    async def test() -> None:
        async with opened(tmp_path / "data", disk := HookedDisk()) as broker:
            await append(broker, b"before")
            local = replica(broker).local
            disk.before = full_at("sync")
            await local.ready()
            local.content(b"lost")
            lost = local.adopt(local.registers)
            with pytest.raises(PenstockError, match=NO_ROOM):
                await local.durable(lost)
            disk.before = room
            assert await append(broker, b"after") == (6, 11)
            with pytest.raises(PenstockError, match="given up"):
                await local.durable(lost)

    in_loop(test)


def test_a_roll_that_failed_after_it_had_made_a_file_costs_nothing_that_came_later(tmp_path: Path) -> None:
    """The old file goes on; when both are found after a restart, the one that knows more is believed."""

    async def test() -> None:
        async with opened(tmp_path / "data", disk := HookedDisk()) as broker:
            await append(broker, b"before", registers={"last": "before"})
            disk.before = lambda step, path: full_at("sync_dir")(step if path.name == "#" else "", path)
            with pytest.raises(OSError, match=NO_ROOM):
                await broker.roll(RollRequest(journal=JOURNAL), CLAIMS)
            disk.before = room
            await append(broker, b"after", registers={"last": "after"})
            folder = replica(broker).local.path
            assert folder is not None
            assert len(list(folder.parent.glob("*.spool"))) == 2
        async with opened(tmp_path / "data") as broker:
            assert await content(broker) == b"beforeafter"
            assert await append(broker, b"!") == (11, 12)
            assert "after" in [label.value for label in replica(broker).spool.registers.labels]

    in_loop(test)


FILLED = """
import errno, json, os, resource, sys
from pathlib import Path
from penstock.base.errors import PenstockError
from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker
from penstock.log.commitlog import journal_spec

root, way = Path(sys.argv[1]), sys.argv[2]
ballast = root / "ballast"
errors, acknowledged = [], b""
if way == "mount":
    ballast.write_bytes(bytes(1 << 20))

def make_room():
    if way == "mount":
        ballast.unlink()
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

with EmbeddedBroker(root / "data") as broker, Client(broker.address) as client:
    client.create(journal_spec("a/journal", 64 << 20, {}))
    if way == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, resource.RLIM_INFINITY))
    def append(number):
        global acknowledged
        piece = (b"%06d\\n" % number) * 9000
        try:
            client.append("a/journal", piece)
        except PenstockError as error:
            errors.append(str(error))
            return False
        acknowledged += piece
        return True
    number = 0
    while append(number):
        number += 1
    append(number), append(number)
    if way == "mount":
        try:
            while True:
                client.create(journal_spec(f"b/full-{len(errors)}", 1024, {"filling": "y" * 1000}))
                errors.append("")
        except PenstockError as error:
            errors.append(str(error))
    readable = client.read_bytes("a/journal", 0, 0) == acknowledged
    make_room()
    after = [append(number + 1), append(number + 2)]
    made = client.create(journal_spec("b/after", 1024, {}))
    readable = readable and client.read_bytes("a/journal", 0, 0) == acknowledged
with EmbeddedBroker(root / "data") as broker, Client(broker.address) as client:
    kept = client.read_bytes("a/journal", 0, 0) == acknowledged
    names = [found.spec.name for found in client.list()]
print(json.dumps({"errors": [e for e in errors if e], "readable": readable, "after": after, "made": made,
                  "kept": kept, "size": len(acknowledged), "listed": "b/after" in names}))
"""


def filled(way: str, *command: str) -> dict[str, object]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{way}: {done.stderr[-2000:]}"
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize("way", ["mount", "limit"])
def test_a_disk_that_is_really_full(tmp_path: Path, way: str) -> None:
    """In a file system of 4 MiB, and with files that must not grow beyond 3."""
    script = [sys.executable, "-c", FILLED, str(tmp_path), way]
    if way == "limit":
        result = filled(way, *script)
    elif may_mount():
        mount = 'mount -t tmpfs -o size=4m tmpfs "$1" && shift && exec "$@"'
        result = filled(way, "unshare", "-rm", "sh", "-c", mount, "sh", str(tmp_path), *script)
    else:
        pytest.skip("no file system of our own may be mounted here; the other way is tested")
    wanted = NO_ROOM if way == "mount" else "File too large"
    errors = result.pop("errors")
    assert isinstance(errors, list)
    assert len(errors) == (4 if way == "mount" else 3)
    assert all(wanted in error for error in errors), errors
    assert isinstance(size := result.pop("size"), int)
    assert size > 1 << 20
    assert result.pop("after") == [True, True]
    assert set(result.values()) == {True}, result


@asynccontextmanager
async def brokered(path: Path, **options: object) -> AsyncIterator[Broker]:
    """A broker that checks its stores soon again when they fail."""
    directory = DataDir(path)
    broker = Broker(
        directory,
        directory.create(Disk()),
        Disk(),
        BrokerOptions(pulse_interval=3600, **options),  # type: ignore[arg-type]
    )
    broker.stores._pace = Pace(failing=(0.05,), timeout=5.0)
    try:
        yield broker
    finally:
        await broker.close()


async def make(broker: Broker, name: str, codec: Codec, store: str) -> None:
    spec = journal_spec(name, 1 << 20, {})
    spec.fragment.compression_codec = codec.to_proto()
    spec.fragment.stores[:] = [store]
    await applied(broker, ApplyRequest.Change(expect_mod_revision=-1, upsert=spec))


async def rolled(broker: Broker, name: str) -> None:
    response = await broker.roll(RollRequest(journal=name), CLAIMS)
    assert response.status == Status.OK


async def status_of_append(broker: Broker, name: str) -> tuple[int, str]:
    response = await broker.append(chained(AppendRequest(journal=name), b"refused"), CLAIMS)
    return response.status, response.store_health_error


async def chained(first: AppendRequest, *chunks: bytes) -> AsyncIterator[AppendRequest]:
    yield first
    async for request in stream(*chunks):
        yield request


def check_again(broker: Broker, url: str) -> None:
    """Have the store checked now, as it would be some day."""
    watch = broker.stores._entries[url].watch
    assert watch is not None
    watch.start_over()


def metric(broker: Broker, name: str) -> float:
    lines = [line for line in _metrics(broker).decode().splitlines() if line.startswith(name)]
    return float(lines[0].rsplit(" ", 1)[1])


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "_RETRY_DELAYS", (0.1,))


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with aws_environment(), s3_server() as server:
        yield server


CODECS = {
    f"c/{codec.name.lower()}": codec for codec in (Codec.NONE, Codec.GZIP, Codec.ZSTANDARD, Codec.SNAPPY)
}


def written(name: str, number: int) -> bytes:
    return f"{name} {number};".encode() * 2000


async def go_on_while_down(broker: Broker, url: str) -> None:
    """Appends are taken, fragments pile up, what is local is read, and the numbers tell."""
    for name in CODECS:
        for number in range(1, 3):
            await append(broker, written(name, number), name)
            await rolled(broker, name)
        assert await content(broker, name) == b"".join(written(name, number) for number in range(3))
        assert len(replica(broker, name).unpersisted) == 2
    assert metric(broker, "penstock_unpersisted_fragments") == 2 * len(CODECS)
    await until(lambda: any(key[2] == "error" for key in broker.metrics.store_operations))
    check_again(broker, url)
    await until(lambda: broker.stores.known() == [(url, False)])
    assert metric(broker, "penstock_store_healthy") == 0
    status, why = await status_of_append(broker, "c/none")
    assert status == Status.FRAGMENT_STORE_UNHEALTHY
    assert why
    health = await broker.fragment_store_health(FragmentStoreHealthRequest(fragment_store=url), CLAIMS)
    assert health.status == Status.FRAGMENT_STORE_UNHEALTHY


async def be_well_again(broker: Broker, url: str) -> None:
    """Without a restart: the store is healthy, appends are taken, everything is uploaded, spools are gone."""
    await until(lambda: broker.stores.known() == [(url, True)])
    for name in CODECS:
        await append(broker, written(name, 3), name)
        await rolled(broker, name)
        await persisted(broker, name)
        assert not replica(broker, name).unpersisted
    assert metric(broker, "penstock_unpersisted_fragments") == 0
    assert metric(broker, "penstock_store_healthy") == 1


async def read_back(broker: Broker, first: int) -> None:
    for name, codec in CODECS.items():
        await listed(broker, name)
        places = [(entry.fragment, entry.payload) for entry in replica(broker, name).index]
        assert all(isinstance(place, InStore) and fragment.codec is codec for fragment, place in places)
        answers = await read(broker, ReadRequest(journal=name, offset=places[0][0].begin))
        found = b"".join(answer.content for answer in answers)
        assert found == b"".join(written(name, number) for number in range(first, 4))


@pytest.mark.usefixtures("impatient")
@pytest.mark.soak
def test_an_s3_store_that_is_down_holds_nobody_up_and_loses_nothing(tmp_path: Path, s3: S3Server) -> None:
    url = s3.store_url("down/")

    async def test() -> None:
        async with brokered(tmp_path / "data") as broker:
            for name, codec in CODECS.items():
                await make(broker, name, codec, url)
                await append(broker, written(name, 0), name)
            s3.kill()
            await go_on_while_down(broker, url)
            s3.start()
            await be_well_again(broker, url)
            await read_back(broker, 0)
        shutil.rmtree(tmp_path / "data" / "spools")
        async with brokered(tmp_path / "data") as broker:
            await read_back(broker, 0)

    in_loop(test)


@pytest.mark.usefixtures("impatient")
def test_a_store_directory_that_is_gone_holds_nobody_up_and_loses_nothing(tmp_path: Path) -> None:
    (root := tmp_path / "root").mkdir()
    (store := root / "store").mkdir()

    async def test() -> None:
        async with brokered(tmp_path / "data", file_root=root) as broker:
            for name, codec in CODECS.items():
                await make(broker, name, codec, "file:///store/")
                await append(broker, written(name, 0), name)
                await rolled(broker, name)
                await persisted(broker, name)
            store.rename(root / "away")
            await go_on_while_down_with_the_first_away(broker)
            (root / "away").rename(store)
            await be_well_again(broker, "file:///store/")
            await read_back(broker, 0)
        shutil.rmtree(tmp_path / "data" / "spools")
        async with brokered(tmp_path / "data", file_root=root) as broker:
            await read_back(broker, 0)

    async def go_on_while_down_with_the_first_away(broker: Broker) -> None:
        for name in CODECS:
            for number in range(1, 3):
                await append(broker, written(name, number), name)
            await rolled(broker, name)
            await replica(broker, name).refresh()
            assert replica(broker, name).index.begin == 0, "a listing that failed has emptied the index"
            with suppress(FileNotFoundError):
                await content(broker, name)
            [answer, *_] = await read(
                broker, ReadRequest(journal=name, offset=len(written(name, 0)), metadata_only=True)
            )
            assert answer.status == Status.OK
        assert not store.exists()
        check_again(broker, "file:///store/")
        await until(lambda: broker.stores.known() == [("file:///store/", False)])
        status, why = await status_of_append(broker, "c/none")
        assert (status, "store" in why) == (Status.FRAGMENT_STORE_UNHEALTHY, True)

    in_loop(test)
